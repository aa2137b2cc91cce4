"""A log changes while a reader uses its segments, before each of the reader's requests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pyarrow as pa
import pytest

from sparkwal.errors import CollectedError, InvalidLogError
from sparkwal.format import keys, schema
from sparkwal.lifecycle.collecting import collection
from sparkwal.lifecycle.collecting.collection import Safeguards, collect
from sparkwal.lifecycle.known_log import KnownLog
from sparkwal.options.parsing import parse
from sparkwal.options.reading import SourceOptions
from sparkwal.protocol.chain import Chain
from sparkwal.protocol.clock import SYSTEM, Clock
from sparkwal.protocol.recovery import find_head
from sparkwal.reading import planning
from sparkwal.reading.log_range import LogRange
from sparkwal.reading.planning import read_tasks, task_rows
from sparkwal.reading.rows import pieces_of
from sparkwal.store.base import Page
from sparkwal.testing.memory import MemoryStore
from tests.chains import newest
from tests.consumers import consumer, publish
from tests.protocol.query import StoppedClock
from tests.reading.collected import DAY_MS, move_floor
from tests.reading.segmented import (
    BLOCK,
    log_of,
    random_log,
    segmented,
    segments_in,
    small_commits,
    small_parts,
)
from tests.reading.segmented import short_blocks as short_blocks

Row = dict[str, object]


pytestmark = pytest.mark.usefixtures("short_blocks")


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that a reader fetches apart from the records of their segment."""
    small_parts(monkeypatch, frame=300, run=1000, front=500)
    monkeypatch.setattr(planning, "PLANNED_RECORDS", BLOCK)


class ChangingStore(MemoryStore):
    """Does something before the n-th request of a reader."""

    def __init__(self, objects: dict[str, bytes]) -> None:
        super().__init__()
        self.objects = dict(objects)
        self.left = -1
        self.change: Callable[[], None] = lambda: None

    def _count(self) -> None:
        self.left -= 1
        if self.left == 0:
            self.change()

    def get(self, key: str) -> bytes:
        self._count()
        return super().get(key)

    def list(self, prefix: str, limit: int = 1000, after: str = "") -> Page:
        self._count()
        return super().list(prefix, limit, after)


def scanned(store: MemoryStore, clock: Clock) -> Iterator[Row]:
    """The rows, one batch after the other."""
    log = LogRange(parse(SourceOptions, {"path": "memory"}), "default", log_of(store), clock)
    log.refresh()
    assert log.spark_schema is not None
    for record in log.records(log.floor.current(), log.gap):
        target = schema.to_arrow(log.spark_schema)
        for batch in log.rows(pieces_of(log.log, record), target):
            for row in batch.to_pylist():
                yield {"position": record.header.position, **row}


def by_tasks(store: MemoryStore, clock: Clock) -> Iterator[Row]:
    """The rows of the tasks of a batch read."""
    log = LogRange(parse(SourceOptions, {"path": "memory"}), "default", log_of(store), clock)
    log.refresh()
    assert log.spark_schema is not None
    fields = [pa.field("_wal_position", pa.int64()), *schema.to_arrow(log.spark_schema)]
    for task in read_tasks(log, log.floor.current(), log.gap, None, 2):
        for batch in task_rows(store, task, pa.schema(fields), log.options, clock):
            for row in batch.to_pylist():
                yield {"position": row.pop("_wal_position"), **row}


READERS = [scanned, by_tasks]
Reader = Callable[[MemoryStore, Clock], Iterator[Row]]


def changed_before_each_request(
    objects: dict[str, bytes], read: Reader, change: Callable[[ChangingStore, StoppedClock], None]
) -> Iterator[tuple[list[Row], Exception | None]]:
    """The rows of readers, each with the change before another request, and the error."""
    for number in count(1):
        store = ChangingStore(objects)
        clock = StoppedClock()
        store.left = number
        store.change = lambda store=store, clock=clock: change(store, clock)  # type: ignore[misc]
        rows: list[Row] = []
        try:
            for row in read(store, clock):
                rows.append(row)
        except (InvalidLogError, CollectedError) as error:
            yield rows, error
        else:
            yield rows, None
        if store.left > 0:
            return


@pytest.mark.parametrize("read", READERS)
def test_a_segment_that_is_deleted_under_a_reader_costs_no_row(
    read: Reader, tmp_path: Path
) -> None:
    store = random_log(1, tmp_path, 24)
    expected = [*read(store, SYSTEM)]
    segmented(store)
    assert len(segments_in(store)) >= 2

    def delete(store: ChangingStore, _: StoppedClock) -> None:
        for key in segments_in(store):
            del store.objects[key]

    outcomes = [*changed_before_each_request(store.objects, read, delete)]
    assert len(outcomes) > 10
    assert all(outcome == (expected, None) for outcome in outcomes)


