"""Where appends come in: accepted one after another, each with its sequence, until it is full.

The caller's threads come here, and so may a signal's handler that interrupted one of them.
"""

from __future__ import annotations

import threading
import time

from sparkwal.appender.batches import Batch, Failure, Ticket
from sparkwal.appender.buffer import Buffer
from sparkwal.appender.rows import Accepted
from sparkwal.appender.workers import Callbacks
from sparkwal.errors import BackPressureError, OptionError, SparkWalError
from sparkwal.protocol.pipeline import Pipeline


class Intake:
    """The buffer, the threads that add to it and those that wait for it.

    Attributes:
        failure: why the appender stopped, or None.
    """

    def __init__(self, buffer: Buffer, callbacks: Callbacks) -> None:
        self._buffer, self._callbacks = buffer, callbacks
        # A signal's handler may interrupt `append` where it holds this, and call `close`: so
        # it can be taken again, and waiting on its conditions releases all of it.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._room = threading.Condition(self._lock)
        self._over = threading.Condition(self._lock)
        self.failure: Failure | None = None
        self._closing = self._adding = self._ended = False
        self._full: str | None = None  # why the log takes no more for now
        self._refused = 1  # bytes that an append did not find room for

    @property
    def next_sequence(self) -> int:
        """Of the next append."""
        return self._buffer.next_sequence

    @property
    def is_full(self) -> bool:
        """Whether the log takes no more for now."""
        return self._full is not None

    @property
    def held(self) -> int:
        """Bytes of memory of what is accepted and not sent."""
        return self._buffer.held

    def append(self, accepted: Accepted, block: bool) -> Ticket:
        """Accept an append. Raises BackPressureError, or why the appender stopped."""
        self._callbacks.check_process()
        with self._lock:
            if self.failure is not None or self._closing or self._adding:
                self._check_open()
            if self._full is not None:
                self._make_room(accepted[2], block)
            try:
                self._adding = True
                ticket = self._buffer.add_to_open(accepted)
                if self._closing and ticket is not None:
                    self._check_in_time(ticket)
            finally:
                self._adding = False
            if ticket is not None:
                return ticket
            self._make_room(accepted[2], block)
            try:
                self._adding = True
                return self._admit(accepted)
            finally:
                self._adding = False

    def _make_room(self, held: int, block: bool) -> None:
        """Wait until so many bytes of memory may be added. Raises BackPressureError."""
        while self._full is not None or not self._buffer.has_room(held):
            # Its batch may be far from closing by size: small rows take more memory than they
            # do in the record.
            self._close_batch()
            if not block:
                self._refused = held
                raise BackPressureError(
                    self._full
                    or f"{self._buffer.held} bytes wait to be sent already "
                    "(maxBufferedBytes): nothing was accepted, try again later"
                )
            self._room.wait()
            self._check_open()

    def _admit(self, accepted: Accepted) -> Ticket:
        """Add what the open batch does not take as it is, or what there is no open batch for."""
        _, size, _ = accepted
        # Before it is in: were a signal's handler to raise in between, nothing would send it.
        if self._buffer.makes_due(size):
            self._changed.notify()
        ticket = self._buffer.add(accepted, time.monotonic())
        if self._closing:
            self._check_in_time(ticket)
        return ticket

    def _check_in_time(self, ticket: Ticket) -> None:
        """A signal's handler has closed the appender in the middle of `_admit`."""
        if not self._buffer.holds(ticket):
            self._check_open()
        if self._ended and self._buffer.waits:
            self._buffer.take_all()  # no thread will
            self._check_open()

    def _check_open(self) -> None:
        if self.failure is not None:
            raise self.failure.tell()
        if self._closing:
            raise OptionError("this appender is closed; open a new one")
        if self._adding:
            raise OptionError(
                "a signal's handler that interrupted an append may close the appender, "
                "and do nothing else with it"
            )

    def _close_batch(self) -> None:
        self._buffer.close_batch()
        self._changed.notify()

    def wait_room(self, timeout: float) -> None:
        """Until what was refused may be accepted, or the appender stops."""
        self._callbacks.check_process()

        def may_go_on() -> bool:
            stopped = self.failure is not None or self._closing
            return stopped or (self._full is None and self._buffer.has_room(self._refused))

        with self._lock:
            self._room.wait_for(may_go_on, timeout)

    def flush(self, timeout: float | None) -> None:
        """Send what was accepted at once, and wait until all of it is decided.

        Raises TimeoutError, why the appender stopped, and which appends were rejected.
        """
        self._callbacks.check_process()
        with self._lock:
            if self._adding and not self._closing:
                self._check_open()
            self._close_batch()
            newest = None if self._ended else self._buffer.newest
        if newest is not None and not newest.wait(timeout):
            raise TimeoutError(f"not everything is durable after {timeout} seconds")
        if self.failure is not None:
            raise self.failure.tell()
        self._tell_rejections()

    def close(self, timeout: float | None) -> None:
        """Accept nothing more and wait until all is decided. Raises TimeoutError."""
        self._callbacks.check_process()
        with self._lock:
            self._closing = True
            self._close_batch()
            self._room.notify_all()
            if not self._over.wait_for(lambda: self._ended, timeout):
                raise TimeoutError(
                    f"not everything is durable after {timeout} seconds; it is still being "
                    "sent: call close again to wait for it"
                )

    def tell_rest(self) -> None:
        """Raise what nothing has raised yet."""
        if self.failure is not None and not self.failure.told:
            raise self.failure.tell()
        self._tell_rejections()

    def _tell_rejections(self) -> None:
        rejected = self._buffer.rejections.tell()
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
                    wait = self._buffer.due(time.monotonic(), idle=idle)
                    if wait is not None and wait <= 0:
                        batch = self._buffer.take()
                        self._room.notify_all()
                        return batch
                if self._closing and not self._buffer.waits:
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
            return self._buffer.take_all()

    def end(self) -> None:
        """All is decided."""
        with self._lock:
            self._ended = True
            self._over.notify_all()
