"""What appends become part of, and what their tickets wait for. Has no thread and no clock."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from dataclasses import dataclass

from sparkwal.appender.rows import Payload
from sparkwal.appender.workers import Callbacks
from sparkwal.errors import OptionError, SparkWalError

# Rejections kept for `flush` and `close` to tell; of more than that only the number.
_MOST_UNTOLD = 1000


@dataclass
class Failure:
    """Why an appender stopped, and whether its user has been told."""

    error: SparkWalError
    told: bool = False

    def tell(self, error: SparkWalError | None = None) -> SparkWalError:
        """A fresh error to raise: one object raised in many threads would mix their traces."""
        self.told = True
        return copy.copy(error or self.error).with_traceback(None)


class Rejections:
    """Appends that were rejected and whose user has not been told."""

    def __init__(self) -> None:
        self._untold: dict[int, OptionError] = {}
        self._more = 0

    def add(self, sequence: int, error: OptionError) -> None:
        if len(self._untold) < _MOST_UNTOLD:
            self._untold[sequence] = error
        else:
            self._more += 1

    def told(self, sequence: int) -> None:
        self._untold.pop(sequence, None)

    def tell(self) -> OptionError | None:
        """The error that tells of all of them, once."""
        untold, self._untold = self._untold, {}
        more, self._more = self._more, 0
        if not untold:
            return None
        first = min(untold)
        named = ", ".join(map(str, sorted(untold)[:5]))
        count = len(untold) + more
        return OptionError(
            f"{count} {'append was' if count == 1 else 'appends were'} rejected and not written, "
            f"and no ticket told it (sequence {named}{', …' if count > 5 else ''}); "
            f"{first}: {untold[first]}"
        )


class Latch:
    """Opens once. Waiting holds no lock: a signal's handler may come in between and wait too."""

    __slots__ = ("_gate", "is_open")

    def __init__(self) -> None:
        self.is_open = False
        self._gate = threading.Lock()
        self._gate.acquire()

    def open(self) -> None:
        """Once only."""
        self.is_open = True
        self._gate.release()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is open, at most `timeout` seconds; returns whether it is."""
        seconds = -1 if timeout is None else min(max(timeout, 0.0), threading.TIMEOUT_MAX)
        if not self.is_open and self._gate.acquire(timeout=seconds):
            self._gate.release()  # for the next that waits
        return self.is_open


class Batch:
    """Appends that become one commit record, and their one completion."""

    __slots__ = (
        "_caller", "_done", "_error", "_failure", "_position", "_rejections",
        "appends", "count", "first_held", "first_sequence", "held", "opened", "rejected", "room",
        "weight",
    )  # fmt: skip

    def __init__(
        self,
        first_sequence: int,
        first_held: int,
        opened: float,
        caller: Callbacks,
        rejections: Rejections,
    ) -> None:
        self.first_sequence = first_sequence
        self.first_held = first_held  # bytes of memory that all batches before it took
        self.opened = opened  # seconds, when its first append came
        self.weight = 0  # bytes in the record
        self.held = 0  # bytes of memory
        self.room = 0  # bytes of memory that it may come to hold, whatever is sent meanwhile
        self.appends: list[Payload] = []
        self.count: int | None = None  # appends that belong to it, once no more can come
        self.rejected: dict[int, OptionError] = {}
        self._rejections, self._caller = rejections, caller
        self._position = -1
        self._error: SparkWalError | None = None
        self._failure: Failure | None = None
        self._done = Latch()

    @property
    def next_sequence(self) -> int:
        """Of the append after its last one."""
        # In this order: what closes the batch in between may also take its appends away.
        added = len(self.appends)
        return self.first_sequence + (added if self.count is None else self.count)

    def close(self) -> None:
        """No more appends belong to it. May be interrupted by itself."""
        # In this order: what closes it in between may also take its appends away.
        added = len(self.appends)
        if self.count is None:
            self.count = added

    def reject(self, sequence: int, error: OptionError) -> None:
        """One append is not written; the others go on."""
        self.rejected[sequence] = error
        self._rejections.add(sequence, error)

    def complete(self, position: int) -> None:
        """Every append of the batch is durable at `position`, but the rejected ones."""
        self._position = position
        self._finish()

    def fail(self, error: SparkWalError, failure: Failure) -> None:
        """No append of the batch is known to be durable."""
        self._error, self._failure = error, failure
        self._finish()

    def _finish(self) -> None:
        self._done.open()
        # Not here: a callback may append, flush, close, or take its time.
        self._caller.wake()

    def when_done(self, sequence: int, callback: Callable[[], None]) -> None:
        """Call back once, in the order of the appends."""
        self._caller.check_process()
        self._caller.add(sequence, lambda: self._done.is_open, callback)

    def wait(self, timeout: float | None) -> bool:
        if not self._done.is_open:
            self._caller.check_process()
        return self._done.wait(timeout)

    def is_done(self) -> bool:
        if not self._done.is_open:
            self._caller.check_process()
        return self._done.is_open

    def outcome(self, sequence: int) -> int:
        """The position, once done. Raises what happened to this append."""
        if sequence in self.rejected:
            self._rejections.told(sequence)
            raise copy.copy(self.rejected[sequence]).with_traceback(None)
        if self._failure is not None:
            raise self._failure.tell(self._error)
        return self._position


class Ticket:
    """One append on its way.

    Attributes:
        sequence: of this append among all of its producer's: 0, 1, 2, …
    """

    __slots__ = ("_batch", "sequence")

    def __init__(self, batch: Batch, sequence: int) -> None:
        self._batch = batch
        self.sequence = sequence

    def __repr__(self) -> str:
        return f"Ticket(sequence={self.sequence})"

    def done(self) -> bool:
        """Whether `result` would return or raise at once."""
        return self._batch.is_done()

    def result(self, timeout: float | None = None) -> int:
        """The log's position that holds these rows, once they are durable.

        Args:
            timeout: seconds to wait, or None for as long as it takes.

        Raises:
            OptionError: these rows do not fit the schema; nothing of them was written,
                the appender goes on. Or this is a fork of the appender's process.
            OutcomeUnknownError, FencedError, InvalidLogError:
                the appender has stopped; open a new one, its `last_sequence` tells
                what is durable.
            TimeoutError: nothing is known yet.
        """
        if not self._batch.wait(timeout):
            raise TimeoutError(f"append {self.sequence} is not durable after {timeout} seconds")
        return self._batch.outcome(self.sequence)

    def when_done(self, callback: Callable[[], None]) -> None:
        """Call back once `result` is there, without arguments.

        From one thread of the appender, which calls in the order of the appends and
        nothing else: a callback may append, flush or close; a slow one delays the next.
        """
        self._batch.when_done(self.sequence, callback)
