"""The measured state of a log before the policy decides, and the requests to measure it."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkwal.format.header import CommitHeader
from sparkwal.lifecycle import policy as policies
from sparkwal.lifecycle.policy import Due, Policy, decide, measure
from sparkwal.protocol.records import first_at_or_after, live_records
from sparkwal.protocol.view import LogView
from tests.lifecycle.timed_log import TimedLog


@pytest.fixture
def timed() -> TimedLog:
    return TimedLog()


# Few rows and many rows: only rows behind the late window count.
NEVER = Policy(late_window_seconds=10, persist_age_seconds=1000)


def test_an_empty_log_and_one_without_commits_have_nothing_due(timed: TimedLog) -> None:
    for _ in range(2):
        state = timed.measure(replace(NEVER, persist_rows=0, soft_limit=1), 500)
        assert state.first_ms is None and decide(state, NEVER, timed.at(500)) == Due()
        assert state.waiting_bytes == 0
        timed.write()


def test_rows_within_the_window_are_not_counted(timed: TimedLog) -> None:
    timed.write(0, 1, 2, 50, 55, rows=3)
    state = timed.measure(NEVER, 60)
    assert (state.first_ms, state.last_ms) == (timed.at(0), timed.at(55))
    assert state.rows == 12 and state.counted == timed.head().gap - 1 and state.bytes > 0
    assert timed.measure(NEVER, 59).rows == 9
    assert timed.measure(NEVER, 59, cut=2, to=2).rows == 6
    assert decide(state, replace(NEVER, persist_rows=12), timed.at(60)) == Due(timed.at(50))


def test_counted_records_are_not_read_again(timed: TimedLog) -> None:
    timed.write(*range(40))
    head, chain = timed.head(), timed.chain()
    timed.requests()
    state = measure(timed.log, head, chain, NEVER, timed.at(40))
    assert state.rows == 31 and timed.requests() >= 31
    again = measure(timed.log, head, chain, NEVER, timed.at(42), before=state)
    assert again == replace(state, counted=state.counted + 2, rows=33, bytes=again.bytes)
    assert timed.requests() <= 4
    # A count of another range, or of another log, is not used.
    for other in (replace(chain, cut=5, to=5), replace(chain, log_id="")):
        state = measure(timed.log, head, other, NEVER, timed.at(40), before=again)
        assert state.rows == 31 - other.cut + (other.cut > 0)


def test_the_first_commit_of_a_young_log_is_read_once(timed: TimedLog) -> None:
    timed.write(0, 1, 2)
    head, chain = timed.head(), replace(timed.chain(), cut=1, to=1)
    state = measure(timed.log, head, chain, NEVER, timed.at(3))
    assert (state.first_ms, state.counted) == (timed.at(0), 1)
    timed.requests()
    assert measure(timed.log, head, chain, NEVER, timed.at(4), before=state) == state
    assert timed.requests() == 0


def test_no_row_is_counted_where_it_would_change_nothing(timed: TimedLog) -> None:
    timed.write(*range(40))
    head, chain = timed.head(), timed.chain()
    few = replace(NEVER, persist_rows=5)
    for policy, second, most in [
        (NEVER, 49, 3),  # cold
        (replace(NEVER, persist_age_seconds=20), 40, 3),  # the first is old enough
        (few, 40, 8),
    ]:
        timed.requests()
        measure(timed.log, head, chain, policy, timed.at(second))
        assert timed.requests() <= most
    timed.requests()
    assert measure(timed.log, head, replace(chain, table=""), few, timed.at(40)).rows == 0
    assert timed.requests() == 0


def test_one_call_counts_only_so_many(timed: TimedLog, monkeypatch: pytest.MonkeyPatch) -> None:
    timed.write(*range(20))
    monkeypatch.setattr(policies, "MOST_COUNTED", 8)
    state, counted = None, []
    for _ in range(4):
        state = measure(timed.log, timed.head(), timed.chain(), NEVER, timed.at(25), before=state)
        counted.append(state.rows)
    assert counted == [7, 15, 16, 16]


def test_the_size_of_what_waits_is_sampled_only_for_a_limit(timed: TimedLog) -> None:
    timed.write(*range(200))
    policy = replace(NEVER, hard_limit=1)
    commits = [
        record.header.bytes
        for record in live_records(LogView(timed.log, 1000), 0, timed.head().gap)
        if isinstance(record.header, CommitHeader)
    ]
    head, chain = timed.head(), timed.chain(cut=101, to=101)
    timed.requests()
    size = measure(timed.log, head, chain, policy, timed.at(300)).waiting_bytes
    assert timed.requests() <= 32 + 1
    assert size == pytest.approx(sum(commits[100:]), rel=0.05)
    # Without a table what is above the floor waits.
    alone = replace(chain, floor=51, table="")
    size = measure(timed.log, head, alone, policy, timed.at(300)).waiting_bytes
    assert size == pytest.approx(sum(commits[50:]), rel=0.05)
    assert measure(timed.log, head, alone, NEVER, timed.at(300)).waiting_bytes == 0


def test_retention_by_age_and_by_size(timed: TimedLog) -> None:
    timed.write(*range(20))
    chain = replace(timed.chain(), table="")

    def floor(**options: int) -> int:
        policy = replace(NEVER, **options)  # type: ignore[arg-type]
        return measure(timed.log, timed.head(), chain, policy, timed.at(30)).retained_from

    # Position 0 is the writer's leader record; the commit of second n is at n + 1.
    assert floor(retain_seconds=20) == 12
    assert floor(retain_seconds=30) == 2
    assert floor(retain_seconds=31) == 0
    assert floor(retain_seconds=0) == 21
    # Numbers count down: the newest objects come first.
    objects = sorted(timed.store.objects.items())
    sizes = [len(body) for key, body in objects if key.startswith("wal/batches/")]
    assert len(sizes) == 21 and floor(retain_bytes=sum(sizes)) == 0
    newest = sum(sizes[:7])
    assert floor(retain_bytes=newest) == 14
    assert floor(retain_bytes=newest - 1) == 15
    assert floor(retain_bytes=newest, retain_seconds=20) == 14
    assert floor(retain_bytes=0) == 21


def test_a_split_takes_a_logarithm_of_requests(timed: TimedLog) -> None:
    timed.write(*range(300))
    head = timed.head()
    timed.requests()
    assert first_at_or_after(head.view(timed.log), timed.at(100) + 1, start=0, end=head.gap) == 102
    assert timed.requests() <= 9
    # No newer record: no request.
    assert (
        first_at_or_after(head.view(timed.log), timed.at(299) + 1, start=50, end=head.gap)
        == head.gap
    )
    assert (
        first_at_or_after(head.view(timed.log), timed.at(0) + 1, start=head.gap, end=head.gap)
        == head.gap
    )
    assert timed.requests() == 0


@given(
    st.lists(st.lists(st.integers(0, 3), max_size=4), min_size=1, max_size=4),
    st.integers(-2, 40),
    st.integers(0, 20),
)
def test_a_split_parts_the_log_at_its_moment(
    writers: list[list[int]], second: int, cut: int
) -> None:
    timed, now = TimedLog(), 0
    for pauses in writers:
        moments = []
        for pause in pauses:
            now += pause
            moments.append(now)
        timed.write(*moments)
    head, before_ms = timed.head(), timed.at(second)
    cut = min(cut, head.gap)
    found = first_at_or_after(head.view(timed.log), before_ms + 1, start=cut, end=head.gap)
    dates = [
        r.header.timestamp_ms for r in live_records(LogView(timed.log, head.window), 0, head.gap)
    ]
    assert found == max(cut, bisect_right(dates, before_ms)) <= head.gap


@given(
    st.lists(st.integers(0, 20), min_size=1, max_size=12),
    st.integers(0, 200),
    st.integers(0, 5),
    st.integers(0, 30),
)
def test_the_persisted_count_ends_at_the_late_window(
    pauses: list[int], second: int, threshold: int, window: int
) -> None:
    timed, moments = TimedLog(), [0]
    for pause in pauses:
        moments.append(moments[-1] + pause)
    timed.write(*moments)
    policy = Policy(late_window_seconds=window, persist_rows=threshold, persist_age_seconds=50)
    head = timed.head()
    state = measure(timed.log, head, timed.chain(), policy, timed.at(second))
    before_ms = decide(state, policy, timed.at(second)).before_ms
    old = [moment for moment in moments if moment <= second - window]
    cold = moments[-1] <= second - window
    due = bool(old and (len(old) >= threshold or second >= 50 or cold))
    assert (before_ms is not None) == due
    if before_ms is not None:
        to = first_at_or_after(head.view(timed.log), before_ms + 1, start=state.cut, end=head.gap)
        assert to == (head.gap if cold else 1 + len(old))
