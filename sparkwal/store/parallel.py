"""Many requests to one store at once, in order and bounded."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import chain
from typing import Any, TypeVar

from sparkwal.store.base import Store
from sparkwal.store.hedge import Call

T = TypeVar("T")
R = TypeVar("R")
_END: Any = object()


def run_parallel(
    store: Store, function: Callable[[T], R], items: Iterable[T], *, at_once: int | None = None,
    weigh: Callable[[T], int] = lambda _: 0, capacity: int = 0,
    is_here: Callable[[T], bool] = lambda _: False, reads: bool = False,
) -> Iterator[R]:  # fmt: skip
    """`function` of each item, in order, at most `store.concurrency` at once.

    Bounded: at most `store.concurrency` results wait to be consumed, and of those that weigh
    anything at most `capacity` (one at least). Takes items as it needs them.

    Args:
        at_once: begin with so many, and add one for each result that is consumed.
        is_here: of items that need no request: the caller's thread does them, which is faster.
        reads: `function` changes nothing: where a request of it is late it may be called again.
    """
    widest = max(store.concurrency, 1)
    width = min(at_once or widest, widest)
    # Each with its weight, and whether it is the caller's.
    pending: deque[tuple[Callable[[], R], int, bool]] = deque()
    ahead, is_single = 0, True
    work = iter(items)

    def taken() -> R:
        nonlocal ahead, width
        result, weight, _ = pending.popleft()
        ahead, width = ahead - weight, min(width + 1, widest)
        return result()

    while (item := next(work, _END)) is not _END:
        weight, here = weigh(item), is_here(item)
        while pending and weight and ahead + weight > capacity:
            yield taken()
        if is_single and width > 1 and not here:
            # A single item is the caller's too.
            second = next(work, _END)
            if second is not _END:
                work, is_single = chain((second,), work), False
        call, here = partial(function, item), here or is_single
        pending.append((call if here else Call(call, reads=reads).result, weight, here))
        ahead += weight
        while pending and (pending[0][2] or len(pending) >= width):
            yield taken()
    while pending:
        yield taken()
