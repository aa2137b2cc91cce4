"""A Python sink and a Python source that do nothing: the lower bound for Python sources."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from sparkwal.spark.interfaces import DataSourceStreamArrowWriter, to_arrow_schema

if TYPE_CHECKING:
    import pyarrow as pa


# Rows in what Spark hands to a Python sink at once.
BATCH = 10_000


class _Stream(DataSourceStreamArrowWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        for _ in iterator:
            pass
        return WriterCommitMessage()

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None: ...

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None: ...


class _Batch(DataSourceArrowWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        for _ in iterator:
            pass
        return WriterCommitMessage()

    def commit(self, messages: list[WriterCommitMessage | None]) -> None: ...

    def abort(self, messages: list[WriterCommitMessage | None]) -> None: ...


class _Reader(DataSourceReader):
    """So many rows of the schema in two tasks: one batch again and again."""

    def __init__(self, schema: StructType, rows: int) -> None:
        self._schema, self._rows = schema, rows

    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(task) for task in range(2)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        schema = to_arrow_schema(self._schema)
        text = "user-1234567890-some text that is the same in all rows-1234567890123456789"
        columns = [
            pa.array([text] * BATCH)
            if field.type == pa.string()
            else pa.array(range(BATCH), pa.int64()).cast(field.type)
            for field in schema
        ]
        batch = pa.RecordBatch.from_arrays(columns, schema=schema)
        rows = self._rows // 2 + (self._rows % 2 if partition.value else 0)
        for first in range(0, rows, BATCH):
            yield batch.slice(0, rows - first)


class NoopDataSource(DataSource):
    """`format("python-noop")`; Spark's own "noop" never starts a Python worker.

    Reading takes the option `rows`.
    """

    @classmethod
    def name(cls) -> str:
        return "python-noop"

    def reader(self, schema: StructType) -> DataSourceReader:
        return _Reader(schema, int(self.options["rows"]))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        return _Stream()

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        return _Batch()
