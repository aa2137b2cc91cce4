"""One appender: order, back-pressure, failures, events. No test measures time."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from sparkwal import Appender, AsyncAppender
from sparkwal.errors import (
    BackPressureError,
    FencedError,
    OptionError,
    OutcomeUnknownError,
)
from sparkwal.events import BatchSent, Durable, Event, Rejected, Retried
from sparkwal.options.writing import AppenderOptions
from sparkwal.reading.verification import verify_store
from sparkwal.store.base import LogStore
from tests.appender import inside
from tests.appender.faulty_store import PREFIX, FaultyStore, commits, stored
from tests.logs import SCHEMA, rows, until


@pytest.fixture
def faulty() -> FaultyStore:
    return FaultyStore()


def started(faulty: FaultyStore, *positions: int) -> None:
    until(lambda: set(positions) <= set(faulty.arrived))


def test_a_resolved_ticket_means_durable_rows_at_its_position(faulty: FaultyStore) -> None:
    with faulty.appender() as wal:
        first = faulty.gap()
        assert [wal.append(rows(i)).result() for i in range(3)] == [first, first + 1, first + 2]
        assert wal.last_sequence == 2
    assert stored(faulty.inner) == [0, 1, 2]
    report = verify_store(LogStore(faulty.inner, PREFIX), "")
    assert report.ok and report.commits == 3 and not report.under_way, str(report)


def test_appends_while_one_is_in_flight_go_together(faulty: FaultyStore) -> None:
    # The limit of one makes them wait, however old the first of them gets.
    with faulty.appender(maxInFlightRequests=1, batchSizeThreshold="1mb") as wal:
        first = faulty.gap()
        faulty.hold(first)
        tickets = [wal.append(rows(0))]
        started(faulty, first)
        tickets += [wal.append(rows(i)) for i in range(1, 100)]
        assert repr(tickets[7]) == "Ticket(sequence=7)"
        faulty.release(first)
        assert [ticket.result() for ticket in tickets] == [first] + [first + 1] * 99
    assert stored(faulty.inner) == list(range(100))


def test_puts_that_end_in_any_order_are_acknowledged_in_order(faulty: FaultyStore) -> None:
    with faulty.appender() as wal:
        first = faulty.gap()
        at = range(first, first + 4)
        faulty.hold(*at)
        tickets = [wal.append(rows(i)) for i in range(4)]
        done: list[int] = []
        for number, ticket in enumerate(tickets):
            ticket.when_done(lambda number=number: done.append(number))  # type: ignore[misc]
        started(faulty, *at)
        faulty.release(at[3])
        until(lambda: at[3] in inside.durable_early(wal))
        faulty.release(at[1])
        until(lambda: at[1] in inside.durable_early(wal))
        assert done == [] and wal.last_sequence == -1
        faulty.release(at[0])
        until(lambda: wal.last_sequence == 1 and len(done) == 2)
        assert done == [0, 1] and not tickets[2].done()
        faulty.release(at[2])
        assert [ticket.result() for ticket in tickets] == list(at)
        until(lambda: len(done) == 4)
        assert done == [0, 1, 2, 3]


def test_a_slow_oldest_put_stops_sending_at_the_limit_of_positions(faulty: FaultyStore) -> None:
    with faulty.appender() as wal:
        first = faulty.gap()
        faulty.hold(first)
        for i in range(10):
            wal.append(rows(i))
        # Three after it are done: no count of requests, but the span is used up.
        started(faulty, *range(first, first + 4))
        until(lambda: len(inside.durable_early(wal)) == 3)
        assert max(faulty.arrived) == first + 3
        assert wal.in_flight == 4
        faulty.release(first)
        wal.flush()
    assert stored(faulty.inner) == list(range(10))


def test_over_the_buffer_append_blocks_or_raises_and_nothing_is_lost(faulty: FaultyStore) -> None:
    with faulty.appender(maxInFlightRequests=1, maxBufferedBytes="1kb") as wal:
        first = faulty.gap()
        faulty.hold(first)
        accepted = [wal.append(rows(0))]
        started(faulty, first)
        with pytest.raises(BackPressureError, match="was not accepted"):
            for i in range(1, 2000):
                accepted.append(wal.append(rows(i), block=False))
        count = len(accepted)
        blocked = threading.Thread(target=lambda: accepted.append(wal.append(rows(count))))
        blocked.start()
        until(lambda: inside.waits_for_room(wal))
        assert len(accepted) == count
        faulty.release(first)
        blocked.join()
        wal.flush()
        assert [ticket.sequence for ticket in accepted] == list(range(count + 1))
    assert stored(faulty.inner) == list(range(count + 1))


def test_an_append_larger_than_the_buffer_is_taken_when_nothing_waits(faulty: FaultyStore) -> None:
    with faulty.appender(maxBufferedBytes="1kb") as wal:
        assert wal.append(rows(*range(10_000)), block=False).result() > 0
    assert len(stored(faulty.inner)) == 10_000


@pytest.mark.parametrize("fault", ["lost", "dropped", "refused"])
def test_a_record_in_trouble_is_repeated_and_stored_once(faulty: FaultyStore, fault: str) -> None:
    reported: list[Event] = []
    with faulty.appender() as wal:
        wal.subscribe(reported.append)
        first = faulty.gap()
        for position in range(first, first + 6, 2):
            faulty.faults[position] = [fault, fault]
        tickets = [wal.append(rows(i)) for i in range(6)]
        assert [ticket.result() for ticket in tickets] == list(range(first, first + 6))
    assert stored(faulty.inner) == list(range(6))
    # Its subscribers also get the events that its threads emit.
    retried = [event for event in reported if isinstance(event, Retried)]
    assert len(retried) == 6


# No connection, and one that may have carried the record.
@pytest.mark.parametrize("fault", ["refused", "dropped"])
def test_used_up_retries_stop_the_appender_and_nothing_acknowledged_is_lost(
    faulty: FaultyStore, fault: str
) -> None:
    expected = OutcomeUnknownError
    with faulty.appender(retries=1) as wal:
        first = faulty.gap()
        faulty.faults[first + 1] = [fault] * 2
        faulty.hold(*range(first, first + 4))
        tickets = [wal.append(rows(i)) for i in range(8)]
        started(faulty, *range(first, first + 4))
        faulty.release(first + 1)
        until(lambda: wal.error is not None)
        # The append before it continues, and is acknowledged.
        assert not any(ticket.done() for ticket in tickets)
        faulty.release(first)
        assert tickets[0].result() == first
        for ticket in tickets[1:4]:
            with pytest.raises(expected):
                ticket.result()
        for ticket in tickets[4:]:
            with pytest.raises(expected, match="not sent"):
                ticket.result()
        for _ in range(2):
            with pytest.raises(expected):
                wal.append(rows(9))
        with pytest.raises(expected):
            wal.flush()
        assert wal.last_sequence == 0
        faulty.release(*range(first + 2, first + 4))
    assert stored(faulty.inner) == [0]
    with faulty.appender() as again:
        assert again.last_sequence == 0
        for i in range(1, 8):
            assert again.append(rows(i)).sequence == i
    assert stored(faulty.inner) == list(range(8))
    report = verify_store(LogStore(faulty.inner, PREFIX), "")
    assert report.ok, str(report)


def test_of_two_failed_slots_the_first_decides(faulty: FaultyStore) -> None:
    with faulty.appender(retries=0) as wal:
        first = faulty.gap()
        faulty.hold(first)
        faulty.faults[first] = ["lost"]
        faulty.faults[first + 2] = ["refused"]
        tickets = [wal.append(rows(i)) for i in range(4)]
        until(lambda: wal.error is not None)
        faulty.release(first)
        for ticket in tickets:
            with pytest.raises(OutcomeUnknownError, match="last_sequence"):
                ticket.result()
    with faulty.appender() as again:
        # It did.
        assert again.last_sequence == 1
    assert stored(faulty.inner) == [0, 1]


@pytest.mark.parametrize("error", [OptionError("access denied"), MemoryError("no room")])
def test_any_error_of_a_request_ends_every_wait(faulty: FaultyStore, error: Exception) -> None:
    with faulty.appender() as wal:
        faulty.faults[faulty.gap()] = [error]
        ticket = wal.append(rows(1))
        # Not OptionError: after that an appender continues.
        with pytest.raises(OutcomeUnknownError, match=str(error)):
            ticket.result()
        with pytest.raises(OutcomeUnknownError, match="open a new appender"):
            wal.append(rows(2))


def test_a_bad_row_fails_only_its_own_ticket(faulty: FaultyStore) -> None:
    reported: list[Event] = []
    with faulty.appender(maxInFlightRequests=1, batchSizeThreshold="1mb") as wal:
        wal.subscribe(reported.append)
        first = faulty.gap()
        faulty.hold(first)
        wal.append(rows(0))
        started(faulty, first)
        good, bad, last = (wal.append([{"v": value}]) for value in (1, "two", 3))
        faulty.release(first)
        assert good.result() == last.result() == first + 1
        with pytest.raises(OptionError, match="column 'v' is bigint .* type str"):
            bad.result()
    assert stored(faulty.inner) == [0, 1, 3]
    assert [e.batch_id for e in reported if isinstance(e, Rejected)] == [2]


def test_a_batch_of_nothing_but_bad_rows_writes_nothing(faulty: FaultyStore) -> None:
    reported: list[Event] = []
    with faulty.appender(on_event=reported.append) as wal:
        first = faulty.gap()
        faulty.hold(first)
        good = wal.append(rows(0))
        started(faulty, first)
        bad = wal.append([{"v": "x"}])
        until(lambda: any(isinstance(event, Rejected) for event in reported))
        # In order all the same: earlier tickets are resolved first.
        assert not bad.done()
        faulty.release(first)
        with pytest.raises(OptionError):
            bad.result()
        assert good.done()
        with pytest.raises(OptionError):
            wal.append([{"v": "x"}]).result()
        assert wal.append(rows(1)).result() == first + 1
    assert [commit[1:] for commit in commits(faulty.inner)] == [("p", 0, 1), ("p", 3, 1)]


def test_an_append_without_rows_gets_a_sequence_and_a_position(faulty: FaultyStore) -> None:
    with faulty.appender() as wal:
        assert wal.append([]).result() == faulty.gap() - 1
        assert wal.last_sequence == 0
    assert commits(faulty.inner)[0][3] == 0 and verify_store(LogStore(faulty.inner, PREFIX), "").ok


def test_close_sends_what_waits_and_refuses_what_comes(faulty: FaultyStore) -> None:
    wal = faulty.appender(maxInFlightRequests=1, batchSizeThreshold="1mb")
    first = faulty.gap()
    faulty.hold(first)
    tickets = [wal.append(rows(i)) for i in range(10)]
    closing = threading.Thread(target=wal.close)
    closing.start()
    until(lambda: inside.is_closing(wal))
    with pytest.raises(OptionError, match="is closed"):
        wal.append(rows(10))
    faulty.release(first)
    closing.join()
    assert all(ticket.done() for ticket in tickets)
    wal.close()
    assert stored(faulty.inner) == list(range(10))


def test_closing_wakes_an_append_that_waits_for_room(faulty: FaultyStore) -> None:
    wal = faulty.appender(maxInFlightRequests=1, maxBufferedBytes="1kb")
    first = faulty.gap()
    faulty.hold(first, first + 1)
    wal.append(rows(0))
    started(faulty, first)
    wal.append(rows(*range(1, 200)))
    raised: list[Exception] = []

    def blocked() -> None:
        try:
            wal.append(rows(200))
        except OptionError as error:
            raised.append(error)

    threads = [threading.Thread(target=blocked), threading.Thread(target=wal.close)]
    threads[0].start()
    until(lambda: inside.waits_for_room(wal))
    threads[1].start()
    threads[0].join()
    assert len(raised) == 1
    faulty.release(first, first + 1)
    threads[1].join()


def test_close_raises_a_failure_that_no_ticket_raised(faulty: FaultyStore) -> None:
    with pytest.raises(OutcomeUnknownError), faulty.appender(retries=0) as wal:
        faulty.faults[faulty.gap()] = ["dropped"]
        wal.append(rows(1))
        until(lambda: wal.error is not None)


def test_an_error_of_the_block_is_not_replaced_by_one_of_close(faulty: FaultyStore) -> None:
    with pytest.raises(KeyError), faulty.appender(retries=0) as wal:
        faulty.faults[faulty.gap()] = ["dropped"]
        wal.append(rows(1))
        until(lambda: wal.error is not None)
        raise KeyError("mine")


def test_flush_waits_for_everything_or_its_timeout(faulty: FaultyStore) -> None:
    with faulty.appender() as wal:
        wal.flush()
        first = faulty.gap()
        faulty.hold(first)
        ticket = wal.append(rows(0))
        started(faulty, first)
        with pytest.raises(TimeoutError):
            wal.flush(timeout=0)
        with pytest.raises(TimeoutError, match="append 0"):
            ticket.result(timeout=0)
        faulty.release(first)
        wal.flush()
        assert ticket.done()


def test_appends_of_many_threads_are_stored_once_in_their_order(faulty: FaultyStore) -> None:
    with faulty.appender(batchSizeThreshold="1kb", maxBufferedBytes="4kb") as wal:
        mine: dict[int, list[int]] = {}

        def send(thread: int) -> None:
            tickets = [wal.append(rows(thread * 1000 + i)) for i in range(200)]
            mine[thread] = [ticket.result() for ticket in tickets]

        threads = [threading.Thread(target=send, args=(n,)) for n in range(5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert wal.last_sequence == 999
    values = stored(faulty.inner)
    assert len(values) == len(set(values)) == 1000
    for thread, positions in mine.items():
        assert positions == sorted(positions)
        assert [v for v in values if v // 1000 == thread] == [thread * 1000 + i for i in range(200)]
    assert verify_store(LogStore(faulty.inner, PREFIX), "").ok


@pytest.mark.parametrize("kind", [RuntimeError, SystemExit])
def test_subscribers_get_events_in_order_and_a_blocked_one_delays_no_append(
    faulty: FaultyStore, kind: type[BaseException]
) -> None:
    stuck = threading.Event()
    reported = []
    failing = []

    def hang(event: Event) -> None:
        stuck.wait()

    def fail(event: Event) -> None:
        failing.append(event.name)
        raise kind("mine")

    with faulty.appender() as wal:
        wal.subscribe(hang)
        wal.subscribe(fail)
        forget = wal.subscribe(reported.append)
        first = faulty.gap()
        for i in range(20):
            wal.append(rows(i))
        wal.flush()
        until(lambda: sum(isinstance(e, Durable) for e in reported) == 20)
        forget()
        wal.append(rows(20)).result()
        stuck.set()
    for what in (BatchSent, Durable):
        seen = [event for event in reported if isinstance(event, what)]
        assert [event.position for event in seen] == list(range(first, first + 20))
        assert [event.batch_id for event in seen] == list(range(20))
        assert {event.query_id for event in seen} == {"p"}
    assert failing.count("durable") == 21


def test_the_first_subscriber_gets_the_event_of_the_takeover(faulty: FaultyStore) -> None:
    reported: list[Event] = []
    with Appender(LogStore(faulty, PREFIX), SCHEMA, producer_id="p", on_event=reported.append):
        pass
    assert [event.name for event in reported][:2] == ["recovered", "leader_claimed"]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"maxInFlightRequests": 0}, "1…1000"),
        ({"maxInFlightRequests": 1001}, "1…1000"),
        ({"batchTimeoutMs": 0}, "greater than 0"),
        ({"maxBufferedBytes": "1kb"}, "below batchSizeThreshold"),
        ({"batchSizeTreshold": 1}, "did you mean 'batchSizeThreshold'"),
        ({"startingPosition": 1}, "is for reading"),
        ({"sequencer": "a/b"}, "letters, digits"),
    ],
)
def test_wrong_options_are_refused_before_anything_is_written(
    tmp_path: Any, options: dict[str, Any], says: str
) -> None:
    with pytest.raises(OptionError, match=says):
        Appender(str(tmp_path / "log"), SCHEMA, producer_id="p", **options)
    assert not (tmp_path / "log").exists()


@pytest.mark.parametrize("producer", ["", "  ", "append:x", "\ud800", None, 7, b"p"])
def test_a_producer_without_a_name_makes_no_log(tmp_path: Path, producer: Any) -> None:
    async def enter() -> None:
        async with AsyncAppender(str(tmp_path / "log"), SCHEMA, producer_id=producer):
            pass

    with pytest.raises(OptionError, match="producer_id"):
        Appender(str(tmp_path / "log"), SCHEMA, producer_id=producer)
    with pytest.raises(OptionError, match="producer_id"):
        asyncio.run(enter())
    assert not (tmp_path / "log").exists()


def test_a_log_with_other_columns_is_refused(faulty: FaultyStore) -> None:
    import pyarrow as pa

    with faulty.appender() as wal:
        wal.append(rows(1))
    other = pa.schema([("v", pa.int64()), ("w", pa.string())])
    with pytest.raises(OptionError, match="'w'"):
        Appender(LogStore(faulty, PREFIX), other, producer_id="p")
    with Appender(LogStore(faulty, PREFIX), other, producer_id="p", mergeSchema=True) as wal:
        wal.append([{"v": 2, "w": "x"}])
    with faulty.appender(mergeSchema=True) as wal:
        wal.append(rows(3))
    assert stored(faulty.inner) == [1, 2, 3]
    assert verify_store(LogStore(faulty.inner, PREFIX), "").ok


def test_the_options_have_the_documented_defaults() -> None:
    given = AppenderOptions(path="x")
    assert (given.batch_size, given.batch_timeout_ms, given.max_in_flight) == (2**20, 1, 50)
    assert (given.max_retries, given.retry_delay_ms, given.max_buffered) == (3, 100, 64 * 2**20)
    assert given.s3.max_pool_connections == 100


def test_small_inlined_rows_are_read_with_their_record(faulty: FaultyStore) -> None:
    with faulty.appender(maxInFlightRequests=1) as wal:
        for i in range(20):
            wal.append(rows(i)).result()
    faulty.inner.counts.clear()
    assert stored(faulty.inner) == list(range(20))
    # The head's record, then each record once, with its rows.
    assert faulty.inner.counts["GET"] == 1 + 21


def test_errors_of_an_appender_do_not_mention_spark(faulty: FaultyStore) -> None:
    with faulty.appender() as wal, faulty.appender("other"):
        ticket = wal.append(rows(0))
        with pytest.raises(FencedError, match="another writer leads.*producer_id") as fenced:
            ticket.result()
    with pytest.raises(OutcomeUnknownError), faulty.appender(retries=0) as wal:
        faulty.faults[faulty.gap()] = ["dropped"]
        ticket = wal.append(rows(0))
        with pytest.raises(OutcomeUnknownError, match="may be durable.*producer_id") as unknown:
            ticket.result()
        raise unknown.value
    for error in (fenced.value, unknown.value):
        assert "microbatch" not in str(error) and "checkpoint" not in str(error)
