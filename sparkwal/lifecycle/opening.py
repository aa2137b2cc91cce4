"""Checks a table's place and target, and opens it by its format without Spark.

Only this module chooses a format.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from sparkwal.errors import ConfirmError, OptionError, PlanError, TableReadError
from sparkwal.format.keys import sequencers_prefix
from sparkwal.format.lifecycle_record import Target
from sparkwal.lifecycle.delta.live_files import DeltaObjects
from sparkwal.lifecycle.delta.reader import DeltaReader
from sparkwal.lifecycle.folder import Folder
from sparkwal.lifecycle.iceberg.objects import IcebergObjects
from sparkwal.lifecycle.iceberg.reader import IcebergReader
from sparkwal.lifecycle.iceberg.table import IcebergTable
from sparkwal.lifecycle.table import ReadTable, SearchedObjects, Table, TableState
from sparkwal.options.store import StoreOptions
from sparkwal.store.base import LogStore
from sparkwal.store.open import open_store
from sparkwal.store.path import kind_of_store, overlap, refuse_credentials, scheme_of


@dataclass(frozen=True)
class _Format:
    """A format of tables that needs no Spark.

    Attributes:
        reader: opens a table to read it.
        table: opens a table to write it.
        objects: opens all objects of a table for a search.
    """

    reader: Callable[[Target], ReadTable]
    table: Callable[[Target, LogStore], Table]
    objects: Callable[[str], SearchedObjects]


# By scheme, the formats that this process reads and writes without Spark. Any other URL is that of
# a Delta table, which Spark writes.
_FORMATS = {"iceberg": _Format(IcebergReader, IcebergTable, IcebergObjects)}


def needs_spark(target: Target) -> bool:
    """Whether only Spark writes a table."""
    return scheme_of(target.table) not in _FORMATS


def open_written(target: Target, log: LogStore) -> Table:
    """Open a table that is written without Spark.

    Args:
        target: the table.
        log: any log of the path.

    Raises:
        OptionError: the name of the table is wrong, or a library is not installed.
    """
    return _FORMATS[scheme_of(target.table)].table(target, log)


def open_table(
    target: Target, options: StoreOptions, storage: Mapping[str, str] | None = None
) -> ReadTable:
    """Open a table that is only read.

    Args:
        target: the table.
        options: the options of the log.
        storage: the options of the table's store, if it is another than that of the log.

    Raises:
        OptionError: as `check_place`, or as `open_written`.
    """
    if not needs_spark(target):
        # It is in a catalog that this process has configured by its name.
        return _FORMATS[scheme_of(target.table)].reader(target)
    check_place(target.table, options)
    return DeltaReader(target, options, storage)


def table_objects(url: str, options: StoreOptions) -> SearchedObjects:
    """All objects of a table, also of old versions, and orphans.

    Args:
        url: the table.
        options: the options of the log.

    Raises:
        OptionError: as `check_place`, or it is on a store that the options do not reach.
        TableReadError: its catalog is unreadable.
    """
    if scheme_of(url) in _FORMATS:
        return _FORMATS[scheme_of(url)].objects(url)
    check_place(url, options)
    if not options.reaches(url):
        raise OptionError("it is on a store of another kind than the log")
    store, folder = open_store(url, options.s3, options.retry)
    return DeltaObjects(Folder(store, f"{folder}/" if folder else "", lambda _: ""))


class CheckedTable:
    """A `Table` that is only read: a collection checks that it still holds its ranges."""

    # Only a compaction and a reader of newer rows need them.
    tombstones = None

    def __init__(self, target: Target, options: StoreOptions) -> None:
        self.target = target
        self._options = options
        self._table = open_table(target, options)

    @property
    def refused(self) -> "CheckedTable":
        """The table of the rows that this one refuses."""
        return CheckedTable(replace(self.target, table=self.target.refused), self._options)

    def snapshot(self, log_id: str, since: int | None, k: int | None = None) -> TableState | None:
        """Read the newest snapshot. See `Snapshots.snapshot`."""
        try:
            return self._table.snapshot(log_id, since, k)
        except TableReadError as error:
            raise ConfirmError(str(error)) from error

    def prepare(self, *_: object, **__: object) -> None:
        """Refuse, because only a compaction writes a table.

        Raises:
            PlanError: always.
        """
        raise PlanError(
            f"{self.target.table} is opened to be read, and only a compaction writes it"
        )

    write = burn = remove_taken = prepare

    def held(self, *_: object) -> None:
        """Refuse, because only a run that writes a table accepts it."""
        self.prepare()


def check_apart(path: str, target: Target, *, sets_aside: bool = False) -> None:
    """Check that a log may have a table, and that neither of the two is inside the other.

    Args:
        path: the log.
        target: the table.
        sets_aside: rows that the table refuses may step aside.

    Raises:
        OptionError: a cleanup of the table's folder would delete the log, or a log of a sequencer
            under `path`.
    """
    above, separator, name = path.strip().rstrip("/").rpartition("/" + sequencers_prefix(""))
    # The path may be that of a sequencer's log: then check the path above it.
    log = above if separator and "/" not in name else path
    beside = []
    if target.keeps_tombstones:
        beside.append((target.tombstones, "the deleted keys", "tombstoneHorizon=0"))
    if sets_aside:
        beside.append((target.refused, "the refused rows", "refusedRows=wait"))
    for url, what, way_out in beside:
        _, scheme_end, location = target.table.partition("://")
        if scheme_end and "/" not in location:
            raise OptionError(
                f"{target.table} is a whole bucket, and {what} of a table are kept beside it: give "
                f"the table a folder, or {way_out}"
            )
        if overlap(log, url):
            raise OptionError(
                f"{url} keeps {what} of the table {target.table}, and the log {path} is there: "
                "name another table"
            )
    if overlap(log, target.table):
        raise OptionError(
            f"of the log {path} and the table {target.table} one is inside the other, and a "
            "cleanup of the table's folder would delete the log: give the table a folder beside "
            "the log"
        )


def check_place(table: str, options: StoreOptions) -> None:
    """Check a table that only the log names, before it is opened with this process's rights.

    Raises:
        OptionError: it may hold a secret, or it is on another store than the log and the options
            do not name it: a reader would connect to any server that the log names. Or it is in a
            catalog, and has no place.
    """
    if scheme_of(table) in _FORMATS:
        raise OptionError(
            f"{table} is in a catalog, and no folder of files: read it with read_current, or with "
            "sparkwal.Log(path).current()"
        )
    refuse_credentials(table, "the table's URL in the log")
    is_same = kind_of_store(table) == kind_of_store(options.path)
    named = [url.strip().rstrip("/") for url in (options.table_location or "").split(",")]
    # What lies beside a table that is named is on the same store.
    plain = table.rstrip("/").removesuffix("_refused")
    if not table.isprintable() or not (is_same or {table.rstrip("/"), plain} & {*named}):
        raise OptionError(
            f"the log names the table {table[:200]!r}, which is on another store than the log. "
            "Whoever writes the log could name any server, so a reader opens this table only with "
            "the option tableLocation: give it the URL of the table"
        )


def check_again(target: Target) -> None:
    """Check that refused rows can be written again into a table.

    Raises:
        PlanError: they cannot.
    """
    if target.keys and not target.sequence_by:
        raise PlanError(
            f"{target.table} has keys and no sequence_by, so a refused row could replace a newer "
            f"one of its key: compare the rows of {target.refused} with the table, insert them "
            "yourself, and delete them there"
        )


def check_same_target(target: Target, fixed: Target) -> None:
    """Check that a run has the target that the log's lifecycle has.

    Raises:
        PlanError: it has another.
    """
    if differences := _differences(target, fixed):
        way = "or begin a new log"
        if differences.keys() == {"table"}:
            way = "or, if the table was moved or copied there, give --accept-table (accept_table())"
        elif not _refusal(target, fixed):
            way = "or change it for all later rows with --change-target (change_target())"
        raise PlanError(
            "the first run of this log's compaction, or a later --change-target, fixed its target: "
            + "; ".join(
                f"{name}: {_flag_text(old)} there, {_flag_text(new)} here"
                for name, (old, new) in differences.items()
            )
            + f". Use the target of the log, {way}"
        )


def check_change(target: Target, fixed: Target) -> None:
    """Check that rows which a table has do not contradict a new way for the later ones.

    Raises:
        PlanError: they do.
    """
    if reason := _refusal(target, fixed):
        raise PlanError(f"the target of {fixed.table} cannot be changed: {reason}")


def _differences(target: Target, fixed: Target) -> dict[str, tuple[Any, Any]]:
    """The fields that differ, with the values of `fixed` and of `target`."""
    values = vars(target)
    return {
        name: (value, values[name]) for name, value in vars(fixed).items() if values[name] != value
    }


def _refusal(target: Target, fixed: Target) -> str:
    """Why a target cannot be changed; "" if it can."""
    changed = _differences(target, fixed).keys()
    if "table" in changed:
        return f"another table, {target.table}, lacks the rows that left the log: begin a new log"
    if changed & {"mode", "keys"}:
        return (
            "its rows were written by other keys, or by none, so it may hold two rows of a new "
            "key, or have lost one: begin a new log"
        )
    if changed & {"partition_by", "properties"}:
        return "its partitions and properties are those of a new table: change them by ALTER TABLE"
    if fixed.keeps_tombstones and not target.keeps_tombstones:
        return (
            "rows that are older than the delete of their key would come back without the kept "
            "sequences: to delete nothing more give --delete-when false"
        )
    if target.keeps_tombstones and not fixed.keeps_tombstones:
        return (
            "the sequences of keys that were deleted so far were not kept: give "
            "--tombstone-horizon 0ms, or begin a new log"
        )
    if target.keeps_tombstones and "sequence_by" in changed:
        return (
            f"{target.tombstones} keeps the values of {fixed.sequence_by}, which those of "
            f"{target.sequence_by} do not follow: begin a new log"
        )
    return ""


def _flag_text(value: int | str | tuple[str | tuple[str, str], ...]) -> str:
    """A value of a target, as the job's flag takes it."""
    if isinstance(value, int):
        return str(value)
    parts = (value,) if isinstance(value, str) else value
    texts = [part if isinstance(part, str) else "=".join(part) for part in parts]
    return ", ".join(texts) or "none"
