"""A repeated task: the stored object is its own, equal, or a reason to stop."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from sparkwal import Log
from sparkwal.errors import RecomputedError
from sparkwal.protocol.plan import Plan
from sparkwal.protocol.task import TaskAttempt, TaskResult, write_partition
from sparkwal.store.base import Transient
from sparkwal.store.local import LocalStore
from sparkwal.store.retry import RetryingStore, RetryPolicy
from sparkwal.testing.memory import MemoryStore
from tests.protocol.query import LIMITS, Query, hints_in, rows


@pytest.fixture
def query(tmp_path: Path) -> Query:
    return Query(LocalStore(tmp_path / "log", fsync=False), hints_in(tmp_path))


def stored(query: Query) -> list[int]:
    """Every row of the log, in order."""
    store = query.store
    assert isinstance(store, LocalStore)
    folder = store.url.removeprefix("file://")
    return list(Log(f"{folder}/{query.prefix}").scan().read_all().column("v").to_pylist())


def run(
    query: Query, plan: Plan, batches: Iterator[pa.RecordBatch], attempt: int, *, again: bool
) -> TaskResult:
    return write_partition(
        query.open,
        plan.for_tasks(),
        TaskAttempt("query", 0, 0, attempt=attempt, is_retry=again),
        batches,
        query.limits,
    )


def test_rows_redistributed_by_a_recomputed_stage_are_neither_lost_nor_doubled(
    query: Query,
) -> None:
    plan = query.plan()
    # The first attempt of the stage stores its partition 0; its message is lost with its executor.
    query.task(plan, 0, 0, 1, 2, 3, attempt=7)
    # Computed again, the shuffle deals the same rows out otherwise.
    with pytest.raises(RecomputedError, match="other rows.*Restart with the same checkpoint"):
        query.commit(
            [query.task(plan, 0, 0, 1, 2, 4, attempt=9), query.task(plan, 0, 1, 3, attempt=10)]
        )
    query.restarted().microbatch(0, (1, 2, 4), (3,))
    assert stored(query) == [1, 2, 4, 3]


def test_the_same_rows_in_another_order_stay_as_the_first_attempt_stored_them(
    query: Query,
) -> None:
    # A shuffle delivers its blocks in any order.
    plan = query.plan()
    first = query.task(plan, 0, 0, 1, 2, 2, 3, attempt=7)
    for others in ((3, 2, 1, 1), (3, 2, 1), (3, 2, 1, 2, 2)):
        with pytest.raises(RecomputedError):
            query.task(plan, 0, 0, *others, attempt=8)
    second = query.task(plan, 0, 0, 2, 3, 2, 1, attempt=9)
    assert second.batch == first.batch
    query.commit([second])
    assert stored(query) == [1, 2, 2, 3]


def test_an_attempt_with_the_same_rows_adopts_the_object_however_its_frames_are_cut(
    query: Query,
) -> None:
    plan = query.plan()
    first = query.task(plan, 0, 0, 1, 2, 3, attempt=7)
    query.limits = replace(LIMITS, batch_size=1, codec=None)
    second = run(query, plan, iter([rows(1), rows(2, 3)]), 9, again=True)
    assert second.batch == first.batch
    query.commit([second])
    assert stored(query) == [1, 2, 3]


def test_a_second_run_of_an_attempt_adopts_the_object_although_a_stall_cut_its_frames_elsewhere(
    query: Query,
) -> None:
    plan = query.plan()
    query.limits = replace(LIMITS, batch_size=1, codec=None)
    eight = range(8)
    first = run(query, plan, iter([rows(*eight[:2]), rows(*eight[2:])]), 7, again=False)
    second = run(query, plan, iter([rows(*eight[:6]), rows(*eight[6:])]), 7, again=False)
    assert first.batch is not None and second.batch == first.batch
    query.commit([second])
    assert stored(query) == [*eight]


@pytest.mark.proves("adopt-what-is-there")
def test_an_attempt_whose_reply_was_lost_adopts_its_own_object_unseen(tmp_path: Path) -> None:
    class LosesReplies(MemoryStore):
        def put_if_absent(self, key: str, body: bytes) -> bool:
            if super().put_if_absent(key, body):
                raise Transient("the reply was lost")
            return False

    inner = LosesReplies()
    store = RetryingStore(inner, RetryPolicy(), sleep=lambda _: None)
    query = Query(store, hints_in(tmp_path))
    result = query.task(query.plan(), 0, 0, 1, 2, 3, attempt=7)
    assert result.batch is not None and result.batch.rows == 3


@pytest.fixture
def values() -> np.ndarray:
    return np.random.default_rng(1).integers(0, 2**60, 1_000_000)


def parts(values: np.ndarray) -> Iterator[pa.RecordBatch]:
    return (pa.record_batch({"v": part}) for part in np.array_split(values, 7))


@pytest.fixture
def large(query: Query) -> Query:
    """A query whose tasks upload parts."""
    query.limits = replace(LIMITS, codec=None, multipart_threshold=5 * 2**20)
    return query


def test_a_retried_stage_adopts_a_large_object_that_has_the_same_frames(
    large: Query, values: np.ndarray
) -> None:
    plan = large.plan()
    first = run(large, plan, parts(values), 7, again=False)
    # The stage runs again, and Spark counts its attempts from 0: its rows are uploaded and gone.
    second = run(large, plan, parts(values), 10**15, again=False)
    assert second.batch == first.batch


def test_attempts_of_a_large_partition_in_another_order_compare_from_the_second_on(
    large: Query, values: np.ndarray
) -> None:
    plan = large.plan()
    first = run(large, plan, parts(values), 7, again=False)
    with pytest.raises(RecomputedError, match="next attempt"):
        run(large, plan, parts(values[::-1]), 8, again=False)
    assert run(large, plan, parts(values[::-1]), 9, again=True).batch == first.batch
    values[500_000] += 1
    with pytest.raises(RecomputedError, match="next attempt"):
        run(large, plan, parts(values), 10, again=False)
    with pytest.raises(RecomputedError, match="other rows"):
        run(large, plan, parts(values), 11, again=True)
