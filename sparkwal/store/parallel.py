"""Runs many requests to one store at once. Results come in order, and memory is bounded.

There are two ways to begin an item. A thread can run its function, which fits any store and any
request (`run_parallel`). But a thread that waits for a reply also waits for Python's lock, which
doubles the CPU time of a small GET. So with `read_parallel` the caller's thread sends the first
GETs of many items on open connections, and reads the replies one by one.
"""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any, Generic, NamedTuple, Protocol, TypeVar
from weakref import WeakKeyDictionary

from sparkwal.store.base import Store
from sparkwal.store.hedge import Call
from sparkwal.store.retry import RetryingStore, SentRange

T = TypeVar("T")
T_contra = TypeVar("T_contra", contravariant=True)
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
_END: Any = object()
# A reply of at most so many bytes fits into the buffer of a socket, and waits there for its reader.
SMALL = 64 * 2**10
# For each store one item for each thread that may still begin. Popping and appending are atomic.
_free: WeakKeyDictionary[Store, list[None]] = WeakKeyDictionary()
# `Store.get_range`.
GetRange = Callable[[str, int, int], bytes]


class Range(NamedTuple):
    """The bytes that an item reads first. The reply probably has `likely` bytes, or fewer."""

    key: str
    offset: int
    length: int
    likely: int


@dataclass(frozen=True)
class _Begun(Generic[R]):
    """An item whose result is still to be taken.

    Attributes:
        result: waits for the result, or works it out.
        is_lazy: no request was sent, so waiting gains no time: the result is taken as soon as all
            earlier ones are.
        close: gives up a request in flight.
    """

    result: Callable[[], R]
    is_lazy: bool = False
    close: Callable[[], None] = lambda: None


class _Fetcher(Protocol[T_contra, R_co]):
    """A way to begin items without another thread."""

    def begin(self, item: T_contra) -> _Begun[Any] | None:
        """Begin an item in the caller's thread, or return None if it needs another thread."""

    def run(self, item: T_contra) -> R_co:
        """Run the item's function, which makes its requests itself."""


class _Plain(Generic[T, R]):
    """Leaves all requests to the function."""

    def __init__(self, function: Callable[[T], R]) -> None:
        self._function = function

    def begin(self, item: T) -> _Begun[Any] | None:
        return None

    def run(self, item: T) -> R:
        return self._function(item)


class _Pipelined(Generic[T, R]):
    """Sends the first GET of an item ahead, if its reply is small and a connection is idle."""

    def __init__(
        self,
        store: Store,
        function: Callable[[T, GetRange], R],
        first_range: Callable[[T], Range | None],
    ) -> None:
        self._store = store
        self._function = function
        self._first_range = first_range

    def begin(self, item: T) -> _Begun[Any] | None:
        first = self._first_range(item)
        if first is None:
            return _Begun(partial(self.run, item), is_lazy=True)
        if first.likely > SMALL or not isinstance(self._store, RetryingStore):
            return None
        request = first.key, first.offset, first.length
        sent = self._store.send_range(*request)
        if sent is None:
            return None
        get_range = _ReplyFirst(self._store.get_range, request, sent)
        return _Begun(partial(self._function, item, get_range), close=sent.close)

    def run(self, item: T) -> R:
        return self._function(item, self._store.get_range)


class _ReplyFirst:
    """A `get_range` that answers the first call for a range by the reply that was sent ahead."""

    def __init__(self, get_range: GetRange, request: tuple[str, int, int], sent: SentRange) -> None:
        self._get_range = get_range
        self._request = request
        self._sent: SentRange | None = sent

    def __call__(self, key: str, offset: int, length: int) -> bytes:
        sent = self._sent
        if sent is not None and (key, offset, length) == self._request:
            self._sent = None
            return sent.result()
        return self._get_range(key, offset, length)


def run_parallel(
    store: Store,
    function: Callable[[T], R],
    items: Iterable[T],
    *,
    at_once: int | None = None,
) -> Iterator[R]:
    """Call `function` with each item in threads, and return the results in order.

    All calls for one store share `store.concurrency` threads, also a call inside another. If none
    is free, an item runs in the caller's thread, as a single item does. At most `store.concurrency`
    results wait to be consumed. Items are taken when they are needed.

    Args:
        at_once: begin with so many calls, and add one for each result that is consumed.
    """
    return _in_order(store, _Plain(function), items, at_once=at_once)


def read_parallel(
    store: Store,
    function: Callable[[T, GetRange], R],
    items: Iterable[T],
    *,
    first_range: Callable[[T], Range | None],
    at_once: int | None = None,
    weigh: Callable[[T], int] = lambda _: 0,
    capacity: int = 0,
) -> Iterator[R]:
    """Call `function(item, get_range)` with each item, and return the results in order.

    The bounds are those of `run_parallel`. Besides, at most `capacity` bytes wait to be consumed,
    or one item that is larger.

    Args:
        function: reads by the `get_range` that it gets, which may hold a reply already.
        first_range: the first range that the function reads, or None if it makes no request. The
            caller's thread then runs it, which is faster.
        weigh: the bytes of an item's result, for `capacity`.
    """
    return _in_order(
        store,
        _Pipelined(store, function, first_range),
        items,
        at_once=at_once,
        weigh=weigh,
        capacity=capacity,
    )


def _in_order(
    store: Store,
    fetcher: _Fetcher[T, R],
    items: Iterable[T],
    *,
    at_once: int | None,
    weigh: Callable[[T], int] = lambda _: 0,
    capacity: int = 0,
) -> Iterator[R]:
    widest = max(store.concurrency, 1)
    width = min(at_once or widest, widest)
    pending: deque[tuple[_Begun[R], int]] = deque()
    weight_ahead = 0
    is_single = True
    work = iter(items)

    def take_first() -> R:
        nonlocal weight_ahead, width
        begun, weight = pending.popleft()
        weight_ahead -= weight
        width = min(width + 1, widest)
        return begun.result()

    def begin(item: T) -> _Begun[R]:
        nonlocal is_single, work
        if (begun := fetcher.begin(item)) is not None:
            return begun
        if is_single and width > 1:
            second = next(work, _END)
            if second is not _END:
                work = chain((second,), work)
                is_single = False
        call = partial(fetcher.run, item)
        # A single item gains nothing from another thread.
        result = None if is_single else _in_thread(store, call)
        return _Begun(call, is_lazy=True) if result is None else _Begun(result)

    try:
        while (item := next(work, _END)) is not _END:
            weight = weigh(item)
            while pending and weight and weight_ahead + weight > capacity:
                yield take_first()
            pending.append((begin(item), weight))
            weight_ahead += weight
            while pending and (pending[0][0].is_lazy or len(pending) >= width):
                yield take_first()
        while pending:
            yield take_first()
    finally:
        for begun, _ in pending:
            begun.close()


def _in_thread(store: Store, call: Callable[[], R]) -> Callable[[], R] | None:
    """Begin a call in another thread, and return what waits for its result.

    Returns:
        None if as many calls run as the store is fit for.
    """
    free = _free.get(store)
    if free is None:
        free = _free.setdefault(store, [None] * store.concurrency)
    try:
        free.pop()
    except IndexError:
        return None

    def run() -> R:
        try:
            return call()
        finally:
            free.append(None)

    return Call(run).result


def _forget_parent() -> None:
    """Begin with all places free after a fork: the parent's threads do not run here."""
    global _free
    _free = WeakKeyDictionary()


os.register_at_fork(after_in_child=_forget_parent)
