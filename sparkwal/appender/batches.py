"""Batches of appends, the tickets that wait for them, and the thread that calls back."""

import copy
import logging
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from queue import SimpleQueue
from typing import Any, TypeAlias, TypeVar

import pyarrow as pa

from sparkwal.errors import OptionError, SparkWalError
from sparkwal.journal.safe_threading import Waiters

_logger = logging.getLogger("sparkwal")

T = TypeVar("T")
# What the appender keeps of an append until its batch is converted.
Payload: TypeAlias = pa.RecordBatch | list[dict[str, Any]]
# One checked append that nobody else changes: (payload, bytes in a record, bytes of memory until it
# is sent; about). A bare tuple: to make a named one takes as long as to add it to a batch.
CheckedRows: TypeAlias = tuple[Payload, int, int]

_DRAIN_SECONDS = 5.0  # how long closing waits for callbacks that do not return
# Rejections kept for `flush` and `close` to report. Further ones are only counted.
_MOST_UNREPORTED = 1000

# Asking the system for the process id takes longer than an append's lock.
_pid = os.getpid()


def _forked() -> None:
    global _pid
    _pid = os.getpid()


os.register_at_fork(after_in_child=_forked)


@dataclass
class Failure:
    """Why an appender stopped, and whether its user has seen the error."""

    error: SparkWalError
    reported: bool = False

    def report(self, error: SparkWalError | None = None) -> SparkWalError:
        """A copy of the error: one object raised in many threads would mix their traces."""
        self.reported = True
        return copy.copy(error or self.error).with_traceback(None)


class Rejections:
    """Appends that were rejected and whose user has not seen the error."""

    def __init__(self) -> None:
        self._unreported: dict[int, OptionError] = {}
        self._more = 0

    def add(self, sequence: int, error: OptionError) -> None:
        """Keep the error of a rejected append until a call raises it."""
        if len(self._unreported) < _MOST_UNREPORTED:
            self._unreported[sequence] = error
        else:
            self._more += 1

    def remove(self, sequence: int) -> None:
        """Forget a rejection that a ticket has raised."""
        self._unreported.pop(sequence, None)

    def raise_rest(self) -> None:
        """Raise one error for all rejections that were not reported."""
        rest, self._unreported = self._unreported, {}
        count, self._more = len(rest) + self._more, 0
        if rest:
            first = min(rest)
            named = ", ".join(map(str, sorted(rest)[:5]))
            raise OptionError(
                f"{count} {'append was' if count == 1 else 'appends were'} rejected and not "
                f"written, and no ticket reported it (sequence {named}"
                f"{', …' if count > 5 else ''}); {first}: {rest[first]}"
            )


class Callbacks:
    """Runs the tickets' callbacks one after another, in a separate thread, without a lock.

    The waiting callback with the lowest sequence runs first.
    """

    INTERRUPTED = (
        "a signal's handler interrupted a call of this appender, and uses it: set a flag in the "
        "handler, and close the appender after that call"
    )

    def __init__(self) -> None:
        self._pid = _pid
        # The intake's lock. It knows its owner, so that `enter` can refuse a signal handler.
        self.lock = threading.RLock()
        self._inside: set[int] = set()  # threads in the middle of a call
        # A heap of (sequence, number, is done, callback). Push and pop are one instruction each.
        self._waiting: list[tuple[int, int, Callable[[], bool], Callable[[], None]]] = []
        self._numbers = count()
        # Another `put` of the same thread may interrupt `put` anywhere.
        self._wakes: SimpleQueue[bool] = SimpleQueue()
        self._ended = False
        self._thread = threading.Thread(target=self._run, name="sparkwal-callbacks", daemon=True)
        self._thread.start()

    def add(self, sequence: int, is_done: Callable[[], bool], callback: Callable[[], None]) -> None:
        """Call back once the append of this sequence is done and `wake` is called after that."""
        heappush(self._waiting, (sequence, next(self._numbers), is_done, callback))
        # The thread that completes it calls `wake` afterwards: one of the two sees the other.
        if is_done():
            self.wake()

    def wake(self) -> None:
        """Call when appends are done."""
        if self._waiting:
            self._wakes.put(True)
            if self._ended:
                self._run_done()

    def _run(self) -> None:
        while self._wakes.get():
            self._run_done()
        self._ended = True
        self._run_done()

    def _run_done(self) -> None:
        with suppress(IndexError):  # none is left: after the end two threads may look
            while self._waiting[0][2]():
                first = heappop(self._waiting)
                if not first[2]():  # a lower one came in between
                    heappush(self._waiting, first)
                    continue
                try:
                    first[3]()
                except BaseException:  # sys.exit() would end only this thread
                    _logger.exception("a callback of an append failed")

    def stop(self) -> None:
        """Run the callbacks of done appends, but do not wait forever for one that hangs."""
        self._wakes.put(False)
        # A callback may close the appender.
        if threading.get_ident() != self._thread.ident:
            self._thread.join(_DRAIN_SECONDS)

    def enter(self, call: Callable[..., T], *arguments: object) -> T:
        """Run one call of a user's thread.

        Raises:
            OptionError: this process is a fork, or a signal handler interrupted another call: it
                would wait forever for that call's locks.
        """
        self.check_process()
        me = threading.get_ident()
        if me in self._inside or self.lock._is_owned():  # type: ignore[attr-defined]
            raise OptionError(self.INTERRUPTED)
        try:  # first: a handler may raise anywhere
            self._inside.add(me)
            return call(*arguments)
        finally:
            self._inside.discard(me)

    def check_process(self) -> None:
        """Check that this process has the appender's threads.

        Raises:
            OptionError: this process is a fork, which has none of them.
        """
        if self._pid != _pid:
            raise OptionError(
                f"this appender was opened by process {self._pid}, and this is its fork {_pid}, "
                "which has none of its threads: open an appender in each process that appends"
            )


