"""Sends the journal's entries to the log, in one session after another.

If the store stops a session, the next one begins after the last sequence in the log. An unanswered
entry is in the log or is sent again, never both.

    sending → away (`_lose`: the store stopped its session) → sending (`_take_up`)
    sending, away → stopped (`_fail`: sends no more) → ended
    sending, away → ended (`end`: the appender is closed)
"""

from contextlib import suppress

import pyarrow as pa

from sparkwal import events
from sparkwal.appender.batches import CheckedRows
from sparkwal.appender.context import AppenderContext
from sparkwal.appender.journal_intake import JournalIntake
from sparkwal.appender.sender import Session, Takeover, take_over
from sparkwal.appender.verdicts import fenced, without_advice
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
from sparkwal.journal.safe_threading import Flag
from sparkwal.protocol.leadership import Leadership
from sparkwal.protocol.records import live_records
from sparkwal.protocol.view import LogView
from sparkwal.store.threads import start_daemon

# The seconds between two attempts to lead the log: doubled from the first value to the last.
_FIRST_SECONDS, _LAST_SECONDS = 0.2, 5.0
# The limit of entries that one record takes from a backlog. Each record costs a request.
_MAX_ENTRIES = 1000
# Sending slows appends down. So after this many entries the sender pauses if more were accepted.
_STEP = 50
_PAUSE_SECONDS = 0.002
# After it has sent all entries, it lets new ones gather for as long as a PUT takes.
_GATHER_SECONDS = 0.05


