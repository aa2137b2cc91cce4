"""The error of a failed commit never claims that a record is absent when it may exist."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparkwal.errors import (
    FencedError,
    OptionError,
    OutcomeUnknownError,
    SparkWalError,
    StoreUnavailableError,
)
from sparkwal.store.base import Page, Transient
from sparkwal.store.retry import RetryingStore, RetryPolicy
from sparkwal.testing.memory import MemoryStore
from tests.protocol.query import Query, hints_in


class Unreadable(MemoryStore):
    """Once `failure` is set: loses the reply of every PUT and answers no other request."""

    failure: Exception | None = None

    def put_if_absent(self, key: str, body: bytes) -> bool:
        created = super().put_if_absent(key, body)
        if created and self.failure is not None:
            raise Transient("the reply was lost")
        return created

    def get_range(self, key: str, offset: int, length: int) -> bytes:
        if self.failure is not None:
            raise self.failure
        return super().get_range(key, offset, length)


@pytest.mark.parametrize(
    "failure", [Transient("no route", unreachable=True), OptionError("the credentials expired")]
)
def test_a_lost_reply_whose_read_back_fails_leaves_the_outcome_unknown(
    tmp_path: Path, failure: Exception
) -> None:
    inner = Unreadable()
    store = RetryingStore(inner, RetryPolicy(max_retry_attempts=1), sleep=lambda _: None)
    query = Query(store, hints_in(tmp_path))
    plan = query.plan()
    results = [query.task(plan, 0, 0, 1)]
    inner.failure = failure
    with pytest.raises(SparkWalError) as caught:
        query.commit(results)
    inner.failure = None
    assert query.restarted().microbatch(0, (1,)) is None, "it was durable"
    assert isinstance(caught.value, OutcomeUnknownError)
    assert "may be durable" in str(caught.value)


def test_a_late_commit_that_cannot_be_looked_up_in_the_log_is_unknown(tmp_path: Path) -> None:
    class Sleeps(MemoryStore):
        """The machine sleeps during a PUT, and wakes up without a network."""

        asleep = False

        def put_if_absent(self, key: str, body: bytes) -> bool:
            created = super().put_if_absent(key, body)
            if self.asleep:
                query.clock.since_boot_ms += 600_000
            return created

        def list(self, prefix: str, limit: int = 1000, after: str = "") -> Page:
            if self.asleep:
                raise StoreUnavailableError("no route")
            return super().list(prefix, limit, after)

    store = Sleeps()
    query = Query(store, hints_in(tmp_path))
    plan = query.plan()
    results = [query.task(plan, 0, 0, 1)]
    store.asleep = True
    with pytest.raises(OutcomeUnknownError, match="may be durable"):
        query.commit(results)
    store.asleep = False
    assert query.restarted().microbatch(0, (1,)) is None, "it was durable"


def test_a_run_that_was_replaced_does_not_say_that_nothing_was_committed(tmp_path: Path) -> None:
    query = Query(MemoryStore(), hints_in(tmp_path))
    plan = query.plan()
    results = [query.task(plan, 0, 0, 1)]
    assert query.restarted().microbatch(0, (1,)) is not None, "the other run commits it"
    with pytest.raises(FencedError) as caught:
        query.commit(results)
    assert "othing of this microbatch" not in str(caught.value)
    assert "othing was committed" not in str(caught.value)
