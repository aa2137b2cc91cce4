"""Logs that this state of the library makes with Spark. Each function returns what it wrote."""

from __future__ import annotations

import json
import time
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

import sparkwal
from tests.stored.place import LOG, PLACE, plain
from tests.stored.writing import Expected, Row, append, expected, row, rows

INPUT = PLACE / "input"
CHECKPOINT = PLACE / "checkpoint"
FORK = PLACE / "fork"
TABLE = PLACE / "table"

TYPES = (
    "id bigint, b boolean, i int, d double, s string, m decimal(20,2), t timestamp, day date, "
    "raw binary, l array<int>, o struct<x:int,y:string>, kv map<string,bigint>"
)


def _values(number: int) -> tuple[Any, ...]:
    moment = datetime(2026, 1, 1, 12, number % 60, tzinfo=UTC)
    return (
        number,
        number % 2 == 0,
        -number,
        number / 8,
        f"text {number} é",
        Decimal(f"{number}.25"),
        moment,
        date(2026, 1, 1 + number % 28),
        bytes([number % 256, 0]),
        [number, None],
        (number, None),
        {"k": number},
    )


def _typed(number: int) -> Row:
    """A row of TYPES as it must be read."""
    names = [column.split()[0] for column in TYPES.split(", ")]
    found = dict(zip(names, map(plain, _values(number)), strict=True))
    return {**found, "o": {"x": number, "y": None}, "kv": [["k", number]]}


def _save(frame: DataFrame, sequencer: str = "default", **options: object) -> None:
    writer = frame.write.format("weaselwal").mode("append").option("sequencer", sequencer)
    writer.options(**options).save(str(LOG))  # type: ignore[arg-type]


def _frame(spark: SparkSession, numbers: range, partitions: int = 1) -> DataFrame:
    ids = spark.range(numbers.start, numbers.stop, 1, partitions)
    return ids.selectExpr("id", "concat('v', id) v")


def batches(spark: SparkSession) -> Expected:
    """Rows in records and in objects of several partitions and frames, one in parts."""
    typed = spark.createDataFrame(
        spark.sparkContext.parallelize([_values(number) for number in range(4)], 2), TYPES
    )
    _save(typed, txnAppId="nightly", txnVersion=7)
    in_objects: dict[str, object] = {
        "inlineThreshold": 0,
        "batchSizeThreshold": "1kb",
        "batchTimeoutMs": 60_000,
    }
    _save(_frame(spark, range(300), 3), "objects", **in_objects)
    _save(_frame(spark, range(300, 340), 2), "objects", compression="lz4", **in_objects)
    _save(_frame(spark, range(5)), "wide", windowSize=1_000_000)
    _save(_frame(spark, range(5, 105), 2), "wide", **in_objects)
    large = spark.range(0, 3, 1, 1).selectExpr("id", "repeat('x', 2 << 20) v")
    in_parts = {"multipartThreshold": "5mb", "compression": "none"}
    _save(large, "parts", inlineThreshold=0, batchTimeoutMs=60_000, **in_parts)
    return expected(
        ("default", [_typed(number) for number in range(4)]),
        ("objects", rows(*range(340))),
        ("wide", rows(*range(105))),
        ("parts", [{"id": number, "v": plain("x" * (2 << 20))} for number in range(3)]),
    )


def put_input(number: int) -> None:
    """A file of the input, with one row."""
    INPUT.mkdir(exist_ok=True)
    file = INPUT / f"{number:04d}.json"
    file.write_text(json.dumps(row(number)))


def _start(rows: DataFrame, path: Path, checkpoint: str, **trigger: Any) -> StreamingQuery:
    writer = rows.writeStream.format("weaselwal").option("checkpointLocation", checkpoint)
    return writer.trigger(**(trigger or {"availableNow": True})).start(str(path))


def ingest(spark: SparkSession, path: Path, checkpoint: str, **trigger: Any) -> StreamingQuery:
    """A query from the files of the input to a log, a file a microbatch."""
    return _start(_input(spark), path, checkpoint, **trigger)


def _input(spark: SparkSession) -> DataFrame:
    reader = spark.readStream.schema("id bigint, v string").option("maxFilesPerTrigger", 1)
    return reader.json(str(INPUT))


def orders(folder: Path = CHECKPOINT) -> str:
    return sparkwal.checkpoint(str(LOG), "orders", folder=folder)


def forked(at: int) -> str:
    fork = sparkwal.Fork(str(LOG), "orders", at=at)
    return sparkwal.checkpoint(str(FORK), "orders-2", folder=PLACE / "fork-checkpoint", fork=fork)


def files(spark: SparkSession) -> Expected:
    """A query over files, with compacted lists, and a fork of it in another log."""
    spark.conf.set("spark.sql.streaming.fileSource.log.compactInterval", 3)
    for number in range(8):
        put_input(number)
        # The source orders files by their times.
        time.sleep(0.02)
    ingest(spark, LOG, orders()).awaitTermination()
    at = 4
    ingest(spark, FORK, forked(at)).awaitTermination()
    return expected(("default", rows(*range(8))), fork=rows(*range(at, 8)), at=at, query="orders")


def stateful(spark: SparkSession) -> Expected:
    """A query that drops duplicates, whose records carry its state: in files of changes."""
    spark.conf.set("spark.sql.shuffle.partitions", 2)
    for number in range(6):
        put_input(number)
        time.sleep(0.02)
    _start(_input(spark).dropDuplicates(["id"]), LOG, orders()).awaitTermination()
    names = [file.relative_to(CHECKPOINT) for file in CHECKPOINT.glob("state/0/*/[0-9]*.delta")]
    # The record of the last microbatch carries the state before it.
    state = sorted(str(name) for name in names if int(name.stem) < 6)
    return expected(("default", rows(*range(6))), state=state, query="orders")


def aside(spark: SparkSession) -> Expected:
    """A log with a table that refused two of its rows, and newer rows."""
    _refused(spark)
    append(range(20, 22))
    return {"current": {"default": rows(1, 2, 20, 21)}, "refused": [10, 11]}


def again(spark: SparkSession) -> Expected:
    """The same, after one of the refused rows was written again."""
    life = _refused(spark)
    name = f"delta.`{TABLE}`"
    spark.sql(f"ALTER TABLE {name} DROP CONSTRAINT c")
    spark.sql(f"ALTER TABLE {name} ADD CONSTRAINT c CHECK (id < 11)")
    life.refused_again()
    append(range(20, 22))
    return {"current": {"default": rows(1, 2, 10, 20, 21)}, "refused": [11]}


def _refused(spark: SparkSession) -> sparkwal.Lifecycle:
    spark.sql(f"CREATE TABLE delta.`{TABLE}` (id BIGINT, v STRING) USING delta")
    spark.sql(f"ALTER TABLE delta.`{TABLE}` ADD CONSTRAINT c CHECK (id < 10)")
    append(range(1, 3))
    append(range(10, 12))
    life = sparkwal.Lifecycle(str(LOG), spark=spark, table=str(TABLE), refusedRows="aside")
    life.run_once(whole=True)
    return life
