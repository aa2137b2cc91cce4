"""S3 may end a page of a LIST before its limit: the keys after it still count."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from sparkwal.format import keys
from sparkwal.protocol.recovery import find_head
from sparkwal.protocol.takeover import Claim, lead
from sparkwal.reading.sequencers import all_logs
from sparkwal.reading.verification import verify_store
from sparkwal.store.base import LogStore
from sparkwal.testing.memory import MemoryStore
from tests.protocol.query import SCHEMA, Query, StoppedClock, hints_in


def written(folder: Path, commits: int, prefix: str = "wal") -> MemoryStore:
    """A log of a leader record and so many commits of two partitions."""
    store = MemoryStore()
    query = Query(store, hints_in(folder), prefix=prefix)
    for batch_id in range(commits):
        query.microbatch(batch_id, (batch_id,), (batch_id,))
    return store


@pytest.mark.parametrize("page", [1, 2, 7])
def test_the_head_is_found_over_pages_of_any_length(tmp_path: Path, page: int) -> None:
    """The newest window may hold more data objects than one page shows."""
    store = written(tmp_path, 5)
    plan = Query(store, hints_in(tmp_path / "other")).plan()
    for partition in range(20):
        Query(store, hints_in(tmp_path)).task(plan, 5, partition, partition)
    whole = find_head(LogStore(store, "wal"))
    store.page = page
    found = find_head(LogStore(store, "wal"))
    assert (found.position, found.live) == (whole.position, whole.live) == (6, whole.live)


@pytest.mark.parametrize("page", [1, 2, 1000])
def test_a_gap_among_slots_in_flight_is_seen_over_short_pages(tmp_path: Path, page: int) -> None:
    """A writer that ignored the gap would write after a position that a late PUT may still take."""
    store = MemoryStore(page=page)
    log = LogStore(store, "wal")
    claim = Claim("a", "host", "1", SCHEMA, False, None, 5, "test")
    lead(log, claim, StoppedClock(), 600_000)
    lead(log, replace(claim, leader_id="b", plan_id="2"), StoppedClock(), 600_000)
    store.delete(keys.key("wal", keys.slot(3, 1000)))
    assert find_head(log).position == 2


def test_a_full_page_is_one_list(tmp_path: Path) -> None:
    store = written(tmp_path, 400)
    store.counts.clear()
    find_head(LogStore(store, "wal"))
    assert store.counts == {"LIST": 1, "GET": 1}


def test_verify_sees_what_comes_after_a_short_page(tmp_path: Path) -> None:
    store = written(tmp_path, 5)
    orphan = keys.key("wal", keys.data(1, 1000, 9))
    store.put_if_absent(orphan, b"")
    store.page = 3
    report = verify_store(LogStore(store, "wal"), "wal")
    assert (report.commits, report.problems, report.orphans) == (5, [], [orphan])


def test_every_sequencer_is_found_over_short_pages(tmp_path: Path) -> None:
    names = ["a", "b", "c", "d"]
    store = MemoryStore()
    for name in names:
        store.put_if_absent(f"wal/sequencers/{name}/proof/1", b"")
    for number, name in enumerate(names):
        query = Query(store, hints_in(tmp_path / name), prefix=f"wal/sequencers/{name}")
        replace(query, query_id=f"q{number}").microbatch(0, (1,))
    for page in (1000, 5, 1):
        store.page = page
        assert all_logs(LogStore(store, "wal")) == names
