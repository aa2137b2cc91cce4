"""Opens a table by its format, without Spark: only this module chooses a format."""

from collections.abc import Mapping

from sparkwal.errors import ConfirmError, PlanError, TableReadError
from sparkwal.format.lifecycle_record import Target
from sparkwal.lifecycle.delta.reader import DeltaReader
from sparkwal.lifecycle.table import ReadTable, TableState
from sparkwal.lifecycle.targets import check_place
from sparkwal.options.store import StoreOptions


def open_table(
    target: Target, options: StoreOptions, storage: Mapping[str, str] | None = None
) -> ReadTable:
    """Open a table that is only read.

    Args:
        target: the table.
        options: the options of the log.
        storage: the options of the table's store, if it is another than that of the log.

    Raises:
        OptionError: as `check_place`.
    """
    check_place(target.table, options)
    return DeltaReader(target, options, storage)


class CheckedTable:
    """A `Table` that is only read: a collection checks that it still holds its ranges."""

    # Only a compaction and a reader of newer rows need them.
    tombstones = None

    def __init__(self, target: Target, options: StoreOptions) -> None:
        self.target = target
        self._table = open_table(target, options)

    def snapshot(self, log_id: str, since: int | None, k: int | None = None) -> TableState | None:
        """Read the newest snapshot. See `Snapshots.snapshot`."""
        try:
            return self._table.snapshot(log_id, since, k)
        except TableReadError as error:
            raise ConfirmError(str(error)) from error

    def prepare(self, *_: object, **__: object) -> None:
        """Refuse, because only Spark writes a table.

        Raises:
            PlanError: always.
        """
        raise PlanError(f"{self.target.table} is opened without Spark, and only Spark can write it")

    write = burn = check_rows = prepare

    def held(self, *_: object) -> None:
        """Refuse, because only a run that writes a table accepts it."""
        self.prepare()
