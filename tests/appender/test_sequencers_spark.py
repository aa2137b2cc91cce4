"""Spark over the sequencers of one path: the sink into one, the source over one or all."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from sparkwal import Appender, Log
from sparkwal.format import schema
from sparkwal.options.parsing import parse
from sparkwal.options.reading import SourceOptions
from sparkwal.spark.source import StreamReader
from sparkwal.testing.proxy import S3Proxy
from tests.spark.queries import (
    append,
    assert_one_error,
    follow,
    numbers,
    read,
    refused,
    values,
    wait_for,
)

SCHEMA = pa.schema([("value", pa.int64())])


def fill(path: object, sequencer: str, *numbers: int, **options: object) -> None:
    """Each number is one commit."""
    with Appender(
        str(path), SCHEMA, producer_id="p", sequencer=sequencer, maxInFlightRequests=1, **options
    ) as wal:
        for number in numbers:
            wal.append([{"value": number}]).result()


def reader_of(path: object, **options: str) -> StreamReader:
    spark_schema = StructType.fromJson(json.loads(schema.from_arrow(SCHEMA)))
    every = {} if "sequencer" in options else {"sequencers": "*"}
    given = {"path": str(path), **every, **options}
    return StreamReader(parse(SourceOptions, given), spark_schema)


def test_all_sequencers_and_the_root_log_are_one_table(spark: SparkSession, tmp_path: Path) -> None:
    fill(tmp_path, "a", 1, 2)
    fill(tmp_path, "b", 3)
    fill(tmp_path, "default", 4)
    assert values(read(spark, tmp_path, sequencers="*").collect()) == [1, 2, 3, 4]
    assert values(read(spark, tmp_path, sequencer="a").collect()) == [1, 2]
    assert values(read(spark, tmp_path).collect()) == [4]
    rows = read(spark, tmp_path, sequencers="*", includeMetadata=True)
    assert rows.filter("_wal_position >= 0").count() == 4


def test_the_sink_writes_to_a_sequencer(spark: SparkSession, tmp_path: Path) -> None:
    for name in ("a", "b"):
        stream = numbers(spark, 5).select("value")
        append(stream, tmp_path / "log", tmp_path / f"checkpoint-{name}", sequencer=name)
    rows = read(spark, tmp_path / "log", sequencers="*").collect()
    assert values(rows) == sorted([*range(5)] * 2)
    assert len(Log(str(tmp_path / "log"), sequencer="a").to_pandas()) == 5
    assert Log(str(tmp_path / "log")).head() is None


def test_a_stream_over_all_logs_finds_new_sequencers(spark: SparkSession, tmp_path: Path) -> None:
    path, checkpoint = tmp_path / "log", tmp_path / "checkpoint"
    fill(path, "a", 1, 2)
    batches, _ = follow(spark, path, checkpoint, sequencers="*")
    assert [values(batch) for batch in batches] == [[1, 2]]
    fill(path, "a", 3)
    fill(path, "b", 4, 5)
    batches, _ = follow(spark, path, checkpoint, sequencers="*")
    assert [values(batch) for batch in batches] == [[3, 4, 5]]
    batches, _ = follow(spark, path, checkpoint, sequencers="*")
    assert batches == []


def test_a_running_stream_finds_new_sequencers(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "log"
    batches, query = follow(
        spark,
        path,
        tmp_path / "checkpoint",
        schema="value long",
        available_now=False,
        sequencers="*",
    )
    try:
        expected: list[int] = []
        for number, name in enumerate(("b", "a", "default")):
            fill(path, name, number)
            expected.append(number)
            wait_for(lambda: values([row for batch in batches for row in batch]) == expected)
    finally:
        query.stop()


def test_limits_hold_over_all_sequencers_and_starve_none(tmp_path: Path) -> None:
    fill(tmp_path, "a", *range(6))
    fill(tmp_path, "b", *range(3))
    reader = reader_of(tmp_path, maxRowsPerTrigger="2")
    start = reader.begin({})
    assert (start["a"], start["b"]) == (0, 0)
    moved = []
    for _ in range(10):
        end = reader.advance(start, limited=True)
        tasks = reader.plan(start, end)
        rows = sum(batch.num_rows for task in tasks for batch in reader.read(task))
        moved.append(rows)
        start = end
    assert sum(moved) == 9 and max(moved) == 2 and moved[-1] == 0
    assert [name for name in start if not name.startswith("log_id:")] == ["a", "b"]


def test_a_new_sequencer_is_read_from_its_beginning_even_by_a_latest_stream(
    tmp_path: Path,
) -> None:
    fill(tmp_path, "a", 1, 2)
    reader = reader_of(tmp_path, startingPosition="latest")
    start = reader.begin({})
    fill(tmp_path, "b", 3)
    end = reader.advance(start, limited=False)
    assert end["a"] == start["a"] and end["b"] == 2
    read_rows = [
        value
        for task in reader.plan(start, end)
        for batch in reader.read(task)
        for value in batch.column("value").to_pylist()
    ]
    assert read_rows == [3]


def test_sequencers_whose_columns_contradict_are_refused(
    spark: SparkSession, tmp_path: Path
) -> None:
    fill(tmp_path, "a", 1)
    with Appender(
        str(tmp_path), pa.schema([("value", pa.string())]), producer_id="p", sequencer="b"
    ) as wal:
        wal.append([{"value": "x"}])
    shown = refused(lambda: read(spark, tmp_path, sequencers="*").collect())
    assert_one_error(shown, "OptionError", "sequencer b", "bigint", "string")


def test_columns_that_one_sequencer_lacks_are_null(spark: SparkSession, tmp_path: Path) -> None:
    fill(tmp_path, "a", 1)
    wider = pa.schema([("value", pa.int64()), ("more", pa.string())])
    with Appender(str(tmp_path), wider, producer_id="p", sequencer="b") as wal:
        wal.append([{"value": 2, "more": "x"}])
    rows = read(spark, tmp_path, sequencers="*").orderBy("value").collect()
    assert [tuple(row) for row in rows] == [(1, None), (2, "x")]


def test_positions_are_no_option_for_all(spark: SparkSession, tmp_path: Path) -> None:
    fill(tmp_path, "a", 1)
    shown = refused(lambda: read(spark, tmp_path, sequencers="*", startingPosition=1).collect())
    assert_one_error(shown, "OptionError", "startingTimestamp")


def test_an_idle_look_is_one_request_for_one_log_and_few_for_all(
    s3_proxy: S3Proxy, s3_path: tuple[str, dict[str, str]]
) -> None:
    path, options = s3_path
    options = {**options, "endpoint": s3_proxy.url}
    for name in ("a", "b", "c"):
        fill(path, name, 1, **options)
    for which, idle in (({"sequencer": "a"}, {"GET": 1}), ({}, {"LIST": 2, "GET": 3})):
        reader = reader_of(path, **options, **which)
        offset = reader.advance(reader.begin({}), limited=False)
        s3_proxy.reset()
        assert reader.advance(offset, limited=False) == offset
        assert s3_proxy.counts() == idle
