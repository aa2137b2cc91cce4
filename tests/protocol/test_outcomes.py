"""What a commit's failure says: never that nothing is there when something may be."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparkwal.errors import OptionError, OutcomeUnknownError, SparkWalError
from sparkwal.store.base import Transient
from sparkwal.store.retry import RetryingStore, RetryPolicy
from sparkwal.testing.memory import MemoryStore

from .query import Query, hints_in


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
