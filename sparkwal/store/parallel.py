"""Runs many requests to one store at once. Results come in order, and memory is bounded.

There are two ways to begin a request. A thread can make it, which fits any store and any request.
But a thread that waits for a reply also waits for Python's lock, which doubles the CPU time of a
small GET. So the caller's thread sends small GETs on open connections, and reads the replies one by
one.
"""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import chain
from typing import Any, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

from sparkwal.store.base import Front, NotFound, Store
from sparkwal.store.hedge import Call
from sparkwal.store.retry import RetryingStore, SentRange

T = TypeVar("T")
R = TypeVar("R")
_END: Any = object()
# A reply of at most so many bytes fits into the buffer of a socket, and waits there for its reader.
SMALL = 64 * 2**10
# The bytes that are requested ahead of the reader, or one larger range.
AHEAD = 32 * 2**20
# The request of a front counts as this part of its length: few objects are so long.
_PART = 4
# After so many fronts the next ones are probably as long.
_SEEN = 32
# For each store one item for each thread that may still begin. Popping and appending are atomic.
_free: WeakKeyDictionary[Store, list[None]] = WeakKeyDictionary()


class Range(NamedTuple):
    """The bytes to read of an object.

    Attributes:
        is_front: the reader can do with fewer bytes than `length` of the object's first ones.
    """

    key: str
    offset: int
    length: int
    is_front: bool = False


class _Task(NamedTuple):
    """The work of one item.

    Attributes:
        call: makes the requests of the item, in any thread.
        send: sends its only request in the caller's thread, or returns None.
        take: gets what waits for the reply, and returns the item's result.
        weight: the bytes of the reply.
        is_lazy: it makes no request, so another thread gains no time.
    """

    call: Callable[[], Any]
    send: Callable[[], SentRange | None] = lambda: None
    take: Callable[[Callable[[], Any]], Any] = lambda reply: reply()
    weight: int = 0
    is_lazy: bool = False


class _Begun(NamedTuple):
    """A task whose result is still to be taken.

    Attributes:
        reply: waits for what the call returns, or calls it.
        is_lazy: no request was sent, so waiting gains no time: the result is taken as soon as all
            earlier ones are.
        close: gives up a request in flight.
    """

    task: _Task
    reply: Callable[[], Any]
    is_lazy: bool = False
    close: Callable[[], None] = lambda: None


class _Fronts:
    """The lengths of the fronts of one read.

    The first are requested with all bytes that the reader wants. If those objects were small, later
    requests are smaller, so that more of them fit into `AHEAD`. The front of a larger object then
    lacks bytes.
    """

    def __init__(self, store: Store) -> None:
        self._small = AHEAD * _PART // max(store.concurrency, 1)
        self._largest = 0
        self._seen = 0

    def length(self, wanted: Range) -> int:
        """The bytes to request of a range."""
        if not wanted.is_front or self._seen < _SEEN or self._largest > self._small:
            return wanted.length
        return min(wanted.length, self._small)

    def likely(self, wanted: Range) -> int:
        """The bytes that the reply probably has, at most."""
        if not wanted.is_front or self._seen < _SEEN:
            return wanted.length
        return min(wanted.length, self._largest)

    def note(self, wanted: Range, body: bytes) -> None:
        """Take the reply to a request into account."""
        if wanted.is_front:
            self._seen += 1
            size = Front.size_of(body)
            self._largest = max(self._largest, wanted.length if size is None else size)


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
    return _in_order(store, (_Task(partial(function, item)) for item in items), at_once)


def get_many(
    store: Store, items: Iterable[tuple[T, Range | None]], *, at_once: int | None = None
) -> Iterator[tuple[T, bytes | None]]:
    """Read the range of each item, and return the items in order, each with its bytes.

    The bounds are those of `run_parallel`. Besides, at most `AHEAD` bytes wait to be consumed,
    where a front counts as a quarter of what was requested.

    Args:
        store: the store.
        items: each item with its range, or with None if it needs no request.
        at_once: as for `run_parallel`.

    Returns:
        None in place of the bytes if the object is missing, or nothing was requested. A front is a
        `Front` if the size of its object is known.
    """
    fronts = _Fronts(store)

    def take(item: T, wanted: Range, length: int, reply: Callable[[], bytes]) -> Any:
        try:
            body = Front.of(reply(), wanted.offset, length)
        except NotFound:
            return item, None
        fronts.note(wanted, body)
        return item, body

    def task(item: T, wanted: Range | None) -> _Task:
        if wanted is None:
            return _Task(lambda: (item, None), is_lazy=True)
        length = fronts.length(wanted)
        request = wanted.key, wanted.offset, length
        call = partial(store.get_range, *request)
        done = partial(take, item, wanted, length)
        weight = length // _PART if wanted.is_front else length
        if isinstance(store, RetryingStore) and fronts.likely(wanted) <= SMALL:
            return _Task(call, partial(store.send_range, *request), done, weight)
        return _Task(call, take=done, weight=weight)

    return _in_order(store, (task(*pair) for pair in items), at_once)


def _in_order(store: Store, tasks: Iterable[_Task], at_once: int | None) -> Iterator[Any]:
    widest = max(store.concurrency, 1)
    width = min(at_once or widest, widest)
    pending: deque[_Begun] = deque()
    weight_ahead = 0
    is_single = True
    work = iter(tasks)

    def take_first() -> Any:
        nonlocal weight_ahead, width
        begun = pending.popleft()
        weight_ahead -= begun.task.weight
        width = min(width + 1, widest)
        return begun.task.take(begun.reply)

    def begin(task: _Task) -> _Begun:
        nonlocal is_single, work
        if task.is_lazy:
            return _Begun(task, task.call, is_lazy=True)
        if (sent := task.send()) is not None:
            return _Begun(task, sent.result, close=sent.close)
        if is_single and width > 1:
            second = next(work, _END)
            if second is not _END:
                work = chain((second,), work)
                is_single = False
        # A single item gains nothing from another thread.
        result = None if is_single else _in_thread(store, task.call)
        return _Begun(task, result or task.call, is_lazy=result is None)

    try:
        while (task := next(work, _END)) is not _END:
            weight = task.weight
            while pending and weight and weight_ahead + weight > AHEAD:
                yield take_first()
            pending.append(begin(task))
            weight_ahead += weight
            while pending and (pending[0].is_lazy or len(pending) >= width):
                yield take_first()
        while pending:
            yield take_first()
    finally:
        for begun in pending:
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