class JournalSender:
    """Sends the entries that the journal accepted, and drains those that the log has.

    Attributes:
        session: the newest session. It has ended if the store is away.
        is_away: the store failed the last request.
    """

    def __init__(self, context: AppenderContext, intake: JournalIntake, takeover: Takeover) -> None:
        self._context = context
        self._intake = intake
        self._journal = intake.journal
        self._publish = context.subscribers.publish
        # SAFETY(send-from-log-end) §11: sending begins after the last sequence that the log has
        self._fed = takeover.last_logged
        # The pause before the next attempt to lead.
        self._seconds = 0.0
        last = intake.journal.last
        self._resend_to = last if last > takeover.last_logged else None
        self.is_away = self._ended = False
        # All entries that were accepted before are sent.
        self._gathers = True
        # Set when the appender ends.
        self._ending = Flag()
        # Set when there may be something to do.
        self._wake = Flag()
        self._journal.on_accepted = self._wake.set
        if self._resend_to is not None:
            self._publish(events.ReplayStarted(self._journal.path, self._fed + 1, self._resend_to))
        self.session = Session(context, takeover, self)
        try:
            self._start()
        except BaseException:
            with suppress(SparkWalError, TimeoutError):
                self.session.close(1.0)
            raise

    def _start(self) -> None:
        start_daemon(self._run, "journal")

    def decided(self, sequence: int, position: int) -> None:
        """See `SessionListener`."""
        self._seconds = 0.0
        self._intake.decide(sequence, position)
        self._wake.set()

    def changed(self) -> None:
        """See `SessionListener`."""
        self._intake.notify()
        self._wake.set()

    def stopped(self, error: SparkWalError) -> None:
        """See `SessionListener`. The next step reads the error from the session."""
        self.changed()

    def _run(self) -> None:
        try:
            while not self._ending.is_set() and self._intake.stopped is None:
                self._step()
            if self._journal.failure is not None and self._intake.stopped is None:
                raise self._journal.failure
        except SparkWalError as error:
            self._fail(error)
        except BaseException as error:
            self._fail(
                OutcomeUnknownError(
                    f"the journal's thread failed ({type(error).__name__}: {error}). The accepted "
                    f"rows are in {self._journal.path}: open a new appender with it"
                )
            )
        finally:
            with suppress(SparkWalError):
                self.session.close(None)
            self._ended = True
            self._intake.notify()

    def _step(self) -> None:
        """Do one step, or wait."""
        self._wake.clear()
        if self._journal.failure is not None:
            raise self._journal.failure
        if self.is_away and not self._reconnect():
            return
        if (failure := self.session.intake.failure) is not None:
            self._lose(failure.error)
            return
        # SAFETY(ack-when-decided) §11: an entry counts as in the log only when its slot is decided
        self._journal.acknowledge(self._intake.decided)
        self._report_resent()
        # After a retryable error the next acknowledgement drains again.
        try:
            self._journal.drain()
        except JournalError as error:
            if not error.retryable:
                raise
        if self._fed >= self._journal.accepted:
            self._gathers = True
            if not self._ending.is_set():
                self._wake.wait()
            return
        if self._gathers:
            self._pause(_GATHER_SECONDS)
        self._gathers, upto = False, self._journal.accepted
        for rows in self._gather(upto):
            try:
                ticket = self.session.intake.append(rows, block=True)
            except SparkWalError:
                # The session has stopped. The next step reads the reason.
                return
            self._fed += 1
            if ticket.sequence != self._fed:
                raise OutcomeUnknownError(
                    f"entry {self._fed} of {self._journal.path} would be appended as "
                    f"{ticket.sequence}: another appender of this producer_id wrote to the log"
                )

    def _gather(self, upto: int) -> list[CheckedRows]:
        """The next entries up to `upto`, at most as many as one record takes."""
        gathered: list[CheckedRows] = []
        size, accepted = 0, upto
        for sequence in range(self._fed + 1, min(upto, self._fed + _MAX_ENTRIES) + 1):
            try:
                rows = self._intake.take(sequence) or self._read(sequence)
            except JournalReadError:
                if not gathered:
                    raise
                # Send the entries before the unreadable one first.
                break
            gathered.append(rows)
            size += rows[1]
            if size >= self._context.settings.batch_size:
                break
            if len(gathered) % _STEP == 0 and self._journal.accepted > accepted:
                accepted = self._journal.accepted
                self._pause(_PAUSE_SECONDS)
        return gathered

    def _pause(self, seconds: float) -> None:
        """Let appending threads run, unless one waits for the log."""
        self._intake.awaited.wait(seconds)
        self._intake.awaited.clear()

    def _read(self, sequence: int) -> CheckedRows:
        content, schema = self._journal.read(sequence)
        try:
            return self._context.rows.restore(content, schema)
        except (pa.ArrowException, OSError, ValueError, OptionError) as error:
            raise JournalReadError(
                f"entry {sequence} of {self._journal.path} holds no rows that this appender can "
                f"send ({error}): open the journal with the schema that it was written with"
            ) from error

    def _report_resent(self) -> None:
        if self._resend_to is not None and self._intake.decided >= self._resend_to:
            self._publish(events.Replayed(path=self._journal.path, sequence=self._resend_to))
            self._resend_to = None

    def takes_nothing(self) -> bool:
        """Whether waiting for the log is useless now."""
        return self.is_away or self.session.intake.full is not None

    def _lose(self, error: SparkWalError) -> None:
        """End a session that has stopped.

        Raises:
            SparkWalError: an error that a new session would not repair.
        """
        with suppress(SparkWalError):
            self.session.close(None)
        if not isinstance(error, (OutcomeUnknownError, StoreUnavailableError)):
            raise error
        self._away(error)

    def _away(self, error: SparkWalError) -> None:
        if not self.is_away:
            self._publish(events.StoreAway(self._context.log.url, without_advice(error)))
        self.is_away = True
        self._intake.notify()

    def _reconnect(self) -> bool:
        """Lead the log again. False if the appender ends first."""
        # Appends set `_wake` all the time, so wait only for the end of the appender.
        while not self._ending.wait(self._seconds):
            # Double the pause until the log takes rows: a store may accept leader records and no
            # rows.
            self._seconds = min(max(2 * self._seconds, _FIRST_SECONDS), _LAST_SECONDS)
            try:
                takeover = take_over(self._context, self.session.leadership)
                session = Session(self._context, takeover, self)
            except (StoreUnavailableError, OutcomeUnknownError) as error:
                self._away(error)
                continue
            self._take_up(session)
            return True
        return False

    def _take_up(self, session: Session) -> None:
        former, self.session = self.session.leadership, session
        # The session's own check usually reports this first.
        if session.last_logged > self._fed:
            raise FencedError(
                f"the log has appends of producer {self._context.producer_id!r} up to "
                f"{session.last_logged}, and {self._journal.path} sent those up to {self._fed}: "
                "another appender has this producer_id. The accepted rows are in the journal"
            )
        if session.last_logged < self._intake.decided:
            raise OptionError(
                f"the log has appends of producer {self._context.producer_id!r} up to "
                f"{session.last_logged}, and had acknowledged those up to {self._intake.decided}: "
                "it was restored from an older copy"
            )
        self._find_positions(former)
        # SAFETY(session-from-log) §11: a new session continues after the sequence that the log has,
        # not after the last one sent
        self._fed = session.last_logged
        self.is_away = False
        self._publish(events.StoreBack(path=self._context.log.url, sequence=self._fed + 1))

    def _find_positions(self, lead: Leadership) -> None:
        """Decide the appends that were sent without an answer and are in the log."""
        last, intake = self.session.last_logged, self._intake
        if intake.waits_for(last):
            # Read only the records of undecided appends, not all of the session's.
            begin, end = max(lead.next_position, intake.reached + 1), self.session.leadership.began
            log, producer = self._context.log, self._context.producer_id
            view = LogView(log, lead.window, lead.log_id)
            records = live_records(view, begin, end, term=lead.term)
            # After an error the positions of these appends stay unknown.
            with suppress(SparkWalError):
                for header in (record.header for record in records):
                    if isinstance(header, CommitHeader) and header.query_id == producer:
                        intake.decide(min(header.batch_id, last), header.position)
        intake.decide(last, -1)

    def _fail(self, error: SparkWalError) -> None:
        if isinstance(error, FencedError):
            error = fenced(error, self._journal.path)
        self._intake.fail(error)
        kind = type(error).__name__
        self._publish(events.Stopped(self._context.log.url, kind, str(error)))

    def end(self, timeout: float | None) -> None:
        """Stop sending, and wait until the requests in flight are decided.

        Raises:
            TimeoutError: some are not decided yet.
        """
        self._ending.set()
        self._wake.set()
        # Only begin to close the session: the thread ends it.
        with suppress(SparkWalError, TimeoutError):
            self.session.close(0)
        if not self._intake.wait_for(lambda: self._ended, timeout):
            raise TimeoutError(f"some sent rows are not decided after {timeout} seconds")
        self._report_resent()
