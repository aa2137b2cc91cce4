"""Many requests to one store at once, in order and bounded."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import chain
from typing import Any, NamedTuple, TypeVar

from sparkwal.store.base import Store
from sparkwal.store.hedge import Call
from sparkwal.store.retry import Ahead, RetryingStore

T = TypeVar("T")
R = TypeVar("R")
_END: Any = object()
# Bytes. A reply of this size fits into a socket, and waits there for its reader.
SMALL = 64 * 2**10
# Waits for the bytes of a GET that was sent ahead.
Reply = Callable[[], bytes]


class _Pending(NamedTuple):
    """An item that was begun, with its GET that was sent ahead; `here`: it needs no request."""

    result: Callable[[], Any]
    weight: int
    here: bool
    sent: Ahead | None


def run_parallel(
    store: Store,
    function: Callable[..., R],
    items: Iterable[T],
    *,
    at_once: int | None = None,
    weigh: Callable[[T], int] = lambda _: 0,
    capacity: int = 0,
    is_here: Callable[[T], bool] = lambda _: False,
    gets: Callable[[T], tuple[str, int, int] | None] = lambda _: None,
) -> Iterator[R]:
    """`function` of each item, in order, at most `store.concurrency` at once.

    Bounded: at most `store.concurrency` results wait to be consumed, and of those that weigh
    anything at most `capacity` (one at least). Takes items as it needs them.

    Args:
        at_once: begin with so many, and add one for each result that is consumed.
        is_here: of items that need no request: the caller's thread does them, which is faster.
        gets: the `get_range` of SMALL bytes that an item begins with. Where it can be sent ahead,
            the caller's thread does the item, and `function` gets its Reply as second argument.
    """
    send = store.send_range if isinstance(store, RetryingStore) else None
    widest = max(store.concurrency, 1)
    width = min(at_once or widest, widest)
    pending: deque[_Pending] = deque()
    ahead, is_single = 0, True
    work = iter(items)

    def taken() -> R:
        nonlocal ahead, width
        first = pending.popleft()
        ahead, width = ahead - first.weight, min(width + 1, widest)
        found: R = first.result()
        return found

    try:
        while (item := next(work, _END)) is not _END:
            weight, here = weigh(item), is_here(item)
            while pending and weight and ahead + weight > capacity:
                yield taken()
            asked = gets(item) if send is not None and not here else None
            if send is not None and asked and (sent := send(*asked)) is not None:
                pending.append(_Pending(partial(function, item, sent.result), weight, False, sent))
            else:
                if is_single and width > 1 and not here:
                    # A single item is the caller's too.
                    second = next(work, _END)
                    if second is not _END:
                        work, is_single = chain((second,), work), False
                call, here = partial(function, item), here or is_single
                result = call if here else Call(call).result
                pending.append(_Pending(result, weight, here, None))
            ahead += weight
            while pending and (pending[0].here or len(pending) >= width):
                yield taken()
        while pending:
            yield taken()
    finally:
        for each in pending:
            if each.sent is not None:
                each.sent.close()
