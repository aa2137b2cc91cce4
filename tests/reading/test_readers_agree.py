"""All readers give the same rows of one log, or raise the same error with the same advice.

The logs have lost, damaged and torn records, with segments and without. A new log is one entry, and
so is a new reader (`tests/reading/readers.py`).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

import sparkwal
from sparkwal import Appender, InvalidLogError, Log
from sparkwal.checkpoints import unread
from sparkwal.format import keys
from sparkwal.protocol import recovery
from sparkwal.protocol.hint import Hints
from sparkwal.protocol.slots import SlotRecord
from sparkwal.reading.history import Follower
from sparkwal.reading.segmenting import make_segments
from sparkwal.store.base import Front, LogStore
from sparkwal.store.local import LocalStore
from sparkwal.testing.memory import MemoryStore
from tests.checkpoints.stream import FileStream
from tests.logs import SCHEMA, rows
from tests.reading.collected import move_floor
from tests.reading.readers import READERS
from tests.reading.segmented import BLOCK, looked, segmented, segments_in
from tests.reading.segmented import short_blocks as short_blocks
from tests.reading.test_segment_damage import range_of

# Record n holds file n − 1; blocks 0 … 4 are complete.
FILES = 5 * BLOCK + 2
ROWS = [*range(FILES)]
# A LIST shows the newest 16 objects.
LISTED = 2 * BLOCK
OLD, NEW = BLOCK + 5, 3 * BLOCK + 6
FLOOR = BLOCK + 3
GONE = r"position {} is missing .*see sparkwal\.repair"
SEGMENT = r"position {}\b.*A segment has a copy of the record"
Damage = Callable[[MemoryStore], None]


@dataclass(frozen=True)
class Damaged:
    """A log, and what its readers give.

    Attributes:
        damage: makes it from a sound log.
        rows: the rows that all readers give, or None if all raise.
        error: a part of the error that all readers raise.
        problem: a part of a problem that `verify` reports; "" if it calls the log sound.
        segments: the log has segments.
        inlined: the rows are in the records, not in objects of their own.
        at_head: the search for the head finds the damage.
    """

    damage: Damage
    rows: list[int] | None = None
    error: str = ""
    problem: str = ""
    segments: bool = True
    inlined: bool = True
    at_head: bool = False


def key_of(position: int, partition: int = -1) -> str:
    """The key of a record, or of the rows of one of its partitions."""
    return keys.key("wal", keys.slot(position, 1000) - 1 - partition)


def lost(*positions: int) -> Damage:
    def damage(store: MemoryStore) -> None:
        for position in positions:
            del store.objects[key_of(position)]

    return damage


def flipped(*positions: int, part: float = 0.2) -> Damage:
    def damage(store: MemoryStore) -> None:
        for position in positions:
            _flip(store, key_of(position), part)

    return damage


def cut(position: int, kept: int) -> Damage:
    def damage(store: MemoryStore) -> None:
        store.objects[key_of(position)] = store.objects[key_of(position)][:kept]

    return damage


def rows_lost(position: int) -> Damage:
    def damage(store: MemoryStore) -> None:
        del store.objects[key_of(position, 0)]

    return damage


def rows_flipped(position: int) -> Damage:
    return lambda store: _flip(store, key_of(position, 0), 0.6)


def segment_flipped(block: int, part: float) -> Damage:
    return lambda store: _flip(store, segments_in(store)[block], part)


def segment_lost(block: int) -> Damage:
    def damage(store: MemoryStore) -> None:
        del store.objects[segments_in(store)[block]]

    return damage


def several(*damages: Damage) -> Damage:
    def damage(store: MemoryStore) -> None:
        for one in damages:
            one(store)

    return damage


def floor_moved(store: MemoryStore) -> None:
    move_floor(LogStore(store, "wal"), FLOOR)


def first_replies_flipped(store: MemoryStore) -> None:
    """One wrong byte in the first reply of each object of the log. The store is sound."""
    read = store.get_range
    asked: Counter[str] = Counter()

    def get_range(key: str, offset: int, length: int) -> bytes:
        data = read(key, offset, length)
        asked[key] += 1
        if asked[key] > 1 or "/batches/" not in key or len(data) < 100:
            return data
        flipped = bytes([*data[:60], data[60] ^ 1, *data[61:]])
        return Front.with_total(flipped, data.total) if isinstance(data, Front) else flipped

    store.get_range = get_range  # type: ignore[method-assign]


def _flip(store: MemoryStore, key: str, part: float) -> None:
    body = bytearray(store.objects[key])
    body[int(len(body) * part)] ^= 1
    store.objects[key] = bytes(body)


def restored(position: int, damage: Damage, **more: bool) -> Damaged:
    """A log of which a segment has all that is lost."""
    return Damaged(damage, ROWS, problem=SEGMENT.format(position), **more)


LOGS: dict[str, Damaged] = {
    "sound": Damaged(lambda store: None, ROWS),
    "sound, without segments": Damaged(lambda store: None, ROWS, segments=False),
    "one wrong byte in a reply": Damaged(first_replies_flipped, ROWS, segments=False),
    "the floor moved": Damaged(floor_moved, ROWS[FLOOR - 1 :]),
    "lost below the floor": Damaged(several(floor_moved, lost(FLOOR - 2)), ROWS[FLOOR - 1 :]),
    "torn at the end": Damaged(cut(FILES, 300), ROWS[:-1]),
    "an old record lost": restored(OLD, lost(OLD)),
    "a new record lost": restored(NEW, lost(NEW)),
    "the first record of a block lost": restored(3 * BLOCK, lost(3 * BLOCK)),
    "the last record of a block lost": restored(4 * BLOCK - 1, lost(4 * BLOCK - 1)),
    "a whole block lost": restored(NEW, lost(*range(3 * BLOCK, 4 * BLOCK))),
    "two blocks lost": restored(NEW, lost(*range(2 * BLOCK, 4 * BLOCK))),
    "a record lost, and the witness of its segment": restored(NEW, lost(NEW, 4 * BLOCK)),
    "an old record damaged": restored(OLD, flipped(OLD)),
    "a new record damaged": restored(NEW, flipped(NEW)),
    "the rows in a record damaged": restored(NEW, flipped(NEW, part=0.55)),
    "a record cut off": restored(NEW, cut(NEW, 300)),
    "a record emptied": restored(OLD, cut(OLD, 0)),
    "an object of rows lost": Damaged(
        rows_lost(NEW), ROWS, problem="missing, though", inlined=False
    ),
    "an object of rows damaged": Damaged(
        rows_flipped(NEW), ROWS, problem="its bytes are not those", inlined=False
    ),
    "an old record lost, no segment": Damaged(
        lost(OLD), error=GONE.format(OLD), problem=f"position {OLD}", segments=False
    ),
    "a new record lost, no segment": Damaged(
        lost(NEW),
        error=GONE.format(NEW),
        problem=f"position {NEW}",
        segments=False,
        at_head=True,
    ),
    "a new record lost, its segment lost": Damaged(
        several(lost(NEW), segment_lost(3)),
        error=GONE.format(NEW),
        problem=f"position {NEW}",
        at_head=True,
    ),
    "a new record lost, its segment damaged": Damaged(
        several(lost(NEW), segment_flipped(3, 0.1)),
        error=GONE.format(NEW),
        problem=f"position {NEW}",
        at_head=True,
    ),
    "a new record damaged, no segment": Damaged(
        flipped(NEW), error=f"position {NEW}", problem=f"position {NEW}", segments=False
    ),
    "a record cut off, no segment": Damaged(
        cut(NEW, 300), error="is cut off.*restore", problem=f"position {NEW}", segments=False
    ),
    "an object of rows lost, no segment": Damaged(
        rows_lost(NEW), error="is missing, though", problem="though", segments=False, inlined=False
    ),
}


@pytest.fixture(autouse=True)
def _small(short_blocks: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recovery, "LIST_LIMIT", LISTED)
    # The files of the stream are nowhere.
    monkeypatch.setattr(unread, "is_missing", lambda _: False)


@cache
def sound_objects(*, segments: bool, inlined: bool) -> dict[str, bytes]:
    """The objects of a sound log: a query over files wrote it."""
    store = MemoryStore()
    with TemporaryDirectory() as folder:
        place = Path(folder, "orders")
        sparkwal.checkpoint(store.path(), "orders", folder=place)
        hints = Hints("wal", Path(folder, "hints"))
        inline = 2**16 if inlined else 0
        FileStream(LogStore(store, "wal"), place, hints, inline=inline).run(range(FILES))
    if segments:
        assert segmented(store).blocks == [0, 1, 2, 3, 4]
    return store.objects


def store_of(log: Damaged) -> MemoryStore:
    store = MemoryStore(concurrency=4)
    store.objects |= sound_objects(segments=log.segments, inlined=log.inlined)
    log.damage(store)
    return store


# These read no rows.
OF_RECORDS = {"records", "SQL of records", "newest first"}


@pytest.mark.parametrize("log", LOGS)
@pytest.mark.parametrize("reader", READERS)
def test_all_readers_give_the_same_of_one_log(log: str, reader: str, tmp_path: Path) -> None:
    given = LOGS[log]
    store = store_of(given)
    rows = given.rows
    is_needed = given.inlined or reader not in OF_RECORDS
    if reader == "fork":
        # It reads the newest record and those that it names.
        is_needed = given.at_head
    if rows is None and not is_needed:
        rows = ROWS
    if rows is None:
        with pytest.raises(InvalidLogError, match=given.error):
            READERS[reader](store, tmp_path)
    else:
        assert READERS[reader](store, tmp_path) == rows


@pytest.mark.parametrize("log", LOGS)
def test_verify_reports_what_is_lost_and_how_it_comes_back(log: str) -> None:
    given = LOGS[log]
    store = store_of(given)
    report = sparkwal.verify(store.path())
    assert report.ok == (not given.problem), report.problems
    assert report.ok or any(re.search(given.problem, line) for line in report.problems)


TOLERANT = [{"failOnDataLoss": False}, {"onCorruption": "stop"}, {"endingPosition": FILES}]
COPIED = [name for name, log in LOGS.items() if log.rows == ROWS]


@pytest.mark.parametrize("log", COPIED)
@pytest.mark.parametrize("options", TOLERANT, ids=str)
def test_a_reader_that_passes_over_damage_leaves_no_copy_out(
    log: str, options: dict[str, object]
) -> None:
    store = store_of(LOGS[log])
    for start in (None, OLD - 1, NEW - 1):
        found = Log(store.path(), **options).scan(start).read_all()  # type: ignore[arg-type]
        assert found.column("v").to_pylist() == ROWS[max((start or 0) - 1, 0) :]


# A follower reads on after a hole if a record within its next 32 positions shows the hole.
@pytest.mark.parametrize("log", [name for name in COPIED if "block" not in name])
def test_a_follower_passes_a_lost_record_that_a_segment_has(log: str) -> None:
    store = store_of(LOGS[log])
    later = {key: body for key, body in store.objects.items() if _position(key) > 4}
    for key in later:
        del store.objects[key]
    follower = Follower(looked(store), 0)
    assert [each.header.position for each in _records(follower)] == [0, 1, 2, 3, 4]
    store.objects |= later
    assert [each.header.position for each in _records(follower)] == [*range(5, FILES + 1)]
    assert [*follower.new()] == []


def _records(follower: Follower) -> list[SlotRecord]:
    return [each for each in follower.new() if isinstance(each, SlotRecord)]


def _position(key: str) -> int:
    number = keys.listed(key.rpartition("/")[2]) if "/batches/" in key else None
    return -1 if number is None else keys.position(number, 1000)


def appended(folder: Path) -> str:
    """The log of an appender with segments. The records at OLD and NEW are lost."""
    limits = {"maxInFlightRequests": 4, "batchSizeThreshold": 1}
    with Appender(str(folder), SCHEMA, producer_id="p", **limits) as wal:
        for value in range(FILES):
            wal.append(rows(value)).result()
    assert make_segments(range_of(str(folder))).blocks[:4] == [0, 1, 2, 3]
    for position in (OLD, NEW):
        (folder / key_of(position).removeprefix("wal/")).unlink()
    return str(folder)


@pytest.mark.parametrize("start", [None, *range(NEW - 2, NEW + 5)])
def test_a_look_back_passes_a_lost_record_that_a_segment_has(
    start: int | None, tmp_path: Path, in_flight: None
) -> None:
    found = Log(appended(tmp_path / "log")).scan(start).read_all().column("v").to_pylist()
    assert found == ROWS[max((start or 0) - 1, 0) :]


def test_a_fork_at_a_lost_record_names_it(tmp_path: Path) -> None:
    """A segment has the record, but not the files of the checkpoint in it."""
    store = store_of(LOGS["an old record lost"])
    for at in (OLD - 1, OLD + 1):
        fork = sparkwal.Fork(store.path(), "orders", at=at)
        sparkwal.checkpoint(store.path(f"to{at}"), "new", folder=tmp_path / f"to{at}", fork=fork)
    fork = sparkwal.Fork(store.path(), "orders", at=OLD)
    with pytest.raises(InvalidLogError, match=GONE.format(OLD)):
        sparkwal.checkpoint(store.path("to"), "new", folder=tmp_path / "to", fork=fork)


def test_no_writer_takes_a_copy_for_a_record(tmp_path: Path) -> None:
    path = appended(tmp_path / "log")
    with pytest.raises(InvalidLogError, match=GONE.format(NEW)):
        Appender(path, SCHEMA, producer_id="p")
    for position in (OLD, NEW):
        advice = f"sparkwal repair {LogStore(LocalStore(path), '').url} {position} puts it back"
        problems = sparkwal.verify(path).problems
        assert any(advice in problem for problem in problems), problems
        assert sparkwal.repair(path, position)
    assert sparkwal.verify(path).ok
    with Appender(path, SCHEMA, producer_id="p") as wal:
        wal.append(rows(FILES)).result()
    assert Log(path).scan().read_all().column("v").to_pylist() == [*ROWS, FILES]


def test_a_sound_log_costs_no_request_for_copies() -> None:
    store = store_of(LOGS["sound"])
    store.counts.clear()
    Log(store.path()).scan(NEW - 2, NEW + 2).read_all()
    # Head and floor; the head's record, and five records.
    assert store.counts == {"LIST": 2, "GET": 1 + 5}


def test_a_lost_record_costs_its_segment_and_a_witness() -> None:
    store = store_of(LOGS["an old record lost"])
    store.counts.clear()
    Log(store.path()).scan(OLD - 2, OLD + 2).read_all()
    # As above; and the segment, and its witness.
    assert store.counts == {"LIST": 2, "GET": 1 + 5 + 1 + 1}
