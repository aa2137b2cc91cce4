"""A late request is sent once more, on another connection: the first answer counts.

After "The Tail at Scale" (Dean and Barroso, 2013).
"""

import os
import threading
import time
from collections import deque
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import TypeVar

from sparkwal import events
from sparkwal.store.base import NotFound, Transient

R = TypeVar("R")

# A request is late after this quantile of its kind's newest answers, times a factor, which is
# larger while there are few answers.
_NEWEST, _QUANTILE, _FACTOR = 256, 0.98, 1.2
_FEW, _FACTOR_OF_FEW = 50, 2.4
# Seconds. No request is late earlier. Before so many answers it is late after `_AT_FIRST`, and a
# second more for each megabyte.
_FLOOR, _AT_FIRST, _ENOUGH = 0.1, 1.0, 10
# How much of a repeat each request earns, and how much of that is kept.
_SHARE, _BURST = 0.02, 4.0
# Seconds. A request is given up after `_PATIENCE` times the time after which it is late.
_PATIENCE, _LEAST, _MOST = 10.0, 5.0, 60.0
# Seconds that a thread without work waits for some.
_IDLE = 5.0


class Pace:
    """How long one store's requests take lately, and how many may be repeated. Threads share it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self._lock = threading.Lock()
        self._answers: dict[tuple[str, int], deque[float]] = {}
        self._late: dict[tuple[str, int], float] = {}
        self._earned = 1.0
        self._given_up = 0
        self._count = 0

    def begin(self, kind: tuple[str, int]) -> tuple[float, float]:
        """The seconds after which a request that begins now is late, and is given up."""
        with self._lock:
            self._earned = min(_BURST, self._earned + _SHARE)
            late = self._late.get(kind, _AT_FIRST + kind[1] / 1e6)
            # A store that stands still is not asked every few seconds.
            patience = max(_LEAST, _PATIENCE * late) * 2 ** min(self._given_up, 4)
            return late, min(patience, max(_MOST, late))

    def may_repeat(self) -> bool:
        """Whether a late request is sent once more: not where too many are late."""
        with self._lock:
            if self._earned < 1:
                return False
            self._earned -= 1
            return True

    def answered(self, kind: tuple[str, int], seconds: float) -> None:
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
        with self._lock:
            self._given_up += 1


# One for each store that this process uses. A fork may happen while a lock is held.
_paces: dict[str, Pace] = {}
os.register_at_fork(after_in_child=_paces.clear)


def pace_of(identity: str) -> Pace:
    return _paces.get(identity) or _paces.setdefault(identity, Pace())


def hedged(pace: Pace, operation: str, key: str, size: int, request: Callable[[], R]) -> R:
    """The first answer to `request`, which runs in another thread, and once more when it is late.

    Both attempts of a conditional PUT carry the same bytes, so a success of either is ours. A
    refusal may stem from the other attempt, as after a lost reply: who gets one reads the object.
    Raises Transient where no answer comes in time, else what the attempts failed with.
    """
    # Sizes within a factor of 4 are one kind, and so are all below 64 KiB.
    kind = (operation, 4 ** ((size.bit_length() + 1) // 2) if size >> 16 else 0)
    late, given_up = pace.begin(kind)
    answers: SimpleQueue[tuple[R | None, Exception | None]] = SimpleQueue()
    failures: list[Exception] = []
    began, attempts, until = pace.clock(), 1, late

    def attempt() -> None:
        try:
            answers.put((request(), None))
        except Exception as error:
            answers.put((None, error))

    run_in_daemon(attempt)
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
                events.emit(events.Hedged(operation, key, after_ms=round(late * 1000)))
                run_in_daemon(attempt)
            continue
        if error is None or isinstance(error, NotFound):
            pace.answered(kind, pace.clock() - began)
            if error is not None:
                raise error
            return result  # type: ignore[return-value]
        # While the other attempt may succeed it is waited for.
        failures.append(error)
    # What may have taken effect goes first: a refusal beside it is not the whole truth.
    unknown = (each for each in failures if isinstance(each, Transient) and not each.unreachable)
    raise next(unknown, failures[0])


# Of threads that wait for work. They are daemons: an attempt that nobody waits for any more does
# not hold up the process's end.
_waiting: list[SimpleQueue[Callable[[], None]]] = []
os.register_at_fork(after_in_child=_waiting.clear)


def run_in_daemon(task: Callable[[], None]) -> None:
    """Run a task that never raises in a thread of its own; in this one if no thread can begin."""
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
