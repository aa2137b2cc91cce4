"""Reads a log's table and the newer rows of the log as one, without Spark."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from sparkwal.errors import InvalidLogError, OptionError, require_library
from sparkwal.format import schema
from sparkwal.format.arrow_types import pandas_frame
from sparkwal.format.lifecycle_record import MERGE, NO_TABLE_VERSION, Target
from sparkwal.lifecycle.current import (
    OnLogError,
    Tail,
    check_complete,
    common_columns,
    of_one_log,
    plan_current,
    refuse_parts,
    with_table,
)
from sparkwal.lifecycle.merging.keyed import holds, resolve, winners
from sparkwal.lifecycle.merging.merged_rows import merged, partial_columns
from sparkwal.lifecycle.merging.tombstones import counting, with_sequences
from sparkwal.lifecycle.opening import open_table
from sparkwal.lifecycle.table import ReadRows, ReadTable
from sparkwal.options.reading import SourceOptions
from sparkwal.options.store import refuse
from sparkwal.protocol.slots import WHOLE
from sparkwal.reading.log_range import LogRange
from sparkwal.reading.metadata import COLUMNS, COMMIT_TIME, selected
from sparkwal.reading.planning import folded_names
from sparkwal.store.base import LogStore
from sparkwal.store.parallel import run_parallel

if TYPE_CHECKING:
    import pandas as pd


# The records of so few positions are read before their rows are wanted, of several logs at once.
_SHORT_TAIL = 16
_TAILS_AT_ONCE = 4


class Current:
    """One version of a log's table and the newer rows of the log, as `Log.current` returns it.

    It gives the same rows each time you read it. It is an Arrow stream:
    `polars.DataFrame(current)`, `duckdb.sql("from current")` and `pyarrow.table(current)` take it.

    Args:
        logs: the open logs, by sequencer.
        options: the options of reading.
        table_options: the options of the table's store, instead of the log's.
        listed: the logs come from a LIST, so one may have no record yet.
        on_log_error: as for `Log.current`.

    Attributes:
        table: the table's URL, or None.
        table_version: the version of the table, or None without a table.
        positions: the last position of each log that the rows hold, by sequencer; −1 for none.
        left_out: the errors of the logs whose newer rows are missing, by sequencer. Their rows in
            the table are there.
        schema: the columns of the rows: the log's columns, then those that only the table has.

    Raises:
        ConfirmError: the table was restored or recreated.
        TableReadError: the table is unreadable.
        OptionError: there is no log, or the table's columns have other types than the log's.
        InvalidLogError: a record is damaged or missing.
        PlanError: a log was recreated, or is a copy of another.
    """

    def __init__(
        self,
        logs: Mapping[str, LogStore],
        options: SourceOptions,
        table_options: Mapping[str, str] | None,
        *,
        listed: bool = True,
        on_log_error: OnLogError = "fail",
    ) -> None:
        refuse_parts(options)
        refuse(options, "is for scan() and for Spark's reads", "lease")
        opened: dict[str, ReadTable] = {}

        def opening(target: Target) -> ReadTable:
            opened[target.table] = open_table(target, options, table_options)
            return opened[target.table]

        ranges = [LogRange(options, name, log) for name, log in logs.items()]
        plan = plan_current(ranges, opening, listed=listed, on_log_error=on_log_error)
        self._opened = opened
        self._plan = plan
        self._ranges = {log.name: log for log in ranges}
        self._options = options
        self.table = plan.target.table if plan.target else None
        self.table_version = plan.table_version if plan.target else None
        self.positions = plan.positions
        self.left_out = plan.left_out
        spark_schema = plan.spark_schema
        if self.table is not None:
            table = opened[self.table]
            check_complete(plan, table.computed)
            in_table = table.spark_schema
            self._in_table = schema.columns(in_table)
            spark_schema = with_table(spark_schema, in_table)
            self._read_table: ReadRows = table.rows_at(plan.table_version)
        self.schema: pa.Schema = schema.to_arrow(spark_schema)

    @property
    def position(self) -> int:
        """The last position of the log that the rows hold; for several logs see `positions`.

        Raises:
            OptionError: the rows come from several logs.
        """
        if len(self.positions) != 1:
            raise OptionError(f"these are {len(self.positions)} logs: see positions")
        return next(iter(self.positions.values()))

    def reader(self, columns: Sequence[str] | None = None) -> pa.RecordBatchReader:
        """Read the rows. The reader fetches them as you consume it.

        With a MERGE table it holds one row for each key of the log's part in memory, otherwise some
        batches.

        Args:
            columns: only these columns, in this order.

        Returns:
            A reader of Arrow record batches. While you consume it, it raises the other errors.

        Raises:
            OptionError: there is no such column.
            CollectedError: the log's part was collected meanwhile.
            TableReadError: a VACUUM removed the table's version.
            InvalidLogError: a record or an object is damaged or missing.
        """
        target = selected(self.schema, columns)
        return pa.RecordBatchReader.from_batches(target, self._batches(target))

    def to_arrow(self, columns: Sequence[str] | None = None) -> pa.Table:
        """Read all rows into memory.

        Args:
            columns: only these columns, in this order.

        Returns:
            The rows.

        Raises:
            SparkWalError: as `reader`.
        """
        return self.reader(columns).read_all()

    def to_pandas(self, columns: Sequence[str] | None = None) -> pd.DataFrame:
        """Read all rows into one pandas frame, with integers and dates as in `Log.to_pandas`.

        Args:
            columns: only these columns, in this order.

        Returns:
            The rows.

        Raises:
            SparkWalError: as `reader`. OptionError also if a nested date is beyond the year 9999,
                or pandas is not installed.
        """
        require_library("pandas", "pip install 'pandas>=2.2,<3'")
        return pandas_frame(self.to_arrow(columns))

    def __arrow_c_stream__(self, requested_schema: object = None) -> Any:
        return self.reader().__arrow_c_stream__(requested_schema)

    def _batches(self, target: pa.Schema) -> Iterator[pa.RecordBatch]:
        compaction = self._plan.target
        if compaction is not None and compaction.mode == MERGE:
            for batch in self._merged(target, compaction):
                yield schema.conform(batch, target)
            return
        if compaction is not None:
            yield from self._table_rows(target)
        yield from self._tails(target)

    def _table_rows(self, target: pa.Schema) -> Iterator[pa.RecordBatch]:
        return table_rows(self._read_table, [*self._in_table], target)

    def _merged(self, target: pa.Schema, compaction: Target) -> Iterator[pa.RecordBatch]:
        keys = resolve(compaction.keys, self.schema.names)
        by = ""
        if compaction.sequence_by:
            by = resolve([compaction.sequence_by], self.schema.names)[0]
        needed = [*dict.fromkeys([*target.names, *keys, *([by] if by else [])])]
        narrow = selected(self.schema, needed)
        # A condition may name any column.
        wide = self.schema if compaction.delete_when else narrow
        marked = wide.append(pa.field(COLUMNS, pa.string()))
        in_order = self._in_order(marked)
        if self._is_partial(wide.names):
            rows = pa.Table.from_batches(in_order, marked)
        else:
            # The last row of a key decides, so memory holds no other.
            rows = winners(in_order, marked, keys, by)
        deleted = holds(compaction.delete_when, rows)
        counts = self._newer_than_tombstones(rows, deleted, compaction, keys, by)
        rows = rows.select([*needed, COLUMNS]).filter(counts)
        table = self._table_rows(narrow)
        yield from merged(table, rows, deleted.filter(counts), keys, by)

    def _is_partial(self, names: Sequence[str]) -> bool:
        """Whether a record of the newer rows lacks one of these columns."""
        plan = self._plan
        if plan.target is None or not plan.newer:
            return False
        common = common_columns(plan, self._ranges)
        partial = partial_columns(plan.target, common, plan.spark_schema, self._in_table)
        return not partial.isdisjoint(folded_names(names))

    def _newer_than_tombstones(
        self,
        rows: pa.Table,
        deleted: pa.ChunkedArray,
        compaction: Target,
        keys: Sequence[str],
        by: str,
    ) -> pa.ChunkedArray:
        """Which rows count: those that delete their key, and those that no tombstone outlives."""
        if not rows.num_rows or self._plan.tombstones_version == NO_TABLE_VERSION:
            return pa.chunked_array([pa.repeat(True, rows.num_rows)])
        columns = selected(self.schema, [*dict.fromkeys([*keys, by])])
        read = self._opened[compaction.tombstones].rows_at(self._plan.tombstones_version)
        tombstones = with_sequences(read(None), columns, by)
        return counting(rows, deleted, tombstones, keys, by)

    def _in_order(self, target: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Read the newer rows of all logs by the times of their commits, then by logs.

        So the same row of a key wins as in a compaction.
        """
        if len(self._plan.tails) == 1:
            yield from self._tails(target)
            return
        timed = target.append(pa.field(COMMIT_TIME, pa.timestamp("us", "UTC")))

        def dated(
            number: int, rows: Iterator[pa.RecordBatch]
        ) -> Iterator[tuple[int, int, pa.RecordBatch]]:
            for batch in rows:
                if batch.num_rows:
                    # All rows of a batch are of one commit.
                    yield batch.column(COMMIT_TIME)[0].value, number, batch

        tails = sorted(self._plan.tails, key=lambda tail: tail.name)
        store = self._ranges[tails[0].name].log.store
        begun = run_parallel(store, lambda tail: self._begun(tail, timed), tails)
        streams = (dated(number, rows) for number, rows in enumerate(begun))
        for _, _, batch in heapq.merge(*streams, key=itemgetter(0, 1)):
            yield batch.drop_columns([COMMIT_TIME])

    def _tails(self, target: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Read the newer rows of all logs, one log after another. The next ones are looked up."""

        def begin(tail: Tail) -> Iterator[pa.RecordBatch]:
            return self._begun(tail, target)

        if self._plan.tails:
            store = self._ranges[self._plan.tails[0].name].log.store
            for rows in run_parallel(store, begin, self._plan.tails, at_once=_TAILS_AT_ONCE):
                yield from rows

    def _begun(self, tail: Tail, target: pa.Schema) -> Iterator[pa.RecordBatch]:
        """The newer rows of a log, whose records are read now if they are few."""
        # With the floor of the plan, so that a later compaction does not end this read.
        planned = self._ranges[tail.name]
        log = LogRange(self._options, tail.name, planned.log, pinned=tail.pinned)
        log.begin_at(planned)
        if 0 < tail.end - tail.start <= _SHORT_TAIL:
            for record in log.records(tail.start, tail.end, size=WHOLE):
                log.remember(record)
        return self._tail(log, tail, target)

    def _tail(self, log: LogRange, tail: Tail, target: pa.Schema) -> Iterator[pa.RecordBatch]:
        if tail.end <= tail.start:
            return
        table = self._opened[self.table] if self.table is not None else None
        try:
            for batch in log.scan(tail.start, tail.end, target):
                yield table.as_stored(batch) if table else batch
        except InvalidLogError as error:
            raise (of_one_log(tail.name, error) if len(self._ranges) > 1 else error) from None


def table_rows(
    read: ReadRows, in_table: Sequence[str], target: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Read rows of a table with the columns of `target`, in no particular order.

    A column that the table does not have is null.

    Args:
        read: reads columns of the rows.
        in_table: all columns of the table.
        target: the columns to return.
    """
    wanted = {name.lower(): name for name in target.names}
    names = [name for name in in_table if name.lower() in wanted]
    # Read at least one column, for the number of rows.
    for batch in read(names or in_table[:1]):
        renamed = [wanted.get(name.lower(), name) for name in batch.schema.names]
        yield schema.conform(batch.rename_columns(renamed), target)
