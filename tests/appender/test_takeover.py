"""Appenders and the sink after one another: fencing, recovery, exactly once."""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path

import pytest

from sparkwal.appender.appender import Appender
from sparkwal.errors import FencedError
from sparkwal.format import keys
from sparkwal.format.header import LeaderHeader
from sparkwal.protocol.handover import LOOK_MS, LOOK_RECORDS, Lookout, Requests
from sparkwal.protocol.records import live_records
from sparkwal.protocol.recovery import find_head
from sparkwal.protocol.view import LogView
from sparkwal.reading.verification import verify_store
from sparkwal.store.base import LogStore, Transient
from tests.appender.away import sound
from tests.appender.faulty_store import PREFIX, FaultyStore, commits, stored
from tests.logs import SCHEMA, rows, until
from tests.protocol.query import Query, StoppedClock, hints_in


@pytest.fixture
def faulty() -> FaultyStore:
    return FaultyStore()


@pytest.mark.proves("never-skip-slot")
def test_a_second_appender_fences_the_first(faulty: FaultyStore) -> None:
    with faulty.appender("one") as one:
        one.append(rows(1)).result()
        with faulty.appender("two") as two:
            ticket = one.append(rows(2))
            with pytest.raises(FencedError, match="another writer leads"):
                ticket.result()
            with pytest.raises(FencedError):
                one.append(rows(3))
            two.append(rows(4)).result()
    assert stored(faulty.inner) == [1, 4]
    sound(faulty)


@pytest.mark.proves("seal-the-zone")
def test_only_what_the_former_leader_could_reach_is_sealed(
    faulty: FaultyStore, tmp_path: Path
) -> None:
    def opened(limit: int) -> int:
        """How many records an appender writes before its first batch."""
        before = len(_positions(faulty))
        with faulty.appender(maxInFlightRequests=limit):
            return len(_positions(faulty)) - before

    assert opened(50) == 1  # an empty log
    assert opened(5) == 50
    # Leader record and seals still carry 50, so the next takeover seals as many slots.
    assert opened(1) == 50
    with faulty.appender(maxInFlightRequests=5) as wal:
        wal.append(rows(1)).result()
    # A commit proves that the zone is sealed: only its writer's reach is left.
    assert opened(1) == 5
    fresh = FaultyStore()
    Query(fresh.inner, hints_in(tmp_path)).microbatch(0, (1,))
    with fresh.appender(maxInFlightRequests=50) as wal:
        # Directly after the sink's leader and commit records.
        assert wal.append(rows(2)).result() == 3


def test_batches_in_flight_at_a_takeover_are_dead_or_acknowledged(faulty: FaultyStore) -> None:
    with faulty.appender("one") as one:
        first = faulty.gap()
        faulty.hold(first + 1)
        tickets = [one.append(rows(i)) for i in range(4)]
        # The second of four never arrives in time; the two after it are stored.
        until(lambda: faulty.inner.counts["PUT"] > 0 and first + 3 in _positions(faulty))
        assert tickets[0].result() == first
        with FaultyStore(faulty.inner).appender("two") as two:
            # Its leader record takes the gap that the first appender still tries to fill.
            faulty.release(first + 1)
            for ticket in tickets[1:]:
                with pytest.raises(FencedError):
                    ticket.result()
            two.append(rows(9)).result()
    assert stored(faulty.inner) == [0, 9]
    report = verify_store(LogStore(faulty.inner, PREFIX), "")
    assert report.ok and report.dead == 2, str(report)


def _positions(faulty: FaultyStore) -> set[int]:
    from sparkwal.format import keys

    numbers = (keys.decode(key.rpartition("/")[2]) for key in list(faulty.inner.objects))
    return {keys.position(number, 1000) for number in numbers if number is not None}


def test_the_same_producer_continues_at_the_end_of_the_log(faulty: FaultyStore) -> None:
    for run in range(3):
        with faulty.appender() as wal:
            assert wal.last_sequence == run * 2 - 1
            assert [wal.append(rows(i)).sequence for i in range(2)] == [run * 2, run * 2 + 1]
    with faulty.appender("another") as wal:
        assert wal.last_sequence == -1
        wal.append(rows(7))
    with faulty.appender() as wal:
        assert wal.last_sequence == 5
    sound(faulty)


def test_sink_and_appender_that_take_turns_store_each_row_once(
    faulty: FaultyStore, tmp_path: Path
) -> None:
    query = Query(faulty.inner, hints_in(tmp_path))
    query.microbatch(0, (1, 2))
    with faulty.appender() as wal:
        wal.append(rows(3)).result()
        query.restarted().microbatch(1, (4,))
        with pytest.raises(FencedError):
            wal.append(rows(5)).result()
    with faulty.appender() as wal:
        assert wal.last_sequence == 0
        wal.append(rows(6)).result()
    query.restarted().microbatch(2, (7,))
    assert stored(faulty.inner) == [1, 2, 3, 4, 6, 7]
    sound(faulty)


