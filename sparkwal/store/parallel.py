"""Many requests to one store at once, in order and bounded."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import chain
from typing import Any, TypeVar

from sparkwal.store.base import Store

T = TypeVar("T")
R = TypeVar("R")
_END: Any = object()


def run_parallel(
    store: Store, function: Callable[[T], R], items: Iterable[T], *, at_once: int | None = None,
    weigh: Callable[[T], int] = lambda _: 0, capacity: int = 0,
    is_here: Callable[[T], bool] = lambda _: False,
) -> Iterator[R]:  # fmt: skip
    """`function` of each item, in order, at most `store.concurrency` at once.

    Bounded: at most `store.concurrency` results wait to be consumed, and of those that weigh
    anything at most `capacity` (one at least). Takes items as it needs them.

    Args:
        at_once: begin with so many, and add one for each result that is consumed.
        is_here: of items that need no request: the caller's thread does them, which is faster.
    """
    widest = max(store.concurrency, 1)
    width = min(at_once or widest, widest)
    # Each with its weight, and whether it is the caller's.
    pending: deque[tuple[Callable[[], R], int, bool]] = deque()
    ahead = 0
    pool: ThreadPoolExecutor | None = None
    work = iter(items)

    def taken() -> R:
        nonlocal ahead, width
        result, weight, _ = pending.popleft()
        ahead, width = ahead - weight, min(width + 1, widest)
        return result()

    try:
        while (item := next(work, _END)) is not _END:
            weight, here = weigh(item), is_here(item)
            while pending and weight and ahead + weight > capacity:
                yield taken()
            if pool is None and width > 1 and not here:
                # A single item is the caller's too.
                second = next(work, _END)
                if second is not _END:
                    work = chain((second,), work)
                    pool = ThreadPoolExecutor(widest, thread_name_prefix="sparkwal")
            if pool is None or here:
                pending.append((partial(function, item), weight, True))
            else:
                pending.append((pool.submit(function, item).result, weight, False))
            ahead += weight
            while pending and (pending[0][2] or len(pending) >= width):
                yield taken()
        while pending:
            yield taken()
    finally:
        if pool is not None:
            pool.shutdown(wait=False, cancel_futures=True)
