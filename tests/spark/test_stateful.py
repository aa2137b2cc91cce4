"""Stateful queries whose state the log carries: the folder may be lost at any time."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import sparkwal
from faults.stateful import EAGER, PROVIDERS
from sparkwal import Log
from sparkwal.errors import InvalidLogError
from tests.spark.queries import append, commits, lose_last

pytestmark = pytest.mark.spark


def distinct(rows: DataFrame) -> DataFrame:
    return rows.dropDuplicates(["id"]).select("id")


def windows(rows: DataFrame) -> DataFrame:
    counted = rows.withWatermark("at", "1 second").groupBy(F.window("at", "2 seconds")).count()
    return counted.select(F.col("count").alias("id"))


def limited(rows: DataFrame) -> DataFrame:
    return rows.dropDuplicates(["id"]).limit(25).select("id")


def joined(rows: DataFrame) -> DataFrame:
    other = rows.select(F.col("id").alias("other"), F.col("at").alias("then"))
    both = rows.withWatermark("at", "1 hour").join(
        other.withWatermark("then", "1 hour"),
        F.expr("id = other + 1 AND then BETWEEN at - INTERVAL 3 SECONDS AND at"),
    )
    return both.select("id")


def running_sums(rows: DataFrame) -> DataFrame:
    from pyspark.sql.streaming import StatefulProcessor

    class Sums(StatefulProcessor):
        def init(self, handle) -> None:  # type: ignore[no-untyped-def]
            self.sum = handle.getValueState("sum", "n bigint")

        def handleInputRows(self, key, rows, timerValues):  # type: ignore[no-untyped-def]
            held = self.sum.get()
            total = (held[0] if held else 0) + sum(int(rows["id"].sum()) for rows in rows)
            self.sum.update((total,))
            yield pd.DataFrame({"id": [total]})

        def close(self) -> None:
            pass

    keyed = rows.withColumn("key", F.col("id") % 3).groupBy("key")
    return keyed.transformWithStateInPandas(Sums(), "id BIGINT", "Append", "None")


QUERIES: dict[str, Callable[[DataFrame], DataFrame]] = {
    "distinct": distinct,
    "windows": windows,
    "joined": joined,
    "limited": limited,
    "running sums": running_sums,
}
# Each query, and each provider.
USUAL = {
    ("distinct", "hdfs"),
    ("limited", "hdfs"),
    ("windows", "rocksdb"),
    ("joined", "rocksdb without a changelog"),
    ("running sums", "rocksdb"),
    ("distinct", "rocksdb, format 2"),
}


def cases(usual: Collection[tuple[str, str]]) -> list[Any]:
    """Each query with each provider; those that are not usual are slow."""
    return [
        pytest.param(query, provider, marks=[] if (query, provider) in usual else pytest.mark.slow)
        for query in QUERIES
        for provider in PROVIDERS
        if (query, provider) != ("running sums", "hdfs")
    ]


@pytest.fixture
def configured(spark: SparkSession, request: pytest.FixtureRequest) -> Iterator[SparkSession]:
    settings = {**EAGER, **PROVIDERS[request.param]}
    for name, value in settings.items():
        spark.conf.set(name, value)
    yield spark
    for name in settings:
        spark.conf.unset(name)


class Stream:
    """A query over files with ids, one file a microbatch."""

    def __init__(
        self, spark: SparkSession, folder: Path, query: Callable[[DataFrame], DataFrame]
    ) -> None:
        self.spark = spark
        self.folder = folder
        self.source = folder / "in"
        self.log = folder / "wal"
        self.machine = 0
        self.source.mkdir(exist_ok=True)
        self.query = query
        self.files = 0
        self.fork: sparkwal.Fork | None = None

    @property
    def place(self) -> Path:
        """The checkpoint folder of the machine on which the query runs.

        Each machine has another one: Spark may still hold the stores of the one before.
        """
        return self.folder / f"ck-{self.machine}"

    def lose_machine(self) -> None:
        self.machine += 1

    def add(self, files: int) -> None:
        """Further files: each repeats some ids of the one before."""
        for number in range(self.files, self.files + files):
            rows = [
                {"id": number * 5 + n, "at": f"2026-01-01T00:00:{number - n // 7:02d}"}
                for n in range(10)
                if number - n // 7 >= 0
            ]
            file = self.source / f"{number:03d}.json"
            file.write_text("\n".join(map(json.dumps, rows)))
            # Spark reads the oldest file first.
            os.utime(file, (10**9 + number, 10**9 + number))
        self.files += files

    def run(self) -> None:
        reader = self.spark.readStream.schema("id BIGINT, at TIMESTAMP")
        rows = reader.option("maxFilesPerTrigger", 1).json(str(self.source))
        place = sparkwal.checkpoint(str(self.log), "q", folder=self.place, fork=self.fork)
        append(self.query(rows), self.log, Path(place))

    def ids(self, until: int | None = None) -> Counter[int]:
        return Counter(Log(str(self.log)).to_pandas(end=until)["id"])


@pytest.mark.parametrize("query, configured", cases(USUAL), indirect=["configured"])
def test_a_stateful_query_continues_on_an_empty_machine(
    configured: SparkSession, tmp_path: Path, query: str
) -> None:
    for name in ("own", "lost"):
        (tmp_path / name).mkdir()
    plain = Stream(configured, tmp_path / "own", QUERIES[query])
    plain.add(9)
    plain.run()
    stream = Stream(configured, tmp_path / "lost", QUERIES[query])
    for files in (3, 1, 4, 1):
        stream.add(files)
        stream.run()
        stream.lose_machine()
    stream.run()
    assert stream.ids() == plain.ids()
    assert sum(plain.ids().values()) >= 3


@pytest.mark.parametrize("configured", ["rocksdb"], indirect=True)
def test_a_microbatch_that_spark_did_not_note_is_repeated_and_not_written_again(
    configured: SparkSession, tmp_path: Path
) -> None:
    stream = Stream(configured, tmp_path, distinct)
    stream.add(3)
    stream.run()
    lose_last(stream.place, 1)
    stream.add(2)
    stream.run()
    assert set(stream.ids().values()) == {1}
    assert len(stream.ids()) == 30


@pytest.mark.parametrize("configured", ["hdfs"], indirect=True)
def test_a_record_without_the_state_that_others_hold_is_named(
    configured: SparkSession, tmp_path: Path
) -> None:
    stream = Stream(configured, tmp_path, distinct)
    stream.add(4)
    stream.run()
    (held, *_) = [
        entry for record in commits(stream.log)[-1:] for entry in record.checkpoints.values()
    ]
    assert held.state is not None and len(held.state.positions) > 2
    number = held.state.positions[1]
    stream.lose_machine()
    (lost,) = stream.log.glob(f"batches/{2**64 - 1 - (number + 1) * 1000:020d}*")
    lost.unlink()
    with pytest.raises(InvalidLogError, match="is missing"):
        stream.run()
    assert not stream.place.exists()


@pytest.mark.parametrize("configured", ["hdfs"], indirect=True)
def test_the_partitions_of_a_state_stay_those_of_its_first_plan(
    configured: SparkSession, tmp_path: Path
) -> None:
    stream = Stream(configured, tmp_path, distinct)
    stream.add(2)
    stream.run()
    stream.lose_machine()
    configured.conf.set("spark.sql.shuffle.partitions", "5")
    try:
        stream.add(1)
        # The plan in the log holds the number of partitions, and Spark takes it from there.
        stream.run()
    finally:
        configured.conf.set("spark.sql.shuffle.partitions", "2")
    assert set(stream.ids().values()) == {1}


def forked(stream: Stream, at: int) -> Stream:
    """The query of a log of its own that begins at a position of the stream's log."""
    other = Stream(stream.spark, stream.folder, stream.query)
    other.log = stream.folder / f"fork-at-{at}"
    other.machine = 1000 * (at + 1)
    other.fork = sparkwal.Fork(str(stream.log), "q", at=at)
    return other


