"""Damage in every part of a segment: readers get the same rows, and one event names it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from sparkwal import Appender, InvalidLogError, Log, repair, verify
from sparkwal.events import Event
from sparkwal.format import arrowfile, keys, segment
from sparkwal.options.open import open_log
from sparkwal.options.parsing import from_keywords
from sparkwal.options.reading import SourceOptions
from sparkwal.reading.log_range import LogRange
from sparkwal.reading.segmenting import make_segments
from sparkwal.reading.verification import verify_store
from sparkwal.testing.memory import MemoryStore
from tests.logs import SCHEMA, rows
from tests.reading.segmented import (
    BLOCK,
    all_of,
    ignored,
    log_of,
    opened,
    random_log,
    segmented,
    segments_in,
    small_parts,
    without_segments,
)
from tests.reading.segmented import short_blocks as short_blocks

pytestmark = pytest.mark.usefixtures("short_blocks")


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    small_parts(monkeypatch, frame=400, run=1500, front=1000)


def range_of(path: str) -> LogRange:
    settings = from_keywords(SourceOptions, path, {})
    log = LogRange(settings, "default", open_log(settings, fail_fast=True))
    log.refresh()
    return log


def parts_in(body: bytes) -> Iterator[tuple[str, range]]:
    """The parts of a segment, each with its bytes."""
    front = arrowfile.open_front(body, "segment")
    part = segment.open_segment(body, front.header.number, "segment", "segment")
    yield "mark", range(len(arrowfile.MAGIC))
    yield "length of the header", range(8, 16)
    yield "header and schema", range(16, front.body)
    for number, frame in enumerate(part.of_records):
        yield f"records {number}", range(frame.offset, frame.end)
    for number, frame in enumerate(part.of_rows):
        yield f"rows {number}", range(frame.offset, frame.end)
    yield "footer", range(part.header.frames[-1].end, len(body))


def rows_of(store: MemoryStore) -> object:
    return opened(store).scan(include_metadata=True).read_all().to_pylist()


def records_of(store: MemoryStore) -> object:
    return [*opened(store).records()]


class Sound:
    """A random log with sound segments, one of which a test damages.

    Attributes:
        store: the store.
        expected: the rows and the records without segments.
        key: the key of the segment.
        body: its bytes.
    """

    def __init__(self, seed: int, folder: Path, draw: random.Random) -> None:
        self.store = random_log(seed, folder, 30)
        plain = without_segments(self.store)
        self.expected = rows_of(plain), records_of(plain)
        segmented(self.store)
        keys_of_segments = segments_in(self.store)
        self.key = keys_of_segments[draw.randrange(len(keys_of_segments))]
        self.body = self.store.objects[self.key]

    def is_reported(self) -> bool:
        """Whether a check of the log names the segment."""
        problems = verify_store(log_of(self.store), "wal").problems
        return any(self.key in line for line in problems)


def check_readers(log: Sound, seen: list[Event], *, at: object) -> int:
    """Check the rows and the records; return the number of readers that emitted an event."""
    readers = 0
    for read, expected in zip((rows_of, records_of), log.expected, strict=True):
        seen.clear()
        assert read(log.store) == expected, at
        assert ignored(seen) in ([], [log.key]), at
        readers += len(ignored(seen))
    return readers


@pytest.mark.parametrize("seed", [1, *(pytest.param(n, marks=pytest.mark.slow) for n in (2, 3, 4))])
def test_a_flip_in_each_part_gives_the_same_rows_and_one_event(
    seed: int, tmp_path: Path, seen: list[Event]
) -> None:
    draw = random.Random(seed)
    log = Sound(seed, tmp_path, draw)
    parts = [*parts_in(log.body)]
    assert len(parts) > 5
    for part, span in parts:
        for at in {span[0], span[-1], *draw.choices(span, k=3)}:
            body = bytearray(log.body)
            body[at] ^= 1 << draw.randrange(8)
            log.store.objects[log.key] = bytes(body)
            readers = check_readers(log, seen, at=(part, at))
            # A CRC covers these bytes. A reader of records does not need the rows.
            if part.startswith(("records", "rows")):
                assert readers == (1 if part.startswith("rows") else 2), (part, at)
        # The last flip of the part.
        assert log.is_reported(), part


@pytest.mark.parametrize("seed", [1, *(pytest.param(n, marks=pytest.mark.slow) for n in (2, 3, 4))])
def test_a_cut_at_each_part_gives_the_same_rows_and_one_event(
    seed: int, tmp_path: Path, seen: list[Event]
) -> None:
    draw = random.Random(seed)
    log = Sound(seed, tmp_path, draw)
    for part, span in parts_in(log.body):
        for size in {span[0], span[len(span) // 2], span[-1]}:
            log.store.objects[log.key] = log.body[:size]
            readers = check_readers(log, seen, at=(part, size))
            if part != "footer":
                assert readers == (1 if part.startswith("rows") else 2), (part, size)
        assert log.is_reported(), part
    segmented(log.store)
    assert log.store.objects[log.key] == log.body


@pytest.mark.parametrize("seed", [pytest.param(n, marks=pytest.mark.slow) for n in (5, 6, 7)])
def test_all_readers_fall_back_from_damage(seed: int, tmp_path: Path) -> None:
    draw = random.Random(seed)
    store = random_log(seed, tmp_path)
    expected = [*all_of(without_segments(store))]
    segmented(store)
    sound = dict(store.objects)
    for part in range(6):
        store.objects = dict(sound)
        # Damage in several segments at once.
        for key in draw.sample(segments_in(store), 2):
            spans = [span for _, span in parts_in(sound[key])]
            span = spans[min(part, len(spans) - 1)]
            body = bytearray(sound[key])
            body[draw.choice(span)] ^= 0x10
            store.objects[key] = bytes(body)
        assert [*all_of(store)] == expected, part


def test_repair_deletes_a_damaged_segment_and_mends_a_record_beside_it(tmp_path: Path) -> None:
    path = str(tmp_path / "log")
    limits = {"maxInFlightRequests": 1, "batchSizeThreshold": 1}
    with Appender(path, SCHEMA, producer_id="p", **limits) as wal:
        for value in range(3 * BLOCK):
            wal.append(rows(value))
    made = make_segments(range_of(path))
    assert made.blocks == [0, 1, 2]
    expected = Log(path).scan().read_all()
    file = Path(path) / "segments" / keys.encode(keys.slot(2 * BLOCK - 1, 1000))
    file.chmod(0o644)
    record = Path(path) / "batches" / keys.encode(keys.slot(BLOCK + 2, 1000))
    record.chmod(0o644)
    sound = file.read_bytes()
    whole = record.read_bytes()
    # The footer is not read with the rows, and one byte of it has no check.
    for at in (100, len(sound) // 2, len(sound) - 20):
        file.write_bytes(sound[:at] + bytes([sound[at] ^ 1]) + sound[at + 1 :])
        assert [line for line in verify(path).problems if "sparkwal repair" in line]
        repair(path, BLOCK + 1)
        assert not file.exists()
        assert verify(path).ok
        assert make_segments(range_of(path)).blocks == [1]
        file.chmod(0o644)
    assert file.read_bytes() == sound
    # The number of its last record names a segment too.
    file.write_bytes(sound[:-30])
    record.write_bytes(b"x" + whole[1:])
    # It may have the last copy of a damaged record, which is repaired first.
    with pytest.raises(InvalidLogError, match="Repair that record first"):
        repair(path, keys.slot(2 * BLOCK - 1, 1000))
    assert file.exists()
    repair(path, BLOCK + 2)
    assert record.read_bytes() == whole
    repair(path, keys.slot(2 * BLOCK - 1, 1000))
    assert not file.exists()
    assert make_segments(range_of(path)).blocks == [1]
    assert Log(path).scan().read_all().equals(expected)
    # A sound segment stays.
    repair(path, BLOCK + 2)
    assert file.read_bytes() == sound
