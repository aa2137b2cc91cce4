"""Replaying logs from a cursor: in one order, up to the first invalid entry."""

from __future__ import annotations

import json
import shutil
from itertools import count
from pathlib import Path
from threading import Event
from typing import Any

import pytest

import sparkwal
from sparkwal.appender.appender import Appender
from sparkwal.errors import CollectedError, InvalidLogError, OptionError
from sparkwal.format import keys
from sparkwal.reading.replaying import Replay
from sparkwal.store.base import LogStore
from sparkwal.testing.memory import MemoryStore
from tests.logs import SCHEMA, append, record, replayed


@pytest.fixture
def path(tmp_path: Path) -> Path:
    folder = tmp_path / "wal"
    append(folder, 0, 1, 2)
    return folder


def test_without_a_cursor_everything_is_replayed(path: Path) -> None:
    replay = sparkwal.Log(str(path)).replay()
    assert replayed(replay) == [0, 1, 2] and replay.stopped is None


def test_a_cursor_continues_after_the_last_entry_that_was_taken(path: Path) -> None:
    first = sparkwal.Log(str(path)).replay()
    next(first), next(first)
    second = sparkwal.Log(str(path)).replay(first.cursor)
    assert replayed(second) == [2]
    append(path, 3)
    assert replayed(sparkwal.Log(str(path)).replay(second.cursor)) == [3]


def test_a_cursor_at_the_end_finds_nothing(path: Path) -> None:
    replay = sparkwal.Log(str(path)).replay()
    list(replay)
    again = sparkwal.Log(str(path)).replay(replay.cursor)
    assert replayed(again) == [] and again.cursor == replay.cursor and again.stopped is None


def test_sequencers_are_replayed_in_the_order_of_their_commits(path: Path) -> None:
    append(path, 10, sequencer="a")
    append(path, 3)
    append(path, 11, sequencer="a")
    append(path, 20, sequencer="b")
    replay = sparkwal.Log(str(path)).replay(sequencers="*")
    assert replayed(replay) == [0, 1, 2, 10, 3, 11, 20]
    append(path, 4)
    append(path, 21, sequencer="b")
    assert replayed(sparkwal.Log(str(path)).replay(replay.cursor, sequencers="*")) == [4, 21]


def test_one_sequencer_is_replayed_by_its_name(path: Path) -> None:
    append(path, 10, sequencer="eu")
    assert replayed(sparkwal.Log(str(path)).replay(sequencers="eu")) == [10]
    assert replayed(sparkwal.Log(str(path)).replay(sequencers=["eu", keys.ROOT])) == [0, 1, 2, 10]


def test_a_sequencer_that_began_after_the_cursor_is_replayed_from_its_start(path: Path) -> None:
    replay = sparkwal.Log(str(path)).replay(sequencers="*")
    list(replay)
    append(path, 10, sequencer="a")
    assert replayed(sparkwal.Log(str(path)).replay(replay.cursor, sequencers="*")) == [10]


def retain_nothing(path: Path, sequencer: str) -> None:
    """The floor of a log moves to its end."""
    sparkwal.Lifecycle(str(path), sequencer=sequencer, retainSeconds=0).run_once()


@pytest.mark.proves("new-log-from-0")
def test_a_sequencer_that_was_collected_before_its_replay_is_reported(path: Path) -> None:
    replay = sparkwal.Log(str(path)).replay(sequencers="*")
    list(replay)
    append(path, 10, sequencer="a")
    retain_nothing(path, "a")
    append(path, 11, sequencer="a")
    for sequencers in ("*", ["default", "a"]):
        with pytest.raises(CollectedError, match="that the cursor does not name: position 0 of"):
            sparkwal.Log(str(path)).replay(replay.cursor, sequencers=sequencers)
    # Follow the advice.
    log = sparkwal.Log(str(path), startingPosition="earliest")
    assert replayed(log.replay(replay.cursor, sequencers="*")) == [11]


def test_a_cursor_names_the_logs_of_which_it_has_no_entry(path: Path) -> None:
    """Otherwise the next replay would take each of them for new, and its floor for a loss."""
    append(path, 10, sequencer="a")
    retain_nothing(path, "a")
    append(path, 11, sequencer="a")
    replay = sparkwal.Log(str(path)).replay(sequencers="*")
    assert next(replay).sequencer == "default"
    again = sparkwal.Log(str(path)).replay(replay.cursor, sequencers="*")
    assert replayed(again) == [1, 2, 11]
    retain_nothing(path, "a")
    with pytest.raises(CollectedError, match="the cursor: position"):
        sparkwal.Log(str(path)).replay(replay.cursor, sequencers="*")


