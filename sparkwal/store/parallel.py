"""Many requests to one store at once, in order and bounded."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from itertools import chain
from typing import TypeVar

from sparkwal.store.base import Store

T = TypeVar("T")
R = TypeVar("R")
_END = object()


def run_parallel(
    store: Store,
    function: Callable[[T], R],
    items: Iterable[T],
    *,
    weigh: Callable[[T], int] = lambda _: 0,
    capacity: int = 0,
) -> Iterator[R]:
    """`function` of each item, in order, at most `store.concurrency` at once.

    Bounded: at most `store.concurrency` results wait to be consumed, and of those that
    weigh anything at most `capacity` (one at least). Takes items as it needs them.
    """
    work = iter(items)
    first, second = next(work, _END), next(work, _END)
    if store.concurrency <= 1 or second is _END:
        head = (item for item in (first, second) if item is not _END)
        yield from map(function, chain(head, work))  # type: ignore[arg-type]
        return
    with _pool(store.concurrency) as pool:
        pending: deque[tuple[Future[R], int]] = deque()
        ahead = 0
        for item in chain((first, second), work):
            weight = weigh(item)  # type: ignore[arg-type]
            while pending and (
                len(pending) >= store.concurrency or (weight and ahead + weight > capacity)
            ):
                future, done = pending.popleft()
                yield future.result()
                ahead -= done
            pending.append((pool.submit(function, item), weight))  # type: ignore[arg-type]
            ahead += weight
        while pending:
            yield pending.popleft()[0].result()


@contextmanager
def _pool(width: int) -> Iterator[ThreadPoolExecutor]:
    pool = ThreadPoolExecutor(width, thread_name_prefix="sparkwal")
    try:
        yield pool
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
