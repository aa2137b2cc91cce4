"""The rows that an Iceberg table refuses, in a table beside it: see `sparkwal.lifecycle.table`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from sparkwal.format import schema
from sparkwal.format.lifecycle_record import OpenRange, Promise, Target
from sparkwal.format.texts import bare_texts, json_rows
from sparkwal.lifecycle.iceberg.history import History
from sparkwal.lifecycle.iceberg.reader import rows_of
from sparkwal.lifecycle.iceberg.writing import WrittenIceberg, check_beside
from sparkwal.lifecycle.merging.keyed import resolve
from sparkwal.lifecycle.range_rows import REASON, REFUSED_COLUMNS, Place
from sparkwal.lifecycle.table import REFUSED_BY
from sparkwal.reading.metadata import COMMIT_TIME, PARTITION, POSITION, ROW
from sparkwal.store.base import LogStore

if TYPE_CHECKING:
    from pyiceberg.table import FileScanTask, Table

_HIDDEN = (POSITION, PARTITION, ROW, COMMIT_TIME, REASON)


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
        new_rows = self._find(promise)
        assert promise.table.refused is not None
        (part,) = promise.ranges
        with self._explained(promise):
            table = self._at(promise)
            if table is None:
                return
            left = [*self._left(table, part)]
            rows = pa.concat_tables(
                [self._rows(new_rows, promise), *(others for _, others in left)]
            )
            added = [*self._files(table, rows.to_batches())]
            removed = [task.file for task, _ in left]
            after = promise.table.refused.version
            self._commit(table, promise, after, added, removed, rows=new_rows.num_rows)

    def remove_taken(self, promise: Promise) -> None:
        """Do nothing: no refused row is written again. See `Refused.remove_taken`."""

    def places(self, promise: Promise) -> frozenset[Place]:
        """The places of the rows that stepped aside from the open range, in the version that the
        promise names.

        Raises:
            ValueError: the version does not exist.
        """
        from pyiceberg.expressions import EqualTo

        assert promise.table.refused is not None
        version, table = promise.table.refused.version, self.looked_at()
        snapshot = History(table.metadata).snapshot_at(version)
        if snapshot is None:
            raise ValueError(f"version {version} of {self.target.table} does not exist")
        scan = table.scan(EqualTo("range", promise.table.k), snapshot_id=snapshot.snapshot_id)
        places = set[Place]()
        for task in scan.plan_files():
            for batch in rows_of(table, task, table.schema()):
                own = batch.filter(pc.equal(batch["range"], promise.table.k))
                names = ("position", "partition", "row")
                places |= {*zip(*(own[name].to_pylist() for name in names), strict=True)}
        return frozenset(places)

    def _left(self, table: Table, part: OpenRange) -> Iterator[tuple[FileScanTask, pa.Table]]:
        """The files with rows that are left of ranges that were given up, and their other rows."""
        from pyiceberg.expressions import And, EqualTo, GreaterThanOrEqual

        condition = And(EqualTo("log_id", part.log_id), GreaterThanOrEqual("position", part.cut))
        scan = table.scan(condition)
        for task in scan.plan_files():
            batches = (
                schema.conform(batch, REFUSED_COLUMNS)
                for batch in rows_of(table, task, table.schema())
            )
            rows = pa.Table.from_batches(batches, REFUSED_COLUMNS)
            is_left = pc.and_(
                pc.equal(rows["log_id"], part.log_id),
                pc.greater_equal(rows["position"], part.cut),
            )
            if pc.any(is_left).as_py():
                yield task, rows.filter(pc.invert(is_left))

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
                "position": batch[POSITION],
                "partition": batch[PARTITION],
                "row": batch[ROW],
                "commit_time": batch[COMMIT_TIME],
                "sequence": pa.array(sequences, pa.string()),
                "range": pa.repeat(promise.table.k, batch.num_rows),
                "reason": batch[REASON],
                "values": pa.array(json_rows(batch.select(own)), pa.string()),
            }
            rows = pa.RecordBatch.from_arrays([*columns.values()], names=[*columns])
            batches.append(schema.conform(rows, REFUSED_COLUMNS))
        return pa.Table.from_batches(batches, REFUSED_COLUMNS)
