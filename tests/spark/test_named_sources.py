"""Spark's newer checkpoints: offsets of version 2, sources with names, commits of version 3."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import sparkwal
from sparkwal.checkpoints.offsets import by_source, positions
from sparkwal.store.base import LogStore
from sparkwal.store.local import LocalStore
from tests.consumers import bound
from tests.spark.queries import append, wait_for, write

pytestmark = pytest.mark.spark

VERSION = "spark.sql.streaming.offsetLog.formatVersion"
EVOLUTION = "spark.sql.streaming.queryEvolution.enable{}Evolution"


@pytest.fixture
def spark_of_now(spark: SparkSession) -> Iterator[SparkSession]:
    """A session that writes the newest checkpoints."""
    settings = {VERSION: "2", EVOLUTION.format("Source"): "true", EVOLUTION.format("Sink"): "true"}
    for name, value in settings.items():
        spark.conf.set(name, value)
    yield spark
    for name in settings:
        spark.conf.unset(name)


class Query:
    """A query over named folders of files, on several machines."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark = spark
        self.folder = folder
        self.log = folder / "log"

    def run(self, machine: str, sources: Sequence[str], number: int) -> Path:
        """One more file with this number in each source, then all there is. Returns the folder of
        the checkpoint."""
        streams = []
        for name in sources:
            (self.folder / name).mkdir(exist_ok=True)
            (self.folder / name / f"{number}.json").write_text(f'{{"id": {number}}}')
            reader: Any = self.spark.readStream.schema("id BIGINT")
            streams.append(reader.name(name).json(str(self.folder / name)))
        rows = streams[0]
        for stream in streams[1:]:
            rows = rows.union(stream)
        place = sparkwal.checkpoint(str(self.log), "q", folder=self.folder / machine)
        writer = rows.writeStream.format("weaselwal").option("checkpointLocation", place)
        writer._jwrite = writer._jwrite.name("lake")  # type: ignore[assignment]
        writer.trigger(availableNow=True).start(str(self.log)).awaitTermination()
        return Path(place)

    @property
    def stored(self) -> list[int]:
        return sorted(sparkwal.Log(str(self.log)).to_pandas()["id"].tolist())


@pytest.mark.capability("NAMED_SOURCES")
def test_machines_take_turns_lose_their_disks_and_get_a_source(
    spark_of_now: SparkSession, tmp_path: Path
) -> None:
    query = Query(spark_of_now, tmp_path)
    # Only what Spark wrote on one machine twice in a row names the sinks.
    for number, machine in enumerate("ABAA"):
        place = query.run(machine, ["orders"], number)
        assert query.stored == [*range(number + 1)]
    before = (place / "commits/3").read_text()
    assert before.startswith("v3")
    shutil.rmtree(place)
    place = Path(sparkwal.checkpoint(str(query.log), "q", folder=place))
    assert (place / "commits/3").read_text() == before
    query.run("A", ["orders", "bills"], 4)
    assert query.stored == [0, 1, 2, 3, 4, 4]
    # As after a restore of an older copy, and after a power cut.
    for name in ("offsets/4", "commits/4"):
        (place / name).unlink()
    query.run("A", ["orders", "bills"], 5)
    (place / "sources/bills/1").unlink()
    query.run("A", ["orders", "bills"], 6)
    assert query.stored == [0, 1, 2, 3, 4, 4, 5, 5, 6, 6]


def test_a_consumer_holds_what_a_rebuilt_query_reads(spark: SparkSession, tmp_path: Path) -> None:
    spark.conf.set(VERSION, "2")
    try:
        first, second = tmp_path / "first", tmp_path / "second"
        write(spark.range(1), first)
        place = Path(sparkwal.checkpoint(str(second), "copy", folder=tmp_path / "ck"))
        source = spark.readStream.format("weaselwal").options(consumer="c", cursorInterval="1ms")
        rows = source.load(str(first)).where("id = 0")
        for _ in range(3):
            append(rows, second, place)
            write(spark.range(5, 6), first)
        shutil.rmtree(place)
        head = sparkwal.Log(str(first)).head()
        assert head is not None
        log = LogStore(LocalStore(first, fsync=False), "")
        needed = bound(log, head.log_id, 99, None)
        rebuilt = Path(sparkwal.checkpoint(str(second), "copy", folder=place))
        newest = max((rebuilt / "offsets").glob("[0-9]"), key=lambda file: int(file.name))
        offsets = by_source(newest.read_bytes())
        assert offsets is not None and positions(offsets["0"]) == {head.log_id: needed}
    finally:
        spark.conf.unset(VERSION)


def test_a_stream_joined_with_itself_is_one_consumer(spark: SparkSession, tmp_path: Path) -> None:
    log = tmp_path / "log"
    write(spark.range(1), log)
    rows = spark.readStream.format("weaselwal").options(consumer="x", cursorInterval="1ms")
    sides = [rows.load(str(log)).alias(side) for side in "ab"]
    joined = sides[0].join(sides[1], "id").writeStream.format("noop")
    query = joined.option("checkpointLocation", str(tmp_path / "ck")).start()
    try:
        for number in range(1, 4):
            write(spark.range(number, number + 1), log)
            query.processAllAvailable()
        (consumer,) = sparkwal.consumers(str(log))
        wait_for(lambda: sparkwal.consumers(str(log))[0].position >= 5)
        assert consumer.lag <= 4
    finally:
        query.stop()
