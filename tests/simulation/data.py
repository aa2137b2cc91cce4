"""The rows that simulated queries write: a function of query, microbatch and partition."""

from __future__ import annotations

import pyarrow as pa

from sparkwal.format import schema

PREFIX = "wal"
# A producer with a journal: its records hold what `journaled` appends.
JOURNALED = "journaled"
SCHEMA = schema.from_arrow(pa.schema([("v", pa.int64())]))


def partitions_of(query_id: str) -> int:
    """How many partitions each microbatch of a query has: "q/2" has two, "q" one."""
    return int(query_id.partition("/")[2] or 1)


def rows_of(query_id: str, batch_id: int, partition: int) -> list[int]:
    """The rows of one partition; the same however often Spark computes it."""
    return [batch_id * 100 + partition * 10 + row for row in range(2)]


def record_batch(query_id: str, batch_id: int, partition: int) -> pa.RecordBatch:
    """The same for Arrow."""
    values = pa.array(rows_of(query_id, batch_id, partition), pa.int64())
    return pa.RecordBatch.from_arrays([values], schema=schema.to_arrow(SCHEMA))


def source_batch(rows: tuple[int, ...]) -> pa.RecordBatch:
    """Rows of a source."""
    values = pa.array(rows, pa.int64())
    return pa.RecordBatch.from_arrays([values], schema=schema.to_arrow(SCHEMA))
