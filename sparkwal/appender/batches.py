"""Batches of appends, the tickets that wait for them, and the thread that runs callbacks."""

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
from sparkwal.store.threads import start_daemon

_logger = logging.getLogger("sparkwal")

T = TypeVar("T")
# The rows of an append until its batch is converted.
Payload: TypeAlias = pa.RecordBatch | list[dict[str, Any]]
# One checked append, which no other code changes: (payload, bytes in a record, about the bytes of
# memory until it is sent). A bare tuple: creating a named one takes as long as adding the append.
CheckedRows: TypeAlias = tuple[Payload, int, int]

# Closing waits this long for a callback that hangs.
_DRAIN_SECONDS = 5.0
# The limit of rejections whose errors `flush` and `close` can raise. Further ones are counted.
_MAX_UNREPORTED = 1000

# Reading the process id from the system takes longer than an append's lock.
_pid = os.getpid()


def _forked() -> None:
    global _pid
    _pid = os.getpid()


os.register_at_fork(after_in_child=_forked)


@dataclass
class Failure:
    """The error that stopped an appender, and whether its user has seen it."""

    error: SparkWalError
    reported: bool = False

    def report(self, error: SparkWalError | None = None) -> SparkWalError:
        """A copy of the error. If many threads raised one object, their tracebacks would mix."""
        self.reported = True
        return copy.copy(error or self.error).with_traceback(None)


class Rejections:
    """The rejected appends whose error the user has not seen."""

    def __init__(self) -> None:
        self._unreported: dict[int, OptionError] = {}
        self._more = 0

    def add(self, sequence: int, error: OptionError) -> None:
        """Store the error of a rejected append until a call raises it."""
        if len(self._unreported) < _MAX_UNREPORTED:
            self._unreported[sequence] = error
        else:
            self._more += 1

    def remove(self, sequence: int) -> None:
        """Forget a rejection that a ticket has raised."""
        self._unreported.pop(sequence, None)

    def raise_unreported(self) -> None:
        """Raise one error for all rejections that were not reported."""
        unreported, self._unreported = self._unreported, {}
        count, self._more = len(unreported) + self._more, 0
        if unreported:
            first = min(unreported)
            named = ", ".join(map(str, sorted(unreported)[:5]))
            raise OptionError(
                f"{count} {'append was' if count == 1 else 'appends were'} rejected and not "
                f"written, and no ticket reported it (sequence {named}"
                f"{', …' if count > 5 else ''}); {first}: {unreported[first]}"
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
        # The intake's lock. An RLock stores its owner, so `enter` can refuse a signal handler.
        self.lock = threading.RLock()
        # The threads that are inside a call.
        self._inside: set[int] = set()
        # A heap of (sequence, number, is done, callback). One bytecode instruction pushes or pops.
        self._waiting: list[tuple[int, int, Callable[[], bool], Callable[[], None]]] = []
        self._numbers = count()
        # Another `put` of the same thread may interrupt `put` anywhere.
        self._wakes: SimpleQueue[bool] = SimpleQueue()
        self._ended = False
        self._thread = start_daemon(self._run, "callbacks")

    def add(self, sequence: int, is_done: Callable[[], bool], callback: Callable[[], None]) -> None:
        """Run the callback after the append of this sequence is done and `wake` is called."""
        heappush(self._waiting, (sequence, next(self._numbers), is_done, callback))
        # The thread that completes the append calls `wake` after that, so one of the two threads
        # sees both the callback and the outcome.
        if is_done():
            self.wake()

    def wake(self) -> None:
        """Run the callbacks of done appends. Call it when appends are done."""
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
        # After the end two threads may pop at once: one of them finds the heap empty.
        with suppress(IndexError):
            while self._waiting[0][2]():
                first = heappop(self._waiting)
                # Another thread may have pushed a lower sequence meanwhile.
                if not first[2]():
                    heappush(self._waiting, first)
                    continue
                try:
                    first[3]()
                # Catch SystemExit too: sys.exit() would end only this thread.
                except BaseException:
                    _logger.exception("a callback of an append failed")

    def stop(self) -> None:
        """Run the callbacks of done appends, but do not wait for ever for one that hangs."""
        self._wakes.put(False)
        # A callback may close the appender.
        if threading.get_ident() != self._thread.ident:
            self._thread.join(_DRAIN_SECONDS)

    def enter(self, call: Callable[..., T], *arguments: object) -> T:
        """Run one call of a user's thread.

        Raises:
            OptionError: this process is a fork, or a signal handler interrupted another call and
                would wait for ever for that call's locks.
        """
        self.check_process()
        thread_id = threading.get_ident()
        if thread_id in self._inside or self.lock._is_owned():  # type: ignore[attr-defined]
            raise OptionError(self.INTERRUPTED)
        # Begin the block before `add`: a signal handler may raise at any instruction.
        try:
            self._inside.add(thread_id)
            return call(*arguments)
        finally:
            self._inside.discard(thread_id)

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
class AppendBatch:
    """Appends that become one commit record and complete together.

    Attributes:
        first_sequence: the sequence of its first append.
        memory_before: the bytes of memory of all earlier batches.
        opened: the time of its first append, in seconds.
        caller: runs the callbacks.
        weight: its bytes in the record.
        memory: its bytes of memory.
        memory_limit: the bytes of memory that it may grow to.
        appends: the rows, until they are converted.
        count: the number of its appends, once it is closed; None before.
        rejected: the errors of rejected appends, by sequence.
    """

    first_sequence: int
    memory_before: int
    opened: float
    caller: Callbacks
    _rejections: Rejections
    weight: int = 0
    memory: int = 0
    memory_limit: int = 0
    appends: list[Payload] = field(default_factory=list)
    count: int | None = None
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
        """Leave one append out of the record."""
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
        # Run no callback here: it may append, flush, close, or take long.
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

    def __init__(self, batch: AppendBatch, sequence: int) -> None:
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
