"""A `Store` that sends a late request once more, on another connection: the first answer counts.

After "The Tail at Scale" (Dean and Barroso, 2013).
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import TypeVar

from sparkwal import events
from sparkwal.store.base import NotFound, Page, Store, Transient, UnfinishedPage, Upload

R = TypeVar("R")

# A request is late after this quantile of its kind's newest answers, times a factor, which is
# larger while there are few answers.
_NEWEST, _QUANTILE, _FACTOR = 256, 0.98, 1.2
_FEW, _FACTOR_OF_FEW = 50, 2.4
# Seconds. No request is late earlier. Before so many answers it is late after `_AT_FIRST`, and a
# second more for each megabyte.
_FLOOR, _AT_FIRST, _ENOUGH = 0.1, 1.0, 10
# How much of a repeat each request earns, and how much of that is kept.
_SHARE, _BURST = 0.02, 5.0
# Seconds. A request is given up after `_PATIENCE` times the time after which it is late.
_PATIENCE, _LEAST, _MOST = 10.0, 5.0, 60.0
# Seconds that a thread without work waits for some.
_IDLE = 5.0


class Pace:
    """How long one store's requests take lately, and how many may be repeated. Threads share it.

    Args:
        clock: seconds, from any start.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self._lock = threading.Lock()
        self._answers: dict[tuple[str, int], deque[float]] = {}
        self._late: dict[tuple[str, int], float] = {}
        self._earned = 1.0
        self._given_up = 0
        self._count = 0

    def begin(self, kind: tuple[str, int]) -> tuple[float, float]:
        """A request begins. Returns the seconds after which it is late, and is given up."""
        with self._lock:
            self._earned = min(_BURST, self._earned + _SHARE)
            late = self._late.get(kind, _AT_FIRST + kind[1] / 1e6)
            # A store that stands still is not asked every few seconds.
            patience = max(_LEAST, _PATIENCE * late) * 2 ** min(self._given_up, 4)
            return late, min(patience, max(_MOST, late))

    def may_repeat(self) -> bool:
        """Whether a late request is sent once more: not where so many are late that the store
        itself is slow."""
        with self._lock:
            if self._earned < 1:
                return False
            self._earned -= 1
            return True

    def answered(self, kind: tuple[str, int], seconds: float) -> None:
        """The first answer came after so many seconds."""
        with self._lock:
            self._given_up = 0
            self._count += 1
            answers = self._answers.setdefault(kind, deque(maxlen=_NEWEST))
            answers.append(seconds)
            # A slower store is noticed at once, a faster one soon: sorting takes 20 µs.
            count = len(answers)
            if count >= _ENOUGH and (
                count <= _FEW or seconds > self._late[kind] or self._count % 32 == 0
            ):
                slow = sorted(answers)[int(_QUANTILE * (count - 1))]
                factor = _FACTOR if count >= _FEW else _FACTOR_OF_FEW
                self._late[kind] = max(_FLOOR, factor * slow)

    def gave_up(self) -> None:
        """No answer came."""
        with self._lock:
            self._given_up += 1


# One for each store that this process uses. A fork may happen while a lock is held.
_paces: dict[str, Pace] = {}
os.register_at_fork(after_in_child=_paces.clear)


