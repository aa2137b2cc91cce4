"""The backend of an appender with a journal."""

import threading
from bisect import bisect_left
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from time import monotonic

from sparkwal.appender.batches import CheckedRows
from sparkwal.appender.context import AppenderContext
from sparkwal.appender.journal_intake import JournalIntake
from sparkwal.appender.journal_sender import JournalSender
from sparkwal.appender.rows import read_schema
from sparkwal.appender.sender import open_session
from sparkwal.errors import JournalError, OptionError, SparkWalError
from sparkwal.format.header import CommitHeader, LeaderHeader, SlotHeader
from sparkwal.journal.disk import DiskFolder
from sparkwal.journal.files import Sender, whose, write_sender
from sparkwal.journal.journal import Settings
from sparkwal.journal.opening import Opening, Owner
from sparkwal.journal.scanning import Contents, scan_folder
from sparkwal.journal.storage import Folder
from sparkwal.options.open import journal_folder
from sparkwal.protocol.archive import last_batch
from sparkwal.protocol.recovery import Head, last_live
from sparkwal.protocol.slots import GLANCE, SlotRecord, read_slot
from sparkwal.reading.floor import KEPT_SLOTS, Floor

# Leader records to step over before the search begins.
_STEPS = 4


class JournalBackend:
    """Opens the journal, takes the log over and sends what an earlier process accepted. Raises
    OptionError, StoreUnavailableError, FencedError, InvalidLogError, JournalError."""

    def __init__(self, context: AppenderContext, folder: Folder | None = None) -> None:
        options = context.settings
        assert options.journal is not None
        settings = Settings(
            options.journal_segment,
            options.journal_max,
            options.journal_slots,
            options.journal_sync,
            options.journal_interval_ms,
        )
        # Lock the folder before leading, so that a second process fails without fencing the first.
        self._folder = folder or DiskFolder(journal_folder(options.journal, options.path))
        self._context, self._ends = context, threading.Lock()
        with ExitStack() as failed:
            failed.callback(self._folder.close)
            contents = scan_folder(self._folder, settings)
            session = open_session(context, check=partial(self._check, contents))
            failed.callback(_give_up, partial(session.close, 1.0))
            journal = self._opening.begin(settings, context.subscribers.publish)
            failed.callback(_give_up, journal.close)
            # Write the note before anything is sent.
            lead = session.leadership
            mine = whose(lead.log_id, context.producer_id)
            write_sender(self._folder, Sender(mine, lead.leader_id, session.known))
            self.intake = JournalIntake(journal, context.rows, session.known)
            failed.callback(self.intake.callbacks.stop)
            self.sender = JournalSender(context, self.intake, session)
            failed.pop_all()
        self.journal = journal

    def _check(self, contents: Contents, head: Head, log_id: str, known: int) -> None:
        """Before anything is written."""
        path, rows = self._folder.path, self._context.rows
        for segment in contents.segments:
            if segment.last <= known:
                continue
            kept = read_schema(segment.header.schema)
            new = next((name for name in rows.required if name not in kept.names), None)
            lacks = None if new is None else f"no column {new!r}, which takes no null"
            if wrong := rows.mismatch(kept) or lacks:
                raise OptionError(
                    f"journal {path} holds rows that wait and do not fit ({wrong}): open it once "
                    "with the former schema, and close it when everything is sent"
                )
        _check_sent(self._context, head, log_id, known, contents, path)
        schema, log = rows.arrow.serialize().to_pybytes(), self._context.log.url
        owner = Owner(log, log_id, self._context.producer_id, known, schema)
        # The head may move before this appender leads: then it is checked again.
        self._opening = Opening(self._folder, replace(contents), owner)

    def resend_lost(self, unreadable: Callable[[int], CheckedRows]) -> list[int]:
        gone, journal = [], self.journal
        for sequence, found in journal.quarantine.entries(journal.lost.start - 1):
            if sequence != journal.last + 1:
                raise OptionError(
                    f"append {sequence} was lost and is to be appended again, and {journal.last} "
                    "was appended meanwhile: call it before anything else is appended. What is "
                    "left of the lost ones is where `incidents` says"
                )
            if found is None:
                gone.append(sequence)
                self.intake.append(unreadable(sequence), True)
            else:
                self.intake.append(self._context.rows.restore(*found), True)
            journal.lost = range(sequence + 1, journal.lost.stop)
        # An unknown number of appends came after these.
        for sequence in journal.lost:
            gone.append(sequence)
            rows = unreadable(sequence)
            if not len(rows[0]):
                break
            self.intake.append(rows, True)
            journal.lost = range(sequence + 1, journal.lost.stop)
        journal.settle()
        return gone

    @property
    def in_flight(self) -> int:
        return self.sender.session.in_flight

    @property
    def held(self) -> int:
        return self.intake.held + self.sender.session.held

    def close(self, timeout: float | None) -> None:
        """Accept nothing more and send the rest while the store answers; the journal keeps what it
        does not take. Raises TimeoutError, JournalError."""
        intake = self.intake
        sender = self.sender
        journal = self.journal
        intake.close()
        if journal.is_closed:
            return
        end = None if timeout is None else monotonic() + timeout
        with suppress(JournalError):  # `journal.close` raises it again
            journal.sync()
            last = journal.last

            def is_done() -> bool:
                idle = intake.decided >= last or intake.stopped is not None
                return idle or sender.takes_nothing()

            if not intake.wait_for(is_done, timeout):
                raise TimeoutError(f"not everything is in the log after {timeout} seconds")
        sender.end(None if end is None else max(0.0, end - monotonic()))
        with self._ends:
            if not journal.is_closed:
                try:
                    journal.acknowledge(intake.decided)
                    journal.close()
                finally:
                    intake.end()
        intake.callbacks.stop()


