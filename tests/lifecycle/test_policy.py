"""When what is due: thresholds, the window for what comes late, limits, retention."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkwal.errors import OptionError
from sparkwal.lifecycle.policy import MISDATED_MS, Due, LogState, Policy, decide
from sparkwal.options.parsing import parse

MINUTE = 60_000
NOON = 1_700_000_000_000
EMPTY = LogState(log_id="a", cut=0, has_table=True)
# A log that is written to: its first commit is six minutes old, its last a minute.
BUSY = replace(EMPTY, first_ms=NOON - 6 * MINUTE, last_ms=NOON - MINUTE)


def test_an_empty_log_has_nothing_due() -> None:
    assert decide(EMPTY, Policy(), NOON) == Due()
    assert decide(replace(EMPTY, last_ms=0), Policy(persist_rows=0), NOON) == Due()


@pytest.mark.parametrize("known", [{"rows": 1_000_000}, {"bytes": 2**30}])
def test_enough_rows_or_bytes_persist_what_has_waited_out_the_window(known: dict[str, int]) -> None:
    assert decide(BUSY, Policy(), NOON) == Due()
    assert decide(replace(BUSY, **known), Policy(), NOON) == Due(NOON - 5 * MINUTE)


def test_an_old_commit_persists_however_few_came_with_it() -> None:
    old = replace(BUSY, first_ms=NOON - 30 * MINUTE)
    assert decide(old, Policy(), NOON) == Due(NOON - 5 * MINUTE)
    assert decide(old, Policy(), NOON - 1) == Due()


def test_rows_that_are_all_younger_than_the_window_stay_however_many() -> None:
    young = replace(BUSY, first_ms=NOON - 4 * MINUTE, rows=10**9, bytes=2**40)
    assert decide(young, Policy(persist_age_seconds=60), NOON) == Due()


def test_a_cold_log_is_persisted_whole_without_any_threshold() -> None:
    last_ms = NOON - 5 * MINUTE
    assert decide(replace(BUSY, last_ms=last_ms), Policy(), NOON) == Due(last_ms)
    assert decide(replace(BUSY, last_ms=last_ms), Policy(), NOON - 1) == Due()


def test_a_window_of_zero_persists_all_at_once() -> None:
    now = replace(BUSY, first_ms=NOON, last_ms=NOON)
    assert decide(now, Policy(late_window_seconds=0), NOON) == Due(NOON)


@pytest.mark.parametrize("name", ["persist_rows", "persist_bytes", "persist_age_seconds"])
def test_a_threshold_of_zero_waits_for_the_window_only(name: str) -> None:
    values: dict[str, Any] = {name: 0}
    assert decide(BUSY, Policy(**values), NOON) == Due(NOON - 5 * MINUTE)
    assert decide(BUSY, Policy(**values), NOON - 2 * MINUTE) == Due()


def test_a_clock_set_back_makes_commits_count_as_new() -> None:
    busy = replace(BUSY, rows=10**9)
    assert decide(busy, Policy(), NOON - 5 * MINUTE) == Due()
    assert decide(busy, Policy(), NOON) == Due(NOON - 5 * MINUTE)


def test_a_log_dated_far_ahead_does_not_wait_for_years() -> None:
    ahead = replace(BUSY, first_ms=NOON, last_ms=NOON)
    assert decide(ahead, Policy(), NOON - MISDATED_MS) == Due()
    assert decide(ahead, Policy(), NOON - MISDATED_MS - 1) == Due(NOON)


def test_at_the_soft_limit_rows_wait_for_no_threshold_and_at_the_hard_one_for_no_window() -> None:
    policy = Policy(soft_limit=10, hard_limit=20)
    assert decide(replace(BUSY, waiting_bytes=9), policy, NOON) == Due()
    soft = Due(NOON - 5 * MINUTE, "softLimitBytes")
    assert decide(replace(BUSY, waiting_bytes=10), policy, NOON) == soft
    hard = Due(NOON - MINUTE, "hardLimitBytes")
    assert decide(replace(BUSY, waiting_bytes=20), policy, NOON) == hard


def test_without_a_table_a_limit_takes_nothing_away() -> None:
    state = replace(BUSY, has_table=False, waiting_bytes=20, rows=10**9)
    assert decide(state, Policy(hard_limit=20), NOON) == Due(limit="hardLimitBytes")


# Moments around one another, and around thresholds.
moments = st.integers(-(2**40), 2**40) | st.integers(-10_000, 10_000)
maybe = st.none() | st.integers(0, 2**40)
numbers = st.integers(0, 20)


@st.composite
def states(draw: st.DrawFn) -> LogState:
    return LogState(
        log_id="a",
        cut=draw(numbers),
        has_table=draw(st.booleans()),
        first_ms=draw(st.none() | moments),
        last_ms=draw(st.none() | moments),
        rows=draw(numbers),
        bytes=draw(numbers),
        waiting_bytes=draw(numbers),
        retained_from=draw(st.integers(0, 25)),
    )


@st.composite
def policies(draw: st.DrawFn) -> Policy:
    soft, hard = sorted(draw(st.tuples(st.integers(1, 20), st.integers(1, 20))))
    return Policy(
        late_window_seconds=draw(st.integers(0, 30) | st.integers(0, 2**31)),
        persist_rows=draw(numbers),
        persist_age_seconds=draw(st.integers(0, 30) | st.integers(0, 2**31)),
        persist_bytes=draw(numbers),
        soft_limit=soft if draw(st.booleans()) else None,
        hard_limit=hard if draw(st.booleans()) else None,
        retain_seconds=draw(maybe),
        retain_bytes=draw(maybe),
    )


@given(states(), policies(), moments)
def test_every_decision_keeps_the_rules(state: LogState, policy: Policy, now_ms: int) -> None:
    due = decide(state, policy, now_ms)
    assert (due.limit == "hardLimitBytes") == (state.waiting_bytes >= (policy.hard_limit or 99))
    if due.before_ms is not None:
        assert state.has_table and state.first_ms is not None
        # There is something to persist, and nothing beyond what is known to be there.
        assert state.first_ms <= due.before_ms
        last_ms = state.first_ms if state.last_ms is None else state.last_ms
        assert due.before_ms <= max(state.first_ms, last_ms)


@given(states(), policies(), moments, st.integers(0, 2**33))
def test_a_due_compaction_stays_due_later(
    state: LogState, policy: Policy, now_ms: int, later: int
) -> None:
    # Only with plausible dates.
    dates = [date for date in (state.first_ms, state.last_ms) if date is not None]
    now_ms = max(now_ms, max(dates, default=now_ms) - MISDATED_MS)
    first, then = decide(state, policy, now_ms), decide(state, policy, now_ms + later)
    assert then.limit == first.limit
    if first.before_ms is not None:
        assert then.before_ms is not None and then.before_ms >= first.before_ms


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"persistRowThreshold": "many"}, "persistRowThreshold is 'many'; a whole number"),
        ({"persistRowThreshold": -1}, "persistRowThreshold is '-1'"),
        ({"persistRowTreshold": 1}, "did you mean 'persistRowThreshold'"),
        ({"lateArriveWindowSeconds": "5min"}, "lateArriveWindowSeconds is '5min'"),
        ({"softLimitBytes": 0}, "softLimitBytes must be greater than 0"),
        ({"softLimitBytes": "2gb", "hardLimitBytes": "1gb"}, "above hardLimitBytes"),
    ],
)
def test_a_wrong_option_is_named(options: dict[str, object], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        parse(Policy, {name: str(value) for name, value in options.items()})


def test_a_policy_made_directly_is_checked_too() -> None:
    with pytest.raises(OptionError, match="lateArriveWindowSeconds is -1"):
        Policy(late_window_seconds=-1)
    with pytest.raises(OptionError, match="retainSeconds is 1.5"):
        Policy(retain_seconds=1.5)  # type: ignore[arg-type]
    assert parse(Policy, {"persistBytesThreshold": "64mb"}) == Policy(persist_bytes=64 * 2**20)
