"""`format("weaselwal")`: the class that Spark instantiates for reading and for writing."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from sparkwal.errors import OptionError
from sparkwal.options.parsing import parse
from sparkwal.options.reading import SourceOptions
from sparkwal.options.store import StoreOptions
from sparkwal.options.writing import SinkOptions
from sparkwal.spark.declared import check_declared
from sparkwal.spark.readable import readable_errors
from sparkwal.spark.sink import VIEW, BatchWriter, StreamWriter, no_table
from sparkwal.spark.source import BatchReader, PlannedReader, StreamReader, log_schema, unpacked
from sparkwal.spark.unpickling import PickledByValue
from sparkwal.store.path import absolute

T = TypeVar("T", bound=StoreOptions)
# An internal option: the tasks of a read that this process planned, for the same machine.
PLANNED = "sparkwal_planned"


class WeaselWalDataSource(PickledByValue, DataSource):
    """A write-ahead log on object storage as a Spark source and sink.

    df.writeStream.format("weaselwal").option("checkpointLocation", …).start("s3://bucket/wal")
    spark.read.format("weaselwal").option("startingPosition", 120).load("s3://bucket/wal")

    The names of options are not case-sensitive. Sizes are written as 1mb or as bytes, times as
    500ms or as milliseconds. sparkwal/docs/options.md lists all options. A wrong option raises
    OptionError before the first read or write.
    """

    # The number of tasks that the session runs at once. Spark does not pass it to a reader.
    parallelism: int | None = None

    @classmethod
    def name(cls) -> str:
        return "weaselwal"

    @classmethod
    def with_parallelism(cls, tasks: int) -> type[WeaselWalDataSource]:
        """A subclass for a session that runs this many tasks at once."""
        return type(cls.__name__, (cls,), {"parallelism": tasks})

    def _options(self, kind: type[T]) -> T:
        texts = {name: text for name, text in self.options.items() if name != PLANNED}
        if not self.options.get("path"):
            # First report a wrong name: it may be a misspelled `path`.
            parse(kind, {**texts, "path": "/"})
            advice = 'pass it to load, save or start ("s3://bucket/wal")'
            raise OptionError(f"option path is missing: {advice}. {VIEW}")
        options = parse(kind, texts)
        # On the driver, because each executor has its own working directory.
        return replace(options, path=absolute(options.path))

    def schema(self) -> StructType:
        with readable_errors():
            # Spark sets this option only when it creates a table.
            if "provider" in self.options:
                raise no_table()
            return log_schema(self._options(SourceOptions))

    def reader(self, schema: StructType) -> BatchReader | PlannedReader:
        with readable_errors():
            check_declared(schema)
            if (planned := self.options.get(PLANNED)) is not None:
                return PlannedReader(self._options(SourceOptions), schema, unpacked(planned))
            return BatchReader(self._options(SourceOptions), schema, self.parallelism)

    def streamReader(self, schema: StructType) -> StreamReader:
        with readable_errors():
            check_declared(schema)
            return StreamReader(self._options(SourceOptions), schema, self.parallelism)

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        with readable_errors():
            if overwrite:
                advice = 'use mode("append"), or write to a new path'
                raise OptionError(f"a log cannot be overwritten: {advice}")
            return BatchWriter(self._options(SinkOptions), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:
        # Spark calls this for every commit in another worker, so it must not reach the store.
        with readable_errors():
            for name in self.options:
                if "asyncprogresstracking" in name.lower():
                    raise OptionError(
                        f"option {name}: with asynchronous progress tracking a restarted query may "
                        "reuse a batch id for other rows, which the log would skip as rows that it "
                        "already has: remove the option"
                    )
            if overwrite:
                raise OptionError(
                    'a log only grows: use outputMode("append"), and aggregate when reading; or '
                    "write the results of complete mode with foreachBatch"
                )
            options = self._options(SinkOptions)
            if options.take_over:
                raise OptionError(
                    "takeOver is for df.write; a stream takes the log over when it starts: remove "
                    "the option"
                )
            if options.txn_app_id is not None:
                raise OptionError(
                    "txnAppId and txnVersion are for df.write; a stream is exactly-once by its "
                    "checkpoint: remove them"
                )
            return StreamWriter(options, schema, self.options.get("checkpointLocation", ""))
