"""Accepts appends into a journal on this machine's disk; their tickets wait for the log.

`journal_sender` sends what is in the journal; this is what callers see.

    open → stopped (`fail`)     nothing more goes to the log, and nothing more is accepted
    open, stopped → closing (`close`) → ended (`end`)

An append: written → accepted (synced) → decided (in the log).
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable

from sparkwal.appender.batches import Callbacks, CheckedRows, Failure, Ticket
from sparkwal.appender.rows import RowSchema
from sparkwal.errors import BackPressureError, OptionError, OutcomeUnknownError, SparkWalError
from sparkwal.journal.journal import Journal
from sparkwal.journal.safe_threading import Flag, Waiters

# Bytes of unsent rows that stay in memory: the rest is read from the disk.
_WINDOW = 16 * 2**20


class JournalTicket(Ticket):
    """An append on its way. Only its user holds it: an hour without a store may bring millions."""

    __slots__ = ("__weakref__", "_intake", "_position")

    def __init__(self, intake: JournalIntake, sequence: int) -> None:
        self._intake, self.sequence = intake, sequence
        self._position: int | None = None

    def done(self) -> bool:
        return self._intake.is_decided(self.sequence)

    def result(self, timeout: float | None = None) -> int:
        intake = self._intake
        if not intake.callbacks.enter(intake.wait_decided, self.sequence, timeout):
            raise TimeoutError(
                f"append {self.sequence} is in the journal, not in the log after {timeout} seconds"
            )
        assert self._position is not None
        return self._position

    def when_done(self, callback: Callable[[], None]) -> None:
        intake = self._intake
        intake.callbacks.enter(intake.awaited.set)
        # `done` holds the ticket, so that `decide` sets its position.
        intake.callbacks.add(self.sequence, self.done, callback)


class JournalIntake:
    """Accepts appends into the journal, and knows which of them the log has."""

    def __init__(self, journal: Journal, rows: RowSchema, decided: int) -> None:
        self.journal, self._rows = journal, rows
        self.callbacks = Callbacks()
        self._lock, self._changed = threading.RLock(), Waiters()
        self.decided = decided  # the newest sequence that the log has
        self._tickets = weakref.WeakValueDictionary[int, JournalTicket]()
        # (first sequence, last, position) of the newest decisions.
        self._recent: deque[tuple[int, int, int]] = deque(maxlen=1000)
        # Rows that the sender need not read from the disk: the oldest that it has not taken yet.
        self._window: dict[int, CheckedRows] = {}
        self._asked = -1
        self.held = 0  # bytes of memory in the window
        self.reached = -1  # the last position known to hold accepted rows
        self.awaited = Flag()  # a thread waits for the log
        self.stopped: Failure | None = None  # why nothing more goes to the log
        self._end: Failure | None = None  # the error of all that is not in the log
        self._closing = False

    def append(self, rows: CheckedRows, block: bool) -> JournalTicket:
        """Rows are on the disk when this returns. Raises as `begin` and `Journal.wait`."""
        return self.callbacks.enter(self._append, rows, block)

    def _append(self, rows: CheckedRows, block: bool) -> JournalTicket:
        ticket = self.begin(rows, block)
        self.journal.wait(ticket.sequence)
        return ticket

    def begin(self, rows: CheckedRows, block: bool) -> JournalTicket:
        """Write rows; they are accepted once `Journal.wait` has returned. Raises OptionError,
        BackPressureError, JournalError, and why nothing more goes to the log."""
        self._check_open()
        batch = self._rows.convert_one(rows[0])
        content = memoryview(batch.serialize())
        while True:
            try:
                sequence = self.journal.write(content)
                return self._ticket(sequence, self._rows.whole(batch))
            except BackPressureError:
                if not block:
                    raise
            self.journal.wait_for_room()
            self._check_open()

    def _check_open(self) -> None:
        if self._closing:
            raise OptionError("this appender is closed; open a new one")
        if self.stopped is not None:
            raise self.stopped.report()

    def _ticket(self, sequence: int, rows: CheckedRows) -> JournalTicket:
        ticket = JournalTicket(self, sequence)
        with self._lock:
            if sequence > self.decided:
                self._tickets[sequence] = ticket
            else:
                # The log has it already: the sender was faster than this thread.
                at = (each for first, last, each in self._recent if first <= sequence <= last)
                ticket._position = next(at, -1)
            if sequence > self._asked and self.held + rows[2] <= _WINDOW:
                self._window[sequence] = rows
                self.held += rows[2]
        return ticket

    def take(self, sequence: int) -> CheckedRows | None:
        """The rows of this append, removed from memory, if they are there."""
        with self._lock:
            self._asked = max(self._asked, sequence)
            rows = self._window.pop(sequence, None)
            if rows is not None:
                self.held -= rows[2]
        return rows

    def wait_room(self, timeout: float) -> None:
        self.journal.wait_for_room(timeout)

    @property
    def last_sequence(self) -> int:
        return self.journal.accepted

    @property
    def unacknowledged(self) -> int:
        return self.journal.last - self.decided

    @property
    def failure(self) -> Failure | None:
        """Why this intake accepts no more."""
        if self.stopped is None and self.journal.failure is not None:
            return Failure(self.journal.failure)
        return self.stopped

    def raise_rest(self) -> None:
        failure = self.failure
        if failure is not None and not failure.reported:
            raise failure.report()

    def waits_for(self, sequence: int) -> bool:
        """Whether somebody holds the ticket of an undecided append up to this one."""
        with self._lock:
            return any(self.decided < each <= sequence for each in self._tickets)

    def decide(self, sequence: int, position: int) -> None:
        """The log has all up to `sequence`, the newly decided ones at `position` (−1: unknown)."""
        with self._lock:
            if sequence <= self.decided:
                return
            first = self.decided + 1
            for each in range(first, sequence + 1):
                if (ticket := self._tickets.get(each)) is not None:
                    ticket._position = position
            self.decided = sequence
            self._recent.append((first, sequence, position))
            self.reached = max(self.reached, position)
        self.notify()

    def fail(self, error: SparkWalError) -> None:
        """Nothing more goes to the log."""
        self.stopped = self._end = self.stopped or Failure(error)
        self.notify()

    def close(self) -> None:
        self._closing = True

    def end(self) -> None:
        """The appender is closed. Waiters get an error that says where their rows are."""
        error = OutcomeUnknownError(
            f"the appender was closed; what is not in the log is in the journal "
            f"{self.journal.path}, and is sent by the next appender that is opened with it"
        )
        self._end = self.stopped or Failure(error)
        self.notify()

    def is_decided(self, sequence: int) -> bool:
        self.callbacks.check_process()
        return self.decided >= sequence or self._end is not None

    def wait_decided(self, sequence: int, timeout: float | None) -> bool:
        """Whether the append is decided. Raises why nothing more goes to the log."""
        self.wait_for(lambda: self.is_decided(sequence), timeout)
        with self._lock:
            if self.decided < sequence and self._end is not None:
                raise self._end.report()
            return self.decided >= sequence

    def flush(self, timeout: float | None) -> None:
        """Wait until the log has all appends. Raises TimeoutError, and as `wait_decided`."""
        last = self.journal.last
        self.journal.sync(last)
        if not self.wait_decided(last, timeout):
            raise TimeoutError(f"not everything is in the log after {timeout} seconds")

    def wait_for(self, holds: Callable[[], bool], timeout: float | None) -> bool:
        """Wait until `holds()` is true, checked at each `notify`; returns whether it is."""
        self.awaited.set()
        return self._changed.wait(holds, timeout)

    def notify(self) -> None:
        """Let all that wait check again."""
        with self._changed:
            self.callbacks.wake()
