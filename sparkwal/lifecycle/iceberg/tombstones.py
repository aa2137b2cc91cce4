"""The tombstones of an Iceberg table, in a table beside it: see `sparkwal.lifecycle.table`.

A range appends the keys that it deletes, so a key may have several tombstones. The one with the
greatest sequence counts. Small files are gathered into one from time to time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from sparkwal.errors import PlanError
from sparkwal.format import schema
from sparkwal.format.lifecycle_record import Promise, Target
from sparkwal.lifecycle.iceberg.fitting import spark_schema
from sparkwal.lifecycle.iceberg.history import History
from sparkwal.lifecycle.iceberg.reader import rows_of
from sparkwal.lifecycle.iceberg.replacing import RangeByKeys, may_have
from sparkwal.lifecycle.iceberg.writing import WrittenIceberg, check_beside
from sparkwal.lifecycle.merging.keyed import holds, resolve, winners
from sparkwal.lifecycle.merging.tombstones import counting, tombstone_columns, with_sequences
from sparkwal.lifecycle.table import DELETED_AT, OWNER, SEQUENCE
from sparkwal.store.base import LogStore

if TYPE_CHECKING:
    from pyiceberg.table import FileScanTask, Table

# Each range with deletes adds a file, and each range reads them. So many small ones become one.
_MOST_SMALL = 32
_SMALL_BYTES = 4 * 2**20


class IcebergTombstones(WrittenIceberg):
    """A `sparkwal.lifecycle.table.Tombstones`.

    Args:
        of: the target of the table whose keys are kept.
        log: any log of the path.
        table: that table, as it was read last.
        winners: finds the rows of a range.
    """

    def __init__(
        self,
        of: Target,
        log: LogStore,
        table: Callable[[], Table],
        winners: Callable[[Promise], RangeByKeys],
    ) -> None:
        super().__init__(Target(of.tombstones), log)
        self._of = of
        self._table = table
        self._winners = winners

    def prepare(self) -> None:
        """Make the table if there is none. See `Tombstones.prepare`."""
        table = self._table()
        table_id = str(table.metadata.table_uuid)
        keeps = f"the deleted keys of {self._of.table}"
        columns = tombstone_columns(self._of, spark_schema(table.schema(), lenient=True))

        def check(table: Table) -> None:
            check_beside(table, self.target.table, keeps, OWNER, table_id)
            if table.spec().fields:
                raise PlanError(f"{self.target.table} is partitioned: remove its partition fields")

        self._make_ready(columns, {OWNER: table_id}, check)

    def write(self, promise: Promise, *, is_repeated: bool = False) -> None:
        """Write the keys that the open range deletes. See `Tombstones.write`."""
        with self._explained(promise):
            table = self._at(promise, is_repeated=is_repeated)
            if table is None:
                return
            range_ = self._winners(promise)
            columns = schema.to_arrow(spark_schema(table.schema()))
            keys = resolve(self._of.keys, columns.names)
            rows = range_.one_of_each
            limit_us = self._limit_us(promise, rows[range_.by])
            expiry = _expiry(columns)
            deleted = _unexpired(self._deleted(promise, range_, rows, columns), expiry, limit_us)
            expired, remaining = _by_expiry(table, expiry, limit_us)
            small = [task for task in remaining if task.file.file_size_in_bytes < _SMALL_BYTES]
            if len(small) < _MOST_SMALL:
                small = []
            else:
                parts = [
                    _unexpired(pa.Table.from_batches([part], columns), expiry, limit_us)
                    for task in small
                    for part in self._rows_of(table, task, columns)
                ]
                both = pa.concat_tables([*parts, deleted])
                deleted = winners(both.to_batches(), columns, keys, SEQUENCE)
            added = [*self._files(table, deleted.to_batches())]
            after = promise.table.tombstones_version
            removed = [task.file for task in (*expired, *small)]
            # §10: the tombstones of a range carry its transaction
            self._commit(table, promise, after, added, removed)

    def without_late(self, range_: RangeByKeys, version: int) -> RangeByKeys:
        """The rows of a range without those that are older than the tombstone of their key.

        Args:
            range_: the rows.
            version: a version of the tombstones.

        Raises:
            ValueError: the version does not exist.
        """
        rows = range_.rows.filter(pc.invert(range_.deletes))
        if not rows.num_rows:
            return range_
        table = self.looked_at()
        snapshot = History(table.metadata).snapshot_at(version)
        if snapshot is None:
            raise ValueError(f"version {version} of {self.target.table} does not exist")
        own = resolve(range_.keys, table.schema().column_names)
        condition = may_have(rows, dict(zip(range_.keys, own, strict=True)))
        scan = table.scan(condition, snapshot_id=snapshot.snapshot_id)
        batches = (
            batch for task in scan.plan_files() for batch in rows_of(table, task, table.schema())
        )
        wanted = pa.schema(map(range_.columns.field, dict.fromkeys([*range_.keys, range_.by])))
        tombstones = with_sequences(batches, wanted, range_.by)
        counts = counting(
            range_.rows,
            range_.deletes,
            tombstones,
            range_.keys,
            range_.by,
            only_newer=range_.is_again,
        )
        return range_.where(counts)

    def _rows_of(
        self, table: Table, task: FileScanTask, columns: pa.Schema
    ) -> Iterator[pa.RecordBatch]:
        for batch in rows_of(table, task, table.schema(), columns.names):
            yield schema.conform(batch, columns)

    def _limit_us(self, promise: Promise, sequences: pa.ChunkedArray) -> int | None:
        """The time before which a tombstone is beyond the horizon; None if none is.

        The horizon ends at the newest sequence, or now if that is earlier. So a log of old rows
        keeps its tombstones, and a sequence in the future drops none early.
        """
        end_us = promise.timestamp_ms * 1000
        if _is_time(sequences.type):
            newest = pc.max(_micros(sequences)).as_py()
            if newest is None:
                return None
            end_us = min(end_us, newest)
        return end_us - self._of.tombstone_horizon_ms * 1000

    def _deleted(
        self, promise: Promise, range_: RangeByKeys, rows: pa.Table, columns: pa.Schema
    ) -> pa.Table:
        """The tombstones of a range."""
        deletes = holds(self._of.delete_when, rows)
        rows = rows.filter(pc.and_(deletes, rows[range_.by].is_valid()))
        time = pa.scalar(promise.timestamp_ms * 1000, pa.timestamp("us", "UTC"))
        arrays = [rows[name] for name in (*range_.keys, range_.by)]
        arrays.append(pa.chunked_array([pa.repeat(time, rows.num_rows)]))
        own = resolve([*range_.keys, SEQUENCE, DELETED_AT], columns.names)
        table = pa.table(arrays, names=own)
        batches = [schema.conform(batch, columns) for batch in table.to_batches()]
        return pa.Table.from_batches(batches, columns)


def _is_time(kind: pa.DataType) -> bool:
    return bool(pa.types.is_date(kind) or pa.types.is_timestamp(kind))


def _micros(times: pa.ChunkedArray) -> pa.ChunkedArray:
    zone = times.type.tz if pa.types.is_timestamp(times.type) else None
    return times.cast(pa.timestamp("us", zone)).cast(pa.int64())


def _expiry(columns: pa.Schema) -> str:
    """The column whose time decides when a tombstone is beyond the horizon."""
    return SEQUENCE if _is_time(columns.field(SEQUENCE).type) else DELETED_AT


def _unexpired(rows: pa.Table, expiry: str, limit_us: int | None) -> pa.Table:
    if limit_us is None:
        return rows
    return rows.filter(pc.greater_equal(_micros(rows[expiry]), limit_us))


def _by_expiry(
    table: Table, expiry: str, limit_us: int | None
) -> tuple[list[FileScanTask], list[FileScanTask]]:
    """The files whose tombstones are all beyond the horizon, by statistics, and the others."""
    from pyiceberg.expressions import GreaterThanOrEqual
    from pyiceberg.expressions.literals import TimestampLiteral

    tasks = [*table.scan().plan_files()]
    if limit_us is None:
        return [], tasks
    scan = table.scan(GreaterThanOrEqual(expiry, TimestampLiteral(limit_us)))
    remaining = {task.file.file_path for task in scan.plan_files()}
    expired = [task for task in tasks if task.file.file_path not in remaining]
    return expired, [task for task in tasks if task.file.file_path in remaining]
