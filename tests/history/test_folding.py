"""The fold of a log's records against a plain computation over all of them."""

from __future__ import annotations

import math
from collections import Counter
from datetime import UTC, datetime
from typing import NamedTuple

import pytest
from history.headers_of import commit, leader
from hypothesis import given
from hypothesis import strategies as st

from sparkwal.format.header import CommitHeader, SlotHeader
from sparkwal.history.folding import DEAD, PAUSES, TERMS, History
from sparkwal.history.quantiles import ERROR, Quantiles
from sparkwal.history.series import DAY, HOUR, LAST_MS, MOST, WIDTHS, next_period, period_of

NOW = 1_760_000_000_000
MB = 2**20


class Step(NamedTuple):
    """One record after the one before."""

    later_ms: int
    dead: int
    leads: bool
    rows: int
    size: int
    put_ms: float


STEPS = st.lists(
    st.builds(
        Step,
        later_ms=st.one_of(st.integers(0, 5000), st.integers(0, 40 * DAY)),
        dead=st.sampled_from([0, 0, 0, 1, 7]),
        leads=st.sampled_from([False, False, False, True]),
        rows=st.integers(0, 10**6),
        size=st.integers(0, 2**40),
        put_ms=st.floats(0, 1e6),
    ),
    max_size=60,
)


def records(steps: list[Step]) -> list[SlotHeader]:
    found: list[SlotHeader] = []
    position, time, term = 0, NOW, 0
    for step in steps:
        position, time = position + step.dead, time + step.later_ms
        if step.leads:
            term += 1
            found.append(leader(position, time, term))
        else:
            found.append(
                commit(position, time, step.rows, step.size, put_ms=step.put_ms, objects=(1,))
            )
        position += 1
    return found


def folded(every: list[SlotHeader], by: str | None = None, recent_ms: int = 0) -> History:
    history = History(0, by, recent_ms)
    for header in every:
        history.add(header)
    return history


def nearest(values: list[float], share: float) -> float:
    return sorted(values)[max(1, math.ceil(share * len(values))) - 1]


def about(value: float | None, exact: float) -> bool:
    return value is not None and abs(value - exact) <= ERROR * exact * 1.0001 + 1e-3


@given(STEPS, st.sampled_from(["hour", "day", "month"]))
def test_every_bucket_holds_what_was_written_in_its_time(steps: list[Step], by: str) -> None:
    every = records(steps)
    history = folded(every, by)
    assert history.periods is not None
    for series in (history.series, history.periods):
        taken: Counter[int] = Counter()
        for bucket in series:
            end = series.end_of(bucket)
            mine = [r for r in every if bucket.start_ms <= r.timestamp_ms < end]
            commits = [r for r in mine if isinstance(r, CommitHeader)]
            assert (bucket.commits, bucket.rows, bucket.bytes, bucket.leaders) == (
                len(commits), sum(r.rows for r in commits), sum(r.bytes for r in commits),
                len(mine) - len(commits),
            )  # fmt: skip
            assert bucket.records == len(mine) > 0
            for share in (0.5, 0.99):
                if commits:
                    times = [r.metrics["put_ms"] for r in commits]
                    assert about(bucket.put_ms.at(share), nearest(times, share))
                    assert about(bucket.sizes.at(share), nearest([r.bytes for r in commits], share))
            taken.update(r.position for r in mine)
        assert taken == Counter(r.position for r in every)
        assert sum(bucket.dead for bucket in series) == sum(step.dead for step in steps)
    starts = [bucket.start_ms for bucket in history.series]
    assert starts == sorted(starts) and len(starts) <= MOST
    if starts:
        assert (starts[-1] - starts[0]) // history.series.width_ms < MOST