@pytest.mark.parametrize("read", READERS)
def test_a_reader_of_segments_never_mixes_the_rows_of_two_logs(
    read: Reader, tmp_path: Path
) -> None:
    former = random_log(1, tmp_path / "former", 30)
    of_former = [*read(former, SYSTEM)]
    segmented(former)
    new = random_log(2, tmp_path / "new", 40)
    of_new = [*read(new, SYSTEM)]
    segmented(new)
    for left in (segments_in(former), []):

        def make_again(store: ChangingStore, _: StoppedClock, left: list[str] = left) -> None:
            kept = {key: store.objects[key] for key in left}
            store.objects = {**new.objects, **kept}

        errors = 0
        for rows, error in changed_before_each_request(former.objects, read, make_again):
            errors += error is not None
            is_of_former = rows == of_former[: len(rows)]
            # The reader may have found the end of the former log before.
            assert is_of_former or rows == of_new[: len(rows)]
            assert error is not None or rows == of_former or not is_of_former
        assert errors


@pytest.mark.parametrize("read", READERS)
def test_the_floor_moves_while_segments_are_read(
    read: Reader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collection, "KEPT_SLOTS", 3)
    store = random_log(1, tmp_path, 50)
    expected = [*read(store, SYSTEM)]
    segmented(store)
    floor = 3 * BLOCK + 2

    def collect_below(store: ChangingStore, clock: StoppedClock) -> None:
        log = log_of(store)
        seen = move_floor(log, floor)
        clock.wall_ms += 2 * DAY_MS
        clock.since_boot_ms += 2 * DAY_MS
        store.modified = dict.fromkeys(store.objects, 0)
        head = find_head(log)
        logs = [KnownLog(log, head, collected=-1, found="at rest")]
        chain = Chain(log, SYSTEM, "host")
        done, _ = collect(chain, seen.record, logs, Safeguards(None, DAY_MS, None))
        assert done[log.name] is not None
        assert all(last_of(key) >= 3 * BLOCK for key in segments_in(store))

    collected = 0
    for rows, error in changed_before_each_request(store.objects, read, collect_below):
        collected += isinstance(error, CollectedError)
        if error is None:
            # It looked at the floor before or after that moved.
            above = [row for row in expected if row["position"] >= floor]  # type: ignore[operator]
            assert rows in (expected, above)
        else:
            assert isinstance(error, CollectedError), error
            assert rows == expected[: len(rows)]
    assert collected


def last_of(key: str) -> int:
    """The last position of a segment."""
    number = keys.decode(key.rpartition("/")[2])
    assert number is not None
    return keys.position(number, 1000)


def test_a_segment_with_released_rows_is_deleted_although_a_consumer_reads_its_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collection, "KEPT_SLOTS", 3)
    store = small_commits(tmp_path, 6 * BLOCK - 1)
    log = log_of(store)
    segmented(store)
    position = 2 * BLOCK + 3
    log_id = find_head(log).live.header.log_id  # type: ignore[union-attr]
    publish(log, consumer("daily", position, log_id))
    # The grace has passed for the floor, and the consumer is still live.
    move_floor(log, 4 * BLOCK)
    store.modified = {key: 0 for key in store.objects if "/consumers/" not in key}
    seen = newest(log)
    assert seen is not None
    logs = [KnownLog(log, find_head(log), collected=-1, found="at rest")]
    chain = Chain(log, SYSTEM, "host")
    done = collect(chain, seen.record, logs, Safeguards(None, 0, None))[0][log.name]
    assert done is not None and done.bound == position and done.held_by == "daily"
    assert [last_of(key) for key in segments_in(store)] == [
        block * BLOCK + BLOCK - 1 for block in (3, 4)
    ]


def test_a_collection_deletes_the_segments_that_no_reader_uses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collection, "KEPT_SLOTS", 3)
    former = small_commits(tmp_path / "former", 8 * BLOCK - 1)
    segmented(former)
    store = small_commits(tmp_path / "new", 5 * BLOCK - 1)
    segmented(store)
    log = log_of(store)
    first, second, third, fourth = segments_in(store)
    # Of a former log, below and above the head, and a damaged one of this log.
    store.objects |= {key: former.objects[key] for key in segments_in(former)[4:]}
    store.objects[third] = former.objects[third]
    store.objects[fourth] = store.objects[fourth][:50]
    move_floor(log, BLOCK)
    store.modified = dict.fromkeys(store.objects, 0)
    seen = newest(log)
    assert seen is not None
    for dry_run in (True, False):
        before = segments_in(store)
        logs = [KnownLog(log, find_head(log), collected=-1, found="at rest")]
        chain = Chain(log, SYSTEM, "host")
        safeguards = Safeguards(None, 0, None)
        done = collect(chain, seen.record, logs, safeguards, dry_run=dry_run)[0][log.name]
        assert done is not None
        assert segments_in(store) == (before if dry_run else [second, fourth])
    assert first not in store.objects
    # `sparkwal segment` makes what is missing, and replaces what is damaged.
    assert segmented(store).blocks == [2, 3]
