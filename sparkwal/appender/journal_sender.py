"""From the journal to the log: one session after another, each from where the log ends.

If the store stops a session, the next one begins after the last sequence in the log. What was sent
without an answer is in the log or is sent again, never both.

    sending → away (`_lose`: the store stopped its session) → sending (`_take_up`)
    sending, away → stopped (`_fail`: nothing more is sent) → ended
    sending, away → ended (`end`: the appender is closed)
"""

import threading
from contextlib import suppress

import pyarrow as pa

from sparkwal import events
from sparkwal.appender.batches import CheckedRows
from sparkwal.appender.context import AppenderContext
from sparkwal.appender.journal_intake import JournalIntake
from sparkwal.appender.sender import Session, open_session
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
from sparkwal.protocol.replay import live_records

# Seconds between two attempts to lead the log: doubled from the first value to the last.
_FIRST_SECONDS, _LAST_SECONDS = 0.2, 5.0
# Up to this many entries of a backlog are read before any is sent: each record costs a request.
_MOST_ENTRIES = 1000
# Sending slows appends down: after this many entries read, the sender gives way if more were
# accepted. Once it has sent all, it lets new entries gather for as long as a PUT takes.
_STEP = 50
_GIVE_WAY_SECONDS, _GATHER_SECONDS = 0.002, 0.05


