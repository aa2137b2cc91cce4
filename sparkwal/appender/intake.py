"""Accepts appends in order and gives each its sequence, until the buffer is full.

    open ⇄ full (`refuse`)      the log has no room
    open, full → closing (`close`) → ended (`end`)
    open, full, closing → stopped (`stop`) → ended

An open intake accepts; a full one makes appends wait. Accepted rows are sent unless the intake
stops.
"""

import time
from collections import deque
from functools import partial

from sparkwal.appender.batches import (
    AppendBatch,
    Callbacks,
    CheckedRows,
    Failure,
    Rejections,
    Ticket,
)
from sparkwal.errors import BackPressureError, OptionError, SparkWalError
from sparkwal.journal.safe_threading import Flag, Waiters
from sparkwal.options.writing import AppenderOptions
from sparkwal.protocol.pipeline import Pipeline


class Intake:
    """Accepted appends that have not been sent, in batches, and the threads that wait for them.

    A batch closes when it reaches batchSizeThreshold, including the append that crosses;
    batchTimeoutMs after its first append; or at once while no record is in flight. maxBufferedBytes
    limits the memory, with the overhead of each append, which is most of a small one.

    Args:
        settings: the appender's options.
        first: the sequence of the first append.
        callbacks: runs the callbacks of tickets.
    """

    def __init__(self, settings: AppenderOptions, first: int, callbacks: Callbacks) -> None:
        self._size = settings.batch_size
        self._capacity = settings.max_buffered
        self._timeout = settings.batch_timeout_ms / 1000
        self.callbacks = callbacks
        self._rejections = Rejections()
        # In order. The last batch may be open.
        self._waiting: deque[AppendBatch] = deque()
        # The last batch that `take` returned.
        self._taken: AppendBatch | None = None
        self._lock = callbacks.lock
        # The sending thread has something to do.
        self._wake = Flag()
        self._room = Waiters()
        self._over = Waiters()
        self.failure: Failure | None = None
        self._first = first
        self.last_sequence = first - 1
        self._closing = self._ended = False
        # The reason why appends must wait, or None.
        self.full: str | None = None
        # The bytes of memory that the last refused append needs.
        self._refused = 1

    @property
    def newest(self) -> AppendBatch | None:
        """The batch that was opened last, and completes last."""
        # Another thread may take the last batch meanwhile.
        try:
            return self._waiting[-1]
        except IndexError:
            return self._taken

    @property
    def next_sequence(self) -> int:
        newest = self.newest
        return self._first if newest is None else newest.next_sequence

    @property
    def unacknowledged(self) -> int:
        return self.next_sequence - 1 - self.last_sequence

    @property
    def memory(self) -> int:
        """The bytes of memory of the waiting batches."""
        try:
            oldest, newest = self._waiting[0], self._waiting[-1]
        except IndexError:
            return 0
        return newest.memory_before + newest.memory - oldest.memory_before

    def has_room(self, memory: int) -> bool:
        used = self.memory
        return not used or used + memory <= self._capacity

    def append(self, rows: CheckedRows, *, block: bool) -> Ticket:
        """Accept an append.

        Raises:
            BackPressureError: with `block=False`: append again later.
            OptionError: the intake is closed, or a signal handler interrupted another call.
            SparkWalError: the error that stopped the appender.
        """
        self.callbacks.check_process()
        # Do not use `enter`, which takes longer than all other steps together.
        if self._lock._is_owned():  # type: ignore[attr-defined]
            raise OptionError(self.callbacks.INTERRUPTED)
        while True:
            with self._lock:
                if self.failure is not None or self._closing:
                    self._check_open()
                if self.full is None:
                    ticket = self.add_to_open(rows)
                    if ticket is not None:
                        return ticket
                    if self.has_room(rows[2]):
                        # Wake the sender first: if a signal handler raised between the two, no
                        # thread would send the append.
                        self._wake.set()
                        return self.add(rows, time.monotonic())
                # Small rows take more memory than in a record, so the open batch may be far from
                # its size.
                self.close_batch()
                if not block:
                    self._refused = rows[2]
                    raise self._no_room()
            self._room.wait(partial(self._may_append, rows[2]))

    def add_to_open(self, rows: CheckedRows) -> Ticket | None:
        """Add an append to the open batch. Nearly every small append needs only this step.

        It combines `has_room` and `add`. It returns None and adds nothing if the append may change
        the next `due`.
        """
        if not self._waiting:
            return None
        batch = self._waiting[-1]
        payload, size, memory = rows
        size += batch.weight
        memory += batch.memory
        if batch.count is not None or size >= self._size or memory > batch.memory_limit:
            return None
        # Keep the order of `add`.
        ticket = Ticket(batch, batch.first_sequence + len(batch.appends))
        batch.weight, batch.memory = size, memory
        batch.appends.append(payload)
        return ticket

    def add(self, rows: CheckedRows, now: float) -> Ticket:
        """Add an append. A signal handler may raise between any two of these steps."""
        payload, size, memory = rows
        batch = self.newest
        if batch is None or batch.count is not None:
            before = 0 if batch is None else batch.memory_before + batch.memory
            batch = AppendBatch(self.next_sequence, before, now, self.callbacks, self._rejections)
            self._waiting.append(batch)
        # The memory of the batches before this one only shrinks.
        batch.memory_limit = self._capacity - (self.memory - batch.memory)
        ticket = Ticket(batch, batch.next_sequence)
        # Count the bytes first. If a handler raises here, they count until the batch is sent.
        batch.weight += size
        batch.memory += memory
        # Add the append last: one that is not added must not use up a sequence.
        batch.appends.append(payload)
        if batch.weight >= self._size:
            batch.close()
        return ticket

    def _no_room(self) -> BackPressureError:
        return BackPressureError(
            self.full
            or f"{self.memory} bytes wait to be sent already (maxBufferedBytes): this append was "
            "not accepted, try again later"
        )

    def _may_append(self, memory: int) -> bool:
        """Whether there is room for these bytes of memory, or the appender has stopped."""
        stopped = self.failure is not None or self._closing
        return stopped or (self.full is None and self.has_room(memory))

    def _check_open(self) -> None:
        if self.failure is not None:
            raise self.failure.report()
        if self._closing:
            raise OptionError("this appender is closed; open a new one")

    def close_batch(self) -> None:
        """Let the sender take the open batch now."""
        newest = self.newest
        if newest is not None:
            newest.close()
        self._wake.set()

    def wait_room(self, timeout: float) -> None:
        """Wait until the refused append may be accepted, or the appender stops."""
        self._room.wait(partial(self._may_append, self._refused), timeout)

    def flush(self, timeout: float | None) -> None:
        """Send all accepted rows now, and wait until they are decided.

        Raises:
            TimeoutError: some rows are not durable yet.
            OptionError: appends were rejected.
            SparkWalError: the error that stopped the appender.
        """
        with self._lock:
            self.close_batch()
            newest = None if self._ended else self.newest
        if newest is not None and not newest.wait(timeout):
            raise TimeoutError(f"some rows are not durable after {timeout} seconds")
        if self.failure is not None:
            raise self.failure.report()
        self._rejections.raise_unreported()

    def close(self, timeout: float | None) -> None:
        """Accept no more appends, and wait until all are decided.

        Raises:
            TimeoutError: some rows are not durable yet.
        """
        with self._room, self._lock:
            self._closing = True
            self.close_batch()
        if not self._over.wait(lambda: self._ended, timeout):
            raise TimeoutError(
                f"some rows are not durable after {timeout} seconds. The appender still sends "
                "them: call close again to wait for that"
            )

    def raise_unreported(self) -> None:
        """Raise the errors that no call has raised yet."""
        if self.failure is not None and not self.failure.reported:
            raise self.failure.report()
        self._rejections.raise_unreported()

    def next(self, pipeline: Pipeline) -> AppendBatch | None:
        """Wait for the next batch that is due and fits the pipeline. None at the end."""
        while True:
            self._wake.clear()
            wait: float | None = None
            with self._lock:
                if self.failure is not None:
                    return None
                if pipeline.has_room():
                    wait = self.due(time.monotonic(), idle=pipeline.in_flight == 0)
                    if wait is not None and wait <= 0:
                        with self._room:
                            return self.take()
                if self._closing and not self._waiting:
                    return None
            self._wake.wait(wait)

    def due(self, now: float, *, idle: bool) -> float | None:
        """Seconds until a batch is due; 0 or less means now, None that there is no batch."""
        if not self._waiting:
            return None
        oldest = self._waiting[0]
        if idle or oldest.count is not None:
            return 0.0
        return oldest.opened + self._timeout - now

    def take(self) -> AppendBatch:
        """Take the oldest batch. Call it only while one is due."""
        self._taken = self._waiting[0]
        # SAFETY(fifo-batches) §7: batches are sent in the order in which they were closed
        batch = self._waiting.popleft()
        batch.close()
        return batch

    def take_all(self) -> list[AppendBatch]:
        with self._lock:
            self.close_batch()
            batches, self._taken = list(self._waiting), self.newest
            self._waiting.clear()
        return batches

    def refuse(self, reason: str | None) -> None:
        """Accept no appends, for this reason, until called with None."""
        with self._room, self._lock:
            self.full = reason

    def wake(self) -> None:
        self._wake.set()

    def stop(self, error: SparkWalError) -> bool:
        """Accept no more appends. False if the intake had stopped before."""
        with self._room, self._lock:
            first = self.failure is None
            self.failure = self.failure or Failure(error)
        self._wake.set()
        return first

    def end(self) -> None:
        with self._over, self._lock:
            self._ended = True
