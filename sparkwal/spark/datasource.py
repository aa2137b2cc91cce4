"""`format("weaselwal")`: what Spark instantiates for reading and for writing."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TypeVar

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from sparkwal.errors import OptionError
from sparkwal.options.parsing import parse
from sparkwal.options.reading import SourceOptions
from sparkwal.options.store import StoreOptions
from sparkwal.options.writing import SinkOptions
from sparkwal.reading.floor import Looked
from sparkwal.spark.readable import readable_errors
from sparkwal.spark.sink import VIEW, BatchWriter, StreamWriter, no_table
from sparkwal.spark.source import BatchReader, StreamReader, log_schema
from sparkwal.spark.unpickling import PickledByValue
from sparkwal.store.path import absolute

T = TypeVar("T", bound=StoreOptions)
# How this library hands a `Looked` to a read that Spark makes: no option of a user's.
PINNED = "sparkwal_pinned"


class WeaselWalDataSource(PickledByValue, DataSource):
    """A write-ahead log on object storage as a Spark source and sink.

    df.writeStream.format("weaselwal").option("checkpointLocation", …).start("s3://bucket/wal")
    spark.read.format("weaselwal").option("startingPosition", 120).load("s3://bucket/wal")

    Names of options are not case-sensitive; sizes take 1mb or bytes, times 500ms or
    milliseconds; sparkwal/docs/options.md has all of them. A wrong one raises OptionError before
    anything is read or written.
    """

    # How many tasks the session runs at once; Spark does not hand it to a reader.
    parallelism: int | None = None

    @classmethod
    def name(cls) -> str:
        return "weaselwal"

    @classmethod
    def with_parallelism(cls, tasks: int) -> type[WeaselWalDataSource]:
        return type(cls.__name__, (cls,), {"parallelism": tasks})

    def _options(self, kind: type[T]) -> T:
        given = {name: text for name, text in self.options.items() if name != PINNED}
        if not self.options.get("path"):
            # A name that is wrong may stand for it.
            parse(kind, {**given, "path": "/"})
            where = 'give it to load, save or start ("s3://bucket/wal")'
            raise OptionError(f"option path is missing: {where}. {VIEW}")
        options = parse(kind, given)
        # Here, on the driver: executors have working directories of their own.
        return replace(options, path=absolute(options.path))

    def schema(self) -> StructType:
        with readable_errors():
            # Spark sets this only for a table that is about to be created.
            if "provider" in self.options:
                raise no_table()
            return log_schema(self._options(SourceOptions))

    def reader(self, schema: StructType) -> BatchReader:
        with readable_errors():
            text = self.options.get(PINNED)
            pinned = Looked(**json.loads(text)) if text else None
            return BatchReader(self._options(SourceOptions), schema, self.parallelism, pinned)

    def streamReader(self, schema: StructType) -> StreamReader:
        with readable_errors():
            return StreamReader(self._options(SourceOptions), schema, self.parallelism)

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        with readable_errors():
            if overwrite:
                advice = 'use mode("append"), or write to a new path'
                raise OptionError(f"a log is never overwritten: {advice}")
            return BatchWriter(self._options(SinkOptions), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:
        # Called again for every commit, in another worker: it must do nothing but this.
        with readable_errors():
            for name in self.options:
                if "asyncprogresstracking" in name.lower():
                    raise OptionError(
                        f"option {name}: with asynchronous progress tracking a restarted query may "
                        "give a batch id to other rows, which the log would take for rows that it "
                        "has: remove the option"
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
