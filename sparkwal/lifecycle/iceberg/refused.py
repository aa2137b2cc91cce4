"""The rows that an Iceberg table refuses, in a table beside it: see `sparkwal.lifecycle.table`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from sparkwal.errors import WriteError
from sparkwal.format import schema
from sparkwal.format.lifecycle_record import Promise, Target
from sparkwal.format.texts import bare_texts, json_rows
from sparkwal.lifecycle.iceberg.history import History
from sparkwal.lifecycle.iceberg.reader import rows_of
from sparkwal.lifecycle.iceberg.waiting import PLACES
from sparkwal.lifecycle.iceberg.writing import WrittenIceberg, check_beside
from sparkwal.lifecycle.merging.keyed import resolve
from sparkwal.lifecycle.range_rows import REASON, REFUSED_COLUMNS, Place
from sparkwal.lifecycle.table import REFUSED_BY, TableConflict
from sparkwal.store.base import LogStore

if TYPE_CHECKING:
    from pyiceberg.expressions import BooleanExpression
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot

_HIDDEN = (*PLACES.values(), REASON)
# The columns that tell where a row is in its log.
_PLACE = ("position", "partition", "row")
# `empty_table` would load pandas.
_NOTHING = pa.Table.from_batches([], REFUSED_COLUMNS)


class IcebergRefused(WrittenIceberg):
    """A `sparkwal.lifecycle.table.Refused`. Its columns take any row of any log.

    Args:
        of: the target of the table that refuses rows.
        log: any log of the path.
        table: that table, as it was read last.
        find: finds the refused rows of a range, with their places, COMMIT_TIME and REASON.
    """

    def __init__(
        self,
        of: Target,
        log: LogStore,
        table: Callable[[], Table],
        find: Callable[[Promise], pa.Table],
    ) -> None:
        super().__init__(Target(of.refused), log)
        self._of = of
        self._table = table
        self._find = find

    def prepare(self) -> None:
        """Make the table if there is none. See `Refused.prepare`."""
        table_id = str(self._table().metadata.table_uuid)
        keeps = f"the rows that {self._of.table} refused"

        def check(table: Table) -> None:
            check_beside(table, self.target.table, keeps, REFUSED_BY, table_id)

        self._make_ready(schema.from_arrow(REFUSED_COLUMNS), {REFUSED_BY: table_id}, check)

    def write(self, promise: Promise) -> None:
        """Find the refused rows of the open range, and write them. See `Refused.write`."""
        # §10: the rows that step aside from a range carry its transaction
        refused_rows = self._find(promise)
        assert promise.table.refused is not None
        with self._explained(promise):
            table = self._at(promise)
            if table is None:
                return
            if promise.is_again:
                removed, rows = self._marked(table, promise, refused_rows)
            else:
                removed, others = self._without(table, _left(promise))
                rows = pa.concat_tables([others, self._rows(refused_rows, promise)])
            added = [*self._files(table, rows.to_batches())]
            after = promise.table.refused.version
            self._commit(table, promise, after, added, removed, rows=refused_rows.num_rows)

    def remove_taken(self, promise: Promise) -> None:
        """Remove rows that were written again. See `Refused.remove_taken`."""
        from pyiceberg.expressions import AlwaysFalse, And, EqualTo, LessThan, Or

        taken = {log.log_id: log.taken for log in promise.logs.values() if log.taken}
        conditions = [And(EqualTo("log_id", x), LessThan("range", k)) for x, k in taken.items()]
        try:
            table = self.looked_at()
            removed, rows = self._without(table, reduce(Or, conditions, AlwaysFalse()))
            if removed:
                self._tidy(table, promise, [*self._files(table, rows.to_batches())], removed)
        except TableConflict:
            raise
        except Exception as error:  # each catalog and store has its own classes of errors
            text = self._place.text_of(error)
            url = self.target.table
            raise WriteError(f"{url} keeps rows that were written again: {text}") from None

    def waiting(self, promise: Promise) -> pa.Table:
        """The rows that the open range writes again, in their order, in the version that the
        promise names.

        Raises:
            ValueError: the version does not exist.
        """
        table, snapshot = self._version(promise)
        files = self._with(table, _waiting(promise), snapshot.snapshot_id)
        rows = pa.concat_tables([_NOTHING, *(meant for _, meant, _ in files)])
        return rows.sort_by([(name, "ascending") for name in _PLACE])

    def places(self, promise: Promise) -> frozenset[Place]:
        """The places of the rows that stepped aside from the open range, in the version that the
        promise names.

        Raises:
            ValueError: the version does not exist.
        """
        from pyiceberg.expressions import EqualTo

        table, snapshot = self._version(promise)
        files = self._with(table, EqualTo("range", promise.table.k), snapshot.snapshot_id)
        return frozenset(place for _, meant, _ in files for place in _places(meant, _PLACE))

    def _version(self, promise: Promise) -> tuple[Table, Snapshot]:
        assert promise.table.refused is not None
        version, table = promise.table.refused.version, self.looked_at()
        snapshot = History(table.metadata).snapshot_at(version)
        if snapshot is None:
            raise ValueError(f"version {version} of {self.target.table} does not exist")
        return table, snapshot

    def _with(
        self, table: Table, condition: BooleanExpression, snapshot_id: int | None = None
    ) -> Iterator[tuple[DataFile, pa.Table, pa.Table]]:
        """The files that have rows which meet a condition: the file, these rows, and its others."""
        from pyiceberg.expressions.visitors import bind
        from pyiceberg.io.pyarrow import expression_to_pyarrow

        meets = expression_to_pyarrow(bind(table.schema(), condition, case_sensitive=True))
        for task in table.scan(condition, snapshot_id=snapshot_id).plan_files():
            batches = (
                schema.conform(batch, REFUSED_COLUMNS)
                for batch in rows_of(table, task, table.schema())
            )
            rows = pa.Table.from_batches(batches, REFUSED_COLUMNS)
            meant = rows.filter(meets)
            if meant.num_rows:
                yield task.file, meant, rows.filter(~meets)

    def _without(
        self, table: Table, condition: BooleanExpression
    ) -> tuple[list[DataFile], pa.Table]:
        """The files that have rows which meet a condition, and their other rows."""
        files = [(file, others) for file, _, others in self._with(table, condition)]
        others = pa.concat_tables([_NOTHING, *(others for _, others in files)])
        return [file for file, _ in files], others

    def _marked(
        self, table: Table, promise: Promise, still_refused: pa.Table
    ) -> tuple[list[DataFile], pa.Table]:
        """The files that have rows which the table still refuses, and the rows of these files: such
        a row has the number of the range, and its new reason."""
        places = _places(still_refused, [PLACES[name] for name in _PLACE])
        reasons = dict(zip(places, still_refused[REASON].to_pylist(), strict=True))
        rows = [_NOTHING]
        removed: list[DataFile] = []
        for file, meant, others in self._with(table, _waiting(promise)):
            new = pa.array([reasons.get(place) for place in _places(meant, _PLACE)], pa.string())
            if new.null_count == len(new):
                continue
            values = {name: meant[name] for name in meant.column_names}
            k = pa.scalar(promise.table.k, pa.int64())
            values["range"] = pc.if_else(new.is_valid(), k, meant["range"])
            values["reason"] = pc.coalesce(new, meant["reason"])
            removed.append(file)
            rows += [pa.table(values, REFUSED_COLUMNS), others]
        return removed, pa.concat_tables(rows)

    def _rows(self, refused_rows: pa.Table, promise: Promise) -> pa.Table:
        (part,) = promise.ranges
        own = [name for name in refused_rows.column_names if name not in _HIDDEN]
        by = resolve([self._of.sequence_by], own)[0] if self._of.sequence_by else ""
        batches = []
        for batch in refused_rows.to_batches():
            sequences = bare_texts(batch[by]) if by else [None] * batch.num_rows
            columns = {
                "sequencer": pa.repeat(part.sequencer, batch.num_rows),
                "log_id": pa.repeat(part.log_id, batch.num_rows),
                **{name: batch[hidden] for name, hidden in PLACES.items()},
                "sequence": pa.array(sequences, pa.string()),
                "range": pa.repeat(promise.table.k, batch.num_rows),
                "reason": batch[REASON],
                "values": pa.array(json_rows(batch.select(own)), pa.string()),
            }
            rows = pa.RecordBatch.from_arrays([*columns.values()], names=[*columns])
            batches.append(schema.conform(rows, REFUSED_COLUMNS))
        return pa.Table.from_batches(batches, REFUSED_COLUMNS)


def _left(promise: Promise) -> BooleanExpression:
    """Rows of the log that are left of ranges that were given up, or that were written again."""
    from pyiceberg.expressions import And, EqualTo, GreaterThanOrEqual, LessThan, Or

    (part,) = promise.ranges
    taken = promise.logs[part.sequencer].taken
    is_left = Or(GreaterThanOrEqual("position", part.cut), LessThan("range", taken))
    return And(EqualTo("log_id", part.log_id), is_left)


def _waiting(promise: Promise) -> BooleanExpression:
    """The rows that the open range writes again."""
    from pyiceberg.expressions import And, EqualTo, GreaterThanOrEqual, LessThan

    (part,) = promise.ranges
    taken = promise.logs[part.sequencer].taken
    return And(
        EqualTo("log_id", part.log_id),
        # What is there from the cut on is in the log.
        LessThan("position", part.cut),
        GreaterThanOrEqual("range", taken),
        LessThan("range", promise.table.k),
    )


def _places(rows: pa.Table, names: Sequence[str]) -> Iterator[Place]:
    return zip(*(rows[name].to_pylist() for name in names), strict=True)
