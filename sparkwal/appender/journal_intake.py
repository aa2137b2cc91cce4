"""Accepts appends into a journal on this machine's disk. Their tickets wait for the log.

Users' calls run here; `journal_sender` sends the entries.

    open → stopped (`fail`)     no entry goes to the log any more, and no append is accepted
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

# The bytes of memory for unsent rows. The sender reads the others from the disk.
_WINDOW_BYTES = 16 * 2**20


class JournalTicket(Ticket):
    """The ticket of an append. Only its user references it: an hour without a store may bring
    millions."""

    __slots__ = ("__weakref__", "_intake", "_position")

    def __init__(self, intake: JournalIntake, sequence: int) -> None:
        self._intake = intake
        self.sequence = sequence
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
        # The callback references the ticket through `done`, so that `decide` can set its position.
        intake.callbacks.add(self.sequence, self.done, callback)


class JournalIntake:
    """Accepts appends into the journal, and records which of them the log has.

    Attributes:
        decided: the newest sequence that the log has.
        memory: the bytes of memory of the rows in the window.
        reached: the last position that certainly holds accepted rows.
        awaited: a thread waits for the log.
        stopped: the error after which no entry goes to the log, or None.
    """

    def __init__(self, journal: Journal, rows: RowSchema, decided: int) -> None:
        self.journal = journal
        self._rows = rows
        self.callbacks = Callbacks()
        self._lock = threading.RLock()
        self._changed = Waiters()
        self.decided = decided
        self._tickets = weakref.WeakValueDictionary[int, JournalTicket]()
        # (first sequence, last sequence, position) of the newest decisions.
        self._recent: deque[tuple[int, int, int]] = deque(maxlen=1000)
        # The oldest rows that the sender has not taken, which it need not read from the disk.
        self._window: dict[int, CheckedRows] = {}
        self._asked = -1
        self.memory = 0
        self.reached = -1
        self.awaited = Flag()
        self.stopped: Failure | None = None
        # The error of all appends that are not in the log.
        self._end: Failure | None = None
        self._closing = False

    def append(self, rows: CheckedRows, *, block: bool) -> JournalTicket:
        """Accept an append. Its rows are on the disk when this returns.

        Raises:
            OptionError: the rows do not fit, or the intake is closed.
            BackPressureError: with `block=False`: append again later.
            SparkWalError: the error that stopped the appender.
        """
        return self.callbacks.enter(self._append, rows, block)

    def _append(self, rows: CheckedRows, block: bool, /) -> JournalTicket:
        ticket = self.begin(rows, block=block)
        self.journal.wait(ticket.sequence)
        return ticket

    def begin(self, rows: CheckedRows, *, block: bool) -> JournalTicket:
        """Write rows. They are accepted only after `Journal.wait` has returned.

        Raises:
            OptionError: the rows do not fit, or the intake is closed.
            BackPressureError: with `block=False`: append again later.
            SparkWalError: the error that stopped the appender.
        """
        self._check_open()
        batch = self._rows.convert_one(rows[0])
        content = memoryview(batch.serialize())
        while True:
            try:
                sequence = self.journal.write(content)
                return self._ticket(sequence, self._rows.checked_rows(batch))
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
                # The sender was faster than this thread: the log has the append already.
                positions = (at for first, last, at in self._recent if first <= sequence <= last)
                ticket._position = next(positions, -1)
            if sequence > self._asked and self.memory + rows[2] <= _WINDOW_BYTES:
                self._window[sequence] = rows
                self.memory += rows[2]
        return ticket

    def take(self, sequence: int) -> CheckedRows | None:
        """Remove the rows of this append from memory and return them, or None if they are only on
        disk."""
        with self._lock:
            self._asked = max(self._asked, sequence)
            rows = self._window.pop(sequence, None)
            if rows is not None:
                self.memory -= rows[2]
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
        """The error after which this intake accepts no appends, or None."""
        if self.stopped is None and self.journal.failure is not None:
            return Failure(self.journal.failure)
        return self.stopped

    def raise_unreported(self) -> None:
        failure = self.failure
        if failure is not None and not failure.reported:
            raise failure.report()

    def waits_for(self, sequence: int) -> bool:
        """Whether a user references the ticket of an undecided append up to this one."""
        with self._lock:
            return any(self.decided < undecided <= sequence for undecided in self._tickets)

    def decide(self, sequence: int, position: int) -> None:
        """Note that the log has all appends up to `sequence`, the new ones at `position` (−1:
        unknown)."""
        with self._lock:
            if sequence <= self.decided:
                return
            first = self.decided + 1
            for decided in range(first, sequence + 1):
                if (ticket := self._tickets.get(decided)) is not None:
                    ticket._position = position
            self.decided = sequence
            self._recent.append((first, sequence, position))
            self.reached = max(self.reached, position)
        self.notify()

    def fail(self, error: SparkWalError) -> None:
        """Note that no entry goes to the log any more."""
        self.stopped = self._end = self.stopped or Failure(error)
        self.notify()

    def close(self) -> None:
        self._closing = True

    def end(self) -> None:
        """Note that the appender is closed. Waiting calls raise an error that names the journal."""
        error = OutcomeUnknownError(
            "the appender was closed. The journal "
            f"{self.journal.path} holds the rows that are not in the log: the next appender that "
            "is opened with it sends them"
        )
        self._end = self.stopped or Failure(error)
        self.notify()

    def is_decided(self, sequence: int) -> bool:
        self.callbacks.check_process()
        return self.decided >= sequence or self._end is not None

    def wait_decided(self, sequence: int, timeout: float | None) -> bool:
        """Wait until the append is decided. Returns whether it is.

        Raises:
            SparkWalError: the error after which no entry goes to the log.
        """
        self.wait_for(lambda: self.is_decided(sequence), timeout)
        with self._lock:
            if self.decided < sequence and self._end is not None:
                raise self._end.report()
            return self.decided >= sequence

    def flush(self, timeout: float | None) -> None:
        """Wait until the log has all appends.

        Raises:
            TimeoutError: some rows are not in the log yet.
            SparkWalError: the error after which no entry goes to the log.
        """
        last = self.journal.last
        self.journal.sync(last)
        if not self.wait_decided(last, timeout):
            raise TimeoutError(f"some rows are not in the log after {timeout} seconds")

    def wait_for(self, holds: Callable[[], bool], timeout: float | None) -> bool:
        """Wait until `holds()` is true. Each `notify` checks it again. Returns its last result."""
        self.awaited.set()
        return self._changed.wait(holds, timeout)

    def notify(self) -> None:
        """Let all waiting threads check again."""
        with self._changed:
            self.callbacks.wake()
