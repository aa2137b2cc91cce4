"""Messages between the driver and the tasks of one microbatch, in a log with many queries."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path

import pytest

from sparkwal.errors import InvalidLogError, OutcomeUnknownError
from sparkwal.format.header import Checkpoint
from sparkwal.protocol.archive import MOST
from sparkwal.protocol.plan import Plan
from sparkwal.protocol.recovery import find_head
from sparkwal.protocol.task import TaskResult
from sparkwal.testing.memory import MemoryStore
from tests.protocol.query import LIMITS, Query, hints_in

TXNS = {f"query-{n}": (n, 1_700_000_000_000 + n) for n in range(MOST)}
CHECKPOINTS = {
    query: Checkpoint(n, n, n, n, "", {"sources/0/9.compact": (n, n)}, {f"offsets/{n}": n})
    for query, (n, _) in TXNS.items()
}


@pytest.fixture
def query(tmp_path: Path) -> Query:
    limits = replace(LIMITS, inline_threshold=2**16)
    return Query(MemoryStore(), hints_in(tmp_path), limits=limits)


@pytest.fixture
def plan(query: Query) -> Plan:
    """The plan of a log with a thousand queries, and more in the archive."""
    plan = query.plan()
    remembered = replace(
        plan.leadership,
        txns=TXNS,
        checkpoints=CHECKPOINTS,
        # The archive is missing, so a lookup in it fails.
        txns_archive="none-00000000",
    )
    return replace(plan, leadership=remembered)


def messages(query: Query, plan: Plan, batch_id: int, count: int) -> list[TaskResult]:
    """As the commit gets them of so many tasks."""
    results = [query.task(plan, batch_id, n, *([n] if n == 1 else [])) for n in range(count)]
    return [pickle.loads(pickle.dumps(each)) for each in results]


def test_the_logs_txns_come_back_from_one_task_only(query: Query, plan: Plan) -> None:
    known = replace(query, query_id="query-7")
    sizes = [len(pickle.dumps(each)) for each in messages(known, plan, 8, 200)]
    whole = len(pickle.dumps(plan))
    assert sizes[0] < whole / 2
    assert sum(sizes[1:]) < whole
    assert len(pickle.dumps(plan.for_tasks())) < whole / 2


def test_a_plan_is_the_same_after_its_travel(plan: Plan) -> None:
    travelled = pickle.loads(pickle.dumps(plan.for_tasks()))
    assert travelled.full_plan() == plan


def test_the_record_remembers_what_its_leader_did(query: Query, plan: Plan) -> None:
    known = replace(query, query_id="query-7")
    # Spark sorts them by partition; the code does not rely on it.
    assert known.commit(messages(known, plan, 8, 3)[::-1]) == 1
    head = find_head(query.open()).live
    assert head is not None
    assert head.header.txns == {**TXNS, "query-7": (8, query.clock.wall_ms)}
    assert head.header.checkpoints == CHECKPOINTS
    assert head.header.txns_archive == "none-00000000"


def test_a_task_knows_a_replay_without_a_request(query: Query, plan: Plan) -> None:
    known = replace(query, query_id="query-7")
    assert isinstance(query.store, MemoryStore)
    query.store.counts.clear()
    results = messages(known, plan, 7, 2)
    assert all(each.content for each in results) and not query.store.counts
    # Only the plan of this test claims that the log has it.
    with pytest.raises(InvalidLogError, match="no record of it"):
        known.commit(results)


def test_a_commit_without_partition_0_commits_nothing(query: Query) -> None:
    plan = query.plan()
    with pytest.raises(OutcomeUnknownError, match="without the message of partition 0"):
        query.commit([query.task(plan, 0, 1, 1)])
    assert query.restarted().plan().position == plan.position + 1
