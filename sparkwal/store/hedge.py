"""A late request is sent once more, on another connection: the first answer counts.

After "The Tail at Scale" (Dean and Barroso, 2013).
"""

import os
import threading
import time
from collections import deque
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Generic, TypeVar

from sparkwal import events
from sparkwal.store.base import NotFound, Transient

R = TypeVar("R")

# A request is late after this quantile of its kind's newest answers, times a factor, which is
# larger while there are few answers.
_NEWEST = 256
_QUANTILE = 0.98
_FACTOR = 1.2
_FEW, _FACTOR_OF_FEW = 50, 2.4
# Seconds. No request is late earlier. Before so many answers it is late after `_AT_FIRST`, and the
# time for its bytes at so many a second: of a GET only the largest number is known.
_FLOOR = 0.1
_AT_FIRST = 1.0
_AT_FIRST_RATE = 10e6
_ENOUGH = 10
# How much of a repeat each request earns, and how much of that is kept. A request that is late for
# the first time leaves one repeat for those that are twice as late: they are the stragglers.
_SHARE = 0.02
_BURST = 4.0
_LEFT = 1.0
# Seconds. A request is given up after `_PATIENCE` times the time after which it is late.
_PATIENCE = 10.0
_LEAST = 5.0
_MOST = 60.0
# Seconds that a thread without work waits for some.
_IDLE = 5.0


class Pace:
    """How long one store's requests take lately, and how many may be repeated. Threads share it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self._lock = threading.Lock()
        self._answers: dict[tuple[str, int], deque[float]] = {}
        self._late: dict[tuple[str, int], float] = {}
        self._earned = 1.0 + _LEFT
        self._given_up = 0
        self._count = 0

    def begin(self, kind: tuple[str, int]) -> tuple[float, float]:
        """The seconds after which a request that begins now is late, and is given up."""
        with self._lock:
            self._earned = min(_BURST, self._earned + _SHARE)
            late = self._late.get(kind, _AT_FIRST + kind[1] / _AT_FIRST_RATE)
            # A store that stands still is not asked every few seconds.
            patience = max(_LEAST, _PATIENCE * late) * 2 ** min(self._given_up, 4)
            return late, min(patience, max(_MOST, late))

    def may_repeat(self, is_straggler: bool) -> bool:
        """Whether a late request is sent once more: not where too many are late."""
        with self._lock:
            if self._earned < (1 if is_straggler else 1 + _LEFT):
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


class Request:
    """One that begins now, of at most `size` bytes. When it is late it may be sent once more, else
    when it is twice as late, and so on until it is given up."""

    def __init__(self, pace: Pace, operation: str, key: str, size: int) -> None:
        self._pace = pace
        self._operation = operation
        self._key = key
        # Sizes within a factor of 4 are one kind, and so are all below 64 KiB.
        self._kind = operation, 4 ** ((size.bit_length() + 1) // 2) if size >> 16 else 0
        self.again(first=True)

    def again(self, *, first: bool) -> None:
        """It is sent after it was given up or failed. `first`: no earlier attempt may answer."""
        self._sent = self._pace.clock()
        if first:
            self._began = self._sent
        self._late, self.given_up = self._pace.begin(self._kind)
        self._until = self._late

    def left(self) -> float:
        """Seconds until it is asked whether it `may_repeat`, or until it is given up."""
        return max(0.0, self._sent + self._until - self._pace.clock())

    def may_repeat(self) -> bool:
        """It is late now: whether it is sent once more. Raises Transient where it is given up."""
        late, self._until = self._until, min(2 * self._until, self.given_up)
        if late == self.given_up:
            self._pace.gave_up()
            raise Transient(f"no answer in {self.given_up:.1f} s")
        if not self._pace.may_repeat(is_straggler=late > self._late):
            return False
        self._until = self.given_up
        events.emit(events.Hedged(self._operation, self._key, after_ms=round(late * 1000)))
        return True

    def answered(self) -> None:
        self._pace.answered(self._kind, self._pace.clock() - self._began)


class Call(Generic[R]):
    """A call that runs in a thread of its own, while another thread waits for its result. With
    `now` it is that request, which is sent once more when it is late.

    All attempts of a conditional PUT carry the same bytes, so a success of any of them is ours. A
    refusal may stem from another attempt, as after a lost reply: who gets one reads the object.
    """

    def __init__(self, call: Callable[[], R], now: Request | None = None) -> None:
        self._call = call
        self._now = now
        self._process = os.getpid()
        self._results: SimpleQueue[tuple[R | None, BaseException | None]] = SimpleQueue()
        self._open = 0
        self._send()

    def again(self) -> None:
        """Send it again after `result` raised. An attempt that was given up may still answer."""
        if self._now is not None:
            self._now.again(first=not self._open)
        self._send()

    def _send(self) -> None:
        self._open += 1
        run_in_daemon(self._attempt)

    def _attempt(self) -> None:
        try:
            self._results.put((self._call(), None))
        except BaseException as error:
            self._results.put((None, error))

    def result(self) -> R:
        """What the call returns or raises: its first success, or else its failure. Raises Transient
        where a request has no answer in time."""
        # A fork has none of the threads that would bring a result.
        if os.getpid() != self._process:
            return self._call()
        failures: list[BaseException] = []
        # While another attempt may succeed it is waited for.
        while self._open:
            try:
                result, error = self._results.get(timeout=self._now.left() if self._now else None)
            except Empty:
                now = self._now
                if now is not None and not now.left() and now.may_repeat():
                    self._send()
                continue
            self._open -= 1
            if self._now is not None and (error is None or isinstance(error, NotFound)):
                self._now.answered()
            if error is None:
                return result  # type: ignore[return-value]
            if isinstance(error, NotFound):
                raise error
            failures.append(error)
        # What may have taken effect goes first: a refusal beside it is not the whole truth.
        unknown = (
            each for each in failures if isinstance(each, Transient) and not each.unreachable
        )
        raise next(unknown, failures[0])


# Threads that wait for work take it from here. They are daemons: an attempt that nobody waits for
# any more does not hold up the process's end.
_tasks: SimpleQueue[Callable[[], None]] = SimpleQueue()
# One item for each idle thread. A semaphore would stay locked if a signal handler raised in it.
_idle: SimpleQueue[None] = SimpleQueue()


def _forget_parent() -> None:
    global _tasks, _idle
    _tasks, _idle = SimpleQueue(), SimpleQueue()


def _claim_idle() -> bool:
    """Count on an idle thread; False if there is none."""
    try:
        _idle.get_nowait()
    except Empty:
        return False
    return True


os.register_at_fork(after_in_child=_forget_parent)


def run_in_daemon(task: Callable[[], None]) -> None:
    """Run a task that never raises in a thread of its own; in this one if no thread can begin."""
    # First: a thread that ends its task now takes this one without a sleep.
    _tasks.put(task)
    if not _claim_idle():
        try:
            threading.Thread(target=_work, name="sparkwal-request", daemon=True).start()
        except RuntimeError:  # the interpreter ends
            try:
                own = _tasks.get_nowait()
            except Empty:
                # A thread that ended its task took this one, and is not idle.
                _claim_idle()
            else:
                own()


def _work() -> None:
    while True:
        try:
            task = _tasks.get(timeout=_IDLE)
        except Empty:
            # Else a task comes: this thread was counted on a moment ago.
            if _claim_idle():
                return
            continue
        task()
        del task  # it holds a body
        _idle.put(None)