class HedgedStore:
    """Decorates a store whose attempts may run in any thread.

    A plain PUT is sent once, since its late twin would overwrite a newer value, and so is a
    DELETE. Both attempts of a conditional PUT carry the same bytes, so a success of either is ours.
    A refusal may stem from the other attempt, as after a lost reply: who gets one reads the object.

    Args:
        pace: of the process for this store, unless given.
    """

    def __init__(self, store: Store, pace: Pace | None = None) -> None:
        self._store = store
        self._pace = pace
        self.url, self.identity, self.concurrency = store.url, store.identity, store.concurrency
        self.put = store.put
        self.delete = store.delete
        self.delete_many = store.delete_many
        self.discard = store.discard

    def put_if_absent(self, key: str, body: bytes) -> bool:
        """Create the object. False may mean: the other attempt created it."""
        return self.hedged("put", key, len(body), lambda: self._store.put_if_absent(key, body))

    def get(self, key: str) -> bytes:
        """The whole object. Raises NotFound."""
        return self.hedged("get", key, 0, lambda: self._store.get(key))

    def get_range(self, key: str, offset: int, length: int) -> bytes:
        """Part of the object. Raises NotFound."""
        return self.hedged("get", key, length, lambda: self._store.get_range(key, offset, length))

    def list(self, prefix: str, limit: int = 1000, after: str = "") -> Page:
        """The first keys under `prefix` that are greater than `after`."""
        return self.hedged("list", prefix, 0, lambda: self._store.list(prefix, limit, after))

    def age_ms(self, key: str) -> int:
        """How old the object is, at least. Raises NotFound."""
        return self.hedged("get", key, 0, lambda: self._store.age_ms(key))

    def unfinished(self, prefix: str, after: str = "", limit: int = 1000) -> UnfinishedPage:
        """Unfinished uploads to keys under `prefix`."""
        return self.hedged("list", prefix, 0, lambda: self._store.unfinished(prefix, after, limit))

    def upload(self, key: str) -> _HedgedUpload:
        """Begin a large object."""
        return _HedgedUpload(self, self._store.upload(key), key)

    def hedged(self, operation: str, key: str, size: int, request: Callable[[], R]) -> R:
        """The first answer to `request`. Raises Transient where none comes in time, else what the
        attempts failed with."""
        pace = self._pace or _paces.get(self.identity) or _paces.setdefault(self.identity, Pace())
        # Sizes within a factor of 4 are one kind, and so are all below 64 KiB.
        kind = (operation, 4 ** ((size.bit_length() + 1) // 2) if size >> 16 else 0)
        late, given_up = pace.begin(kind)
        answers: SimpleQueue[tuple[R | None, Exception | None]] = SimpleQueue()
        failures: list[Exception] = []
        began, attempts, until = pace.clock(), 1, late
        _start(lambda: answers.put(_attempt(request)))
        while len(failures) < attempts:
            try:
                result, error = answers.get(timeout=max(0.0, began + until - pace.clock()))
            except Empty:
                if until == given_up:
                    pace.gave_up()
                    raise Transient(f"no answer in {given_up:.1f} s") from None
                until = given_up
                if pace.may_repeat():
                    attempts = 2
                    events.emit(
                        events.Hedged(operation=operation, key=key, after_ms=round(late * 1000))
                    )
                    _start(lambda: answers.put(_attempt(request)))
                continue
            if error is None or isinstance(error, NotFound):
                pace.answered(kind, pace.clock() - began)
                if error is not None:
                    raise error
                return result  # type: ignore[return-value]
            # While the other attempt may succeed it is waited for.
            failures.append(error)
        # What may have taken effect goes first: a refusal beside it is not the whole truth.
        unknown = (
            each for each in failures if isinstance(each, Transient) and not each.unreachable
        )
        raise next(unknown, failures[0])


class _HedgedUpload:
    """Its parts and its Complete are repeated. A part that is sent twice replaces itself."""

    def __init__(self, store: HedgedStore, upload: Upload, key: str) -> None:
        self._store = store
        self._upload = upload
        self._key = key
        self.abort = upload.abort

    def part(self, number: int, offset: int, body: bytes) -> None:
        """Send a part."""
        self._store.hedged(
            "part", self._key, len(body), lambda: self._upload.part(number, offset, body)
        )

    def complete(self) -> bool:
        """Publish the object if its key is free. False may mean: the other attempt has."""
        return self._store.hedged("complete", self._key, 0, self._upload.complete)


def _attempt(request: Callable[[], R]) -> tuple[R | None, Exception | None]:
    try:
        return request(), None
    except Exception as error:
        return None, error


# Threads that wait for work, each with what brings it. They are daemons: an attempt that nobody
# waits for any more does not hold up the process's end.
_waiting: list[SimpleQueue[Callable[[], None]]] = []
os.register_at_fork(after_in_child=_waiting.clear)


def _start(task: Callable[[], None]) -> None:
    """Run `task` in another thread."""
    try:
        inbox = _waiting.pop()
    except IndexError:
        inbox = SimpleQueue()
        thread = threading.Thread(target=_work, args=(inbox,), name="sparkwal-request", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # the interpreter ends
            task()
            return
    inbox.put(task)


def _work(inbox: SimpleQueue[Callable[[], None]]) -> None:
    while True:
        try:
            task = inbox.get(timeout=_IDLE)
        except Empty:
            try:
                _waiting.remove(inbox)
            except ValueError:
                task = inbox.get()  # taken a moment ago, so a task comes
            else:
                return
        task()
        del task  # it holds a body
        _waiting.append(inbox)
