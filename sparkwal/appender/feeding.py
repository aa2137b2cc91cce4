"""From the journal to the log: one session after another, each where the log says it ended.

The journal's entries go through an appender's session like any append. When that stops for the
store's sake the next one begins at the sequence that the log knows: what was sent and not
answered is there, or is sent again, never both.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

import pyarrow as pa

from sparkwal import events
from sparkwal.appender.journaled import Front
from sparkwal.appender.session import Session, Writer
from sparkwal.appender.verdicts import fenced_with_journal, without_advice
from sparkwal.errors import (
    FencedError,
    JournalError,
    JournalReadError,
    OptionError,
    OutcomeUnknownError,
    SparkWalError,
    StoreUnavailableError,
)
from sparkwal.format.header import CommitHeader
from sparkwal.protocol.replay import live_records

if TYPE_CHECKING:
    from sparkwal.appender.rows import Accepted, RowSchema

# Between two attempts to lead the log again: doubled from the first to the last.
_FIRST_SECONDS, _LAST_SECONDS = 0.2, 5.0
# Python runs one thread at a time: what is sent costs those who append. After each step that sends
# at most so many entries they go first, while more is accepted; and once all is sent, what is
# accepted next gathers, unless somebody waits for it: a PUT takes as long.
_STEP = 50
_GIVE_WAY_SECONDS, _GATHER_SECONDS = 0.002, 0.02


class Wake:
    """Wakes the one thread that waits. A signal's handler may come into `set`, and set it too."""

    def __init__(self) -> None:
        self._gate = threading.Lock()
        self._gate.acquire()

    def set(self) -> None:
        with suppress(RuntimeError):  # it is set
            self._gate.release()

    def wait(self, seconds: float = -1) -> bool:
        """Until it is set, once for all that set it; whether it was."""
        return self._gate.acquire(timeout=seconds)


