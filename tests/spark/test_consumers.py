"""Streams that are consumers, and batch reads with a lease: the log keeps what they read."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from reading.collected import move_floor

import sparkwal
from sparkwal import CollectedError, InvalidLogError, OptionError, events
from sparkwal.lifecycle.consumers import objects as consumers
from sparkwal.lifecycle.consumers.consumer_list import ConsumerInfo
from sparkwal.options.parsing import parse
from sparkwal.options.reading import SourceOptions
from sparkwal.spark.source import BatchReader
from sparkwal.store.base import LogStore
from sparkwal.store.local import LocalStore
from tests.consumers import bound
from tests.spark import inside
from tests.spark.queries import append, follow, numbers, read, refused, values
from tests.spark.test_offsets import SCHEMA, Stream


def store_of(stream: Stream) -> LogStore:
    return LogStore(LocalStore(stream.folder / "log", fsync=False), "")


def reported(stream: Stream) -> ConsumerInfo:
    (found,) = sparkwal.consumers(str(stream.folder / "log"))
    return found


@pytest.fixture
def stream(tmp_path: Path) -> Stream:
    """A log of a leader record and three commits, and a stream over it that has a name."""
    stream = Stream(tmp_path, consumer="daily")
    stream.write(1, 2, 3)
    return stream


@pytest.fixture
def warned() -> Iterator[list[events.Event]]:
    found: list[events.Event] = []
    forget = events.subscribe(found.append)
    yield found
    forget()


def test_a_stream_registers_before_it_reads(stream: Stream) -> None:
    stream.reader.begin({})
    assert (reported(stream).name, reported(stream).position, reported(stream).lag) == (
        "daily",
        0,
        4,
    )


def test_a_stream_publishes_committed_and_not_planned_positions(stream: Stream) -> None:
    first, _ = stream.turn(stream.reader.begin({}))
    stream.write(4)
    second, _ = stream.turn(first)
    assert reported(stream).position == 0
    stream.reader.commit(first)
    assert reported(stream).position == 4
    stream.reader.commit(second)
    assert reported(stream).position == 4
    stream.reader.stop()
    assert (reported(stream).position, reported(stream).lag) == (5, 0)


def test_a_run_of_what_is_available_ends_without_a_lag(stream: Stream) -> None:
    stream.reader.fix_heads()
    first, rows = stream.turn(stream.reader.begin({}))
    assert rows == [1, 2, 3] and reported(stream).lag == 4
    # Spark commits, and asks whether there is more.
    assert stream.turn(first) == (first, [])
    assert (reported(stream).position, reported(stream).lag) == (4, 0)


def test_the_last_of_several_microbatches_is_reported_within_the_interval(tmp_path: Path) -> None:
    stream = Stream(tmp_path, consumer="daily", maxCommitsPerTrigger=1)
    stream.write(1, 2, 3)
    stream.reader.fix_heads()
    offset = stream.reader.begin({})
    for expected in ([1], [2], [3], []):
        end = stream.reader.advance(offset, limited=True)
        assert (stream.rows(offset, end) if end != offset else []) == expected
        offset = end
    assert reported(stream).lag == 0


def test_a_stream_that_comes_back_reports_at_once_what_spark_committed(stream: Stream) -> None:
    first, _ = stream.turn(stream.reader.begin({}))
    assert reported(stream).position == 0
    stream.restart()
    assert stream.turn(first) == (first, [])
    # Another source of the query may come back at a lower position.
    assert reported(stream).position == 0
    assert stream.turn(first) == (first, [])
    assert (reported(stream).position, reported(stream).lag) == (4, 0)


def test_two_sources_of_one_query_report_the_slower(
    stream: Stream, warned: list[events.Event], tmp_path: Path
) -> None:
    stream.options["cursorInterval"] = "1ms"
    stream.restart()
    slower = Stream(tmp_path, **stream.options)
    end, _ = stream.turn(stream.reader.begin({}))
    slower.turn(slower.reader.begin({}))
    for value in (4, 5, 6):
        stream.write(value)
        before = end
        end, _ = stream.turn(before)
        stream.reader.commit(end)
        slower.reader.commit(before)
        assert reported(stream).position == before["default"]
    # Both come back, the faster first.
    stream.restart()
    slower.restart()
    for source, start in ((stream, end), (slower, before)):
        source.turn(start)
        assert reported(stream).position == before["default"]
    assert not [event for event in warned if "consumer" in event.name]


def test_a_stream_reports_no_microbatch_that_it_may_read_again(stream: Stream) -> None:
    first, _ = stream.turn(stream.reader.begin({}))
    stream.write(4)
    second, _ = stream.turn(first)
    # With asynchronous progress tracking a restart may begin before `second`.
    stream.turn(second)
    assert reported(stream).position == 0
    stream.restart()
    stream.rows(first, second)
    stream.turn(second)
    assert reported(stream).position == 0


def test_a_stream_that_has_read_all_has_no_lag_after_an_interval(tmp_path: Path) -> None:
    stream = Stream(tmp_path, consumer="daily", cursorInterval="1ms")
    stream.write(1, 2, 3)
    first, rows = stream.turn(stream.reader.begin({}))
    assert rows == [1, 2, 3] and reported(stream).position == 0
    idle(stream, first)
    assert (reported(stream).position, reported(stream).lag) == (4, 0)
    # It publishes no more, until it has read more.
    file = tmp_path / "log" / "consumers" / "daily"
    before = file.stat().st_mtime_ns
    idle(stream, first)
    assert file.stat().st_mtime_ns == before
    stream.write(4)
    second = stream.reader.advance(first, limited=False)
    stream.reader.commit(first)
    stream.rows(first, second)
    idle(stream, second)
    assert (reported(stream).position, reported(stream).lag) == (5, 0)
    # The floor passes what it has read, and a restart finds its place.
    assert bound(store_of(stream), reported_id(stream), 99, None) == 5
    move_floor(store_of(stream), 5)
    stream.restart()
    stream.write(5)
    assert stream.turn(second)[1] == [5]


def idle(stream: Stream, offset: dict[str, Any]) -> None:
    """Spark asks for more than an interval of 1 ms what follows."""
    for _ in range(3):
        assert stream.turn(offset) == (offset, [])
        time.sleep(0.005)


def test_a_stream_of_all_logs_that_has_read_all_has_no_lag(tmp_path: Path) -> None:
    log = tmp_path / "log"
    for name in ("a", "b"):
        appended(log / "sequencers" / name, [1, 2])
    stream = Stream(tmp_path, sequencers="*", consumer="daily", cursorInterval="1ms")
    first, _ = stream.turn(stream.reader.begin({}))
    idle(stream, first)
    assert [each.lag for each in sparkwal.consumers(str(log), sequencers="*")] == [0, 0]


@pytest.mark.proves("told-before-planned")
def test_a_stream_with_asynchronous_progress_keeps_what_it_is_not_told(tmp_path: Path) -> None:
    stream = Stream(tmp_path, consumer="daily", cursorInterval="1ms")
    stream.write(1, 2, 3)
    first, _ = stream.turn(stream.reader.begin({}))
    stream.write(4)
    second, _ = stream.turn(first)
    idle(stream, second)
    assert reported(stream).position == 0
    stream.reader.commit(first)
    assert reported(stream).position == 4


def test_a_stream_without_a_name_publishes_nothing(tmp_path: Path) -> None:
    stream = Stream(tmp_path)
    stream.write(1)
    offset, _ = stream.turn(stream.reader.begin({}))
    stream.reader.commit(offset)
    stream.reader.stop()
    assert not (tmp_path / "log" / "consumers").exists()


def test_a_stream_that_crashed_repeats_what_was_kept_for_it(stream: Stream) -> None:
    first, _ = stream.turn(stream.reader.begin({}))
    stream.reader.commit(first)
    stream.write(4)
    second, rows = stream.turn(first)
    assert rows == [4]
    stream.restart()
    assert bound(store_of(stream), reported_id(stream), 99, None) == first["default"]
    # Spark plans the microbatch again that it had not committed.
    (task,) = stream.reader.plan(first, second)
    assert sum(batch.num_rows for batch in stream.reader.read(task)) == 1
    assert reported(stream).position == first["default"]


def reported_id(stream: Stream) -> str:
    head = sparkwal.Log(str(stream.folder / "log")).head()
    assert head is not None
    return head.log_id


def test_a_stream_from_an_older_checkpoint_holds_the_floor_again(stream: Stream) -> None:
    old, _ = stream.turn(stream.reader.begin({}))
    stream.write(4, 5)
    new, _ = stream.turn(old)
    stream.reader.commit(new)
    assert reported(stream).position == 6
    stream.restart()
    assert stream.turn(old)[1] == [4, 5]
    assert reported(stream).position == 4


def test_a_stream_from_a_checkpoint_below_the_floor_raises(stream: Stream) -> None:
    old, _ = stream.turn(stream.reader.begin({}))
    stream.write(4, 5)
    new, _ = stream.turn(old)
    stream.reader.commit(new)
    move_floor(store_of(stream), 6)
    stream.restart()
    with pytest.raises(CollectedError, match="position 4 .* below the log's floor, 6"):
        stream.turn(old)
    # And it does not hold the floor at collected positions.
    assert reported(stream).position == 6


def moving(stream: Stream, floor: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that had not seen the consumer moves the floor just after it registered."""
    floors = iter([floor])

    def moves_after(register: Callable[..., Any]) -> Callable[..., Any]:
        def register_then_move(stored: consumers.ConsumerObject, *others: Any) -> Any:
            consumer = register(stored, *others)
            for new_floor in floors:
                move_floor(stored.log, new_floor)
            return consumer

        return register_then_move

    # A stream registers by `update`, a lease by `publish`.
    monkeypatch.setattr(consumers, "update", moves_after(consumers.update))
    monkeypatch.setattr(consumers, "publish", moves_after(consumers.publish))