@given(STEPS)
def test_the_width_is_the_least_that_the_whole_time_fits_in(steps: list[Step]) -> None:
    every = records(steps)
    series = folded(every).series
    if every:
        first, last = every[0].timestamp_ms, every[-1].timestamp_ms
        fits = [w for w in WIDTHS if last // w - first // w < MOST]
        assert series.width_ms == fits[0]


@given(STEPS)
def test_pauses_and_dead_positions_are_those_of_the_whole_log(steps: list[Step]) -> None:
    every = records(steps)
    history = folded(every)
    times = [r.timestamp_ms for r in every if isinstance(r, CommitHeader)]
    lengths = sorted((b - a for a, b in zip(times, times[1:], strict=False)), reverse=True)
    found = [each.length_ms for each in history.pauses]
    assert found == lengths[: len(found)]
    if len(found) < PAUSES and len(found) < len(lengths):
        usual = nearest(list(map(float, lengths)), 0.5)
        assert lengths[len(found)] <= max(1000, 10 * usual * (1 + ERROR) + 1)
    dead = {p for first, count in history.dead for p in range(first, first + count)}
    there = {r.position for r in every}
    assert dead == set(range(history.after)) - there


@given(STEPS, st.integers(0, 100 * DAY))
def test_what_is_recent_is_counted_by_itself(steps: list[Step], later: int) -> None:
    every = records(steps)
    recent = folded(every, recent_ms=NOW + later).recent
    mine = [r for r in every if r.timestamp_ms >= NOW + later]
    assert recent.records == len(mine)
    if mine:
        before = [r.position for r in every if r.timestamp_ms < NOW + later]
        assert recent.first_position == (before[-1] + 1 if before else 0)


@given(st.lists(st.floats(0, 1e15), min_size=1), st.lists(st.floats(0, 1e15)), st.floats(0, 1))
def test_joined_quantiles_are_those_of_all_values(
    some: list[float], others: list[float], share: float
) -> None:
    joined, other = Quantiles(), Quantiles()
    for value in some:
        joined.add(value)
    for value in others:
        other.add(value)
    joined.join(other)
    assert about(joined.at(share), nearest(some + others, share))
    assert joined.most == max(some + others)
    assert len(joined._bins) <= 2500


def test_no_value_has_no_quantile() -> None:
    assert Quantiles().at(0.5) is None
    assert Quantiles().told() == {"count": 0, "p50": None, "p99": None, "max": None}


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -1.0, 10**400])
def test_a_metric_that_is_no_number_of_milliseconds_is_left_out(wrong: float) -> None:
    broken = commit(0, NOW, objects=(1,), metrics={"put_ms": wrong, "in_flight": wrong})
    history = folded([broken, commit(1, NOW, put_ms=7.0, objects=(1,))])
    assert history.total.put_ms.told() == {"count": 1, "p50": 7.0, "p99": 7.0, "max": 7.0}
    assert (history.total.commits, history.total.in_flight) == (2, 0)


def test_rows_in_the_record_have_no_latency() -> None:
    # The sink writes 0 where no task put an object.
    assert folded([commit(0, NOW, put_ms=0.0)]).total.put_ms.count == 0


def test_a_term_holds_its_seals_and_commits() -> None:
    every = [
        leader(0, NOW, 1, host="a"), commit(1, NOW), commit(2, NOW),
        leader(3, NOW, 2, host="b", reason="appender"), leader(4, NOW, 2, reason="seal"),
        commit(5, NOW, term=2),
    ]  # fmt: skip
    terms = folded(every).terms
    assert [(t.term, t.position, t.host, t.seals, t.commits) for t in terms] == [
        (1, 0, "a", 0, 2), (2, 3, "b", 1, 1),
    ]  # fmt: skip


def test_a_hundred_thousand_records_and_times_beyond_the_calendar_stay_bounded() -> None:
    history = History(0, "month")
    for position in range(0, 100_000, 2):  # every other position is dead
        history.add(leader(position, NOW + position * 977, position + 1))
    history.add(commit(100_001, 2**63 - 1))
    assert len(history.series) <= MOST and len(history.terms) == TERMS
    assert (history.term_count, history.total.dead, len(history.dead)) == (50_000, 50_001, DEAD)
    assert max(bucket.start_ms for bucket in history.series) <= LAST_MS


def test_periods_are_those_of_the_calendar() -> None:
    def ms(text: str) -> int:
        return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1000)

    assert period_of(ms("2024-02-29T13:59:59.999"), "month") == ms("2024-02-01")
    assert next_period(ms("2024-02-01"), "month") == ms("2024-03-01")
    assert next_period(ms("2024-12-01"), "month") == ms("2025-01-01")
    assert period_of(ms("2024-02-29T13:59:59.999"), "hour") == ms("2024-02-29T13:00")
    assert next_period(ms("2024-02-29"), "day") == ms("2024-03-01")
    assert next_period(period_of(LAST_MS, "month"), "month") > LAST_MS
    assert period_of(NOW + HOUR, "hour") == period_of(NOW, "hour") + HOUR
