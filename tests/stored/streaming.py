"""Logs that this state of the library makes with Spark. Each function returns what it wrote."""

from __future__ import annotations

import json
import shutil
import time
from contextlib import suppress
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

import sparkwal
from sparkwal.errors import SparkWalError
from sparkwal.spark.delta import SparkDeltaTable
from tests.stored.place import HINTS, LOG, PLACE, age, plain
from tests.stored.writing import Expected, Row, append, expected, row, rows

INPUT = PLACE / "input"
CHECKPOINT = PLACE / "checkpoint"
FORK = PLACE / "fork"
READER = PLACE / "reader"
READER_OF_ALL = PLACE / "reader-of-all"
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


def ingest(spark: SparkSession, path: Path, checkpoint: str, **trigger: Any) -> StreamingQuery:
    """A query from the files of the input to a log, a file a microbatch."""
    reader = spark.readStream.schema("id bigint, v string").option("maxFilesPerTrigger", 1)
    writer = reader.json(str(INPUT)).writeStream.format("weaselwal")
    writer = writer.option("checkpointLocation", checkpoint)
    return writer.trigger(**(trigger or {"availableNow": True})).start(str(path))


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


def numbers(spark: SparkSession, checkpoint: str, delay: int = 0, **trigger: Any) -> StreamingQuery:
    """A query over numbers, three in each microbatch."""
    stream = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 3)
    stream = stream.option("numPartitions", 1).load().selectExpr("value id", "concat('v', value) v")
    if delay:
        stream = stream.where(f"java_method('java.lang.Thread', 'sleep', {delay}L) IS NULL")
    writer = stream.writeStream.format("weaselwal").option("checkpointLocation", checkpoint)
    return writer.trigger(**(trigger or {"availableNow": True})).start(str(LOG))


def counting(folder: Path = CHECKPOINT) -> str:
    return sparkwal.checkpoint(str(LOG), "numbers", folder=folder)


def rate(spark: SparkSession) -> Expected:
    """A query over numbers, and the hints of its leaders: planned, committed, fenced."""
    for _ in range(3):
        numbers(spark, counting()).awaitTermination()
    kept = _hints("committed")
    assert kept
    query = numbers(spark, counting(), processingTime="0 seconds")
    while not (planned := _hints("planned")):
        time.sleep(0.001)
    query.stop()
    _save(_frame(spark, range(1_000, 1_001)), takeOver=True)
    fenced = _hints("fenced")
    assert fenced
    for name, text in [*kept.items(), *planned.items(), *fenced.items()]:
        (HINTS / f"{json.loads(text)['state']}-{name}").write_bytes(text)
    count = sum(each.rows for each in sparkwal.Log(str(LOG)).records() if each.kind == "commit")
    counted = rows(*range(count - 1), 1_000)
    return expected(("default", counted), query="numbers")


def _hints(state: str = "") -> dict[str, Any]:
    found = {}
    for file in HINTS.glob("*.json"):
        with suppress(FileNotFoundError):
            text = file.read_bytes()
            if not state or json.loads(text)["state"] == state:
                found[file.name] = text
    return found


def follow(spark: SparkSession, checkpoint: Path, **options: object) -> list[int]:
    """The ids that a stream reads from its checkpoint on, all in one microbatch."""
    taken: list[int] = []
    reader = spark.readStream.format("weaselwal").options(**options)  # type: ignore[arg-type]

    def take(frame: DataFrame, _: int) -> None:
        taken.extend(row.id for row in frame.collect())

    writer = reader.load(str(LOG)).writeStream.foreachBatch(take)
    writer = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
    writer.start().awaitTermination()
    return sorted(taken)


