"""A stream's offsets, without a Spark session: which log they belong to, when they move."""

from __future__ import annotations

import json
import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.serializers import CloudPickleSerializer
from pyspark.sql.types import LongType, StructField, StructType

from sparkwal import InvalidLogError
from sparkwal.options.parsing import parse
from sparkwal.options.reading import SourceOptions
from sparkwal.reading.log_range import PLANNED_RECORDS
from sparkwal.reading.planning import StreamedLog, read_tasks
from sparkwal.spark.datasource import WeaselWalDataSource
from sparkwal.spark.source import StreamReader
from sparkwal.store.base import LogStore
from sparkwal.store.local import LocalStore
from sparkwal.testing.memory import MemoryStore
from tests.protocol.query import LIMITS, Query, StoppedClock, hints_in

SCHEMA = StructType([StructField("v", LongType())])


class Stream:
    """A stream and the writer of its log; `turn` is one trigger of Spark."""

    def __init__(self, folder: Path, **options: object) -> None:
        self.folder, self.options = folder, options
        self.clock = StoppedClock()
        self.batch = 0
        self.restart()

    def restart(self) -> None:
        given = {name: str(value) for name, value in self.options.items()}
        options = parse(SourceOptions, {"path": str(self.folder / "log"), **given})
        self.reader = StreamReader(options, SCHEMA)

    def write(self, *values: int, at: int = 0, query: str = "query", sequencer: str = "") -> None:
        """One commit for each value; `at` seconds after the clock's first moment."""
        self.clock.wall_ms = 1_700_000_000_000 + 1000 * at
        writer = Query(
            LocalStore(self.folder / "log", fsync=False),
            hints_in(self.folder / f"{query}{sequencer}"),
            query,
            prefix=f"sequencers/{sequencer}" if sequencer else "",
            clock=self.clock,
            limits=replace(LIMITS, inline_threshold=2**20),
        )
        for value in values:
            writer.microbatch(self.batch, (value,))
            self.batch += 1

    def clear(self) -> None:
        for file in (self.folder / "log" / "batches").iterdir():
            file.unlink()

    def turn(self, start: dict[str, Any]) -> tuple[dict[str, Any], list[int]]:
        """The next offset after `start`, as a checkpoint keeps it, and the rows up to it."""
        start = json.loads(json.dumps(start))
        end = json.loads(json.dumps(self.reader.advance(start, limited=False)))
        return end, self.rows(start, end) if end != start else []

    def rows(self, start: dict[str, Any], end: dict[str, Any]) -> list[int]:
        """The rows of one microbatch."""
        found: list[int] = []
        for task in self.reader.plan(start, end):
            for batch in self.reader.read(task):
                found += pa.table(batch).column("v").to_pylist()
        return found


def test_a_checkpoint_of_a_recreated_log_is_refused(tmp_path: Path) -> None:
    stream = Stream(tmp_path)
    stream.write(1, 2, 3)
    offset, rows = stream.turn(stream.reader.begin({}))
    assert rows == [1, 2, 3]
    stream.clear()
    stream.write(4, 5, 6, 7, query="other")
    stream.restart()
    with pytest.raises(InvalidLogError, match="recreated.*new checkpoint"):
        stream.turn(offset)
    stream.restart()
    with pytest.raises(InvalidLogError, match="recreated.*new checkpoint"):
        stream.reader.plan(dict(offset, default=1), offset)


def test_a_log_recreated_under_a_running_stream_is_detected(tmp_path: Path) -> None:
    stream = Stream(tmp_path)
    stream.write(1, 2)
    offset, _ = stream.turn(stream.reader.begin({}))
    stream.clear()
    stream.write(4, 5, query="other")
    assert stream.turn(offset) == (offset, [])
    stream.write(6, query="other")
    with pytest.raises(InvalidLogError, match="was recreated"):
        stream.turn(offset)


def test_a_checkpoint_beyond_the_end_of_a_log_is_refused(tmp_path: Path) -> None:
    stream = Stream(tmp_path)
    stream.write(1, 2, 3)
    offset, _ = stream.turn(stream.reader.begin({}))
    newest = min((tmp_path / "log" / "batches").iterdir())
    newest.unlink()
    stream.restart()
    with pytest.raises(InvalidLogError, match="the log ends at 3"):
        stream.turn(offset)


def test_a_missing_log_is_reported(tmp_path: Path) -> None:
    stream = Stream(tmp_path)
    stream.write(1, 2)
    offset, _ = stream.turn(stream.reader.begin({}))
    stream.clear()
    stream.restart()
    with pytest.raises(InvalidLogError, match="there is no log now: it was deleted or moved"):
        stream.turn(offset)


def test_a_stream_of_all_sequencers_does_not_continue_with_one(tmp_path: Path) -> None:
    """It would forget the others, and read them again from the start later."""
    stream = Stream(tmp_path, sequencers="*")
    stream.write(1, sequencer="a")
    stream.write(2, sequencer="b")
    offset, _ = stream.turn(stream.reader.begin({}))
    one = Stream(tmp_path, sequencer="a")
    with pytest.raises(InvalidLogError, match="logs of a, b, and this stream reads only a"):
        one.turn(offset)


def test_an_offset_without_an_id_is_still_read(tmp_path: Path) -> None:
    """The stream began when there was no log yet."""
    stream = Stream(tmp_path)
    start = stream.reader.begin({})
    assert start == {"default": 0}
    assert stream.turn(start) == (start, [])
    stream.write(1)
    offset, rows = stream.turn(start)
    assert rows == [1] and offset["default"] == 2 and len(offset["log_id:default"]) > 0


