"""Appends that are accepted by a journal on this machine's disk, and tickets that wait for the log.

What is in the journal is sent by `feeding`; here is what its callers see.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable

import pyarrow as pa

from sparkwal.appender.batches import Failure, Ticket
from sparkwal.appender.rows import Accepted, RowSchema
from sparkwal.appender.workers import Callbacks
from sparkwal.errors import (
    BackPressureError,
    OptionError,
    OutcomeUnknownError,
    SparkWalError,
)
from sparkwal.journal.journal import Journal

# How often an append that waits for room looks by itself.
_LOOK_SECONDS = 0.5


class JournalTicket(Ticket):
    """One append that is on the disk and on its way to the log.

    It is only as long as somebody holds it: an hour without the store may have millions.
    """

    __slots__ = ("__weakref__", "_front", "_position")

    def __init__(self, front: Front, sequence: int) -> None:
        self._front, self.sequence = front, sequence
        self._position: int | None = None

    def done(self) -> bool:
        return self._front.is_decided(self.sequence)

    def result(self, timeout: float | None = None) -> int:
        if not self._front.wait_decided(self.sequence, timeout):
            raise TimeoutError(
                f"append {self.sequence} is in the journal, and not in the log after {timeout} "
                "seconds"
            )
        assert self._position is not None
        return self._position

    def when_done(self, callback: Callable[[], None]) -> None:
        self._front.when_decided(self, callback)


class Front:
    """Accepts into the journal, and knows how far the log has it.

    Attributes:
        failure: why nothing more goes to the log.
        reached: the last position that is known to hold what was accepted.
        on_awaited: called when somebody waits for the log; does nothing that takes long.
    """

    def __init__(self, journal: Journal, rows: RowSchema, decided: int) -> None:
        self.journal, self._rows = journal, rows
        self.callbacks = Callbacks()
        # The journal's own lock: a signal's handler that interrupts an append and closes the
        # appender waits with it, and so lets go of all that the append holds.
        self._changed = threading.Condition(journal.lock)
        self._decided = decided
        self._tickets: weakref.WeakValueDictionary[int, JournalTicket] = (
            weakref.WeakValueDictionary()
        )
        # (first sequence, last, position) of what was decided last.
        self._recent: deque[tuple[int, int, int]] = deque(maxlen=1000)
        self.reached = -1
        self.on_awaited: Callable[[], None] = lambda: None
        self.failure: Failure | None = None
        self._end: Failure | None = None  # what is told of all that is not in the log
        self.closing = False

    # Accepting.

    def append(self, accepted: Accepted, block: bool) -> JournalTicket:
        """On the disk when it returns. Raises as `begin` and `Journal.wait`."""
        ticket = self.begin(accepted, block)
        self.journal.wait(ticket.sequence)
        return ticket

    def begin(self, accepted: Accepted, block: bool) -> JournalTicket:
        """Written, and accepted once `Journal.wait` has returned.

        Raises OptionError for rows that do not fit, BackPressureError, JournalError, and why
        nothing more goes to the log.
        """
        self._check_open()
        content = self._encoded(accepted)
        while True:
            try:
                # Never waits there: nobody would tell it that nothing more goes to the log.
                return self._ticket(self.journal.write(content, block=False))
            except BackPressureError:
                if not block:
                    raise
            self.journal.wait_for_room(_LOOK_SECONDS)
            self._check_open()

    def _encoded(self, accepted: Accepted) -> memoryview:
        batches, rejected = self._rows.convert([accepted[0]])
        if rejected:
            raise rejected[0]
        if len(batches) == 1:
            batch = batches[0]
        elif batches:
            batch = pa.concat_batches(batches)
        else:
            batch = pa.RecordBatch.from_pylist([], schema=self._rows.arrow)
        return memoryview(batch.serialize())

    def _check_open(self) -> None:
        self.callbacks.check_process()
        if self.closing:
            raise OptionError("this appender is closed; open a new one")
        if self.failure is not None:
            raise self.failure.tell()

    def _ticket(self, sequence: int) -> JournalTicket:
        ticket = JournalTicket(self, sequence)
        with self._changed:
            if sequence > self._decided:
                self._tickets[sequence] = ticket
            else:
                # The log was faster than this thread.
                at = (each for first, last, each in self._recent if first <= sequence <= last)
                ticket._position = next(at, -1)
        return ticket

    # What became of it.

    @property
    def decided(self) -> int:
        """The newest sequence that the log has."""
        return self._decided

    def awaited(self, sequence: int) -> list[int]:
        """Sequences up to this one whose tickets somebody holds and that are not decided."""
        with self._changed:
            return sorted(each for each in self._tickets if self._decided < each <= sequence)

    def decide(self, sequence: int, position: int) -> None:
        """The log has every append up to `sequence`; those not decided before lie at `position`,
        or −1: in the log, and nobody knows where."""
        with self._changed:
            if sequence <= self._decided:
                return
            first = self._decided + 1
            for each in range(first, sequence + 1):
                ticket = self._tickets.get(each)
                if ticket is not None:
                    ticket._position = position
            self._decided = sequence
            self._recent.append((first, sequence, position))
            self.reached = max(self.reached, position)
            self._changed.notify_all()
        self.callbacks.wake()

    def fail(self, error: SparkWalError) -> None:
        """Nothing more goes to the log."""
        with self._changed:
            self.failure = self._end = self.failure or Failure(error)
            self._changed.notify_all()
        self.callbacks.wake()

    def end(self) -> None:
        """It was closed, which is no failure: whoever waits is told where its rows are."""
        error = OutcomeUnknownError(
            f"the appender was closed; what is not in the log is in the journal "
            f"{self.journal.path}, and is sent by the next appender that is opened with it"
        )
        with self._changed:
            self._end = self.failure or Failure(error)
            self._changed.notify_all()
        self.callbacks.wake()

    def is_decided(self, sequence: int) -> bool:
        self.callbacks.check_process()
        return self._decided >= sequence or self._end is not None

    def wait_decided(self, sequence: int, timeout: float | None) -> bool:
        """Raises why nothing more goes to the log."""
        self.callbacks.check_process()
        self.on_awaited()
        with self._changed:
            self._changed.wait_for(
                lambda: self._decided >= sequence or self._end is not None, timeout
            )
            if self._decided >= sequence:
                return True
            if self._end is not None:
                raise self._end.tell()
            return False

    def when_decided(self, ticket: JournalTicket, callback: Callable[[], None]) -> None:
        """Call back once, in order."""
        self.callbacks.check_process()
        self.on_awaited()
        # It holds the ticket, which so learns its position.
        self.callbacks.add(ticket.sequence, ticket.done, callback)

    def wait_idle(self, upto: int, may_end: Callable[[], bool], timeout: float | None) -> None:
        """Until the log has everything up to a sequence, or `may_end` or a failure ends it.

        Raises TimeoutError.
        """
        if not self.wait_for(
            lambda: self._decided >= upto or self.failure is not None or may_end(), timeout
        ):
            raise TimeoutError(f"not everything is in the log after {timeout} seconds")

    def wait_for(self, holds: Callable[[], bool], timeout: float | None) -> bool:
        """Until something holds, looked at when `notify` is called; whether it does."""
        self.on_awaited()
        with self._changed:
            return self._changed.wait_for(holds, timeout)

    def notify(self) -> None:
        """Whoever waits looks again."""
        with self._changed:
            self._changed.notify_all()
