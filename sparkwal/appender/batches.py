"""When a batch closes, and what its appends wait for. No thread and no clock of its own."""

from __future__ import annotations

import copy
import logging
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from sparkwal.appender.rows import Payload
from sparkwal.errors import OptionError, SparkWalError

_logger = logging.getLogger("sparkwal")


@dataclass
class Failure:
    """Why an appender stopped, and whether its user has been told."""

    error: SparkWalError
    told: bool = False

    def tell(self, error: SparkWalError | None = None) -> SparkWalError:
        """A fresh error to raise: one object raised in many threads would mix their traces."""
        self.told = True
        return copy.copy(error or self.error).with_traceback(None)


class Batch:
    """Appends that become one commit record, and their one completion."""

    __slots__ = (
        "_callbacks", "_done", "_error", "_failure", "_lock", "_position",
        "appends", "first_sequence", "opened", "rejected", "weight",
    )  # fmt: skip

    def __init__(self, first_sequence: int, opened: float) -> None:
        self.first_sequence = first_sequence
        self.opened = opened  # seconds, when its first append came
        self.weight = 0
        self.appends: list[Payload] = []
        self.rejected: dict[int, OptionError] = {}
        self._position = -1
        self._error: SparkWalError | None = None
        self._failure: Failure | None = None
        self._done = threading.Event()
        self._lock = threading.Lock()
        self._callbacks: list[Callable[[], None]] = []

    def complete(self, position: int) -> None:
        """Every append of the batch is durable at `position`, but the rejected ones."""
        self._position = position
        self._finish()

    def fail(self, error: SparkWalError, failure: Failure) -> None:
        """No append of the batch is known to be durable."""
        self._error, self._failure = error, failure
        self._finish()

    def _finish(self) -> None:
        with self._lock:
            self._done.set()
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            try:
                callback()
            except Exception:
                # It must not keep what stands behind it from being acknowledged.
                _logger.exception("a callback of an append failed")

    def when_done(self, callback: Callable[[], None]) -> None:
        """Call back once, in order of completion; at once if it is done already."""
        with self._lock:
            if not self._done.is_set():
                self._callbacks.append(callback)
                return
        callback()

    def wait(self, timeout: float | None) -> bool:
        return self._done.wait(timeout)

    def is_done(self) -> bool:
        return self._done.is_set()

    def outcome(self, sequence: int) -> int:
        """The position, once done. Raises what happened to this append."""
        if sequence in self.rejected:
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

    def done(self) -> bool:
        """Whether `result` would return or raise at once."""
        return self._batch.is_done()

    def result(self, timeout: float | None = None) -> int:
        """The log's position that holds these rows, once they are durable.

        Args:
            timeout: seconds to wait, or None for as long as it takes.

        Raises:
            OptionError: these rows do not fit the schema; nothing of them was written,
                the appender goes on.
            OutcomeUnknownError, FencedError, InvalidLogError:
                the appender has stopped; open a new one, its `last_sequence` tells
                what is durable.
            TimeoutError: nothing is known yet.
        """
        if not self._batch.wait(timeout):
            raise TimeoutError(f"append {self.sequence} is not durable after {timeout} seconds")
        return self._batch.outcome(self.sequence)

    def when_done(self, callback: Callable[[], None]) -> None:
        """Call back from the appender's thread once `result` is there. It must not block."""
        self._batch.when_done(callback)


class Buffer:
    """Accepted appends that have not been sent, cut into batches.

    A batch closes when it reaches `size` bytes, the append that crosses included, or
    `timeout` seconds after its first append; while nothing is in flight at once.
    """

    def __init__(self, size: int, timeout: float, capacity: int, next_sequence: int) -> None:
        self._size, self._timeout, self._capacity = size, timeout, capacity
        self._closed: deque[Batch] = deque()
        self._open: Batch | None = None
        self.newest: Batch | None = None  # the last that was begun; it is done last
        self.next_sequence = next_sequence
        self.weight = 0

    def has_room(self, weight: int) -> bool:
        """Whether `weight` more bytes may come. Anything may when nothing waits."""
        return not self.weight or self.weight + weight <= self._capacity

    def add(self, payload: Payload, weight: int, now: float) -> tuple[Ticket, bool]:
        """The append's ticket, and whether the next `due` may have changed."""
        batch = self._open
        begins = batch is None
        if batch is None:
            batch = self._open = self.newest = Batch(self.next_sequence, now)
        batch.appends.append(payload)
        batch.weight += weight
        self.weight += weight
        ticket = Ticket(batch, self.next_sequence)
        self.next_sequence += 1
        closes = batch.weight >= self._size
        if closes:
            self.close_batch()
        return ticket, begins or closes

    @property
    def waits(self) -> bool:
        """Whether anything waits to be sent."""
        return bool(self._closed) or self._open is not None

    def close_batch(self) -> None:
        """What has come goes as soon as it can."""
        if self._open is not None:
            self._closed.append(self._open)
            self._open = None

    def due(self, now: float, *, idle: bool) -> float | None:
        """Seconds until a batch is to be sent, at most 0 for now; None: there is none."""
        if self._closed:
            return 0.0
        if self._open is None:
            return None
        return 0.0 if idle else self._open.opened + self._timeout - now

    def take(self) -> Batch:
        """The oldest batch. Only while one is due."""
        if not self._closed:
            self.close_batch()
        # Safety (§7): "batches are sent newest first"
        batch = self._closed.popleft()
        self.weight -= batch.weight
        return batch

    def take_all(self) -> list[Batch]:
        """Everything that waits, in order."""
        self.close_batch()
        batches = list(self._closed)
        self._closed.clear()
        self.weight = 0
        return batches
