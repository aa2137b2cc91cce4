"""Small steps that the tests of the sink and the source are made of."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming import StreamingQuery

import sparkwal
from sparkwal.format.header import CommitHeader


def numbers(spark: SparkSession, rows: int, partitions: int = 1) -> DataFrame:
    """A stream (timestamp, value) that has exactly `rows` more rows whenever a query runs
    over it with AvailableNow; value counts 0, 1, 2, … over all runs of one checkpoint."""
    stream = spark.readStream.format("rate-micro-batch")
    return stream.option("rowsPerBatch", rows).option("numPartitions", partitions).load()


def start(rows: DataFrame, path: object, checkpoint: Path, **options: object) -> StreamingQuery:
    """A query that appends what there is of `rows` to the log at `path`."""
    writer = rows.writeStream.format("weaselwal").option("checkpointLocation", str(checkpoint))
    for name, value in options.items():
        writer = writer.option(name, value)  # type: ignore[arg-type]
    return writer.option("path", str(path)).trigger(availableNow=True).start()


def append(rows: DataFrame, path: object, checkpoint: Path, **options: object) -> StreamingQuery:
    """`start`, and wait for the end; raises what the query failed with."""
    query = start(rows, path, checkpoint, **options)
    query.awaitTermination()
    return query


def write(rows: DataFrame, path: object, mode: str = "append", **options: object) -> None:
    """One batch write."""
    rows.write.format("weaselwal").mode(mode).options(**options).save(str(path))  # type: ignore[arg-type]


def read(spark: SparkSession, path: object, **options: object) -> DataFrame:
    """The log as a table."""
    return spark.read.format("weaselwal").options(**options).load(str(path))  # type: ignore[arg-type]


def follow(
    spark: SparkSession,
    path: object,
    checkpoint: Path,
    *,
    schema: str | None = None,
    available_now: bool = True,
    **options: object,
) -> tuple[list[list[Row]], StreamingQuery]:
    """The microbatches of a stream over the log, and its query; growing while it runs."""
    reader = spark.readStream.format("weaselwal").options(**options)  # type: ignore[arg-type]
    if schema is not None:
        reader = reader.schema(schema)
    batches: list[list[Row]] = []
    query = (
        reader.load(str(path))
        .writeStream.foreachBatch(lambda rows, _: batches.append(rows.collect()))
        .option("checkpointLocation", str(checkpoint))
        .trigger(
            **({"availableNow": True} if available_now else {"processingTime": "100 milliseconds"})
        )
        .start()
    )
    if available_now:
        query.awaitTermination()
    return batches, query


def values(rows: list[Row]) -> list[int]:
    """The column `value`, sorted."""
    return sorted(row["value"] for row in rows)


def commits(path: object, **options: object) -> list[CommitHeader]:
    """The log's commits in order, read without Spark."""
    records = sparkwal.Log(str(path), **options).records()
    return [record for record in records if isinstance(record, CommitHeader)]


def objects(path: Path) -> set[str]:
    """The files under a local path, relative to it."""
    return {str(file.relative_to(path)) for file in path.rglob("*") if file.is_file()}


def refused(action: Callable[[], Any]) -> str:
    """The whole text that a user sees when `action` fails."""
    with pytest.raises(Exception) as caught:
        action()
    return str(caught.value)


def error_lines(shown: str) -> list[str]:
    """The lines of an error text that are errors of this library."""
    return [line for line in shown.splitlines() if "Error: " in line and "sparkwal.errors" in line]


def assert_one_error(shown: str, kind: str, *parts: str) -> None:
    """Exactly one line is an error of `kind` and holds `parts`; no Python frame is shown."""
    lines = error_lines(shown)
    assert len(lines) == 1, shown
    assert f"sparkwal.errors.{kind}: " in lines[0]
    for part in parts:
        assert part in lines[0], lines[0]
    assert 'File "' not in shown, shown


def lose_last(checkpoint: Path, count: int) -> None:
    """As a crash between a sink's commit and Spark's note of it, or a lost disk, would."""
    notes = [file for file in (checkpoint / "commits").iterdir() if file.name.isdigit()]
    for file in sorted(notes, key=lambda file: int(file.name))[-count:]:
        file.unlink()
        file.with_name(f".{file.name}.crc").unlink(missing_ok=True)


def wait_for(condition: Callable[[], bool]) -> None:
    """Return as soon as it holds; fail when it does not within a minute."""
    for _ in range(1200):
        if condition():
            return
        time.sleep(0.05)
    raise AssertionError("still not the case after a minute")
