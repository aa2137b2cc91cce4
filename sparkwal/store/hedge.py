"""Hedging: a late request is sent a second time on another connection, and the first answer counts.

The method is that of "The Tail at Scale" (Dean and Barroso, 2013).
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
from sparkwal.store.threads import run_in_daemon

R = TypeVar("R")

# A request is late after a quantile of the newest durations of its kind, times a factor. The factor
# is larger while there are few durations.
_NEWEST = 256
_QUANTILE = 0.98
_FACTOR = 1.2
_FEW = 50
_FACTOR_OF_FEW = 2.4
# No request is late before so many seconds.
_FLOOR = 0.1
# Before `_ENOUGH` answers, a request is late after `_AT_FIRST` seconds and the time to transfer its
# bytes at `_AT_FIRST_RATE` bytes a second. The size of a GET is an upper bound.
_ENOUGH = 10
_AT_FIRST = 1.0
_AT_FIRST_RATE = 10e6
# Each request earns this share of a repeat, up to `_BURST` repeats in all. A request that is late
# for the first time must leave `_RESERVE` repeats for the stragglers, which are twice as late.
_SHARE = 0.02
_BURST = 4.0
_RESERVE = 1.0
# A request is given up after `_PATIENCE` times the seconds after which it is late, but not before
# `_LEAST` and not after `_MOST` seconds.
_PATIENCE = 10.0
_LEAST = 5.0
_MOST = 60.0


class Pace:
    """The recent durations of one store's requests, and the budget of repeats. It is thread-safe.

    A kind of requests is an operation and a size.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self._lock = threading.Lock()
        self._answers: dict[tuple[str, int], deque[float]] = {}
        self._late: dict[tuple[str, int], float] = {}
        self._earned = 1.0 + _RESERVE
        self._given_up = 0
        self._count = 0

    def begin(self, kind: tuple[str, int]) -> tuple[float, float]:
        """The seconds after which a request that begins now is late, and after which to give up."""
        with self._lock:
            self._earned = min(_BURST, self._earned + _SHARE)
            late = self._late.get(kind, _AT_FIRST + kind[1] / _AT_FIRST_RATE)
            # After requests that were given up be more patient: the store may be overloaded.
            patience = max(_LEAST, _PATIENCE * late) * 2 ** min(self._given_up, 4)
            return late, min(patience, max(_MOST, late))

    def may_repeat(self, *, is_straggler: bool) -> bool:
        """Spend a repeat on a late request, if the budget allows one."""
        with self._lock:
            if self._earned < (1 if is_straggler else 1 + _RESERVE):
                return False
            self._earned -= 1
            return True

    def answered(self, kind: tuple[str, int], seconds: float) -> None:
        """Note the duration of a request that was answered."""
        with self._lock:
            self._given_up = 0
            self._count += 1
            answers = self._answers.setdefault(kind, deque(maxlen=_NEWEST))
            answers.append(seconds)
            # Sorting takes 20 µs, so it happens at once for a slower answer only, and otherwise
            # once in 32 answers.
            count = len(answers)
            if count >= _ENOUGH and (
                count <= _FEW or seconds > self._late[kind] or self._count % 32 == 0
            ):
                slow = sorted(answers)[int(_QUANTILE * (count - 1))]
                factor = _FACTOR if count >= _FEW else _FACTOR_OF_FEW
                self._late[kind] = max(_FLOOR, factor * slow)

    def gave_up(self) -> None:
        """Note that a request was given up."""
        with self._lock:
            self._given_up += 1


# One Pace for each store that this process uses. A forked child starts with none, because a thread
# of the parent may hold the lock of one.
_paces: dict[str, Pace] = {}
os.register_at_fork(after_in_child=_paces.clear)


def pace_of(identity: str) -> Pace:
    """This process's Pace of the store with this identity."""
    return _paces.get(identity) or _paces.setdefault(identity, Pace())


