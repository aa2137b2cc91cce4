"""Many logs of one path share their LISTs and one look at the chain."""

from __future__ import annotations

import pytest

from sparkwal import Appender
from sparkwal.lifecycle.current import plan_current
from sparkwal.options.parsing import from_keywords
from sparkwal.options.reading import SourceOptions
from sparkwal.protocol.recovery import find_head
from sparkwal.reading.estimates import pace_at_a_glance
from sparkwal.reading.log_range import LogRange
from sparkwal.reading.several import refresh_all
from sparkwal.store.base import LogStore
from sparkwal.testing.memory import MemoryStore
from tests.logs import SCHEMA, rows

NAMES = [f"w{number}" for number in range(12)]


@pytest.fixture
def root() -> LogStore:
    root = LogStore(MemoryStore(), "wal")
    for name in NAMES:
        with Appender(root.sequencer(name), SCHEMA, producer_id="p", maxInFlightRequests=1) as wal:
            for number in range(3):
                wal.append(rows(number)).result()
    return root


def opened(root: LogStore) -> list[LogRange]:
    options = from_keywords(SourceOptions, "s3://bucket/wal", {})
    return [LogRange(options, name, root.sequencer(name)) for name in NAMES]


def test_many_logs_are_looked_up_by_one_walk(root: LogStore) -> None:
    store = root.store
    assert isinstance(store, MemoryStore)
    logs = opened(root)
    store.counts.clear()
    listed = refresh_all(logs)
    # The chain, and all logs.
    assert store.counts == {"LIST": 2, "GET": len(NAMES)}
    assert {*listed} == {*NAMES}
    for log in logs:
        found = find_head(log.log)
        assert log.head is not None
        assert (log.head.position, log.head.live) == (found.position, found.live)
    # The next look of each begins at its gap.
    store.counts.clear()
    refresh_all(logs)
    assert store.counts == {"GET": len(NAMES)}


def test_a_plan_without_a_table_looks_once(root: LogStore) -> None:
    store = root.store
    assert isinstance(store, MemoryStore)
    store.counts.clear()
    plan = plan_current(opened(root), lambda target: pytest.fail("there is no table"))
    assert plan.positions == {name: 3 for name in NAMES}
    # The chain twice, and all logs.
    assert store.counts == {"LIST": 3, "GET": len(NAMES)}


def test_a_glance_shows_the_pace_of_a_log(root: LogStore) -> None:
    store = root.store
    assert isinstance(store, MemoryStore)
    log = opened(root)[0]
    log.refresh()
    assert log.live is not None
    now_ms = log.live.header.timestamp_ms + 10_000
    store.counts.clear()
    pace = pace_at_a_glance(log, now_ms, 300_000)
    assert store.counts == {"GET": 1}
    # Three commits and a leader record, of which a glance reads two.
    assert 0 < pace.commits <= 0.4 and pace.rows > 0 and pace.seconds >= 10
    assert pace_at_a_glance(log, now_ms + 300_000, 300_000).commits == 0
