"""Timestamps never go back, so a clock that is far ahead must not date a record."""

from __future__ import annotations

import pytest

from sparkwal.errors import OptionError
from sparkwal.protocol.clock import next_timestamp
from tests.protocol.query import Query

YEAR_MS = 366 * 86_400_000
IN_2100 = 4_102_444_800_000


def test_a_clock_in_2100_does_not_date_a_log_for_ever(query: Query) -> None:
    now, query.clock.wall_ms = query.clock.wall_ms, IN_2100
    with pytest.raises(OptionError, match="clock shows 2100-01-01.*Set the clock"):
        query.plan()
    query.clock.wall_ms = now
    query.microbatch(0, (1,))
    plan = query.plan()
    results = [query.task(plan, 1, 0, 2)]
    query.clock.wall_ms = IN_2100
    with pytest.raises(OptionError, match="the log's last record is of 2023-11-14"):
        query.commit(results)
    with pytest.raises(OptionError, match="2100-01-01"):
        query.restarted().plan()
    query.clock.wall_ms = now + 1
    assert query.restarted().microbatch(1, (2,)) is not None


def test_a_clock_that_jumps_over_ten_years_is_refused(query: Query) -> None:
    query.microbatch(0, (1,))
    query.clock.wall_ms += 11 * YEAR_MS
    with pytest.raises(OptionError, match="2034"):
        query.restarted().plan()


def test_a_log_continues_after_years_without_a_commit(query: Query) -> None:
    query.microbatch(0, (1,))
    query.clock.wall_ms += 9 * YEAR_MS
    assert query.restarted().microbatch(1, (2,)) is not None


def test_a_log_whose_times_are_ahead_stays_monotonic() -> None:
    assert next_timestamp(1_700_000_000_000, IN_2100 + 5) == IN_2100 + 5
