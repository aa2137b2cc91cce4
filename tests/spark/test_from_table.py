"""A query that reads a table and then its log writes to another log, and is rebuilt and forked."""

from __future__ import annotations

import shutil
from pathlib import Path

from pyspark.sql import SparkSession

import sparkwal
from sparkwal.format.header import CommitHeader
from tests.lifecycle.lakes import Lake, value


def copy(spark: SparkSession, source: str, target: Path, folder: str, consumer: str) -> None:
    """Copy what there is of table and log, a file or a commit in each microbatch."""
    rows = (
        spark.readStream.format("weaselwal")
        .option("startingPosition", "table")
        .option("consumer", consumer)
        .option("maxCommitsPerTrigger", 1)
        .load(source)
    )
    query = (
        rows.writeStream.format("weaselwal")
        .option("checkpointLocation", folder)
        .trigger(availableNow=True)
        .start(str(target))
    )
    query.awaitTermination()


def commits(path: Path) -> list[tuple[int, list[int]]]:
    """The positions of a log's commits with rows, and their ids."""
    log = sparkwal.Log(str(path))
    positions = [each.position for each in log.records() if isinstance(each, CommitHeader)]
    pairs = [(at, log.scan(at, at).read_all()["id"].to_pylist()) for at in positions]
    return [(at, ids) for at, ids in pairs if ids]


def test_a_query_is_rebuilt_and_forked_in_the_middle_of_the_table(
    spark: SparkSession, tmp_path: Path
) -> None:
    lake = Lake(tmp_path)
    for number in range(4):
        lake.append([value(number)])
        lake.compact()
    lake.append([value(4)])
    first, second = tmp_path / "first", tmp_path / "second"
    folder = sparkwal.checkpoint(str(first), "copy")
    copy(spark, lake.path, first, folder, "c")
    written = commits(first)
    assert sorted(ids for _, ids in written) == [[number] for number in range(5)]
    assert written[-1][1] == [4]

    at = written[1][0]
    fork = sparkwal.Fork(str(first), "copy", at=at)
    lake.append([value(5)])
    lake.compact()
    forked = sparkwal.checkpoint(str(second), "other", fork=fork)
    copy(spark, lake.path, second, forked, "d")
    # The rest of the version's files, and the log from its end on: range 5 is in no file of it.
    both = [ids for _, ids in written[:2] + commits(second)]
    assert sorted(both) == [[number] for number in range(6)]

    shutil.rmtree(folder)
    lake.append([value(6)])
    copy(spark, lake.path, first, sparkwal.checkpoint(str(first), "copy"), "c")
    assert sorted(ids for _, ids in commits(first)) == [[number] for number in range(7)]