def test_one_appender_makes_the_first_cold_start_of_the_sink_dear_and_no_other(
    faulty: FaultyStore, tmp_path: Path
) -> None:
    with faulty.appender(maxInFlightRequests=50) as wal:
        wal.append(rows(0)).result()
    query = Query(faulty.inner, hints_in(tmp_path))
    faulty.inner.counts.clear()
    query.microbatch(0, (1,))
    assert faulty.inner.counts == {"LIST": 1, "GET": 1, "PUT": 50 + 2}
    for batch in (1, 2):
        query = query.restarted()
        faulty.inner.counts.clear()
        query.plan()
        assert faulty.inner.counts == {"LIST": 1, "GET": 1, "PUT": 1}
        query = query.restarted()
        query.microbatch(batch, (batch,))
    sound(faulty)


def test_readers_of_the_sink_look_back_no_further_than_the_sink_reaches(
    faulty: FaultyStore, tmp_path: Path
) -> None:
    with faulty.appender(maxInFlightRequests=50) as wal:
        wal.append(rows(0)).result()
    query = Query(faulty.inner, hints_in(tmp_path))
    position = query.microbatch(0, (1,))
    assert position is not None
    log = LogStore(faulty.inner, PREFIX)
    faulty.inner.counts.clear()
    found = live_records(LogView(log, 1000), position, position + 1)
    assert [record.header.position for record in found] == [position]
    assert faulty.inner.counts == {"GET": 1}


def _ask(faulty: FaultyStore) -> None:
    """As a newcomer does that has lost the race for the first gap."""
    log = LogStore(faulty.inner, PREFIX)
    live = find_head(log).live
    assert live is not None
    Requests(log, "newcomer").ask(live.header)


def test_a_leader_that_is_asked_sends_nothing_more_and_settles_what_is_in_flight(
    faulty: FaultyStore,
) -> None:
    clock = StoppedClock()
    with faulty.appender(clock=clock) as one:
        for i in range(LOOK_RECORDS):
            one.append(rows(i)).result()
        last = faulty.gap()
        faulty.hold(last)
        _ask(faulty)
        clock.since_boot_ms += LOOK_MS
        ticket = one.append(rows(99))
        until(lambda: one.error is not None)
        with pytest.raises(FencedError, match="'newcomer'.*asked for"):
            one.append(rows(100))
        assert not ticket.done()
        faulty.release(last)
        assert ticket.result() == last
    with faulty.appender() as two:
        assert two.last_sequence == LOOK_RECORDS
    sound(faulty)


def test_a_leader_looks_for_requests_once_in_so_many_records_and_no_sooner(
    faulty: FaultyStore,
) -> None:
    clock = StoppedClock()
    with faulty.appender(clock=clock) as wal:
        faulty.inner.counts.clear()
        for i in range(3 * LOOK_RECORDS):
            wal.append(rows(i)).result()
        assert not faulty.inner.counts["GET"]
        for i in range(2 * LOOK_RECORDS):
            clock.since_boot_ms += LOOK_MS
            wal.append(rows(i)).result()
        until(lambda: faulty.inner.counts["GET"] == 2)
    assert faulty.inner.counts["GET"] == 2
    assert faulty.inner.counts["PUT"] == 5 * LOOK_RECORDS


def test_a_request_that_was_left_over_stops_no_later_leader(faulty: FaultyStore) -> None:
    with faulty.appender():
        _ask(faulty)
    clock = StoppedClock()
    with faulty.appender(clock=clock) as two:
        for i in range(2 * LOOK_RECORDS):
            clock.since_boot_ms += LOOK_MS
            two.append(rows(i)).result()
        until(lambda: faulty.inner.counts["GET"] > 0)
    assert two.error is None


def test_a_cancelled_takeover_request_is_repeated(faulty: FaultyStore) -> None:
    log = LogStore(faulty.inner, PREFIX)
    with faulty.appender():
        live = find_head(log).live
        assert live is not None
        first, second = Requests(log, "first"), Requests(log, "second")
        for newcomer in (first, second):
            newcomer.ask(live.header)
        first.withdraw()
        second.ask(live.header)
        with pytest.raises(FencedError, match="'second'"):
            Lookout(log, live.header.log_id, live.header.term, StoppedClock()).check()
        second.withdraw()
    assert not [key for key in faulty.inner.objects if "handover" in key]


