"""A look at the log that takes as long as `planTtl`: no claim rests on it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from sparkwal.errors import StoreUnavailableError
from sparkwal.store.base import Page
from sparkwal.testing.memory import MemoryStore
from tests.protocol.query import TTL_MS, Query, StoppedClock, values_of


class Slow(MemoryStore):
    """Each LIST and each GET takes some milliseconds of a clock: first those of `delays`."""

    def __init__(
        self, inner: MemoryStore, clock: StoppedClock, *delays: int, then: int = 0
    ) -> None:
        super().__init__()
        self.objects = inner.objects
        self.clock = clock
        self.delays = list(delays)
        self.then = then
        self.after_first: Callable[[], None] = lambda: None

    def _pass(self) -> None:
        self.clock.since_boot_ms += self.delays.pop(0) if self.delays else self.then
        if not self.delays:
            action, self.after_first = self.after_first, lambda: None
            action()

    def list(self, prefix: str, limit: int = 1000, after: str = "") -> Page:
        page = super().list(prefix, limit, after)
        self._pass()
        return page

    def get_range(self, key: str, offset: int, length: int) -> bytes:
        data = super().get_range(key, offset, length)
        self._pass()
        return data


@pytest.fixture
def begun(query: Query) -> Query:
    query.microbatch(0, (1,))
    return query.restarted()


def test_a_slow_look_counts_after_a_shorter_one_that_finds_the_same(
    begun: Query, store: MemoryStore
) -> None:
    slow = Slow(store, begun.clock, TTL_MS, 0)
    begun.store = slow
    assert begun.plan().position == 3
    assert slow.counts == {"LIST": 2, "GET": 2, "PUT": 1}
    assert begun.microbatch(1, (2,)) is not None
    assert values_of(store) == [1, 2]


def test_a_slow_look_at_a_log_that_changed_is_repeated(begun: Query, store: MemoryStore) -> None:
    other = replace(begun, store=store, query_id="other").restarted()
    slow = Slow(store, begun.clock, 0, TTL_MS)
    slow.after_first = lambda: other.microbatch(0, (7,)) and None
    begun.store = slow
    assert begun.plan().position == 5
    assert slow.counts["LIST"] == 3 and slow.counts["PUT"] == 1


def test_looks_that_are_all_slow_are_an_error_of_their_own(
    begun: Query, store: MemoryStore
) -> None:
    begun.store = slow = Slow(store, begun.clock, then=TTL_MS)
    with pytest.raises(StoreUnavailableError, match=r"takes 1200.0 s.*600.0 s \(planTtl\)"):
        begun.plan()
    assert "PUT" not in slow.counts and slow.counts["LIST"] == 4
    slow.then = 0
    assert begun.plan().position == 3


def test_an_empty_log_that_is_looked_at_slowly_begins(query: Query, store: MemoryStore) -> None:
    query.store = Slow(store, query.clock, TTL_MS)
    assert query.microbatch(0, (1,)) == 1