@pytest.mark.parametrize("waits", ["from its start", "for its log", "over a restart"])
def test_a_starting_timestamp_in_the_future_waits_for_its_rows(tmp_path: Path, waits: str) -> None:
    stream = Stream(tmp_path, startingTimestamp=1_700_000_100_000)
    if waits == "from its start":
        stream.write(1, at=10)
    offset = stream.reader.begin({})
    stream.write(2, 3, at=20)
    assert stream.turn(offset) == (offset, [])
    if waits == "over a restart":
        stream.restart()
        offset = stream.reader.begin({})
    stream.write(4, at=99)
    assert stream.turn(offset) == (offset, [])
    stream.write(5, at=99)
    stream.write(6, 7, at=100)
    offset, rows = stream.turn(offset)
    assert rows == [6, 7]
    stream.write(8, at=101)
    assert stream.turn(offset)[1] == [8]


def test_a_slow_trigger_keeps_a_bounded_part_of_what_came_since(tmp_path: Path) -> None:
    store = MemoryStore()
    query = Query(store, hints_in(tmp_path), limits=replace(LIMITS, inline_threshold=2**20))
    query.limits = replace(query.limits, codec=None)
    query.microbatch(0, (0,))
    log = StreamedLog(parse(SourceOptions, {"path": "memory"}), "default", LogStore(store, "wal"))
    log.refresh()
    for batch_id in range(1, 1001):
        query.microbatch(batch_id, tuple(range(6000)))
    tracemalloc.start()
    try:
        assert log.refresh() == 1002
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 20 * 2**20
    # Records that were not kept are fetched again.
    tasks = read_tasks(log, 1, 401, None, 2)
    assert sum(piece.rows for task in tasks for piece in task.pieces or ()) == 399 * 6000 + 1


def test_after_a_restart_no_sequencer_delivers_what_is_older_than_the_moment(
    tmp_path: Path,
) -> None:
    """The stream began before the moment; one sequencer has reached it, the other has not."""
    stream = Stream(tmp_path, startingTimestamp=1_700_000_100_000, sequencers="*")
    stream.write(1, at=10, sequencer="a")
    stream.write(2, at=10, sequencer="b")
    offset = stream.reader.begin({})
    stream.write(3, at=100, sequencer="a")
    offset, rows = stream.turn(offset)
    assert rows == [3]
    stream.write(4, at=20, sequencer="b")
    stream.restart()
    assert stream.turn(offset) == (offset, [])
    stream.write(5, 6, at=100, sequencer="b")
    after, rows = stream.turn(offset)
    assert rows == [5, 6]
    # Spark plans the last microbatch again.
    stream.restart()
    assert stream.rows(offset, after) == [5, 6]
    assert stream.turn(after) == (after, [])


@pytest.mark.parametrize("options", [{}, {"startingTimestamp": "2100-01-01T00:00:00Z"}], ids=str)
def test_an_idle_trigger_is_one_get_also_while_it_waits(
    tmp_path: Path, options: dict[str, str]
) -> None:
    store = MemoryStore()
    query = Query(store, hints_in(tmp_path), limits=replace(LIMITS, inline_threshold=2**20))
    for batch_id in range(5):
        query.microbatch(batch_id, (batch_id,))
    given = parse(SourceOptions, {"path": "memory", **options})
    log = StreamedLog(given, "default", LogStore(store, "wal"))
    store.counts.clear()
    log.refresh()
    # The head, and the floor of a log without a lifecycle.
    assert store.counts == {"LIST": 2, "GET": 1}
    begin = log.advance(log.start(), log.refresh(), None)
    query.microbatch(5, (5,))
    begin = log.advance(begin, log.refresh(), None)
    for _ in range(3):
        store.counts.clear()
        assert log.advance(begin, log.refresh(), None) == begin
        assert store.counts == {"GET": 1}


def test_a_registered_source_knows_how_many_tasks_its_session_runs(tmp_path: Path) -> None:
    """Not how many cores the driver has: in a cluster those say nothing."""
    Stream(tmp_path).write(1)
    pickler = CloudPickleSerializer()
    registered = pickler.loads(pickler.dumps(WeaselWalDataSource.with_parallelism(25)))
    source = registered({"path": str(tmp_path / "log")})
    assert source.name() == "weaselwal"
    assert source.reader(SCHEMA).parallelism == 25
    assert source.streamReader(SCHEMA).parallelism == 25


def test_one_commit_more_does_not_make_fewer_tasks(tmp_path: Path) -> None:
    store = MemoryStore()
    query = Query(store, hints_in(tmp_path), limits=replace(LIMITS, inline_threshold=2**20))
    query.limits = replace(query.limits, codec=None)
    for batch_id in range(PLANNED_RECORDS + 100):
        query.microbatch(batch_id, tuple(range(30_000)))
    log = StreamedLog(parse(SourceOptions, {"path": "memory"}), "default", LogStore(store, "wal"))
    log.refresh()
    known = read_tasks(log, 1, 1 + PLANNED_RECORDS, None, 25)
    stretches = read_tasks(log, 1, 2 + PLANNED_RECORDS, None, 25)
    assert stretches[0].pieces is None
    assert len(known) == len(stretches) == 25