@dataclass(slots=True, eq=False)
class Batch:
    """Appends that become one commit record and complete together."""

    first_sequence: int
    first_held: int  # bytes of memory of all batches before it
    opened: float  # seconds, when its first append came
    caller: Callbacks
    _rejections: Rejections
    weight: int = 0  # bytes in the record
    held: int = 0  # bytes of memory
    room: int = 0  # bytes of memory that it may grow to
    appends: list[Payload] = field(default_factory=list)
    count: int | None = None  # appends that belong to it, once no more can come
    rejected: dict[int, OptionError] = field(default_factory=dict)
    _position: int = -1
    _error: SparkWalError | None = None
    _failure: Failure | None = None
    _is_done: bool = False
    _waiters: Waiters = field(default_factory=Waiters)

    @property
    def next_sequence(self) -> int:
        """The sequence of the append after this batch."""
        # Keep this order: another thread may close and empty the batch between these steps.
        added = len(self.appends)
        return self.first_sequence + (added if self.count is None else self.count)

    def close(self) -> None:
        """Accept no more appends into this batch."""
        if self.count is None:
            self.count = len(self.appends)

    def reject(self, sequence: int, error: OptionError) -> None:
        """Leave one append out; the others are written."""
        self.rejected[sequence] = error
        self._rejections.add(sequence, error)

    def complete(self, position: int) -> None:
        """Mark all appends but the rejected ones as durable at `position`."""
        self._position = position
        self._finish()

    def fail(self, error: SparkWalError, failure: Failure) -> None:
        """Mark all appends as failed: each may be durable or not."""
        self._error, self._failure = error, failure
        self._finish()

    def _finish(self) -> None:
        with self._waiters:
            self._is_done = True
        # Do not call back here: a callback may append, flush, close, or take its time.
        self.caller.wake()

    def is_done(self) -> bool:
        """Whether the outcome of the batch is known."""
        if not self._is_done:
            self.caller.check_process()
        return self._is_done

    def wait(self, timeout: float | None) -> bool:
        """Wait for the outcome without a lock, so that a signal handler may close the appender."""
        return self.is_done() or self._waiters.wait(lambda: self._is_done, timeout)

    def outcome(self, sequence: int) -> int:
        """The position of a batch that is done.

        Raises:
            SparkWalError: the error of this append.
        """
        if sequence in self.rejected:
            self._rejections.remove(sequence)
            raise copy.copy(self.rejected[sequence]).with_traceback(None)
        if self._failure is not None:
            raise self._failure.report(self._error)
        return self._position


class Ticket:
    """One append on its way to the log.

    Attributes:
        sequence: the number of this append among those of its producer: 0, 1, 2, …
    """

    __slots__ = ("_batch", "sequence")

    def __init__(self, batch: Batch, sequence: int) -> None:
        self._batch = batch
        self.sequence = sequence

    def __repr__(self) -> str:
        return f"Ticket(sequence={self.sequence})"

    def done(self) -> bool:
        """Check whether the outcome of this append is known.

        Returns:
            True if `result` would return or raise at once.

        Raises:
            OptionError: this process is a fork of the appender's.
        """
        return self._batch.is_done()

    def result(self, timeout: float | None = None) -> int:
        """Wait until these rows are durable.

        Args:
            timeout: seconds to wait, or None for no limit.

        Returns:
            The log's position that holds the rows.

        Raises:
            OptionError: the rows were rejected: a value does not fit the schema. The log
                has none of these rows, and the appender continues. Or this process is a fork of the
                appender's.
            FencedError: another writer leads the log, so the appender has stopped. Open a new one;
                its `last_sequence` shows what is durable.
            OutcomeUnknownError: a request got no answer, so the appender has stopped.
            StoreUnavailableError: the store did not answer, so the appender has stopped.
            InvalidLogError: the log is damaged, so the appender has stopped.
            TimeoutError: the outcome is not known yet.
        """
        if not self._batch.wait(timeout):
            raise TimeoutError(f"append {self.sequence} is not durable after {timeout} seconds")
        return self._batch.outcome(self.sequence)

    def when_done(self, callback: Callable[[], None]) -> None:
        """Call a function when the outcome of this append is known.

        One thread of the appender makes all these calls, in the order of the appends. A callback
        may append, flush or close; a slow one delays the next.

        Args:
            callback: called without arguments.

        Raises:
            OptionError: this process is a fork of the appender's.
        """
        self._batch.caller.check_process()
        self._batch.caller.add(self.sequence, self.done, callback)
