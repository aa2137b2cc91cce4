"""Where appends come in: accepted one after another, each with its sequence, until it is full.

    open ⇄ full (`refuse`)      no room in the log
    open, full → closing (`close`) → ended (`end`)
    open, full, closing → stopped (`stop`) → ended

Open, it accepts; full, it makes appends wait. What was accepted is sent but when it has stopped.
"""

from __future__ import annotations

import threading
import time
from collections import deque

from sparkwal.appender.batches import (
    INTERRUPTED,
    Batch,
    Callbacks,
    CheckedRows,
    Failure,
    Rejections,
    Ticket,
)
from sparkwal.errors import BackPressureError, OptionError, SparkWalError
from sparkwal.protocol.pipeline import Pipeline


class Buffer:
    """Accepted appends that have not been sent, cut into batches. Has no thread and no clock.

    A batch closes when it reaches `size` bytes, the append that crosses included, or
    `timeout` seconds after its first append; while nothing is in flight at once.

    Args:
        capacity: bytes of memory that may be held, what it costs to keep each append
            included: of small ones it is most.
    """

    def __init__(
        self, size: int, timeout: float, capacity: int, next_sequence: int, caller: Callbacks
    ) -> None:
        self._size, self._timeout, self._capacity = size, timeout, capacity
        self._caller, self.rejections = caller, Rejections()
        self._waiting: deque[Batch] = deque()  # in order; the last one may be open
        self._taken: Batch | None = None  # the last that does not wait any more
        self._first_sequence = next_sequence

    # Derived from what the batches hold: there is nothing to keep in step with it.

    @property
    def newest(self) -> Batch | None:
        """The last batch that was begun; it is done last."""
        try:  # it may be taken between a look and an access
            return self._waiting[-1]
        except IndexError:
            return self._taken

    @property
    def next_sequence(self) -> int:
        """Of the next append."""
        newest = self.newest
        return self._first_sequence if newest is None else newest.next_sequence

    @property
    def held(self) -> int:
        """Bytes of memory that wait."""
        try:
            oldest, newest = self._waiting[0], self._waiting[-1]
        except IndexError:
            return 0
        return newest.first_held + newest.held - oldest.first_held

    def has_room(self, held: int) -> bool:
        """Whether `held` more bytes may come. Anything may when nothing waits."""
        waits = self.held
        return not waits or waits + held <= self._capacity

    def makes_due(self, size: int) -> bool:
        """Whether adding so much may change the next `due`: it begins a batch, or closes one."""
        batch = self.newest
        return batch is None or batch.count is not None or batch.weight + size >= self._size

    def add_to_open(self, rows: CheckedRows) -> Ticket | None:
        """The ticket of an append that the open batch takes and that changes no `due`.

        None, and nothing is added, where that is not certain. It is `has_room`, `makes_due` and
        `add` in one, because nearly every small append comes here and goes no further.
        """
        if not self._waiting:
            return None
        batch = self._waiting[-1]
        payload, size, held = rows
        size += batch.weight
        held += batch.held
        if batch.count is not None or size >= self._size or held > batch.room:
            return None
        # In the order of `add`, for its reasons.
        ticket = Ticket(batch, batch.first_sequence + len(batch.appends))
        batch.weight, batch.held = size, held
        batch.appends.append(payload)
        return ticket

    def add(self, rows: CheckedRows, now: float) -> Ticket:
        """The append's ticket. A signal's handler may raise between any two of these steps."""
        payload, size, held = rows
        batch = self.newest
        if batch is None or batch.count is not None:
            before = 0 if batch is None else batch.first_held + batch.held
            batch = Batch(self.next_sequence, before, now, self._caller, self.rejections)
            self._waiting.append(batch)
        # What waits before it becomes less, never more.
        batch.room = self._capacity - (self.held - batch.held)
        ticket = Ticket(batch, batch.next_sequence)
        # First: what is added is counted. A handler that raises here leaves a few bytes too
        # many, until the batch is sent.
        batch.weight += size
        batch.held += held
        # The one step that adds it. Of an append that is not in, no sequence may be used up:
        # the log could not distinguish it from a durable one.
        batch.appends.append(payload)
        if batch.weight >= self._size:
            batch.close()
        return ticket

    @property
    def waits(self) -> bool:
        """Whether anything waits to be sent."""
        return bool(self._waiting)

    def close_batch(self) -> None:
        """Send what has come as soon as there is room."""
        newest = self.newest
        if newest is not None:
            newest.close()

    def due(self, now: float, *, idle: bool) -> float | None:
        """Seconds until a batch is to be sent, at most 0 for now; None: there is none."""
        if not self._waiting:
            return None
        oldest = self._waiting[0]
        if idle or oldest.count is not None:
            return 0.0
        return oldest.opened + self._timeout - now

    def take(self) -> Batch:
        """The oldest batch. Only while one is due."""
        self._taken = self._waiting[0]
        # SAFETY(fifo-batches) §7: batches are sent in the order in which they were closed
        batch = self._waiting.popleft()
        batch.close()
        return batch

    def take_all(self) -> list[Batch]:
        """Everything that waits, in order."""
        self.close_batch()
        batches = list(self._waiting)
        self._taken = self.newest
        self._waiting.clear()
        return batches