def consumers(spark: SparkSession) -> Expected:
    """Readers in the middle of a log: two streams, a read with a lease, a replay."""
    append(range(3))
    append(range(10, 13), sequencer="a")
    for _ in range(2):
        follow(spark, READER, consumer="one")
        follow(spark, READER_OF_ALL, consumer="all", sequencers="*")
    replay = sparkwal.Log(str(LOG)).replay(sequencers="*")
    seen = [next(replay) for _ in range(2)]
    append(range(3, 5))
    leased = sparkwal.Log(str(LOG), lease="3650d").scan(start=1)
    shutil.copytree(LOG / "consumers", PLACE / "consumers")
    del leased
    shutil.rmtree(LOG / "consumers")
    (PLACE / "consumers").rename(LOG / "consumers")
    return expected(
        ("default", rows(*range(5))),
        ("a", rows(10, 11, 12)),
        consumers={"one": ["default", 4], "all": ["a", 4], "lease": ["default", 1]},
        cursor=replay.cursor,
        replayed=sum(batch.num_rows for entry in seen for batch in entry.rows),
        unread=[3, 4],
    )


def _lifecycle(spark: SparkSession, **more: Any) -> sparkwal.Lifecycle:
    return sparkwal.Lifecycle(str(LOG), spark=spark, table=str(TABLE), gcGrace="1h", **more)


appending = partial(_lifecycle, retainSeconds=0)
KEYED: dict[str, Any] = {
    "keys": ["id"],
    "sequence_by": "seq",
    "delete_when": "gone",
    "tombstoneHorizon": "3650d",
}
ROWS_OF_KEYS = pa.schema(
    [("id", pa.int64()), ("v", pa.string()), ("seq", pa.int64()), ("gone", pa.bool_())]
)


def change(number: int, v: str, seq: int, gone: bool = False) -> Row:
    return {"id": number, "v": v, "seq": seq, "gone": gone}


def put_changes(changes: list[Row]) -> None:
    with sparkwal.Appender(str(LOG), ROWS_OF_KEYS, producer_id="p") as wal:
        wal.append(changes)


def lake(spark: SparkSession) -> Expected:
    """Logs with a table: floors moved, positions collected, a range that is open."""
    first = {"default": append(range(4)), "a": append(range(10, 13), sequencer="a")}
    appending(spark).run_all(whole=True)
    age(LOG, 3)
    first["default"] += append(range(4, 6))
    first["b"] = append(range(20, 22), sequencer="b")
    for _ in range(2):
        appending(spark).run_all(whole=True)
        age(LOG, 3)
    first["a"] += append(range(13, 15), sequencer="a")
    first["default"] += append(range(6, 7))
    write = SparkDeltaTable.write
    SparkDeltaTable.write = _dies  # type: ignore[method-assign]
    with suppress(KeyboardInterrupt):
        appending(spark).run_all(whole=True)
    SparkDeltaTable.write = write  # type: ignore[method-assign]
    first["a"] += append(range(15, 16), sequencer="a")
    return {"current": first, "in_table": [*rows(*range(6)), *rows(*range(10, 13)), *rows(20, 21)]}


def _dies(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


def keyed(spark: SparkSession) -> Expected:
    """A log with a table by keys, tombstones, and a range that was burned."""
    put_changes([change(1, "a", 1), change(2, "b", 1), change(3, "c", 1)])
    _lifecycle(spark, **KEYED).run_once(whole=True)
    put_changes([change(1, "", 5, gone=True), change(2, "b2", 2)])
    _lifecycle(spark, **KEYED).run_once(whole=True)
    put_changes([change(3, "refused", 3)])
    spark.sql(f"ALTER TABLE delta.`{TABLE}` ADD CONSTRAINT own CHECK (v <> 'refused')")
    life = _lifecycle(spark, **KEYED)
    with suppress(SparkWalError, PySparkException):
        life.run_once(whole=True)
    assert life.give_up_range() is not None
    spark.sql(f"ALTER TABLE delta.`{TABLE}` DROP CONSTRAINT own")
    age(LOG, 3)
    # Older than the delete of its key, and newer than another row.
    put_changes([change(1, "late", 4), change(4, "d", 1)])
    last = [change(2, "b2", 2), change(3, "refused", 3), change(4, "d", 1)]
    return {"current": {"default": last}}
