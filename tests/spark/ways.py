"""All ways in which Spark lets a caller ask for a write or a view of a log, and what comes of each.

`test_ways.py` tries each of them on Spark. The page options.md shows them as a table.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, DataFrameWriter, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.readwriter import DataStreamWriter
from pyspark.sql.types import StructType

NAME = "asked"


@dataclass(frozen=True)
class Place:
    """Where a way is tried: a stream and a batch of the ids 0, 1 and 2, and a new log."""

    spark: SparkSession
    folder: Path

    @property
    def log(self) -> str:
        return str(self.folder / "log")

    @property
    def batch(self) -> DataFrame:
        return self.spark.range(3)

    @cached_property
    def stream(self) -> DataFrame:
        rows = self.folder / "in"
        rows.mkdir()
        (rows / "1.json").write_text("\n".join(f'{{"id": {number}}}' for number in range(3)))
        return self.spark.readStream.schema("id BIGINT, at TIMESTAMP").json(str(rows)).select("id")

    @property
    def writer(self) -> DataFrameWriter:
        return self.batch.write.format("weaselwal").mode("append")

    @property
    def path(self) -> str:
        return f"OPTIONS (path '{self.log}')"

    @property
    def rows_before(self) -> int | None:
        """The rows in the log before the way was tried; None without a log."""
        return 1 if "view" in vars(self) else None

    def sql(self, text: str) -> None:
        self.spark.sql(text)

    @cached_property
    def view(self) -> str:
        """A temporary view of the log, which has one row."""
        self.spark.range(9, 10).write.format("weaselwal").mode("append").save(self.log)
        self.sql(f"CREATE OR REPLACE TEMPORARY VIEW {NAME} USING weaselwal {self.path}")
        return NAME


@dataclass(frozen=True)
class Way:
    """One way.

    Attributes:
        name: as the table shows it.
        ask: does it.
        refused: what the error says; empty if the way is taken.
        rows: how many rows are in the log then, if the way is taken; None without a log.
        note: what the table says of a way that is taken.
        since: the capability that a Spark needs.
    """

    name: str
    ask: Callable[[Place], object]
    refused: str = ""
    rows: int | None = 3
    note: str = ""
    since: str = ""


def _started(place: Place, change: Callable[[DataStreamWriter], Any], rows: DataFrame) -> None:
    writer = rows.writeStream.format("weaselwal")
    writer = change(writer.option("checkpointLocation", str(place.folder / "checkpoint")))
    query = writer.start(place.log)
    try:
        query.processAllAvailable()
    finally:
        query.stop()


def _stream(change: Callable[[DataStreamWriter], Any]) -> Callable[[Place], None]:
    return lambda place: _started(place, change, place.stream)


def _batch(change: Callable[[DataFrameWriter], Any]) -> Callable[[Place], None]:
    return lambda place: change(place.writer).save(place.log)


def _counted(place: Place) -> None:
    counts = place.stream.groupBy().count()
    _started(place, lambda writer: writer.outputMode("complete"), counts)


def _in_batches(place: Place) -> None:
    def write(rows: DataFrame, number: int) -> None:
        writer = rows.write.format("weaselwal").mode("append")
        writer.option("txnAppId", "each").option("txnVersion", number).save(place.log)

    _started(place, lambda writer: writer.foreachBatch(write), place.stream)


def _with_watermark(place: Place) -> None:
    rows = place.stream.withColumn("at", F.current_timestamp()).withWatermark("at", "1 minute")
    _started(place, lambda writer: writer, rows)


def _to_table(place: Place) -> None:
    writer = place.stream.writeStream.format("weaselwal").option("path", place.log)
    writer.option("checkpointLocation", str(place.folder / "checkpoint")).toTable(NAME)


def _sql(text: str) -> Callable[[Place], None]:
    """SQL in which {path} stands for the option, {log} for the log and {view} for its view."""

    def ask(place: Place) -> None:
        view = place.view if "{view}" in text else ""
        place.sql(text.format(name=NAME, path=place.path, log=place.log, view=view))

    return ask


_MICROBATCHES = "a log is written in microbatches, which a {} trigger does not make"
_TABLE = "a log cannot be a table of the catalog"
_LAYOUT = "a log keeps its rows in the order in which they were written: remove {}"
_MODE = 'The data source "weaselwal" cannot be written in the "{}" mode'
_OVERWRITTEN = "a log cannot be overwritten"

STREAMS = (
    Way("no trigger", _stream(lambda writer: writer)),
    Way(
        "`trigger(processingTime=…)`",
        _stream(lambda writer: writer.trigger(processingTime="0 seconds")),
    ),
    Way("`trigger(availableNow=True)`", _stream(lambda writer: writer.trigger(availableNow=True))),
    Way("`trigger(once=True)`", _stream(lambda writer: writer.trigger(once=True))),
    Way(
        "`trigger(continuous=…)`",
        _stream(lambda writer: writer.trigger(continuous="1 second")),
        _MICROBATCHES.format("continuous"),
    ),
    Way(
        "`trigger(realTime=…)`",
        _stream(lambda writer: writer.trigger(realTime="5 seconds")),
        _MICROBATCHES.format("realTime"),
        since="REAL_TIME",
    ),
    Way('`outputMode("append")`', _stream(lambda writer: writer.outputMode("append"))),
    Way(
        '`outputMode("update")`',
        _stream(lambda writer: writer.outputMode("update")),
        "does not support Update mode",
    ),
    Way('`outputMode("complete")`', _counted, "a log only grows"),
    Way("`queryName(…)`", _stream(lambda writer: writer.queryName(NAME))),
    Way("`withWatermark(…)`", _with_watermark),
    Way(
        "`foreachBatch(…)` with `df.write`",
        _in_batches,
        note="exactly once with `txnAppId` and `txnVersion`",
    ),
    Way(
        "`foreach(…)`",
        _stream(lambda writer: writer.foreach(lambda row: None)),
        rows=None,
        note="replaces the sink: no row goes to the log",
    ),
    *(
        Way(
            f"`{name}(…)`",
            _stream(lambda writer, name=name: getattr(writer, name)("id")),
            _LAYOUT.format(name),
        )
        for name in ("partitionBy", "clusterBy")
    ),
    Way("`toTable(…)`", _to_table, _TABLE),
)
BATCHES = (
    Way('`mode("append")`', _batch(lambda writer: writer)),
    Way('`mode("overwrite")`', _batch(lambda writer: writer.mode("overwrite")), _OVERWRITTEN),
    Way(
        '`mode("error")`, the default',
        _batch(lambda writer: writer.mode("error")),
        _MODE.format("ErrorIfExists"),
    ),
    Way('`mode("ignore")`', _batch(lambda writer: writer.mode("ignore")), _MODE.format("Ignore")),
    *(
        Way(
            f"`{name}(…)`",
            _batch(lambda writer, name=name: getattr(writer, name)("id")),
            _LAYOUT.format(name),
        )
        for name in ("partitionBy", "clusterBy")
    ),
    Way(
        "`bucketBy(…)`", _batch(lambda writer: writer.bucketBy(2, "id")), _LAYOUT.format("bucketBy")
    ),
    Way(
        "`sortBy(…)`",
        _batch(lambda writer: writer.sortBy("id")),
        _LAYOUT.format("sortBy"),
    ),
    Way("`saveAsTable(…)`", lambda place: place.writer.saveAsTable(NAME, path=place.log), _TABLE),
    *(
        Way(
            f"`writeTo(…).{name}()`",
            lambda place, name=name: getattr(
                place.batch.writeTo(NAME).using("weaselwal").option("path", place.log), name
            )(),
            _TABLE,
        )
        for name in ("create", "replace", "createOrReplace")
    ),
    Way(
        "`insertInto(…)` a view",
        lambda place: place.batch.write.insertInto(place.view),
        rows=4,
    ),
)
SQL = (
    Way(
        "`CREATE TEMPORARY VIEW … USING weaselwal`",
        _sql("SELECT count(*) FROM {view}"),
        rows=1,
        note="a read plans its range once: create it again to see newer rows",
    ),
    Way(
        "… with a column `NOT NULL`",
        _sql("CREATE TEMPORARY VIEW {name} (id BIGINT NOT NULL) USING weaselwal {path}"),
        "is declared NOT NULL, and each column of a log may hold null",
    ),
    Way("`INSERT INTO` the view", _sql("INSERT INTO {view} VALUES (5)"), rows=2),
    Way("`INSERT OVERWRITE` the view", _sql("INSERT OVERWRITE {view} VALUES (5)"), _OVERWRITTEN),
    Way(
        "`CREATE TABLE … USING weaselwal`",
        _sql("CREATE TABLE {name} (id BIGINT) USING weaselwal {path}"),
        _TABLE,
    ),
    Way("… without columns", _sql("CREATE TABLE {name} USING weaselwal {path}"), _TABLE),
    Way(
        "… `LOCATION`",
        _sql("CREATE TABLE {name} (id BIGINT) USING weaselwal LOCATION '{log}'"),
        _TABLE,
    ),
    Way(
        "… `LIKE`",
        _sql("CREATE TABLE {name} LIKE {view} USING weaselwal LOCATION '{log}'"),
        _TABLE,
    ),
    Way(
        "… `AS SELECT`", _sql("CREATE TABLE {name} USING weaselwal {path} AS SELECT 1L id"), _TABLE
    ),
    Way(
        "`CREATE OR REPLACE TABLE`",
        _sql("CREATE OR REPLACE TABLE {name} (id BIGINT) USING weaselwal {path}"),
        _TABLE,
    ),
    Way(
        "`spark.catalog.createTable(…)`",
        lambda place: place.spark.catalog.createTable(
            NAME, place.log, "weaselwal", StructType().add("id", "long")
        ),
        _TABLE,
    ),
)
WAYS = {"a stream": STREAMS, "a batch": BATCHES, "SQL": SQL}
