"""The current state of a log without Spark: a version of its table and the log after it, as one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from sparkwal.errors import OptionError, need
from sparkwal.format import schema
from sparkwal.format.lifecycle import MERGE, Target
from sparkwal.lifecycle.condition import holds
from sparkwal.lifecycle.current import CurrentPlan, Tail, plan_current, refuse_parts, with_table
from sparkwal.lifecycle.delta_log import DeltaLog
from sparkwal.lifecycle.keyed import merged, resolve, winners
from sparkwal.lifecycle.lake import LakeTable, as_stored, delta_log, storage_options
from sparkwal.options.reading import SourceOptions
from sparkwal.reading.log_range import LogRange
from sparkwal.reading.metadata import selected
from sparkwal.store.log_store import LogStore

if TYPE_CHECKING:
    import pandas as pd


class Current:
    """A version of the table and the log after it: the same rows whenever they are read.

    An Arrow stream: `polars.DataFrame(current)`, `duckdb.sql("from current")` and
    `pyarrow.table(current)` take it as it is.

    Attributes:
        table: its URL, None where there is none.
        table_version: None without a table.
        positions: the last position of each log that the rows hold, by sequencer; −1 for none.
        schema: of the rows: the log's columns, and after them those that only the table has.
    """

    def __init__(
        self,
        plan: CurrentPlan,
        logs: Mapping[str, LogStore],
        options: SourceOptions,
        table: LakeTable | None,
    ) -> None:
        self._plan, self._logs, self._options, self._table = plan, logs, options, table
        spark_schema = plan.spark_schema
        if table is not None:
            spark_schema = with_table(spark_schema, table.spark_schema)
        self.schema: pa.Schema = schema.to_arrow(spark_schema)
        self.table = plan.target.table if plan.target else None
        self.table_version = plan.table_version if plan.target else None
        self.positions = plan.positions

    @property
    def position(self) -> int:
        """The last position of the log that the rows hold; of several logs see `positions`."""
        if len(self.positions) != 1:
            raise OptionError(f"these are {len(self.positions)} logs: see positions")
        return next(iter(self.positions.values()))

    def reader(self, columns: Sequence[str] | None = None) -> pa.RecordBatchReader:
        """The rows as they are needed. Of a MERGE table one row for each key of the log's part is
        held in memory; else some batches.

        Args:
            columns: only these, in this order.

        Raises OptionError for no such column. While it is read: CollectedError where the log's part
        was collected meanwhile, TableReadError where a VACUUM took the table's version,
        InvalidLogError.
        """
        target = selected(self.schema, columns)
        return pa.RecordBatchReader.from_batches(target, self._batches(target))

    def to_arrow(self, columns: Sequence[str] | None = None) -> pa.Table:
        """All the rows in memory."""
        return self.reader(columns).read_all()

    def to_pandas(self, columns: Sequence[str] | None = None) -> pd.DataFrame:
        """All the rows as one pandas frame, integers with nulls as `Log.to_pandas`."""
        need("pandas", "pandas>=2.2,<3")
        return self.to_arrow(columns).to_pandas(integer_object_nulls=True)

    def __arrow_c_stream__(self, requested_schema: object = None) -> Any:
        return self.reader().__arrow_c_stream__(requested_schema)

    def _batches(self, target: pa.Schema) -> Iterator[pa.RecordBatch]:
        plan = self._plan
        if plan.target is None or plan.target.mode != MERGE:
            if self._table is not None:
                yield from self._table.rows(target)
            for tail in plan.tails:
                yield from self._tail(tail, target)
            return
        for batch in self._merged(target, plan.target):
            yield schema.conform(batch, target)

    def _merged(self, target: pa.Schema, how: Target) -> Iterator[pa.RecordBatch]:
        keys = resolve(how.keys, self.schema.names)
        by = resolve([how.sequence_by], self.schema.names)[0] if how.sequence_by else ""
        needed = [*dict.fromkeys([*target.names, *keys, *([by] if by else [])])]
        narrow = selected(self.schema, needed)
        # A condition may name any column.
        wide = self.schema if how.delete_when else narrow
        rows = (batch for tail in self._plan.tails for batch in self._tail(tail, wide))
        last = winners(rows, wide, keys, by)
        deleted = holds(how.delete_when, last)
        assert self._table is not None
        table = self._table.rows(narrow)
        in_log = schema.columns(self._plan.spark_schema)
        others = [name for name in needed if name not in in_log]
        yield from merged(table, last.select(needed), deleted, keys, by, others)

    def _tail(self, tail: Tail, target: pa.Schema) -> Iterator[pa.RecordBatch]:
        if tail.end <= tail.start:
            return
        # With the plan's look at the floor: the next compaction does not end this read.
        log = LogRange(self._options, tail.name, self._logs[tail.name], pinned=tail.pinned)
        log.look()
        partitioned = self._table.partitioned if self._table is not None else ()
        for batch in log.scan(tail.start, tail.end, target):
            yield as_stored(batch, partitioned)


def current(
    logs: Mapping[str, LogStore],
    options: SourceOptions,
    table_options: Mapping[str, str] | None,
) -> Current:
    """Pin a version of the table that `logs`, by sequencer, are compacted into, and the end of each
    log. `table_options` are delta-rs' storage options, instead of the log's own. Raises as
    `plan_current`; TableReadError; OptionError where the table's columns are of other types than
    the log's."""
    refuse_parts(options)
    opened: list[DeltaLog] = []

    def open_table(target: Target) -> DeltaLog:
        opened.append(delta_log(target.table, options, table_options))
        opened[-1].update()
        return opened[-1]

    plan = plan_current([LogRange(options, *each) for each in logs.items()], open_table)
    table = None
    if plan.target is not None:
        storage = storage_options(options.s3, table_options)
        table = LakeTable(plan.target.table, storage, plan.table_version, opened[-1])
    return Current(plan, logs, options, table)
