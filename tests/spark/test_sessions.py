"""Several writers of one log in one Spark session, one after the other."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from pyspark.sql.streaming.listener import QueryProgressEvent

import sparkwal
from tests.spark.queries import (
    append,
    assert_one_error,
    commits,
    numbers,
    read,
    refused,
    start,
    values,
    wait_for,
    write,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_a_query_continues_after_a_batch_write_of_its_session_and_after_an_appender(
    spark: SparkSession, tmp_path: Path
) -> None:
    log, stream = tmp_path / "log", numbers(spark, 2)
    for turn in range(3):
        append(stream, log, tmp_path / "cp")
        if turn == 1:
            # It leaves no note for the query on this machine.
            schema = pa.schema([("timestamp", pa.timestamp("us", "UTC")), ("value", pa.int64())])
            with sparkwal.Appender(str(log), schema, producer_id="p") as wal:
                wal.append([{"timestamp": datetime.now(UTC), "value": -2}]).result()
        else:
            write(stream_as_batch(spark), log)
    assert values(read(spark, log).collect()) == [-2, -1, -1, 0, 1, 2, 3, 4, 5]


def stream_as_batch(spark: SparkSession):  # type: ignore[no-untyped-def]
    return spark.sql("SELECT timestamp'2026-01-01' AS timestamp, -1L AS value")


@pytest.mark.slow
def test_queries_of_one_session_take_turns(spark: SparkSession, tmp_path: Path) -> None:
    log, stream = tmp_path / "log", numbers(spark, 1)
    for _ in range(3):
        for name in "ab":
            append(stream, log, tmp_path / name)
    assert [commit.rows for commit in commits(log)] == [1] * 6


@pytest.mark.slow
def test_a_query_whose_log_was_written_by_another_and_deleted_is_not_fenced(
    spark: SparkSession, tmp_path: Path
) -> None:
    log, stream = tmp_path / "log", numbers(spark, 1)
    append(stream, log, tmp_path / "cp")
    write(stream_as_batch(spark), log)
    shutil.rmtree(log)
    shown = refused(lambda: append(stream, log, tmp_path / "cp"))
    assert_one_error(shown, "DivergedCheckpointError", "there is no log at", "sparkwal.checkpoint")
    append(stream, log, tmp_path / "new")
    assert values(read(spark, log).collect()) == [0]


@pytest.mark.proves("fenced-run-stops")
def test_a_query_that_runs_learns_that_a_batch_write_took_its_log(
    spark: SparkSession, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    source = tmp_path / "source"
    write(stream_as_batch(spark), source)
    rows = spark.readStream.format("weaselwal").load(str(source))
    query = (
        rows.writeStream.format("weaselwal")
        .option("checkpointLocation", str(tmp_path / "cp"))
        .trigger(processingTime="100 milliseconds")
        .start(str(log))
    )
    wait_for(lambda: log.exists() and len(commits(log)) == 1)
    query.processAllAvailable()
    write(stream_as_batch(spark), log, takeOver=True)
    write(stream_as_batch(spark), source)
    shown = refused(lambda: query.awaitTermination(60))
    assert "FencedError" in shown and "another writer leads" in shown
    # Its restart takes the log over.
    start(rows, log, tmp_path / "cp").awaitTermination()
    assert [commit.rows for commit in commits(log)] == [1, 1, 1]


def test_no_progress_is_converted_for_the_listener_of_run_ends(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    converted: list[object] = []
    monkeypatch.setattr(QueryProgressEvent, "fromJObject", converted.append)
    query = append(numbers(spark, 1), tmp_path / "log", tmp_path / "cp")
    assert query.recentProgress and converted == []