class Request:
    """The timing of one request, which begins now and sends or receives at most `size` bytes.

    When the request is late, it is sent a second time if the budget allows that. Otherwise the
    budget is asked again at twice the time, and so on until the request is given up.

    Attributes:
        patience: the seconds after which the request is given up.
    """

    def __init__(self, pace: Pace, operation: str, key: str, size: int) -> None:
        self._pace = pace
        self._operation = operation
        self._key = key
        # Sizes within a factor of 4 are one kind, and all sizes below 64 KiB are one kind.
        self._kind = operation, 4 ** ((size.bit_length() + 1) // 2) if size >> 16 else 0
        self.restart(only=True)

    def restart(self, *, only: bool) -> None:
        """Start the timing of another attempt.

        Args:
            only: no earlier attempt can answer any more, so the duration counts from now.
        """
        self._sent = self._pace.clock()
        if only:
            self._began = self._sent
        self._late, self.patience = self._pace.begin(self._kind)
        self._until = self._late

    def seconds_left(self) -> float:
        """Seconds until the request is late, or until it is given up."""
        return max(0.0, self._sent + self._until - self._pace.clock())

    def may_repeat(self) -> bool:
        """Whether to send the request, which is late now, a second time.

        Raises:
            Transient: the request is given up.
        """
        late, self._until = self._until, min(2 * self._until, self.patience)
        if late == self.patience:
            self._pace.gave_up()
            raise Transient(f"no answer in {self.patience:.1f} s")
        if not self._pace.may_repeat(is_straggler=late > self._late):
            return False
        self._until = self.patience
        events.emit(events.Hedged(self._operation, self._key, after_ms=round(late * 1000)))
        return True

    def answered(self) -> None:
        """Note the duration of the request."""
        self._pace.answered(self._kind, self._pace.clock() - self._began)


class Call(Generic[R]):
    """A function that runs in another thread, while this thread waits for the result.

    If a `request` is given, the function sends that request, and runs a second time if the request
    is late.

    All attempts of a conditional PUT send the same bytes, so the success of any attempt means that
    this writer created the object. A refusal may be caused by another attempt, as after a lost
    reply, so the caller must read the object.
    """

    def __init__(self, function: Callable[[], R], request: Request | None = None) -> None:
        self._function = function
        self._request = request
        self._process = os.getpid()
        self._results: SimpleQueue[tuple[R | None, BaseException | None]] = SimpleQueue()
        self._open = 0
        self._send()

    def repeat(self) -> None:
        """Run the function again after `result` raised. An earlier attempt may still answer."""
        if self._request is not None:
            self._request.restart(only=not self._open)
        self._send()

    def _send(self) -> None:
        self._open += 1
        run_in_daemon(self._attempt)

    def _attempt(self) -> None:
        try:
            self._results.put((self._function(), None))
        except BaseException as error:
            self._results.put((None, error))

    def result(self) -> R:
        """Wait for the first success of an attempt, or for the failure of all.

        Raises:
            Transient: no attempt was answered in time.
        """
        request = self._request
        # A forked child lacks the threads that would deliver a result.
        if os.getpid() != self._process:
            return self._function()
        failures: list[BaseException] = []
        # After a failure, wait for the other attempts: one may succeed.
        while self._open:
            try:
                result, error = self._results.get(
                    timeout=request.seconds_left() if request else None
                )
            except Empty:
                if request is not None and not request.seconds_left() and request.may_repeat():
                    self._send()
                continue
            self._open -= 1
            if request is not None and (error is None or isinstance(error, NotFound)):
                request.answered()
            if error is None:
                return result  # type: ignore[return-value]
            if isinstance(error, NotFound):
                raise error
            failures.append(error)
        # Prefer the error of an attempt that may have taken effect: beside it, the refusal of
        # another attempt does not prove that the object was not written.
        unknown = (
            error for error in failures if isinstance(error, Transient) and not error.unreachable
        )
        raise next(unknown, failures[0])