def _check_sent(
    context: AppenderContext, head: Head, log_id: str, known: int, contents: Contents, path: str
) -> None:
    """Whether what the log has of the producer was sent from this journal: call before anything is
    written. If entries wait in the journal and an appender is opened without it, that appender
    writes other rows under their sequences. The producer's last commit record names its leader, and
    the journal's note names who sent from there. If one of the two is gone, the answer is unknown.

    Costs no request if nothing can have been sent since the last sender began. Raises OptionError
    if the log may hold another appender's rows under the sequences of entries that wait;
    InvalidLogError."""
    segments, sender = contents.segments, contents.sender
    mine = (log_id, context.producer_id)
    if segments and segments[0].header.owner != mine:
        return  # another log's or producer's: opening the journal reports it
    if isinstance(sender, Sender) and sender.whose != whose(*mine):
        sender = f"{path} names a sender of another log or producer"
    begun = sender.sequence if isinstance(sender, Sender) else -1
    first = max(contents.first - 1, contents.done(mine), begun) + 1
    damage = contents.damage
    newest = -1 if damage is None else known if damage.more else damage.newest
    last = min(max(contents.last, newest), known)
    if first > last:
        return
    wrote = _last_leader(context, head, log_id, known)
    has = f"the log has appends of producer {context.producer_id!r} up to {known}"
    if wrote is None:
        unknown = "the record of the last of them was collected, with who wrote it"
    elif isinstance(sender, Sender):
        # SAFETY(sender-wrote-it) §11: what the log has counts as the journal's only if the noted
        # sender wrote the producer's last record
        if wrote != sender.leader_id:
            raise OptionError(
                f"{has}, and another appender ({wrote}) than the journal's ({sender.leader_id}) "
                f"wrote the last of them: entries {first} to {last} of the journal may not be "
                "among them. They are in the journal still, which sends nothing more: see what "
                "the log has, and give another journal folder. A producer_id needs its own journal"
            )
        return
    else:
        unknown = f"{sender}; appender {wrote} wrote the last of them"
    confirmed = context.settings.journal_sent_up_to
    # SAFETY(unknown-is-not-sent) §11: if the sender is unknown, only the user's journalSentUpTo
    # counts entries as sent
    if confirmed != known:
        raise OptionError(
            f"{has}, and nobody knows whether the journal {path} sent them: {unknown}. If no other "
            "appender had this producer_id since the journal was opened last, open it once with "
            f"journalSentUpTo={known}: then entries {first} to {last} count as sent, and "
            "what comes after them is sent. Else compare them with the log, and give another "
            "journal folder. Nothing of it is lost"
        )


def _last_leader(context: AppenderContext, head: Head, log_id: str, known: int) -> str | None:
    """The leader that wrote the producer's last commit; None if the record was collected."""
    log, producer = context.log, context.producer_id
    # No collection has come further, so no slot from here on was freed and refilled.
    # SAFETY(search-kept-slots) §11: the search for the last record covers the 1,000 slots below the
    # floor
    kept = max(0, Floor(log, log_id).current() - KEPT_SLOTS)

    def at(position: int) -> SlotRecord | None:
        return read_slot(log, position, head.window, GLANCE) if position >= kept else None

    def unchecked(position: int) -> SlotHeader | None:
        record = at(position)
        return record.header if record else None

    def live(position: int) -> SlotHeader | None:
        record = at(position)
        if record is None or max(0, position + 1 - record.header.in_flight_limit) < kept:
            return None  # the record could be dead
        return last_live(log, record, head=head).header

    def leader_at(position: int) -> str | None:
        header = live(position)
        if not isinstance(header, CommitHeader) or header.query_id != producer:
            return None
        return header.leader_id if header.batch_id == known else None

    def knows(read: Callable[[int], SlotHeader | None], position: int) -> bool:
        header = read(position)
        return header is not None and last_batch(lambda: log, header, producer) >= known

    # Usually only leader records follow it, or none.
    header = head.live.header if head.live else None
    for _ in range(_STEPS):
        if isinstance(header, LeaderHeader):
            header = unchecked(header.prev_position)
    if header is not None and (leader := leader_at(header.position)) is not None:
        return leader
    # A look back at each step would cost many requests. Without it a dead record may mislead the
    # search: so its result is checked, and if it is wrong each step looks back.
    for read in (unchecked, live):
        found = bisect_left(range(head.gap), True, lo=min(kept, head.gap), key=partial(knows, read))
        if (leader := leader_at(found)) is not None:
            return leader
    return None


def _give_up(close: Callable[[], None]) -> None:
    with suppress(SparkWalError, TimeoutError):  # the error that made the opening fail is raised
        close()
