"""Accepts appends one after another and gives each its sequence, until the buffer is full.

    open ⇄ full (`refuse`)      no room in the log
    open, full → closing (`close`) → ended (`end`)
    open, full, closing → stopped (`stop`) → ended

An open intake accepts; a full one makes appends wait. Accepted rows are sent unless it stops.
"""

import time
from collections import deque
from functools import partial

from sparkwal.appender.batches import Batch, Callbacks, CheckedRows, Failure, Rejections, Ticket
from sparkwal.errors import BackPressureError, OptionError, SparkWalError
from sparkwal.journal.safe_threading import Flag, Waiters
from sparkwal.options.writing import AppenderOptions
from sparkwal.protocol.pipeline import Pipeline


class Intake:
    """Accepted appends that have not been sent, in batches, and the threads that wait for them.

    A batch closes when it reaches batchSizeThreshold, including the append that crosses;
    batchTimeoutMs after its first append; or at once while nothing is in flight. maxBufferedBytes
    bounds the memory held, with the overhead of each append, which is most of a small one.

    Args:
        first: the sequence of the first append.
    """

    def __init__(self, settings: AppenderOptions, first: int, callbacks: Callbacks) -> None:
        self._size, self._capacity = settings.batch_size, settings.max_buffered
        self._timeout = settings.batch_timeout_ms / 1000
        self.callbacks, self._rejections = callbacks, Rejections()
        self._waiting: deque[Batch] = deque()  # in order; the last one may be open
        self._taken: Batch | None = None  # the last one taken
        self._lock = callbacks.lock
        self._wake = Flag()  # the sending thread has something to do
        self._room, self._over = Waiters(), Waiters()
        self.failure: Failure | None = None
        self._first, self.last_sequence = first, first - 1
        self._closing = self._ended = False
        self.full: str | None = None  # why appends must wait for now
        self._refused = 1  # bytes that the last refused append needs

    @property
    def newest(self) -> Batch | None:
        """The batch that was begun last, which is done last."""
        try:  # another thread may take it in between
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
    def held(self) -> int:
        """Bytes of memory of what waits."""
        try:
            oldest, newest = self._waiting[0], self._waiting[-1]
        except IndexError:
            return 0
        return newest.first_held + newest.held - oldest.first_held

    def has_room(self, held: int) -> bool:
        waits = self.held
        return not waits or waits + held <= self._capacity

    def append(self, rows: CheckedRows, block: bool) -> Ticket:
        """Accept an append. Raises BackPressureError, or why the appender stopped."""
        self.callbacks.check_process()
        # Not through `enter`, which takes longer than all the rest.
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
                        # First: if a signal handler raised in between, nothing would send it.
                        self._wake.set()
                        return self.add(rows, time.monotonic())
                # The open batch may be far from `size`: small rows take more memory than in a
                # record.
                self.close_batch()
                if not block:
                    self._refused = rows[2]
                    raise self._no_room()
            self._room.wait(partial(self._may_go_on, rows[2]))

    def add_to_open(self, rows: CheckedRows) -> Ticket | None:
        """`has_room` and `add` in one, because nearly every small append needs only this. Adds
        nothing and returns None if it may change the next `due`."""
        if not self._waiting:
            return None
        batch = self._waiting[-1]
        payload, size, held = rows
        size += batch.weight
        held += batch.held
        if batch.count is not None or size >= self._size or held > batch.room:
            return None
        # The order is that of `add`.
        ticket = Ticket(batch, batch.first_sequence + len(batch.appends))
        batch.weight, batch.held = size, held
        batch.appends.append(payload)
        return ticket

    def add(self, rows: CheckedRows, now: float) -> Ticket:
        """Add an append. A signal handler may raise between any two of these steps."""
        payload, size, held = rows
        batch = self.newest
        if batch is None or batch.count is not None:
            before = 0 if batch is None else batch.first_held + batch.held
            batch = Batch(self.next_sequence, before, now, self.callbacks, self._rejections)
            self._waiting.append(batch)
        # What waits before this batch only shrinks.
        batch.room = self._capacity - (self.held - batch.held)
        ticket = Ticket(batch, batch.next_sequence)
        # Bytes first: if a handler raises here, a few too many count until the batch is sent.
        batch.weight += size
        batch.held += held
        # Only this step adds it: an append that is not in must not use up a sequence.
        batch.appends.append(payload)
        if batch.weight >= self._size:
            batch.close()
        return ticket

    def _no_room(self) -> BackPressureError:
        return BackPressureError(
            self.full
            or f"{self.held} bytes wait to be sent already (maxBufferedBytes): nothing was "
            "accepted, try again later"
        )

    def _may_go_on(self, held: int) -> bool:
        """Whether `held` bytes of memory may be added, or the appender has stopped."""
        stopped = self.failure is not None or self._closing
        return stopped or (self.full is None and self.has_room(held))

    def _check_open(self) -> None:
        if self.failure is not None:
            raise self.failure.report()
        if self._closing:
            raise OptionError("this appender is closed; open a new one")

    def close_batch(self) -> None:
        """Let what waits be sent now."""
        newest = self.newest
        if newest is not None:
            newest.close()
        self._wake.set()

    def wait_room(self, timeout: float) -> None:
        """Wait until what was refused may be accepted, or the appender stops."""
        self._room.wait(partial(self._may_go_on, self._refused), timeout)

    def flush(self, timeout: float | None) -> None:
        """Send all accepted rows now, and wait until they are decided. Raises TimeoutError, why the
        appender stopped, and which appends were rejected."""
        with self._lock:
            self.close_batch()
            newest = None if self._ended else self.newest
        if newest is not None and not newest.wait(timeout):
            raise TimeoutError(f"not everything is durable after {timeout} seconds")
        if self.failure is not None:
            raise self.failure.report()
        self._rejections.raise_rest()

    def close(self, timeout: float | None) -> None:
        """Accept nothing more and wait until all is decided. Raises TimeoutError."""
        with self._room, self._lock:
            self._closing = True
            self.close_batch()
        if not self._over.wait(lambda: self._ended, timeout):
            raise TimeoutError(
                f"not everything is durable after {timeout} seconds; it is still being sent: call "
                "close again to wait for it"
            )

    def raise_rest(self) -> None:
        """Raise what no call has raised yet."""
        if self.failure is not None and not self.failure.reported:
            raise self.failure.report()
        self._rejections.raise_rest()

    def next(self, pipeline: Pipeline) -> Batch | None:
        """The next batch when it is due and there is room for it; None at the end."""
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

    def take(self) -> Batch:
        """Take the oldest batch. Call only while one is due."""
        self._taken = self._waiting[0]
        # SAFETY(fifo-batches) §7: batches are sent in the order in which they were closed
        batch = self._waiting.popleft()
        batch.close()
        return batch

    def take_all(self) -> list[Batch]:
        with self._lock:
            self.close_batch()
            batches, self._taken = list(self._waiting), self.newest
            self._waiting.clear()
        return batches

    def refuse(self, reason: str | None) -> None:
        """Accept nothing more, for this reason, until called with None."""
        with self._room, self._lock:
            self.full = reason

    def wake(self) -> None:
        self._wake.set()

    def stop(self, error: SparkWalError) -> bool:
        """Accept nothing more; False if it has stopped before."""
        with self._room, self._lock:
            first = self.failure is None
            self.failure = self.failure or Failure(error)
        self._wake.set()
        return first

    def end(self) -> None:
        with self._over, self._lock:
            self._ended = True