class JournalSender:
    """Sends what the journal has accepted, and drains what the log has, with an open `session`."""

    def __init__(self, context: AppenderContext, intake: JournalIntake, session: Session) -> None:
        self._context = context
        self._intake = intake
        self._journal = intake.journal
        self._publish = context.subscribers.publish
        self.session = session  # the newest; it has ended if the store is away
        # SAFETY(send-from-log-end) §11: sending begins after the last sequence that the log has
        self._fed = session.known
        self._seconds = 0.0  # pause before the next attempt to lead
        self._replays = intake.journal.last if intake.journal.last > session.known else None
        self.is_away = self._ended = False
        self._gathers = True  # whether all that was accepted before is sent
        # Set when the appender ends; set when there may be something to do.
        self._ending, self._wake = Flag(), Flag()
        self._journal.on_accepted = self._wake.set
        if self._replays is not None:
            self._publish(events.ReplayStarted(self._journal.path, self._fed + 1, self._replays))
        self._listen(session)
        threading.Thread(target=self._run, name="sparkwal-journal", daemon=True).start()

    def _listen(self, session: Session) -> None:
        def decided(sequence: int, position: int) -> None:
            self._seconds = 0.0
            self._intake.decide(sequence, position)
            self._wake.set()

        def changed() -> None:
            self._intake.notify()
            self._wake.set()

        session.on_decided, session.on_change = decided, changed

    def _run(self) -> None:
        try:
            while not self._ending.is_set() and self._intake.stopped is None:
                self._go_on()
            if self._journal.failure is not None and self._intake.stopped is None:
                raise self._journal.failure
        except SparkWalError as error:
            self._fail(error)
        except BaseException as error:
            self._fail(
                OutcomeUnknownError(
                    f"the journal's thread failed ({type(error).__name__}: {error}); what was "
                    f"accepted is in {self._journal.path}: open a new appender with it"
                )
            )
        finally:
            with suppress(SparkWalError):
                self.session.close(None)
            self._ended = True
            self._intake.notify()

    def _go_on(self) -> None:
        """Take one step, or wait."""
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
        self._report_replayed()
        # A retryable drain is tried again with the next acknowledgement.
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
            self._give_way(_GATHER_SECONDS)
        self._gathers, upto = False, self._journal.accepted
        for rows in self._gather(upto):
            try:
                ticket = self.session.intake.append(rows, block=True)
            except SparkWalError:
                return  # the session has stopped: the next step reads why
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
        for sequence in range(self._fed + 1, min(upto, self._fed + _MOST_ENTRIES) + 1):
            try:
                rows = self._intake.take(sequence) or self._read(sequence)
            except JournalReadError:
                if not gathered:
                    raise
                break  # send those before it first
            gathered.append(rows)
            size += rows[1]
            if size >= self._context.settings.batch_size:
                break
            if len(gathered) % _STEP == 0 and self._journal.accepted > accepted:
                accepted = self._journal.accepted
                self._give_way(_GIVE_WAY_SECONDS)
        return gathered

    def _give_way(self, seconds: float) -> None:
        """Let appending threads run, unless somebody waits for the log."""
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

    def _report_replayed(self) -> None:
        if self._replays is not None and self._intake.decided >= self._replays:
            self._publish(events.Replayed(path=self._journal.path, sequence=self._replays))
            self._replays = None

    def takes_nothing(self) -> bool:
        """Whether waiting for the log is of no use now."""
        return self.is_away or self.session.intake.full is not None

    def _lose(self, error: SparkWalError) -> None:
        """End a session that has stopped. Raises an error that a new session would not mend."""
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
        """Lead the log again; False if the appender ends first."""
        # Appends wake it all the time: only the end of the appender counts.
        while not self._ending.wait(self._seconds):
            # Longer until the log takes rows: a store may accept leader records and no rows.
            self._seconds = min(max(2 * self._seconds, _FIRST_SECONDS), _LAST_SECONDS)
            try:
                session = open_session(self._context, self.session.leadership)
            except (StoreUnavailableError, OutcomeUnknownError) as error:
                self._away(error)
                continue
            self._take_up(session)
            return True
        return False

    def _take_up(self, session: Session) -> None:
        former, self.session = self.session.leadership, session
        self._listen(session)
        # The session's own look usually reports this before.
        if session.known > self._fed:
            raise FencedError(
                f"the log has appends of producer {self._context.producer_id!r} up to "
                f"{session.known}, and {self._journal.path} sent those up to {self._fed}: another "
                "appender has this producer_id. What was accepted is in the journal"
            )
        if session.known < self._intake.decided:
            raise OptionError(
                f"the log has appends of producer {self._context.producer_id!r} up to "
                f"{session.known}, and had acknowledged those up to {self._intake.decided}: it was "
                "restored from an older copy"
            )
        self._find_positions(former)
        # SAFETY(session-from-log) §11: a new session continues after the sequence that the log has,
        # not after the last one sent
        self._fed = session.known
        self.is_away = False
        self._publish(events.StoreBack(path=self._context.log.url, sequence=self._fed + 1))

    def _find_positions(self, lead: Leadership) -> None:
        """Decide appends that were sent without an answer and are in the log."""
        known, intake = self.session.known, self._intake
        if intake.waits_for(known):
            # Only what has no verdict yet, not all that the session wrote.
            begin, end = max(lead.next_position, intake.reached + 1), self.session.leadership.began
            log, mine = self._context.log, self._context.producer_id
            found = live_records(log, lead.window, begin, end, log_id=lead.log_id, term=lead.term)
            with suppress(SparkWalError):  # then only their positions stay unknown
                for header in (record.header for record in found):
                    if isinstance(header, CommitHeader) and header.query_id == mine:
                        intake.decide(min(header.batch_id, known), header.position)
        intake.decide(known, -1)

    def _fail(self, error: SparkWalError) -> None:
        if isinstance(error, FencedError):
            error = fenced(error, self._journal.path)
        self._intake.fail(error)
        kind = type(error).__name__
        self._publish(events.Stopped(self._context.log.url, kind, str(error)))

    def end(self, timeout: float | None) -> None:
        self._ending.set()
        self._wake.set()
        # Begin to close it here; the thread ends it.
        with suppress(SparkWalError, TimeoutError):
            self.session.close(0)
        if not self._intake.wait_for(lambda: self._ended, timeout):
            raise TimeoutError(f"what was sent is not decided after {timeout} seconds")
        self._report_replayed()
