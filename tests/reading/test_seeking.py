"""The requests of a read that begins in the middle of a long log, or at its floor."""

from __future__ import annotations

from dataclasses import replace

import pytest
from reading.collected import LIMITS, Query, collect, copied, move_floor, written

from sparkwal.errors import CollectedError
from sparkwal.options.parsing import parse
from sparkwal.options.reading import SourceOptions
from sparkwal.protocol.hint import Hints
from sparkwal.reading.floor import LOOK_TTL_MS
from sparkwal.reading.log_range import LogRange
from sparkwal.reading.replaying import Replay
from sparkwal.store.base import LogStore
from sparkwal.testing.memory import MemoryStore
from tests.logs import replayed
from tests.protocol.query import StoppedClock

POSITIONS = 1_500
DEPTH = 11  # the logarithm of POSITIONS, rounded up


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> MemoryStore:
    """Value n at position n, a second after the one before."""
    store, clock = MemoryStore(), StoppedClock()
    hints = Hints("wal", tmp_path_factory.mktemp("hints"))
    limits = replace(LIMITS, inline_threshold=2**20)
    query = Query(store, hints, clock=clock, limits=limits)
    for value in range(1, POSITIONS):
        clock.wall_ms += 1000
        query.microbatch(value, (value,))
    return store


@pytest.mark.parametrize("position", [2, 1234, 750, POSITIONS - 1])
def test_a_moment_is_found_with_a_logarithm_of_gets(long: MemoryStore, position: int) -> None:
    moment = 1_700_000_000_000 + 1000 * position
    given = parse(SourceOptions, {"path": "memory", "startingTimestamp": str(moment)})
    log = LogRange(given, "default", LogStore(long, "wal"), StoppedClock())
    log.refresh()
    long.counts.clear()
    assert log.start() == position
    assert long.counts.keys() == {"GET"} and long.counts["GET"] <= DEPTH


def test_a_position_is_found_without_looking_for_it(long: MemoryStore) -> None:
    given = parse(SourceOptions, {"path": "memory", "startingPosition": "1000"})
    log = LogRange(given, "default", LogStore(long, "wal"), StoppedClock())
    long.counts.clear()
    log.refresh()
    start = log.start()
    next(log.records(start, start + 1))
    # The head and the floor, then the record itself.
    assert long.counts == {"LIST": 2, "GET": 2}


def test_a_cursor_is_found_without_looking_for_it(long: MemoryStore) -> None:
    logs = {"default": LogStore(long, "wal")}
    replay = Replay(logs, None)
    for _ in range(1000):
        next(replay)
    long.counts.clear()
    again = Replay(logs, replay.cursor)
    assert next(again).header.position == 1001
    # The head, the floor, the record that was replayed last, and the next.
    assert long.counts == {"LIST": 2, "GET": 3}


# Near the floor


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> MemoryStore:
    return written(tmp_path_factory.mktemp("hints"), 1100)


@pytest.fixture
def log(whole: MemoryStore) -> LogStore:
    return LogStore(copied(whole), "wal")


def test_a_replay_without_a_cursor_begins_at_the_floor(log: LogStore) -> None:
    move_floor(log, 1090)
    collect(log, 1090)
    replay = Replay({"default": log}, None)
    assert replayed(replay) == list(range(1090, 1101)) and replay.stopped is None


@pytest.mark.parametrize("floor", [1000, 1001, 1100])
def test_a_cursor_below_the_floor_was_collected(log: LogStore, floor: int) -> None:
    replay = Replay({"default": log}, None)
    for _ in range(1000):
        next(replay)
    move_floor(log, floor)
    collect(log, floor)
    # The cursor is at 1001, and the next record exists.
    if floor <= 1001:
        assert replayed(Replay({"default": log}, replay.cursor)) == list(range(1001, 1101))
        return
    said = "the cursor: position 1001 .* 1100.* replay it without the cursor$"
    with pytest.raises(CollectedError, match=said) as caught:
        Replay({"default": log}, replay.cursor)
    assert caught.value.floor == 1100


def test_a_replay_that_the_floor_overtakes_delivers_no_collected_row(
    log: LogStore,
) -> None:
    clock = StoppedClock()
    replay = Replay({"default": log}, None, clock=clock)
    assert next(replay).header.position == 1
    clock.since_boot_ms += LOOK_TTL_MS
    move_floor(log, 1000)
    collect(log, 1000)
    with pytest.raises(CollectedError):
        next(replay)