class Intake:
    """The buffer, the threads that add to it and those that wait for it.

    Attributes:
        failure: why the appender stopped, or None.
        last_sequence: the newest durable sequence.
    """

    def __init__(self, buffer: Buffer, callbacks: Callbacks) -> None:
        self.buffer, self.callbacks = buffer, callbacks
        self._lock = callbacks.lock
        self._changed = threading.Condition(self._lock)
        self._room = threading.Condition(self._lock)
        self._over = threading.Condition(self._lock)
        self.failure: Failure | None = None
        self.last_sequence = buffer.next_sequence - 1
        self._closing = self._ended = False
        self._full: str | None = None  # why the log takes no more for now
        self._refused = 1  # bytes that an append did not find room for

    @property
    def is_full(self) -> bool:
        """Whether the log takes no more for now."""
        return self._full is not None

    @property
    def unacknowledged(self) -> int:
        """Appends that are accepted and not known to be durable."""
        return self.buffer.next_sequence - 1 - self.last_sequence

    def append(self, rows: CheckedRows, block: bool) -> Ticket:
        """Accept an append. Raises BackPressureError, or why the appender stopped."""
        self.callbacks.check_process()
        # Not by `enter`, which takes longer than the rest.
        if self._lock._is_owned():  # type: ignore[attr-defined]
            raise OptionError(INTERRUPTED)
        with self._lock:
            if self.failure is not None or self._closing:
                self._check_open()
            if self._full is not None:
                self._make_room(rows[2], block)
            ticket = self.buffer.add_to_open(rows)
            if ticket is not None:
                return ticket
            self._make_room(rows[2], block)
            # Before it is in: were a signal's handler to raise in between, nothing would send it.
            if self.buffer.makes_due(rows[1]):
                self._changed.notify()
            return self.buffer.add(rows, time.monotonic())

    def _make_room(self, held: int, block: bool) -> None:
        """Wait until so many bytes of memory may be added. Raises BackPressureError."""
        while self._full is not None or not self.buffer.has_room(held):
            # Its batch may be far from closing by size: small rows take more memory than they
            # do in the record.
            self._close_batch()
            if not block:
                self._refused = held
                raise BackPressureError(
                    self._full
                    or f"{self.buffer.held} bytes wait to be sent already "
                    "(maxBufferedBytes): nothing was accepted, try again later"
                )
            self._room.wait()
            self._check_open()

    def _check_open(self) -> None:
        if self.failure is not None:
            raise self.failure.report()
        if self._closing:
            raise OptionError("this appender is closed; open a new one")

    def _close_batch(self) -> None:
        self.buffer.close_batch()
        self._changed.notify()

    def wait_room(self, timeout: float) -> None:
        """Until what was refused may be accepted, or the appender stops."""

        def may_go_on() -> bool:
            stopped = self.failure is not None or self._closing
            return stopped or (self._full is None and self.buffer.has_room(self._refused))

        with self._lock:
            self._room.wait_for(may_go_on, timeout)

    def flush(self, timeout: float | None) -> None:
        """Send what was accepted at once, and wait until all of it is decided.

        Raises TimeoutError, why the appender stopped, and which appends were rejected.
        """
        with self._lock:
            self._close_batch()
            newest = None if self._ended else self.buffer.newest
        if newest is not None and not newest.wait(timeout):
            raise TimeoutError(f"not everything is durable after {timeout} seconds")
        if self.failure is not None:
            raise self.failure.report()
        self._raise_rejections()

    def close(self, timeout: float | None) -> None:
        """Accept nothing more and wait until all is decided. Raises TimeoutError."""
        with self._lock:
            self._closing = True
            self._close_batch()
            self._room.notify_all()
            if not self._over.wait_for(lambda: self._ended, timeout):
                raise TimeoutError(
                    f"not everything is durable after {timeout} seconds; it is still being "
                    "sent: call close again to wait for it"
                )

    def raise_rest(self) -> None:
        """Raise what nothing has raised yet."""
        if self.failure is not None and not self.failure.reported:
            raise self.failure.report()
        self._raise_rejections()

    def _raise_rejections(self) -> None:
        rejected = self.buffer.rejections.report()
        if rejected is not None:
            raise rejected

    # For the threads that send.

    def next(self, pipeline: Pipeline) -> Batch | None:
        """The next batch when it is due and there is room for it; None at the end."""
        with self._lock:
            while self.failure is None:
                wait: float | None = None
                if pipeline.has_room():
                    idle = pipeline.in_flight == 0
                    wait = self.buffer.due(time.monotonic(), idle=idle)
                    if wait is not None and wait <= 0:
                        batch = self.buffer.take()
                        self._room.notify_all()
                        return batch
                if self._closing and not self.buffer.waits:
                    break
                self._changed.wait(wait)
            return None

    def refuse(self, reason: str | None) -> None:
        """Accept nothing more, for this reason, until it is called with None. What was accepted
        is sent."""
        with self._lock:
            self._full = reason
            if reason is None:
                self._room.notify_all()

    def wake(self) -> None:
        """There may be room in the pipeline."""
        with self._lock:
            self._changed.notify()

    def stop(self, error: SparkWalError) -> bool:
        """Accept nothing more; False if it has stopped before."""
        with self._lock:
            first = self.failure is None
            self.failure = self.failure or Failure(error)
            self._changed.notify_all()
            self._room.notify_all()
        return first

    def take_all(self) -> list[Batch]:
        """What will not be sent any more."""
        with self._lock:
            return self.buffer.take_all()

    def end(self) -> None:
        """All is decided."""
        with self._lock:
            self._ended = True
            self._over.notify_all()