@pytest.mark.parametrize("damage", ["flipped", "missing"])
def test_a_replay_stops_at_the_first_invalid_entry_and_names_the_later_ones(
    path: Path, damage: str
) -> None:
    file = record(path, 2)
    if damage == "missing":
        file.unlink()
    else:
        content = bytearray(file.read_bytes())
        content[200] ^= 1
        file.write_bytes(content)
    replay = sparkwal.Log(str(path)).replay()
    assert replayed(replay) == [0]
    stopped = replay.stopped
    assert stopped is not None
    assert (stopped.sequencer, stopped.position, stopped.following) == ("default", 2, 1)
    assert stopped.key.endswith(f"batches/{file.name}")
    assert ("missing" if damage == "missing" else "CRC") in stopped.reason
    # After a repair it continues from there.
    assert json.loads(json.loads(replay.cursor)["logs"])["default"][1] == 2


def test_rows_that_are_damaged_stop_it_too(path: Path) -> None:
    file = record(path, 2)
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 0xFF
    file.write_bytes(content)
    replay = sparkwal.Log(str(path)).replay()
    assert replayed(replay) == [0]
    assert replay.stopped is not None and replay.stopped.position == 2


def test_a_damaged_head_is_where_it_stops(path: Path) -> None:
    file = record(path, 3)
    file.write_bytes(b"?" * file.stat().st_size)
    replay = sparkwal.Log(str(path)).replay()
    assert replayed(replay) == [0, 1]
    assert replay.stopped is not None and replay.stopped.position == 3


def test_a_record_lost_before_the_cursor_is_the_one_that_is_named(
    tmp_path: Path, in_flight: None
) -> None:
    """Whether a record counts depends on those that were in flight with it."""
    path = tmp_path / "wal"
    with sparkwal.Appender(str(path), SCHEMA, producer_id="p", maxInFlightRequests=4) as wal:
        for value in range(10):
            wal.append([{"v": value}]).result()
    replay = sparkwal.Log(str(path)).replay()
    for _ in range(5):
        next(replay)
    position = json.loads(json.loads(replay.cursor)["logs"])["default"][1]
    lost = record(path, position - 2)
    lost.unlink()
    again = sparkwal.Log(str(path)).replay(replay.cursor)
    assert replayed(again) == [] and again.stopped is not None
    assert again.stopped.position == position - 2 and again.stopped.key.endswith(lost.name)
    assert "scan or stream" in again.stopped.reason


def test_a_damaged_cursor_is_refused(path: Path) -> None:
    replay = sparkwal.Log(str(path)).replay()
    next(replay)
    for wrong in (
        "",
        "{}",
        "null",
        replay.cursor[:-3],
        replay.cursor.replace("default", "defaulT"),
    ):
        with pytest.raises(OptionError, match="cursor is damaged"):
            sparkwal.Log(str(path)).replay(wrong)


def test_a_cursor_ahead_of_its_log_is_refused(path: Path) -> None:
    replay = sparkwal.Log(str(path)).replay()
    list(replay)
    for position in (3, 2):
        record(path, position).unlink()
    with pytest.raises(InvalidLogError, match="cut or restored"):
        sparkwal.Log(str(path)).replay(replay.cursor)


def test_a_cursor_of_a_log_that_was_restored_and_written_on_is_refused(path: Path) -> None:
    copy = path.with_name("copy")
    shutil.copytree(path, copy)
    append(path, 3, 4)
    replay = sparkwal.Log(str(path)).replay()
    list(replay)
    shutil.rmtree(path)
    copy.rename(path)
    append(path, 30, 31, 32, 33)
    with pytest.raises(InvalidLogError, match="restored from an older copy"):
        sparkwal.Log(str(path)).replay(replay.cursor)


@pytest.mark.parametrize(
    ("name", "sequencers"),
    [("wall", None), ("wal", "order"), ("wal", ["default", "order"])],
)
def test_a_log_that_is_not_there_is_no_empty_replay(
    tmp_path: Path, name: str, sequencers: Any
) -> None:
    append(tmp_path / "wal", 1)
    with pytest.raises(OptionError, match="there is no log"):
        sparkwal.Log(str(tmp_path / name)).replay(sequencers=sequencers)


