"""The store keeps a part of a body, and the reply is lost: the part never counts."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparkwal.errors import InvalidLogError, OutcomeUnknownError, StoreUnavailableError
from sparkwal.format import keys
from sparkwal.protocol import archive
from sparkwal.protocol.clock import SYSTEM
from sparkwal.protocol.recovery import find_head
from sparkwal.store.base import LogStore, Transient
from sparkwal.store.config import RetryPolicy
from sparkwal.store.retry import RetryingStore
from sparkwal.testing.memory import MemoryStore
from tests.chains import beginning, newest, put_next
from tests.protocol.query import LIMITS, Query, hints_in, replace

ONCE = RetryPolicy(max_retry_attempts=0)


class TruncatingStore(MemoryStore):
    """Keeps all but the last `less` bytes of the next PUT under `folder`, without an answer."""

    folder = ""
    less = 0

    def put_if_absent(self, key: str, body: bytes) -> bool:
        if self.folder and f"/{self.folder}/" in key:
            self.folder = ""
            super().put_if_absent(key, body[: max(0, len(body) - self.less)])
            raise Transient("the connection broke off")
        return super().put_if_absent(key, body)

    def break_next(self, less: int, folder: str = "batches") -> None:
        self.less = less
        self.folder = folder


@pytest.fixture
def store() -> TruncatingStore:
    return TruncatingStore()


@pytest.fixture
def query(store: TruncatingStore, tmp_path: Path) -> Query:
    retrying = RetryingStore(store, RetryPolicy(max_retry_attempts=2), sleep=lambda _: None)
    limits = replace(LIMITS, inline_threshold=2**20)
    return Query(retrying, hints_in(tmp_path), limits=limits)


@pytest.mark.parametrize("less", [8, 3000, 10**9], ids=["the end", "rows", "all"])
def test_a_commit_that_the_store_kept_in_part_is_not_acknowledged(
    query: Query, store: TruncatingStore, less: int
) -> None:
    query.microbatch(0, (1,))
    plan = query.plan()
    results = [query.task(plan, 1, 0, *range(5000))]
    store.break_next(less)
    with pytest.raises(OutcomeUnknownError):
        query.commit(results)


@pytest.mark.parametrize("less", [3000, 10**9], ids=["rows", "all"])
def test_the_next_writer_continues_after_a_record_whose_rows_are_cut_off(
    query: Query, store: TruncatingStore, less: int
) -> None:
    query.microbatch(0, (1,))
    plan = query.plan()
    results = [query.task(plan, 1, 0, *range(5000))]
    store.break_next(less)
    with pytest.raises(OutcomeUnknownError):
        query.commit(results)
    # The torn record is at position 2, the leader record at 3.
    assert query.restarted().microbatch(1, tuple(range(5000))) == 4


def test_a_leader_record_that_the_store_kept_in_part_makes_no_leader(
    query: Query, store: TruncatingStore
) -> None:
    query.microbatch(0, (1,))
    store.break_next(8)
    # Its front names the leader; the next attempt continues after it.
    assert query.restarted().microbatch(1, (2,)) == 4


@pytest.mark.parametrize("less", [8, 900])
def test_a_task_object_that_the_store_kept_in_part_is_not_committed(
    query: Query, store: TruncatingStore, less: int
) -> None:
    query.limits = LIMITS
    query.microbatch(0, (1,))
    plan = query.plan()
    store.break_next(less)
    with pytest.raises((StoreUnavailableError, InvalidLogError)):
        query.task(plan, 1, 0, *range(500))
    assert query.restarted().microbatch(1, tuple(range(500))) is not None


def test_an_archive_that_the_store_kept_in_part_is_named_by_no_leader(
    query: Query, store: TruncatingStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    query.microbatch(0, (1,))
    replace(query.restarted(), query_id="another").microbatch(0, (1,))
    monkeypatch.setattr(archive, "MOST", 1)
    monkeypatch.setattr(archive, "KEPT", 1)
    store.break_next(3, folder="txns")
    with pytest.raises(StoreUnavailableError, match="does not hold the bytes that were sent"):
        query.restarted().plan()
    live = find_head(LogStore(store, "wal")).live
    assert live is not None and live.header.txns_archive == ""
    assert query.restarted().microbatch(1, (2,)) is not None


@pytest.mark.parametrize("less", [8, 600, 10**9], ids=["the end", "the front", "all"])
def test_a_lifecycle_record_that_the_store_kept_in_part_is_passed_over(
    query: Query, store: TruncatingStore, less: int
) -> None:
    query.microbatch(0, (1,))
    log = query.open()
    store.break_next(less, folder="lifecycle")
    first = beginning("id", "default", 3_600_000)
    put = put_next(log, first, "floor", SYSTEM, "host", floor=1)
    # Its own second attempt goes to the number after the torn record.
    assert put is not None and put.number == keys.MAX - 1
    assert newest(log) == put
    store.break_next(less, folder="lifecycle")
    with pytest.raises(StoreUnavailableError):
        put_next(LogStore(RetryingStore(store, ONCE), "wal"), put, "floor", SYSTEM, "host", floor=2)
    assert newest(log) == put
    after = put_next(log, put, "floor", SYSTEM, "host", floor=2)
    assert after is not None and after.number == put.number - 2
    assert newest(log) == after