@pytest.mark.parametrize(
    "query, configured", cases([("running sums", "rocksdb")]), indirect=["configured"]
)
def test_a_fork_continues_with_the_state_of_its_place(
    configured: SparkSession, tmp_path: Path, query: str
) -> None:
    stream = Stream(configured, tmp_path, QUERIES[query])
    stream.add(5)
    stream.run()
    last = Log(str(stream.log)).head()
    assert last is not None
    (info,) = Log(str(stream.log)).queries()
    assert (info.fork_from, info.fork_until) == (1, last.position)
    at = last.position // 2
    fork = forked(stream, at)
    fork.run()
    fork.lose_machine()
    stream.add(2)
    stream.run()
    fork.run()
    assert stream.ids(until=at) + fork.ids() == stream.ids()
    assert fork.ids()


@pytest.mark.parametrize("configured", ["hdfs"], indirect=True)
def test_a_fork_at_the_last_position_repeats_a_microbatch_and_writes_none_of_its_rows(
    configured: SparkSession, tmp_path: Path
) -> None:
    stream = Stream(configured, tmp_path, distinct)
    stream.add(3)
    stream.run()
    last = Log(str(stream.log)).head()
    assert last is not None
    fork = forked(stream, last.position)
    fork.run()
    assert not fork.log.exists() or not fork.ids()
    # Nothing of the fork is in its log yet: the folder, and another machine, begin again.
    fork.run()
    fork.lose_machine()
    fork.run()
    stream.add(2)
    stream.run()
    fork.run()
    assert stream.ids(until=last.position) + fork.ids() == stream.ids()
    assert set(stream.ids().values()) == {1}