def test_a_log_that_is_being_begun_is_passed_over_where_all_are_replayed(path: Path) -> None:
    begun = path / "sequencers" / "a" / "batches"
    begun.mkdir(parents=True)
    # A data object without a record.
    (begun / keys.encode(keys.slot(0, 1000) + 1)).write_bytes(b"rows")
    assert replayed(sparkwal.Log(str(path)).replay(sequencers="*")) == [0, 1, 2]


def test_a_cursor_of_a_log_that_was_deleted_is_refused(path: Path) -> None:
    replay = sparkwal.Log(str(path)).replay()
    list(replay)
    shutil.rmtree(path)
    with pytest.raises(InvalidLogError, match="there is no log"):
        sparkwal.Log(str(path)).replay(replay.cursor)


def test_a_cursor_of_another_log_is_refused(path: Path, tmp_path: Path) -> None:
    replay = sparkwal.Log(str(path)).replay()
    list(replay)
    append(tmp_path / "other", 9)
    with pytest.raises(InvalidLogError, match="recreated"):
        sparkwal.Log(str(tmp_path / "other")).replay(replay.cursor)


def test_a_cursor_of_a_missing_sequencer_is_refused(path: Path) -> None:
    append(path, 10, sequencer="a")
    replay = sparkwal.Log(str(path)).replay(sequencers="*")
    list(replay)
    with pytest.raises(InvalidLogError, match="sequencer 'a'"):
        sparkwal.Log(str(path)).replay(replay.cursor)


def test_bounds_and_ways_to_pass_over_damage_do_not_go_with_a_replay(path: Path) -> None:
    with pytest.raises(OptionError, match="startingPosition does not go with a replay"):
        sparkwal.Log(str(path), startingPosition=1).replay()
    for given in ({"failOnDataLoss": False}, {"onCorruption": "stop"}):
        with pytest.raises(OptionError, match="stops at the first record that is missing"):
            sparkwal.Log(str(path), **given).replay()


def test_an_empty_path_has_nothing_to_replay(tmp_path: Path) -> None:
    replay = sparkwal.Log(str(tmp_path / "none")).replay(sequencers="*")
    assert replayed(replay) == [] and replay.stopped is None


def test_a_log_that_ends_before_its_floor_is_not_replayed_as_an_empty_one(path: Path) -> None:
    shutil.copytree(path / "batches", path / "copy")
    append(path, 3, 4)
    sparkwal.Lifecycle(str(path), retainSeconds=0).run_once()
    shutil.rmtree(path / "batches")
    (path / "copy").rename(path / "batches")
    with pytest.raises(InvalidLogError, match="before its floor"):
        sparkwal.Log(str(path)).replay()


def written(store: MemoryStore, count: int, commits: int) -> dict[str, LogStore]:
    """Logs under one path, with so many commits more."""
    root = LogStore(store, "wal")
    logs = {f"log-{number:02d}": root.sequencer(f"log-{number:02d}") for number in range(count)}
    for log in logs.values():
        with Appender(log, SCHEMA, producer_id="test", maxInFlightRequests=20) as wal:
            for value in range(commits):
                wal.append([{"v": value}]).result()
    store.counts.clear()
    return logs


def test_many_logs_without_new_rows_cost_one_get_each() -> None:
    store = MemoryStore(concurrency=8)
    logs = written(store, 20, 30)
    first = Replay(logs, None)
    assert len(replayed(first)) == 600
    store.counts.clear()
    again = Replay(logs, first.cursor)
    assert replayed(again) == [] and again.cursor == first.cursor
    # One LIST shows the ends of all logs, and one the chain.
    assert dict(store.counts) == {"LIST": 2, "GET": 20}
    written(store, 1, 1)
    assert replayed(Replay(logs, first.cursor)) == [0]


def test_many_logs_are_opened_side_by_side() -> None:
    store = MemoryStore(concurrency=8)
    logs = written(store, 12, 2)
    cursor = Replay(logs, None)
    assert len(replayed(cursor)) == 24
    written(store, 12, 1)
    # The fourth call lets the first three continue.
    calls = count(1)
    together = Event()
    get_range = store.get_range

    def waiting(key: str, offset: int, length: int) -> bytes:
        if next(calls) >= 4:
            together.set()
        together.wait(30)
        return get_range(key, offset, length)

    store.get_range = waiting  # type: ignore[method-assign]
    replay = Replay(logs, cursor.cursor)
    assert together.is_set()
    assert len(replayed(replay)) == 12
