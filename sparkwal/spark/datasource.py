"""`format("weaselwal")`: what Spark instantiates for reading and for writing."""

from __future__ import annotations

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from sparkwal.errors import OptionError
from sparkwal.options.parsing import parse
from sparkwal.options.reading import SourceOptions
from sparkwal.options.writing import SinkOptions
from sparkwal.spark.readable import readable_errors
from sparkwal.spark.sink import BatchWriter, StreamWriter
from sparkwal.spark.source import BatchReader, StreamReader, log_schema


class WeaselWalDataSource(DataSource):
    """A write-ahead log on object storage as a Spark source and sink."""

    @classmethod
    def name(cls) -> str:
        return "weaselwal"

    def schema(self) -> StructType:
        with readable_errors():
            return log_schema(parse(SourceOptions, self.options))

    def reader(self, schema: StructType) -> BatchReader:
        with readable_errors():
            return BatchReader(parse(SourceOptions, self.options), schema)

    def streamReader(self, schema: StructType) -> StreamReader:
        with readable_errors():
            return StreamReader(parse(SourceOptions, self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        with readable_errors():
            if overwrite:
                raise OptionError(
                    'a log is never overwritten: use mode("append"), or write to a new path'
                )
            return BatchWriter(parse(SinkOptions, self.options), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:
        # Called again for every commit, in another worker: it must do nothing but this.
        with readable_errors():
            if overwrite:
                raise OptionError(
                    'a log only grows: use outputMode("append"); to store the results of '
                    "complete mode write them with foreachBatch, or append the aggregate's "
                    "input and aggregate when reading"
                )
            options = parse(SinkOptions, self.options)
            if options.txn_app_id is not None:
                raise OptionError(
                    "txnAppId and txnVersion are for df.write; a stream is exactly-once by its "
                    "checkpoint: remove them"
                )
            return StreamWriter(options, schema, self.options.get("checkpointLocation", ""))
