"""Streams and tables over a log whose older positions were collected."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.types import LongType, StructField, StructType
from reading.collected import collect, move_floor

from sparkwal.errors import CollectedError
from sparkwal.options.parsing import parse
from sparkwal.options.reading import SourceOptions
from sparkwal.spark.source import StreamReader
from sparkwal.store.base import LogStore
from sparkwal.store.local import LocalStore
from tests.protocol.query import Query, StoppedClock, hints_in
from tests.spark.queries import follow, read

COMMITS = 1020
FLOOR = 1010


class Writer:
    """Value n goes to position n; a leader record is before them."""

    def __init__(
        self,
        folder: Path,
        path: Path,
        clock: StoppedClock | None = None,
        sequencer: str = "default",
    ) -> None:
        self.log = LogStore(LocalStore(path, fsync=False), "").sequencer(sequencer)
        clock = clock or StoppedClock()
        prefix = self.log.prefix
        self._query = Query(self.log.store, hints_in(folder), prefix=prefix, clock=clock)
        self._last = 0

    def write(self, count: int) -> None:
        for value in range(self._last + 1, self._last + count + 1):
            self._query.microbatch(value, (value,))
        self._last += count

    def collect(self, floor: int) -> None:
        move_floor(self.log, floor)
        collect(self.log, floor)


@pytest.mark.proves("floor-after-read")
def test_a_stream_that_resumes_below_the_floor_stops_or_continues_at_the_floor(
    spark: SparkSession, tmp_path: Path
) -> None:
    path, checkpoint = tmp_path / "log", tmp_path / "cp"
    writer = Writer(tmp_path, path)
    writer.write(5)
    batches, _ = follow(spark, path, checkpoint)
    assert [row["v"] for batch in batches for row in batch] == [1, 2, 3, 4, 5]
    writer.write(COMMITS - 5)
    writer.collect(FLOOR)
    with pytest.raises(StreamingQueryException, match="position 6 .*below the log's floor, 1010"):
        follow(spark, path, checkpoint)
    batches, _ = follow(spark, path, checkpoint, failOnDataLoss="false")
    rest = list(range(FLOOR, COMMITS + 1))
    assert sorted(row["v"] for batch in batches for row in batch) == rest
    writer.write(1)
    batches, _ = follow(spark, path, checkpoint)
    assert [row["v"] for batch in batches for row in batch] == [COMMITS + 1]
    assert sorted(row["v"] for row in read(spark, path).collect()) == [*rest, COMMITS + 1]
    with pytest.raises(Exception, match="CollectedError"):
        read(spark, path, startingPosition=FLOOR - 1).collect()


# Without a session.

SCHEMA = StructType([StructField("v", LongType())])


def stream(path: Path, **options: str) -> StreamReader:
    return StreamReader(parse(SourceOptions, {"path": str(path), **options}), SCHEMA)


def rows(reader: StreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[int]:
    return [
        value
        for task in reader.plan(start, end)
        for batch in reader.read(task)
        for value in pa.table(batch).column("v").to_pylist()
    ]


def test_a_microbatch_that_was_planned_and_then_collected_raises(tmp_path: Path) -> None:
    writer = Writer(tmp_path, tmp_path / "log")
    writer.write(5)
    first = stream(tmp_path / "log")
    start = first.begin({})
    end = first.advance(start, limited=False)
    writer.collect(3)
    # Spark plans it again after a restart, from its offset log.
    with pytest.raises(CollectedError):
        stream(tmp_path / "log").plan(start, end)
    again = stream(tmp_path / "log", failOnDataLoss="false")
    assert rows(again, start, end) == [3, 4, 5]


@pytest.mark.proves("new-log-from-0")
@pytest.mark.parametrize("options", [{}, {"startingTimestamp": "2000-01-01"}], ids=str)
def test_a_sequencer_that_was_collected_before_the_stream_saw_it_is_reported(
    tmp_path: Path, options: dict[str, str]
) -> None:
    root = tmp_path / "log"
    Writer(tmp_path / "root", root).write(1)
    reader = stream(root, sequencers="*", **options)
    before = reader.advance(reader.begin({}), limited=False)
    late = Writer(tmp_path / "a", root, sequencer="a")
    late.write(6)
    late.collect(2)
    for each in (reader, stream(root, sequencers="*", **options)):
        with pytest.raises(CollectedError, match="below the log's floor, 2"):
            each.advance(before, limited=False)


def test_a_sequencer_that_was_collected_before_the_asked_time_is_read_on(tmp_path: Path) -> None:
    root = tmp_path / "log"
    clock = StoppedClock()
    Writer(tmp_path / "root", root, clock).write(1)
    clock.wall_ms += 1000
    options = {"sequencers": "*", "startingTimestamp": str(clock.wall_ms + 1)}
    reader = stream(root, **options)
    before = reader.advance(reader.begin({}), limited=False)
    late = Writer(tmp_path / "a", root, clock, sequencer="a")
    late.write(2)
    late.collect(3)
    clock.wall_ms += 1000
    late.write(1)
    end = reader.advance(before, limited=False)
    assert rows(reader, before, end) == [3]


@pytest.mark.parametrize(
    "options", [{"startingPosition": "earliest"}, {"failOnDataLoss": "false"}], ids=str
)
def test_a_sequencer_that_appears_may_begin_at_its_floor_and_that_is_remembered(
    tmp_path: Path, options: dict[str, str]
) -> None:
    root = tmp_path / "log"
    Writer(tmp_path / "root", root).write(1)
    reader = stream(root, sequencers="*", **options)
    before = reader.advance(reader.begin({}), limited=False)
    late = Writer(tmp_path / "a", root, sequencer="a")
    late.write(6)
    late.collect(2)
    end = reader.advance(before, limited=False)
    assert (end["a"], end["from:a"]) == (7, "2")
    assert rows(reader, before, end) == [2, 3, 4, 5, 6]
    assert rows(stream(root, sequencers="*", **options), before, end) == [2, 3, 4, 5, 6]
    late.collect(4)
    # The remaining rows are fewer than the planned ones.
    if "failOnDataLoss" not in options:
        with pytest.raises(CollectedError):
            stream(root, sequencers="*", **options).plan(before, end)
    reader = stream(root, sequencers="*", **options)
    late.write(1)
    after = reader.advance(end, limited=False)
    assert "from:a" not in after and rows(reader, end, after) == [7]