def test_a_failed_look_stops_no_appender(
    faulty: FaultyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = StoppedClock()
    looked = threading.Event()

    def get(key: str) -> bytes:
        looked.set()
        raise Transient("no answer")

    with faulty.appender(clock=clock, retries=0) as wal:
        monkeypatch.setattr(faulty.inner, "get", get)
        clock.since_boot_ms += LOOK_MS
        for i in range(LOOK_RECORDS):
            wal.append(rows(i)).result()
        assert looked.wait(30)
        wal.append(rows(99)).result()


def test_an_appender_fences_a_query_between_plan_and_commit(
    faulty: FaultyStore, tmp_path: Path
) -> None:
    query = Query(faulty.inner, hints_in(tmp_path))
    query.microbatch(0, (1,))
    plan = query.plan()
    result = query.task(plan, 1, 0, 2)
    with faulty.appender() as wal:
        with pytest.raises(FencedError):
            query.commit([result])
        wal.append(rows(3)).result()
    assert stored(faulty.inner) == [1, 3]
    assert query.restarted().microbatch(1, (2,)) is not None
    assert stored(faulty.inner) == [1, 3, 2]
    sound(faulty)


def test_a_query_that_follows_an_appender_skips_what_the_log_has(
    faulty: FaultyStore, tmp_path: Path
) -> None:
    query = Query(faulty.inner, hints_in(tmp_path))
    query.microbatch(0, (1,))
    with faulty.appender() as wal:
        wal.append(rows(2))
    # Its transaction has travelled through the appender's records.
    assert query.restarted().microbatch(0, (1,)) is None
    assert stored(faulty.inner) == [1, 2]


def test_a_thousand_in_flight_and_the_first_missing_is_recovered_by_one_list(
    faulty: FaultyStore,
) -> None:
    with faulty.appender("one", maxInFlightRequests=1000) as one:
        first = faulty.gap()
        faulty.hold(first)
        tickets = [one.append(rows(i)) for i in range(1000)]
        until(lambda: first + 999 in _positions(faulty))
        until(lambda: len(_positions(faulty) & set(range(first, first + 1000))) == 999)
        faulty.inner.counts = Counter()
        with FaultyStore(faulty.inner).appender("two", maxInFlightRequests=1000) as two:
            counts = faulty.inner.counts
            assert counts["LIST"] == 1
            # Looking back from the gap, then reading the records in the slots to be sealed:
            # bounded by what may be in flight, however long the log.
            assert counts["GET"] <= 3 * 1000 and counts["PUT"] <= 4 + 1000
            leader = find_head(LogStore(faulty.inner, PREFIX)).live
            assert leader is not None and isinstance(leader.header, LeaderHeader)
            assert leader.header.position == first
            two.append(rows(-1)).result()
            faulty.release(first)
            for ticket in tickets:
                with pytest.raises(FencedError):
                    ticket.result()
    assert stored(faulty.inner) == [-1]
    report = verify_store(LogStore(faulty.inner, PREFIX), "")
    assert report.ok and report.dead == 999, str(report)


@pytest.mark.parametrize("limits", [(1, 8, 1), (8, 1, 8), (3, 5, 2, 7, 1)])
def test_takeovers_with_changing_limits_keep_order_and_lose_nothing(
    faulty: FaultyStore, limits: tuple[int, ...]
) -> None:
    expected: list[int] = []
    for run, limit in enumerate(limits):
        with faulty.appender(maxInFlightRequests=limit) as wal:
            assert wal.last_sequence == len(expected) - 1
            for i in range(20):
                wal.append(rows(run * 100 + i))
                expected.append(run * 100 + i)
    assert stored(faulty.inner) == expected
    sound(faulty)
    assert [sequence for _, _, sequence, _ in commits(faulty.inner)] == list(range(len(expected)))


def test_a_process_that_slept_looks_at_the_log_before_it_claims_a_slot(faulty: FaultyStore) -> None:
    clock = StoppedClock()
    wal = Appender(
        LogStore(faulty, PREFIX),
        SCHEMA,
        producer_id="p",
        clock=clock,
        planTtl="1min",
        maxInFlightRequests=1,
    )
    with wal:
        wal.append(rows(0)).result()
        lists = faulty.inner.counts["LIST"]
        clock.since_boot_ms += 60_000
        wal.append(rows(1)).result()
        wal.append(rows(2)).result()
        assert faulty.inner.counts["LIST"] == lists + 1
        # Meanwhile another leads, and the slot that we would claim is filled and collected.
        ours = faulty.gap()
        with faulty.appender("other") as other:
            # Far enough that no look back reaches the collected records.
            for _ in range(5):
                other.append(rows(9)).result()
        collected = [key for key in faulty.inner.objects if _position(key) <= ours]
        for key in collected:
            faulty.inner.delete(key)
        clock.since_boot_ms += 60_000
        with pytest.raises(FencedError):
            wal.append(rows(3)).result()
    assert not any(_position(key) == ours for key in faulty.inner.objects)


def _position(key: str) -> int:
    number = keys.decode(key.rpartition("/")[2])
    assert number is not None
    return keys.position(number, 1000)