class Feeder:
    """The thread that sends what the journal has accepted, and lets go what the log has.

    Args:
        session: the first, already open.
        open_session: opens the next after one.

    Attributes:
        is_away: whether the store did not answer last.
    """

    def __init__(
        self,
        writer: Writer,
        front: Front,
        session: Session,
        open_session: Callable[[Feeder, Session], Session],
    ) -> None:
        self._writer, self._front, self._journal = writer, front, front.journal
        self._open_session = open_session
        self.session: Session | None = session
        self._former = session  # the last that is over
        # Safety (§11): "what an earlier process accepted is not sent"
        self._fed = session.known
        self._schema: tuple[bytes, pa.Schema] = b"", pa.schema([])  # the last that was read
        self._seconds = 0.0  # to wait before the log is led again
        self._replays = front.journal.last if front.journal.last > session.known else None
        self.is_away = False
        self._ending = self._ended = False
        self._wake, self._hurry, self._ended_early = Wake(), Wake(), Wake()
        self._thread = threading.Thread(target=self._run, name="sparkwal-journal", daemon=True)
        self._journal.on_accepted = self._wake.set
        self._front.on_awaited = self._hurry.set

    def start(self) -> None:
        if self._replays is not None:
            self._publish(
                events.ReplayStarted(
                    path=self._journal.path, first=self._fed + 1, last=self._replays
                )
            )
        self._thread.start()

    # What a session tells, in its threads.

    def decided(self, sequence: int, position: int) -> None:
        self._seconds = 0.0
        self._front.decide(sequence, position)
        self._wake.set()

    def refused(self) -> None:
        self._front.notify()

    def stopped(self) -> None:
        self._wake.set()

    # The thread.

    def _run(self) -> None:
        try:
            while not self._ending and self._front.failure is None:
                self._go_on()
        except SparkWalError as error:
            self._fail(error)
        except BaseException as error:
            self._fail(OutcomeUnknownError(
                f"the journal's thread failed ({type(error).__name__}: {error}); what was accepted "
                f"is in {self._journal.path}: open a new appender with it"
            ))  # fmt: skip
        finally:
            if self.session is not None:
                with suppress(SparkWalError):
                    self.session.close(None)
            self._ended = True
            self._front.notify()

    def _go_on(self) -> None:
        """One step; returns after one, or when there was nothing to do."""
        if self._journal.failure is not None:
            raise self._journal.failure
        if self.session is None and not self._reconnect():
            return
        session = self.session
        assert session is not None
        if (failure := session.intake.failure) is not None:
            self._lose(session, failure.error)
            return
        # Safety (§11): "what was sent counts as in the log"
        self._journal.acknowledge(self._front.decided)
        self._tell_replayed()
        if self._journal.may_drain():
            # What may be tried again is, with the next acknowledgement.
            try:
                self._journal.drain()
            except JournalError as error:
                if not error.retryable:
                    raise
        if self._fed >= self._journal.accepted:
            self._wake.wait()
            return
        upto = self._journal.accepted
        for sequence in range(self._fed + 1, min(upto, self._fed + _STEP) + 1):
            accepted = self._read(sequence)
            try:
                ticket = session.intake.append(accepted, block=True)
            except SparkWalError:
                return  # the session has stopped: the next step sees why
            if ticket.sequence != sequence:
                raise OutcomeUnknownError(
                    f"entry {sequence} of {self._journal.path} would be appended as "
                    f"{ticket.sequence}: another appender of this producer_id wrote to the log"
                )
            self._fed = sequence
        if self._fed == upto:
            self._hurry.wait(_GATHER_SECONDS)
        elif self._journal.accepted > upto:
            self._hurry.wait(_GIVE_WAY_SECONDS)

    def _read(self, sequence: int) -> Accepted:
        content, schema = self._journal.read(sequence)
        try:
            if self._schema[0] != schema:
                self._schema = schema, pa.ipc.read_schema(pa.py_buffer(schema))
            return entry_rows(content, self._schema[1], self._writer.rows)
        except (pa.ArrowException, OSError, ValueError, OptionError) as error:
            raise JournalReadError(
                f"entry {sequence} of {self._journal.path} holds no rows that this appender can "
                f"send ({error}): open the journal with the schema that it was written with"
            ) from error

    def _tell_replayed(self) -> None:
        if self._replays is not None and self._front.decided >= self._replays:
            self._publish(events.Replayed(path=self._journal.path, sequence=self._replays))
            self._replays = None

    # When the store is away.

    def takes_nothing(self) -> bool:
        """Whether there is no use in waiting for the log."""
        session = self.session
        return self.is_away or (session is not None and session.intake.is_full)

    def _lose(self, session: Session, error: SparkWalError) -> None:
        """A session has stopped. Raises what no other session would mend."""
        with suppress(SparkWalError):
            session.close(None)
        self.session, self._former = None, session
        if not isinstance(error, (OutcomeUnknownError, StoreUnavailableError)):
            raise error
        self._away(error)

    def _away(self, error: SparkWalError) -> None:
        if not self.is_away:
            self._publish(events.StoreAway(path=self._writer.log.url, reason=without_advice(error)))
        self.is_away = True
        self._front.notify()

    def _reconnect(self) -> bool:
        """Lead the log again; False where the appender ends before that."""
        while not self._pause():
            try:
                session = self._open_session(self, self._former)
            except (StoreUnavailableError, OutcomeUnknownError) as error:
                self._away(error)
                continue
            self._take_up(session)
            return True
        return False

    def _pause(self) -> bool:
        """Wait, longer each time until the log has taken something; whether the appender ends.

        A store may let itself be led and take no rows: each attempt writes to it.
        """
        seconds = self._seconds
        self._seconds = min(max(2 * seconds, _FIRST_SECONDS), _LAST_SECONDS)
        # Appends wake it all the time: only the end of the appender counts.
        if seconds:
            self._ended_early.wait(seconds)
        return self._ending

    def _take_up(self, session: Session) -> None:
        self.session = session
        # The session's own look tells it before, where that could be made.
        if session.known > self._fed:
            raise FencedError(
                f"the log has appends of producer {self._writer.producer_id!r} up to "
                f"{session.known}, and {self._journal.path} sent those up to {self._fed}: another "
                "appender has this producer_id. What was accepted is in the journal"
            )
        if session.known < self._front.decided:
            raise OptionError(
                f"the log has appends of producer {self._writer.producer_id!r} up to "
                f"{session.known}, and had acknowledged those up to {self._front.decided}: it was "
                "restored from an older copy"
            )
        self._find_positions(session)
        # Safety (§11): "a new session goes on where the last one ended"
        self._fed = session.known
        self.is_away = False
        self._publish(events.StoreBack(path=self._writer.log.url, sequence=self._fed + 1))

    def _find_positions(self, session: Session) -> None:
        """Decide what was sent and not answered, and is in the log."""
        if session.known <= self._front.decided:
            return
        if self._front.awaited(session.known):
            with suppress(SparkWalError):  # then nobody knows where, and it is there all the same
                lead = self._former.leadership
                records = live_records(
                    self._writer.log,
                    lead.window,
                    # Not all that the session ever wrote: what it was not told of.
                    max(self._former.began, self._front.reached + 1),
                    session.leadership.began,
                    log_id=lead.log_id,
                    term=lead.term,
                )
                for record in records:
                    header = record.header
                    if (
                        isinstance(header, CommitHeader)
                        and header.query_id == self._writer.producer_id
                    ):
                        self._front.decide(min(header.batch_id, session.known), header.position)
        self._front.decide(session.known, -1)

    # The end.

    def _fail(self, error: SparkWalError) -> None:
        if isinstance(error, FencedError):
            error = fenced_with_journal(error, self._journal.path)
        self._front.fail(error)
        kind, path = type(error).__name__, self._writer.log.url
        self._publish(events.Stopped(path=path, error=kind, reason=str(error)))

    def _publish(self, event: events.Event) -> None:
        self._writer.subscribers.publish(event)

    def end(self, timeout: float | None) -> None:
        """Send no more. Raises TimeoutError."""
        self._ending = True
        self._ended_early.set()
        self._wake.set()
        session = self.session
        if session is not None:
            # Only begun here, and ended by the thread: an append that this interrupts may hold
            # what requests under way need to be acknowledged.
            with suppress(SparkWalError, TimeoutError):
                session.close(0)
        if not self._front.wait_for(lambda: self._ended, timeout):
            raise TimeoutError(f"what was sent is not decided after {timeout} seconds")
        self._tell_replayed()


def entry_rows(content: memoryview, schema: pa.Schema, rows: RowSchema) -> Accepted:
    """The rows of an entry, to be appended. Raises OptionError, ArrowException."""
    batch = pa.ipc.read_record_batch(pa.py_buffer(content), schema)
    return rows.accept(_with_all_columns(batch, rows.arrow), nulls=True)


def _with_all_columns(batch: pa.RecordBatch, kept: pa.Schema) -> pa.RecordBatch:
    """Rows of an older schema: columns that came later are null."""
    if batch.schema.equals(kept):
        return batch
    columns = [
        batch.column(field.name)
        if field.name in batch.schema.names
        else pa.nulls(batch.num_rows, field.type)
        for field in kept
    ]
    left = [name for name in batch.schema.names if name not in kept.names]
    if left:
        raise OptionError(f"column {left[0]!r} is not in the schema any more")
    return pa.RecordBatch.from_arrays(columns, schema=kept)
