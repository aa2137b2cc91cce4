"""When a batch closes: by size, by age, at once. The clock is a number here."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkwal.appender.batches import (
    AppendBatch,
    Callbacks,
    CheckedRows,
    Failure,
    Rejections,
    Ticket,
)
from sparkwal.appender.intake import Intake
from sparkwal.errors import FencedError, OptionError, OutcomeUnknownError, StoreUnavailableError
from sparkwal.options.writing import AppenderOptions

SIZE = 100
TIMEOUT_MS = 1
CAPACITY = 1000
TIMEOUT = TIMEOUT_MS / 1000


@pytest.fixture
def callbacks() -> Iterator[Callbacks]:
    callbacks = Callbacks()
    yield callbacks
    callbacks.stop()


@pytest.fixture
def buffer(callbacks: Callbacks) -> Intake:
    return intake(0, callbacks)


def intake(first: int, callbacks: Callbacks) -> Intake:
    settings = AppenderOptions(
        "wal", batch_size=SIZE, batch_timeout_ms=TIMEOUT_MS, max_buffered=CAPACITY
    )
    return Intake(settings, first, callbacks)


def add(buffer: Intake, weight: int, now: float = 0.0) -> Ticket:
    accepted: CheckedRows = ([{}], weight, weight)
    return buffer.add_to_open(accepted) or buffer.add(accepted, now)


def taken(buffer: Intake) -> list[int]:
    return [len(batch.appends) for batch in buffer.take_all()]


def test_an_empty_buffer_has_nothing_due(buffer: Intake) -> None:
    assert buffer.due(0.0, idle=True) is None
    assert buffer.due(0.0, idle=False) is None
    assert buffer.newest is None


def test_with_nothing_in_flight_the_first_append_goes_at_once(buffer: Intake) -> None:
    add(buffer, 1, now=5.0)
    assert buffer.due(5.0, idle=True) == 0
    assert len(buffer.take().appends) == 1


def test_with_something_in_flight_it_waits_for_the_age_of_its_first_append(buffer: Intake) -> None:
    add(buffer, 1, now=5.0)
    add(buffer, 1, now=5.0008)  # a later one does not put it off
    assert buffer.due(5.0, idle=False) == pytest.approx(TIMEOUT)
    assert buffer.due(5.0005, idle=False) == pytest.approx(0.0005)
    due = buffer.due(5.001, idle=False)
    assert due is not None and due <= 1e-9
    assert len(buffer.take().appends) == 2


def test_the_append_that_crosses_the_size_is_included(buffer: Intake) -> None:
    for weight in (40, 40):
        add(buffer, weight)
    assert buffer.due(0.0, idle=False) == pytest.approx(TIMEOUT)
    assert buffer.add_to_open(([{}], 40, 40)) is None
    add(buffer, 40)
    assert buffer.due(0.0, idle=False) == 0
    add(buffer, 1)
    assert taken(buffer) == [3, 1]


def test_exactly_the_size_closes_a_batch(buffer: Intake) -> None:
    add(buffer, SIZE)
    add(buffer, 1)
    assert taken(buffer) == [1, 1]


def test_one_append_larger_than_the_size_is_one_batch(buffer: Intake) -> None:
    add(buffer, 1)
    add(buffer, 7 * SIZE)
    add(buffer, 1)
    assert taken(buffer) == [2, 1]


def test_a_full_batch_is_taken_before_the_one_that_still_fills(buffer: Intake) -> None:
    for weight in (SIZE, SIZE, 1):
        add(buffer, weight)
    assert [buffer.take().first_sequence for _ in range(2)] == [0, 1]
    assert buffer.due(0.0, idle=False) == pytest.approx(TIMEOUT)


def test_closing_makes_what_there_is_due(buffer: Intake, callbacks: Callbacks) -> None:
    add(buffer, 1)
    with callbacks.lock:
        buffer.close_batch()
    assert buffer.due(0.0, idle=False) == 0


def test_room_ends_at_the_capacity_but_one_append_always_fits(buffer: Intake) -> None:
    assert buffer.has_room(10 * CAPACITY)
    add(buffer, CAPACITY - 1)
    assert buffer.has_room(1) and not buffer.has_room(2)
    buffer.take()
    assert buffer.has_room(10 * CAPACITY)


# `None` takes a batch; (bytes in the record, bytes of memory) adds an append.
STEPS = st.one_of(st.none(), st.tuples(st.integers(0, SIZE + 20), st.integers(0, CAPACITY // 2)))


@given(st.lists(STEPS, max_size=30))
def test_an_append_that_fits_the_open_batch_makes_no_batch_due(
    steps: list[tuple[int, int] | None],
) -> None:
    callbacks = Callbacks()
    buffer = intake(0, callbacks)
    sequence = 0
    for step in steps:
        if step is None:
            if buffer.due(0.0, idle=True) is not None:
                buffer.take()
            continue
        accepted: CheckedRows = ([{}], *step)
        has_room, before = buffer.has_room(step[1]), buffer.memory
        due = buffer.due(0.0, idle=False)
        ticket = buffer.add_to_open(accepted)
        if ticket is not None:
            assert has_room and buffer.due(0.0, idle=False) == due
        elif has_room:
            ticket = buffer.add(accepted, 0.0)
        else:
            assert buffer.memory == before
            continue
        assert (ticket.sequence, buffer.memory) == (sequence, before + step[1])
        sequence += 1
    callbacks.stop()


def test_an_open_batch_learns_of_the_room_that_a_taken_one_leaves(buffer: Intake) -> None:
    add(buffer, SIZE)
    buffer.add(([{}], 1, CAPACITY - SIZE), 0.0)
    more: CheckedRows = ([{}], 1, SIZE // 2)
    assert buffer.add_to_open(more) is None and not buffer.has_room(SIZE // 2)
    buffer.take()
    # The cached count may be old, but never too high; the full count is right.
    assert buffer.add_to_open(more) is None and buffer.has_room(SIZE // 2)
    buffer.add(more, 0.0)
    assert buffer.add_to_open(more) is not None and not buffer.has_room(1)


def test_sequences_count_appends_from_where_the_log_ended(callbacks: Callbacks) -> None:
    buffer = intake(7, callbacks)
    assert [add(buffer, 60).sequence for _ in range(4)] == [7, 8, 9, 10]
    assert [batch.first_sequence for batch in buffer.take_all()] == [7, 9]


def test_tickets_of_a_batch_share_its_end_but_not_its_rejections(callbacks: Callbacks) -> None:
    batch = AppendBatch(5, 0, 0.0, callbacks, Rejections())
    tickets = [Ticket(batch, sequence) for sequence in (5, 6)]
    batch.reject(6, OptionError("not a number"))
    with pytest.raises(TimeoutError):
        tickets[0].result(0)
    called: list[str] = []
    tickets[0].when_done(lambda: called.append("before"))
    batch.complete(42)
    tickets[0].when_done(lambda: called.append("after"))
    callbacks.stop()
    assert called == ["before", "after"]
    assert tickets[0].done() and tickets[0].result() == 42
    with pytest.raises(OptionError, match="not a number"):
        tickets[1].result()


def test_a_failure_records_whether_it_was_raised(callbacks: Callbacks) -> None:
    batch = AppendBatch(0, 0, 0.0, callbacks, Rejections())
    failure = Failure(FencedError("another leads"))
    batch.fail(OutcomeUnknownError("sent"), failure)
    assert not failure.reported
    ticket = Ticket(batch, 0)
    raised = []
    for _ in range(2):
        with pytest.raises(OutcomeUnknownError) as caught:
            ticket.result()
        raised.append(caught.value)
    assert failure.reported
    # Each its own: an object raised in many threads would collect all their traces.
    assert raised[0] is not raised[1]


def test_a_raised_error_keeps_its_attributes() -> None:
    error = StoreUnavailableError("gone", maybe_applied=True)
    reported = Failure(error).report()
    assert isinstance(reported, StoreUnavailableError) and reported.maybe_applied
