"""A log is deleted, or deleted and recreated, under its live appender: the error
names the acknowledged rows in the hole, the time, and what to do."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial

import pytest

from sparkwal import Appender
from sparkwal.errors import InvalidLogError
from sparkwal.format.lifecycle_record import FLOOR
from sparkwal.protocol import recovery
from sparkwal.protocol.recovery import find_head
from sparkwal.protocol.slots import read_slot
from sparkwal.store.base import LogStore
from tests.appender.faulty_store import PREFIX, FaultyStore
from tests.chains import beginning, put_next
from tests.logs import SCHEMA, rows
from tests.protocol.query import StoppedClock

TTL_MS = 60_000


@pytest.fixture
def faulty() -> FaultyStore:
    return FaultyStore()


@pytest.fixture
def clock() -> StoppedClock:
    return StoppedClock()


def opened(faulty: FaultyStore, clock: StoppedClock) -> Appender:
    return Appender(
        LogStore(faulty, PREFIX),
        SCHEMA,
        producer_id="p",
        clock=clock,
        planTtl="1min",
        maxInFlightRequests=4,
        batchSizeThreshold=1,
    )


def passes(clock: StoppedClock) -> None:
    clock.since_boot_ms += TTL_MS
    clock.wall_ms += TTL_MS


def delete_all(faulty: FaultyStore) -> None:
    for key in list(faulty.inner.objects):
        faulty.inner.delete(key)


def recreate(faulty: FaultyStore, commits: int = 1) -> None:
    delete_all(faulty)
    with faulty.appender("another") as other:
        for number in range(commits):
            other.append(rows(number)).result()


@pytest.mark.parametrize(
    ("happens", "found"),
    [
        (delete_all, "position 0 holds no record"),
        # The old log's objects lie further on than any writer of the new one may reach, or nearer.
        (recreate, "the path holds another log, "),
        (partial(recreate, commits=3), "the path holds another log, "),
        # The writer's next record continues the new log, and becomes its head.
        (partial(recreate, commits=4), "the path holds another log, "),
    ],
    ids=["deleted", "recreated", "recreated, longer", "recreated, as long"],
)
def test_the_error_names_what_was_acknowledged_into_the_hole(
    faulty: FaultyStore, clock: StoppedClock, happens: Callable[[FaultyStore], None], found: str
) -> None:
    wal = opened(faulty, clock)
    for sequence in range(3):
        wal.append(rows(sequence)).result()
    passes(clock)
    wal.append(rows(3)).result()  # at position 4, and the log was whole: it is 2023-11-14T22:14:20
    happens(faulty)
    for sequence in (4, 5):
        assert wal.append(rows(sequence)).result() == 1 + sequence
    passes(clock)
    with pytest.raises(InvalidLogError) as caught:
        wal.append(rows(6)).result()
    said = str(caught.value)
    assert re.search(f"deleted or recreated while this writer led it: {found}", said)
    assert "last seen intact at 2023-11-14T22:14:20+00:00" in said
    # The look was before sequence 3 was put.
    assert "sequences of p after 2, at positions up to 6" in said
    assert "send the rows after sequence 2 again" in said
    assert "Nothing was written" not in said and "checkpoint" not in said


@pytest.mark.parametrize("commits", [1, 3])
def test_objects_of_a_deleted_log_after_the_new_ones_end_name_their_writer(
    faulty: FaultyStore, clock: StoppedClock, commits: int
) -> None:
    """The new log is complete, so the error does not advise to restore a record."""
    wal = opened(faulty, clock)
    for sequence in range(4):
        wal.append(rows(sequence)).result()
    recreate(faulty, commits)
    for sequence in (4, 5):
        wal.append(rows(sequence)).result()
    log = LogStore(faulty.inner, PREFIX)
    first = read_slot(log, 0, 1000)
    assert first is not None
    said = (
        f"after the end of the log {first.header.log_id} and belongs to another, .*: end its writer"
    )
    with pytest.raises(InvalidLogError, match=said):
        find_head(log)
    with pytest.raises(InvalidLogError, match=said):
        faulty.appender("another")


def test_the_error_counts_lost_appends_from_the_last_check_of_the_log(
    faulty: FaultyStore, clock: StoppedClock
) -> None:
    with faulty.appender() as first:
        for sequence in range(3):
            first.append(rows(sequence)).result()
    wal = opened(faulty, clock)
    delete_all(faulty)
    wal.append(rows(3)).result()
    passes(clock)
    with pytest.raises(InvalidLogError, match="sequences of p after 2, .* after sequence 2"):
        wal.append(rows(4)).result()


def filled_after_deletion(
    faulty: FaultyStore, clock: StoppedClock, patch: pytest.MonkeyPatch
) -> Appender:
    """More was put since than one LIST shows."""
    patch.setattr(recovery, "LIST_LIMIT", 5)
    wal = opened(faulty, clock)
    wal.append(rows(0)).result()
    for key in [key for key in faulty.inner.objects if "/batches/" in key]:
        faulty.inner.delete(key)
    for sequence in range(1, 10):
        wal.append(rows(sequence)).result()
    passes(clock)
    return wal


def test_the_error_counts_appends_beyond_one_page_of_a_list(
    faulty: FaultyStore, clock: StoppedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    wal = filled_after_deletion(faulty, clock, monkeypatch)
    with pytest.raises(InvalidLogError, match="sequences of p after -1, at positions up to 10"):
        wal.append(rows(10)).result()


def test_a_beginning_that_was_collected_is_not_taken_for_deleted(
    faulty: FaultyStore, clock: StoppedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    wal = filled_after_deletion(faulty, clock, monkeypatch)
    log = LogStore(faulty.inner, PREFIX)
    live = find_head(log).live
    assert live is not None
    state = beginning(live.header.log_id, "default", 0)
    assert put_next(log, state, FLOOR, clock, "host", floor=2, cut=2, to=2) is not None
    with wal:
        assert wal.append(rows(10)).result() == 11
