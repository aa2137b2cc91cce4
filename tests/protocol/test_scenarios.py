"""Crashes and races of one writer and its successors, each by name."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from sparkwal.errors import (
    FencedError,
    InvalidLogError,
    OutcomeUnknownError,
    StoreUnavailableError,
)
from sparkwal.format import keys
from sparkwal.format.content import Content
from sparkwal.format.header import CommitHeader
from sparkwal.protocol.hint import Hints
from sparkwal.protocol.records import live_records
from sparkwal.protocol.recovery import find_head
from sparkwal.protocol.view import LENIENT, LogView
from sparkwal.store.base import LogStore, Transient
from sparkwal.store.config import RetryPolicy
from sparkwal.store.retry import RetryingStore
from sparkwal.testing.memory import MemoryStore
from tests.protocol.query import LIMITS, Query, values_of


def commits(store: MemoryStore, prefix: str = "wal") -> list[tuple[int, str, int]]:
    head = find_head(LogStore(store, prefix))
    found = live_records(LogView(LogStore(store, prefix), head.window), 0, head.gap)
    return [
        (r.header.position, r.header.query_id, r.header.batch_id)
        for r in found
        if isinstance(r.header, CommitHeader)
    ]


class Flaky:
    """A store whose next conditional PUT is answered wrongly."""

    def __init__(self, inner: MemoryStore) -> None:
        self.inner = inner
        self.url, self.concurrency = inner.url, 1
        self.plot: list[str] = []

    def put_if_absent(self, key: str, body: bytes) -> bool:
        act = self.plot.pop(0) if self.plot else ""
        if act == "refused":
            raise Transient("connection refused", unreachable=True)
        created = self.inner.put_if_absent(key, body)
        if act == "lost":
            raise Transient("the reply was lost")
        return created

    def __getattr__(self, name: str) -> object:
        return getattr(self.inner, name)


def flaky(query: Query, retries: int = 3) -> Flaky:
    bad = Flaky(query.store)  # type: ignore[arg-type]
    query.store = RetryingStore(bad, RetryPolicy(max_retry_attempts=retries), sleep=lambda _: None)
    return bad


def test_01_an_empty_log_begins_with_a_leader_record(query: Query, store: MemoryStore) -> None:
    assert query.microbatch(0, (1, 2), (3,)) == 1
    assert store.counts == {"LIST": 1, "GET": 2, "PUT": 4}
    assert list(store.objects) == [
        f"wal/batches/{number:020d}"
        for number in (2**64 - 1, 2**64 - 1002, 2**64 - 1003, 2**64 - 1001)
    ]


def test_02_a_warm_microbatch_is_one_put_for_each_partition_and_one(
    query: Query, store: MemoryStore
) -> None:
    query.microbatch(0, (1,))
    store.counts.clear()
    assert query.microbatch(1, (1,), (2,), (3,)) == 2
    assert store.counts == {"PUT": 4}


def test_03_a_restart_costs_one_list_one_get_one_put(query: Query, store: MemoryStore) -> None:
    for batch in range(20):
        query.microbatch(batch, (batch,))
    store.counts.clear()
    query.restarted().plan()
    assert store.counts == {"LIST": 1, "GET": 1, "PUT": 1}


def test_04_an_empty_microbatch_writes_nothing_and_its_window_is_used_again(
    query: Query, store: MemoryStore
) -> None:
    query.microbatch(0, (1,))
    store.counts.clear()
    assert query.microbatch(1, (), ()) is None
    assert not store.counts
    assert query.microbatch(2, (5,)) == 2
    assert store.counts == {"PUT": 2}


def test_the_next_record_reports_what_the_last_put_took(query: Query, store: MemoryStore) -> None:
    bad = flaky(query)
    query.microbatch(0, (1,))
    bad.plot = ["", "refused", "refused"]
    query.microbatch(1, (2,))
    query.microbatch(2, ())
    bad.plot = ["refused"]
    query.microbatch(3, (3,))
    query.microbatch(4, (4,))
    query.restarted().microbatch(5, (5,))
    head = find_head(LogStore(store, "wal"))
    records = live_records(LogView(LogStore(store, "wal"), head.window), 0, head.gap)
    found = [r.header.metrics for r in records if isinstance(r.header, CommitHeader)]
    assert [metrics["retries"] for metrics in found] == [0, 0, 3, 0, 0]
    assert ["last_put_ms" in metrics for metrics in found] == [False, True, True, True, False]


@pytest.mark.proves("replay-writes-nothing")
def test_05_a_replayed_microbatch_is_skipped(query: Query, store: MemoryStore) -> None:
    query.microbatch(0, (1,))
    query.microbatch(1, (2,))
    again = query.restarted()
    assert again.microbatch(1, (2,)) is None
    assert again.microbatch(2, (3,)) == 4
    assert commits(store) == [(1, "query", 0), (2, "query", 1), (4, "query", 2)]


def test_06_a_skipped_task_still_reads_its_input_to_the_end(query: Query) -> None:
    query.microbatch(0, (1,))
    plan = query.restarted().plan()
    seen = []

    def upstream():  # type: ignore[no-untyped-def]
        yield from ()
        seen.append("committed its state")

    from sparkwal.protocol.task import TaskAttempt, write_partition

    result = write_partition(
        query.open, plan.for_tasks(), TaskAttempt("query", 0, 0), upstream(), LIMITS
    )
    assert result.content == Content() and seen


@pytest.mark.proves("adopt-what-is-there")
def test_07_a_retried_task_adopts_the_first_attempts_object(
    query: Query, store: MemoryStore
) -> None:
    plan = query.plan()
    first = query.task(plan, 0, 0, 1, 2, 3)
    second = query.task(plan, 0, 0, 1, 2, 3)
    assert second.batch == first.batch
    query.commit([second])
    assert values_of(store) == [1, 2, 3]


def test_08_an_adopted_object_may_differ_from_the_attempts_own_bytes(
    query: Query, store: MemoryStore
) -> None:
    plan = query.plan()
    uncompressed = replace(query, limits=replace(LIMITS, codec=None))
    first = uncompressed.task(plan, 0, 0, 1, 2, 3)
    assert query.task(plan, 0, 0, 1, 2, 3).batch == first.batch


def test_09_a_task_of_another_plan_is_fenced(query: Query, store: MemoryStore) -> None:
    plan = query.plan()
    query.task(plan, 0, 0, 1)
    stranger = replace(plan, plan_id="other")
    with pytest.raises(FencedError, match="holds"):
        query.task(stranger, 0, 0, 1)


@pytest.mark.proves("refused-read-back")
def test_10_a_lost_reply_of_the_commit_is_read_back(query: Query, store: MemoryStore) -> None:
    bad = flaky(query)
    plan = query.plan()
    results = [query.task(plan, 0, 0, 1)]
    bad.plot = ["lost"]
    assert query.commit(results) == 1
    assert commits(store) == [(1, "query", 0)]


@pytest.mark.proves("no-answer-unknown")
def test_11_an_unanswered_commit_is_unknown_and_the_restart_finds_out(
    query: Query, store: MemoryStore
) -> None:
    bad = flaky(query, retries=1)
    plan = query.plan()
    results = [query.task(plan, 0, 0, 1)]
    bad.plot = ["lost", "refused"]
    with pytest.raises(OutcomeUnknownError, match="restart with the same checkpoint"):
        query.commit(results)
    again = query.restarted()
    assert again.microbatch(0, (1,)) is None
    assert commits(store) == [(1, "query", 0)]


def test_11b_an_unanswered_append_without_a_name_is_not_said_to_be_safe_to_repeat(
    query: Query,
) -> None:
    append = replace(query, query_id="append:1")
    bad = flaky(append, retries=1)
    results = [append.task(append.plan(), 0, 0, 1)]
    bad.plot = ["lost", "refused"]
    with pytest.raises(OutcomeUnknownError, match="read the log before you write") as caught:
        append.commit(results)
    assert "no row is written twice" not in str(caught.value)


def test_12_a_commit_that_cannot_have_arrived_is_not_unknown(query: Query) -> None:
    bad = flaky(query, retries=1)
    plan = query.plan()
    results = [query.task(plan, 0, 0, 1)]
    bad.plot = ["refused", "refused"]
    with pytest.raises(StoreUnavailableError):
        query.commit(results)


@pytest.mark.proves("refused-read-back")
def test_13_a_taken_over_writer_is_fenced_and_the_error_names_the_new_leader(
    query: Query, store: MemoryStore
) -> None:
    query.microbatch(0, (1,))
    plan = query.plan()
    results = [query.task(plan, 1, 0, 2)]
    other = replace(query.restarted(), query_id="other")
    other.microbatch(0, (7,))
    with pytest.raises(FencedError, match=rf"{other.leader_id}.*position 2.*term 2"):
        query.commit(results)
    assert commits(store) == [(1, "query", 0), (3, "other", 0)]


def test_14_the_data_of_an_abandoned_window_is_never_read(query: Query, store: MemoryStore) -> None:
    query.microbatch(0, (1,))
    plan = query.plan()
    query.task(plan, 1, 0, 666)
    query.restarted().microbatch(1, (2,))
    assert values_of(store) == [1, 2]


def test_15_a_planner_that_dies_before_its_tasks_leaves_a_cold_start(
    query: Query, store: MemoryStore
) -> None:
    query.microbatch(0, (1,))
    query.plan()
    store.counts.clear()
    query.plan()
    assert store.counts == {"LIST": 1, "GET": 1, "PUT": 1}


@pytest.mark.parametrize("damage", ["missing", "garbage", "open to others", "older version"])
def test_16_a_hint_that_cannot_be_trusted_is_a_cold_start(
    query: Query, store: MemoryStore, damage: str
) -> None:
    query.microbatch(0, (1,))
    (file,) = query.hints.folder.iterdir()
    if damage == "missing":
        file.unlink()
    elif damage == "garbage":
        file.write_bytes(b'{"version": 1, "leadership": 7}')
    elif damage == "open to others":
        query.hints.folder.chmod(0o777)
    else:
        file.write_text(json.dumps({**json.loads(file.read_text()), "version": 1}))
    store.counts.clear()
    query.plan()
    assert store.counts == {"LIST": 1, "GET": 1, "PUT": 1}


def test_17_an_old_hint_or_one_of_another_boot_is_a_cold_start(
    query: Query, store: MemoryStore
) -> None:
    query.microbatch(0, (1,))
    query.clock.since_boot_ms += 600_000
    query.plan()
    query.microbatch(1, (2,))
    query.clock.boot = "another"
    store.counts.clear()
    query.plan()
    assert store.counts["LIST"] == 1


def test_18_a_hint_that_cannot_be_written_never_blocks_and_never_plans_twice(
    query: Query, store: MemoryStore, tmp_path: Path
) -> None:
    query.microbatch(0, (1,))
    stale = {file: file.read_bytes() for file in query.hints.folder.iterdir()}

    class FullDisk(Hints):
        def save(self, leader_id: str, kept: object) -> bool:
            return False

    query.hints = FullDisk("wal", query.hints.folder)
    for batch in range(1, 4):
        assert query.microbatch(batch, (batch,)) is not None
    assert {file: file.read_bytes() for file in query.hints.folder.iterdir()} == stale
    assert [batch for _, _, batch in commits(store)] == [0, 1, 2, 3]


def test_19_a_commit_that_slept_does_not_overwrite_the_hint_of_a_later_plan(
    query: Query, store: MemoryStore
) -> None:
    sleeper = query.plan()
    results = [query.task(sleeper, 0, 0)]
    query.plan()
    query.commit(results)
    store.counts.clear()
    query.plan()
    assert store.counts["LIST"] == 1


def test_20_timestamps_never_go_back_when_the_clock_does(query: Query, store: MemoryStore) -> None:
    query.microbatch(0, (1,))
    query.clock.wall_ms -= 3_600_000
    query.microbatch(1, (2,))
    again = query.restarted()
    again.microbatch(2, (3,))
    head = find_head(LogStore(store, "wal"))
    stamps = [
        r.header.timestamp_ms
        for r in live_records(LogView(LogStore(store, "wal"), 1000), 0, head.gap)
    ]
    assert stamps == sorted(stamps)


def test_21_a_plan_that_slept_beyond_its_life_is_checked_before_it_is_used(
    query: Query, store: MemoryStore
) -> None:
    plan = query.plan()
    results = [query.task(plan, 0, 0, 1)]
    other = query.restarted()
    other.microbatch(0, (1,))
    other.microbatch(1, (2,))
    # Everything the sleeper could collide with was collected.
    for position in (0, 1):
        store.delete(keys.key("wal", keys.slot(position, 1000)))
    query.clock.since_boot_ms += 600_000
    with pytest.raises(FencedError):
        query.commit(results)


def test_22_a_slow_driver_whose_log_did_not_move_commits(query: Query, store: MemoryStore) -> None:
    plan = query.plan()
    results = [query.task(plan, 0, 0, 1)]
    query.clock.since_boot_ms += 3_600_000
    assert query.commit(results) == 1


def test_23_recovery_with_999_objects_of_a_window_without_its_record(
    query: Query, store: MemoryStore
) -> None:
    query.microbatch(0, (1,))
    plan = query.plan()
    for partition in range(999):
        query.task(plan, 1, partition, partition)
    store.counts.clear()
    again = query.restarted()
    assert again.plan().position == 3
    assert store.counts == {"LIST": 1, "GET": 1, "PUT": 1}
    assert again.microbatch(1, (2,)) is not None
    assert values_of(store) == [1, 2]


@pytest.mark.proves("read-all-after-gap")
@pytest.mark.parametrize("lost", [1, 5, 7])
def test_28_a_writer_never_leads_into_a_hole_in_the_log(
    query: Query, store: MemoryStore, lost: int
) -> None:
    """A leader record in the hole would give every later commit a lower term: dead."""
    for batch in range(8):
        query.microbatch(batch, (batch,))
    store.delete(keys.key("wal", keys.slot(lost, 1000)))
    before = dict(store.objects)
    with pytest.raises(InvalidLogError, match=f"position {lost} is missing"):
        query.restarted().plan()
    assert store.objects == before


def test_29_a_tolerant_reader_skips_a_hole(query: Query, store: MemoryStore) -> None:
    for batch in range(5):
        query.microbatch(batch, (batch,))
    store.delete(keys.key("wal", keys.slot(3, 1000)))
    head = find_head(LogStore(store, "wal"), damage=LENIENT)
    live = live_records(LogView(LogStore(store, "wal"), 1000, damage=LENIENT), 0, head.gap)
    assert [r.header.position for r in live] == [0, 1, 2, 4, 5]


def test_30_an_object_copied_to_another_key_is_not_believed(
    query: Query, store: MemoryStore
) -> None:
    query.microbatch(0, (1,))
    query.microbatch(1, (2,))
    first, second = (keys.key("wal", keys.slot(p, 1000)) for p in (1, 2))
    store.objects[second] = store.objects[first]
    with pytest.raises(InvalidLogError, match="the header holds number"):
        find_head(LogStore(store, "wal"))