def test_a_stream_that_joins_while_the_floor_moves_begins_at_the_floor(
    stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    moving(stream, 2, monkeypatch)
    start = stream.reader.begin({})
    assert start["default"] == 2
    assert stream.turn(start)[1] == [2, 3]
    assert reported(stream).position == 2


def test_a_stream_from_a_collected_position_raises(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = Stream(tmp_path, consumer="daily", startingPosition=1)
    stream.write(1, 2, 3)
    moving(stream, 2, monkeypatch)
    with pytest.raises(CollectedError, match="startingPosition: position 1"):
        stream.reader.begin({})


def test_a_stream_that_waits_for_its_log_registers_when_the_log_begins(tmp_path: Path) -> None:
    stream = Stream(tmp_path, consumer="daily")
    start = stream.reader.begin({})
    stream.reader.stop()
    assert sparkwal.consumers(str(tmp_path / "log")) == []
    stream.write(1)
    stream.turn(start)
    assert reported(stream).position == 0


def test_only_the_new_stream_publishes_to_a_recreated_log(stream: Stream) -> None:
    offset, _ = stream.turn(stream.reader.begin({}))
    stream.reader.commit(offset)
    stream.clear()
    stream.write(5, 6, 7, 8, 9, query="other")
    stream.restart()
    with pytest.raises(InvalidLogError, match="recreated"):
        stream.turn(offset)
    assert not reported(stream).of_this_log and not reported(stream).live
    stream.restart()
    stream.reader.begin({})
    assert reported(stream).of_this_log and reported(stream).position == 0


def test_a_stream_over_two_sequencers_is_a_consumer_of_each(tmp_path: Path) -> None:
    log, options = tmp_path / "log", {"sequencers": "*", "consumer": "daily"}
    for name, rows in (("a", [1, 2]), ("b", [3])):
        appended(log / "sequencers" / name, rows)
    stream = Stream(tmp_path, **options)
    offset, rows = stream.turn(stream.reader.begin({}))
    assert sorted(rows) == [1, 2, 3]
    # One that appears later is registered when it is read first.
    appended(log / "sequencers" / "c", [4])
    inside.forget_logs(stream.reader)
    offset, rows = stream.turn(offset)
    assert rows == [4]
    stream.reader.commit(offset)
    found = sparkwal.consumers(str(log), sequencers="*")
    assert [(each.sequencer, each.position, each.lag) for each in found] == [
        ("a", offset["a"], 0),
        ("b", offset["b"], 0),
        ("c", offset["c"], 0),
    ]
    assert [each.name for each in (log / "consumers").iterdir()] == ["daily.all"]
    assert not [*(log / "sequencers").glob("*/consumers")]
    # A consumer is removed in all logs, or in none.
    with pytest.raises(OptionError, match="daily reads all logs .*forget it in all of them"):
        sparkwal.forget_consumer(str(log), "daily", sequencer="a")
    sparkwal.forget_consumer(str(log), "daily", sequencers="*")
    assert [*(log / "consumers").iterdir()] == []
    assert sparkwal.consumers(str(log), sequencers="*") == []


def test_a_stream_reads_the_logs_that_it_names(tmp_path: Path) -> None:
    log = tmp_path / "log"
    for name, rows in (("a", [1, 2]), ("b", [3])):
        appended(log / "sequencers" / name, rows)
    stream = Stream(tmp_path, sequencers="a, c")
    offset, rows = stream.turn(stream.reader.begin({}))
    assert rows == [1, 2]
    # A log that is named waits for its first record in a stream, and is missed in a batch.
    with pytest.raises(OptionError, match="no log of sequencer c"):
        batch_reader(stream, sequencers="a,c").partitions()
    appended(log / "sequencers" / "c", [4])
    assert stream.turn(offset)[1] == [4]
    assert len(batch_reader(stream, sequencers="a,c").partitions()) == 2


@pytest.mark.proves("unseen-logs-held")
def test_a_log_that_began_while_its_consumer_was_stopped_is_read_from_its_start(
    tmp_path: Path,
) -> None:
    log, options = tmp_path / "log", {"sequencers": "*", "consumer": "daily"}
    appended(log / "sequencers" / "a", [1])
    stream = Stream(tmp_path, **options)
    offset, _ = stream.turn(stream.reader.begin({}))
    stream.reader.commit(offset)
    stream.reader.stop()
    appended(log / "sequencers" / "b", [2, 3])
    life = sparkwal.Lifecycle(str(log), sequencer="b", retainSeconds=0)
    assert life.run_once().floor == 0
    (found,) = sparkwal.consumers(str(log), sequencer="b")
    assert (found.name, found.position, found.live) == ("daily", 0, True)
    stream.restart()
    offset, rows = stream.turn(offset)
    assert rows == [2, 3]
    stream.reader.commit(offset)
    assert life.run_once().floor == offset["b"]


def test_a_log_whose_floor_passed_its_consumer_before_that_saw_it_is_reported(
    tmp_path: Path,
) -> None:
    log, options = tmp_path / "log", {"sequencers": "*", "consumer": "daily"}
    appended(log / "sequencers" / "a", [1])
    stream = Stream(tmp_path, **options)
    offset, _ = stream.turn(stream.reader.begin({}))
    sparkwal.forget_consumer(str(log), "daily", sequencers="*")
    appended(log / "sequencers" / "b", [2, 3])
    assert sparkwal.Lifecycle(str(log), sequencer="b", retainSeconds=0).run_once().floor > 0
    stream.restart()
    with pytest.raises(CollectedError, match="a log that began after the stream: position 0 of"):
        stream.turn(offset)


def appended(log: Path, rows: list[int]) -> None:
    import pyarrow as pa

    schema = pa.schema([("v", pa.int64())])
    with sparkwal.Appender(str(log), schema, producer_id="p") as wal:
        for value in rows:
            wal.append([{"v": value}]).result()


def batch_reader(stream: Stream, **options: object) -> BatchReader:
    given = {name: str(value) for name, value in options.items()}
    path = str(stream.folder / "log")
    return BatchReader(parse(SourceOptions, {"path": path, **given}), SCHEMA)


def test_a_batch_read_takes_a_lease(tmp_path: Path) -> None:
    stream = Stream(tmp_path)
    stream.write(1, 2, 3)
    batch_reader(stream, startingPosition=2, lease="6h").partitions()
    lease = reported(stream)
    assert lease.name.startswith("lease-")
    assert (lease.position, lease.expires_ms, lease.live) == (2, 6 * 3_600_000, True)


def test_a_batch_read_of_all_logs_takes_one_lease_for_them(tmp_path: Path) -> None:
    stream = Stream(tmp_path)
    log = tmp_path / "log"
    for name in ("a", "b"):
        appended(log / "sequencers" / name, [1, 2])
    batch_reader(stream, sequencers="*", lease="6h").partitions()
    (file,) = (log / "consumers").iterdir()
    assert file.name.startswith("lease-") and file.name.endswith(".all")
    # It holds no log that began after the read.
    appended(log / "sequencers" / "c", [3])
    found = sparkwal.consumers(str(log), sequencers="*")
    assert [(each.sequencer, each.position, each.expires_ms) for each in found] == [
        ("a", 0, 6 * 3_600_000),
        ("b", 0, 6 * 3_600_000),
    ]
    assert not (log / "sequencers" / "a" / "consumers").exists()


def test_a_batch_read_that_is_refused_leaves_no_lease(tmp_path: Path) -> None:
    stream = Stream(tmp_path)
    stream.write(1, 2, 3)
    with pytest.raises(sparkwal.OptionError, match="after the end"):
        batch_reader(stream, endingPosition=10**9, lease="6h").partitions()
    assert sparkwal.consumers(str(stream.folder / "log")) == []


def test_a_lease_that_came_late_begins_at_the_floor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = Stream(tmp_path)
    stream.write(1, 2, 3)
    moving(stream, 2, monkeypatch)
    reader = batch_reader(stream, lease="6h")
    rows = [batch for task in reader.partitions() for batch in reader.read(task)]
    assert sum(batch.num_rows for batch in rows) == 2


def test_a_scan_gives_its_lease_back(tmp_path: Path) -> None:
    stream = Stream(tmp_path)
    stream.write(1, 2, 3)
    path = str(tmp_path / "log")
    scan = sparkwal.Log(path, lease="1h").scan()
    assert reported(stream).expires_ms == 3_600_000
    assert scan.read_all().num_rows == 3
    assert sparkwal.consumers(path) == []


def test_the_error_names_the_right_option_for_a_read(tmp_path: Path, stream: Stream) -> None:
    path = str(tmp_path / "log")
    with pytest.raises(OptionError, match="consumer is for spark.readStream; .* set lease"):
        batch_reader(stream, consumer="daily")
    with pytest.raises(OptionError, match="lease is for spark.read; .* set consumer"):
        Stream(tmp_path, lease="1h")
    with pytest.raises(OptionError, match="consumer is for spark.readStream"):
        sparkwal.Log(path, consumer="daily")


def test_two_streams_with_one_name_are_warned(
    stream: Stream, warned: list[events.Event], tmp_path: Path
) -> None:
    slow, _ = stream.turn(stream.reader.begin({}))
    other = Stream(tmp_path, consumer="daily", startingPosition="latest")
    # As on another machine.
    inside.is_on_another_machine(other.reader, tmp_path / "elsewhere")
    other.turn(other.reader.begin({}))
    stream.reader.commit(slow)
    assert [event.name for event in warned if "consumer" in event.name] == ["consumer_shared"]
    assert reported(stream).position == 0


@pytest.mark.proves("floor-below-consumers")
def test_the_log_gets_the_committed_position_of_a_query(
    spark: SparkSession, tmp_path: Path
) -> None:
    log, checkpoint = tmp_path / "log", tmp_path / "cp-r"
    append(numbers(spark, 10), log, tmp_path / "cp")
    batches, query = follow(spark, log, checkpoint, consumer="daily", available_now=False)
    try:
        query.processAllAvailable()
        append(numbers(spark, 10), log, tmp_path / "cp")
        query.processAllAvailable()
        # Spark commits a microbatch when it begins the next one.
        (found,) = sparkwal.consumers(str(log))
        assert found.live and found.position > 0 and found.lag > 0
    finally:
        query.stop()
    assert values([row for batch in batches for row in batch]) == list(range(20))
    # A run of what is available ends without a lag, with rows and without.
    append(numbers(spark, 10), log, tmp_path / "cp")
    for expected in (list(range(20, 30)), []):
        more, _ = follow(spark, log, checkpoint, consumer="daily")
        assert values([row for batch in more for row in batch]) == expected
        (found,) = sparkwal.consumers(str(log))
        assert found.lag == 0


def test_spark_reads_with_a_lease(spark: SparkSession, tmp_path: Path) -> None:
    log = tmp_path / "log"
    append(numbers(spark, 10), log, tmp_path / "cp")
    assert values(read(spark, log, lease="1h").collect()) == list(range(10))
    assert {each.expires_ms for each in sparkwal.consumers(str(log))} == {3_600_000}
    shown = refused(lambda: read(spark, log, consumer="daily").collect())
    assert "consumer is for spark.readStream" in shown
