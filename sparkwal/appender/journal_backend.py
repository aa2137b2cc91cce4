"""The backend of an appender with a journal."""

import threading
from bisect import bisect_left
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from functools import partial
from time import monotonic

from sparkwal.appender.batches import CheckedRows, Ticket
from sparkwal.appender.context import AppenderContext
from sparkwal.appender.journal_intake import JournalIntake
from sparkwal.appender.journal_sender import JournalSender
from sparkwal.appender.rows import read_schema
from sparkwal.appender.salvage import Incident, incidents_of
from sparkwal.appender.sender import take_over
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
from sparkwal.protocol.liveness import last_live, passed_by
from sparkwal.protocol.recovery import Head
from sparkwal.protocol.slots import GLANCE, SlotRecord, TornRecord, read_any
from sparkwal.reading.floor import KEPT_SLOTS, Floor

# The number of leader records to skip before the search begins.
_MAX_LEADER_RECORDS = 4


class JournalBackend:
    """Opens the journal, takes the log over and sends the entries that an earlier process accepted.

    Raises:
        OptionError: the journal cannot be used, or the log may hold other rows under its sequences.
        StoreUnavailableError: the store did not answer.
        FencedError: another writer took the log over.
        InvalidLogError: the log's end is damaged.
        JournalError: the journal's disk failed.
    """

    has_journal = True

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
        self._context = context
        self._ends = threading.Lock()
        with ExitStack() as failed:
            failed.callback(self._folder.close)
            contents = scan_folder(self._folder, settings)
            takeover = take_over(context, check=partial(self._check, contents))
            journal = self._opening.begin(settings, context.subscribers.publish)
            failed.callback(_give_up, journal.close)
            # The note must be on the disk before the session sends a row.
            lead = takeover.leadership
            owner = whose(lead.log_id, context.producer_id)
            write_sender(self._folder, Sender(owner, lead.leader_id, takeover.last_logged))
            self.intake = JournalIntake(journal, context.rows, takeover.last_logged)
            failed.callback(self.intake.callbacks.stop)
            self.sender = JournalSender(context, self.intake, takeover)
            failed.pop_all()
        self.journal = journal

    def _check(self, contents: Contents, head: Head, log_id: str, logged: int) -> None:
        """Check that this appender may lead the log, before it writes anything."""
        path, rows = self._folder.path, self._context.rows
        for segment in contents.segments:
            if segment.last <= logged:
                continue
            read = read_schema(segment.header.schema)
            new = next((name for name in rows.required if name not in read.names), None)
            lacks = None if new is None else f"no column {new!r}, which takes no null"
            if wrong := rows.mismatch(read) or lacks:
                raise OptionError(
                    f"journal {path} holds rows that wait and do not fit ({wrong}): open it once "
                    "with the former schema, and close it when everything is sent"
                )
        _check_sent(self._context, SentSequences(head, log_id, logged), contents, path)
        schema, log = rows.arrow.serialize().to_pybytes(), self._context.log.url
        owner = Owner(log, log_id, self._context.producer_id, logged, schema)
        # If the head moves before this appender leads, this check runs again.
        self._opening = Opening(self._folder, replace(contents), owner)

    def resend_lost(self, unreadable: Callable[[int], CheckedRows]) -> list[int]:
        """Append the lost appends again. Returns the sequences that `unreadable` was called with.

        Raises:
            OptionError: another append came first, or the rows do not fit.
            JournalReadError: a file in quarantine is unreadable.
            SparkWalError: the error that stopped the appender.
        """
        asked = []
        journal = self.journal
        for sequence, entry in journal.quarantine.entries(journal.lost.start - 1):
            if sequence != journal.last + 1:
                raise OptionError(
                    f"append {sequence} was lost and is to be appended again, and {journal.last} "
                    "was appended meanwhile: call resend_lost before any other append. "
                    "`incidents` names the files that hold the remaining lost appends"
                )
            if entry is None:
                asked.append(sequence)
                self.intake.append(unreadable(sequence), block=True)
            else:
                self.intake.append(self._context.rows.restore(*entry), block=True)
            journal.lost = range(sequence + 1, journal.lost.stop)
        # An unknown number of appends came after these.
        for sequence in journal.lost:
            asked.append(sequence)
            rows = unreadable(sequence)
            if not len(rows[0]):
                break
            self.intake.append(rows, block=True)
            journal.lost = range(sequence + 1, journal.lost.stop)
        journal.settle()
        return asked

    def append_unsynced(self, rows: CheckedRows) -> Ticket:
        begin = partial(self.intake.begin, rows, block=False)
        return self.intake.callbacks.enter(begin)

    def wait_accepted(self, ticket: Ticket) -> None:
        self.intake.callbacks.enter(self.journal.wait, ticket.sequence)

    def incidents(self) -> list[Incident]:
        return incidents_of(self.journal.quarantine, self.journal.last)

    @property
    def lost(self) -> range:
        return self.journal.lost

    @property
    def journal_bytes(self) -> int:
        return self.journal.size

    @property
    def is_store_away(self) -> bool:
        return self.sender.is_away

    @property
    def in_flight(self) -> int:
        return self.sender.session.in_flight

    @property
    def memory(self) -> int:
        return self.intake.memory + self.sender.session.memory

    def close(self, timeout: float | None) -> None:
        """Accept no more appends, and send the rest while the store answers. The journal keeps the
        others.

        Raises:
            TimeoutError: some rows are not in the log yet.
            JournalError: the journal's disk failed.
        """
        intake = self.intake
        sender = self.sender
        journal = self.journal
        intake.close()
        if journal.is_closed:
            return
        end = None if timeout is None else monotonic() + timeout
        # `journal.close` raises the error again.
        with suppress(JournalError):
            journal.sync()
            last = journal.last

            def is_done() -> bool:
                idle = intake.decided >= last or intake.stopped is not None
                return idle or sender.takes_nothing()

            if not intake.wait_for(is_done, timeout):
                raise TimeoutError(f"some rows are not in the log after {timeout} seconds")
        sender.end(None if end is None else max(0.0, end - monotonic()))
        with self._ends:
            if not journal.is_closed:
                try:
                    journal.acknowledge(intake.decided)
                    journal.close()
                finally:
                    intake.end()
        intake.callbacks.stop()


@dataclass(frozen=True)
class SentSequences:
    """The producer's sequences in the log `log_id`, up to `newest`, as `head` shows them."""

    head: Head
    log_id: str
    newest: int


def _check_sent(
    context: AppenderContext, sent: SentSequences, contents: Contents, path: str
) -> None:
    """Check that this journal sent the producer's rows that the log has, before writing anything.

    If entries wait in the journal and an appender is opened without it, that appender writes other
    rows under their sequences. The producer's last commit record names its leader, and the
    journal's note names the leader that sent from there. Without one of the two the answer is
    unknown. Costs no request if no row was sent since the last sender began.

    Raises:
        OptionError: the log may hold another appender's rows under the sequences of waiting
            entries.
        InvalidLogError: the log is damaged.
    """
    segments, sender = contents.segments, contents.sender
    owner = (sent.log_id, context.producer_id)
    if segments and segments[0].header.owner != owner:
        # The entries are another log's or producer's. Opening the journal reports that.
        return
    if isinstance(sender, Sender) and sender.whose != whose(*owner):
        sender = f"{path} names a sender of another log or producer"
    begun = sender.sequence if isinstance(sender, Sender) else -1
    first = max(contents.first - 1, contents.done(owner), begun) + 1
    damage = contents.damage
    newest = -1 if damage is None else sent.newest if damage.more else damage.newest
    last = min(max(contents.last, newest), sent.newest)
    if first > last:
        return
    wrote = _last_leader(context, sent)
    has = f"the log has appends of producer {context.producer_id!r} up to {sent.newest}"
    if wrote is None:
        unknown = "the record of the last of them was collected, so its writer is unknown"
    elif isinstance(sender, Sender):
        # SAFETY(sender-wrote-it) §11: what the log has counts as the journal's only if the noted
        # sender wrote the producer's last record
        if wrote != sender.leader_id:
            raise OptionError(
                f"{has}, and another appender ({wrote}) than the journal's ({sender.leader_id}) "
                f"wrote the last of them: entries {first} to {last} of the journal may not be "
                "among them. The journal still holds them, and sends no more: read the log, and "
                "choose another journal folder. A producer_id needs its own journal"
            )
        return
    else:
        unknown = f"{sender}; appender {wrote} wrote the last of them"
    confirmed = context.settings.journal_sent_up_to
    # SAFETY(unknown-is-not-sent) §11: if the sender is unknown, only the user's journalSentUpTo
    # counts entries as sent
    if confirmed != sent.newest:
        raise OptionError(
            f"{has}, and it is unknown whether the journal {path} sent them: {unknown}. If no "
            "other appender had this producer_id since the journal was opened last, open it once "
            f"with journalSentUpTo={sent.newest}: then entries {first} to {last} count as sent, "
            "and the journal sends the entries after them. If one had it, compare the entries with "
            "the log, and choose another journal folder. No entry is lost"
        )


def _last_leader(context: AppenderContext, sent: SentSequences) -> str | None:
    """The leader that wrote the producer's last commit, or None if the record was collected."""
    log, producer = context.log, context.producer_id
    head = sent.head
    view = head.view(log)
    # No collection deletes the slots from here on, so none of them was freed and filled again.
    # SAFETY(search-kept-slots) §11: the search for the last record covers the 1,000 slots below the
    # floor
    lowest = max(0, Floor(log, sent.log_id).current() - KEPT_SLOTS)

    def at(position: int) -> SlotRecord | None:
        while position >= lowest:
            slot = read_any(log, position, head.window, GLANCE)
            if not isinstance(slot, TornRecord):
                return slot
            # After a torn record the log holds what it held before, unless it was complete once.
            passed_by(view, slot)
            position -= 1
        return None

    def unchecked(position: int) -> SlotHeader | None:
        record = at(position)
        return record.header if record else None

    def live(position: int) -> SlotHeader | None:
        record = at(position)
        if record is None or max(0, position + 1 - record.header.in_flight_limit) < lowest:
            # The record could be dead.
            return None
        return last_live(view, record).header

    def leader_at(position: int) -> str | None:
        header = live(position)
        if not isinstance(header, CommitHeader) or header.query_id != producer:
            return None
        return header.leader_id if header.batch_id == sent.newest else None

    def holds_newest(read: Callable[[int], SlotHeader | None], position: int) -> bool:
        header = read(position)
        return header is not None and last_batch(lambda: log, header, producer) >= sent.newest

    # Usually at most a few leader records follow the producer's last commit.
    header = head.live.header if head.live else None
    for _ in range(_MAX_LEADER_RECORDS):
        if isinstance(header, LeaderHeader):
            header = unchecked(header.prev_position)
    if header is not None and (leader := leader_at(header.position)) is not None:
        return leader
    # A look-back at each step would cost many requests. Without it a dead record may mislead the
    # search. So check its result, and if that is wrong, search again with look-backs.
    for read in (unchecked, live):
        position = bisect_left(
            range(head.gap), True, lo=min(lowest, head.gap), key=partial(holds_newest, read)
        )
        if (leader := leader_at(position)) is not None:
            return leader
    return None


def _give_up(close: Callable[[], None]) -> None:
    # The caller raises the error that made the opening fail.
    with suppress(SparkWalError, TimeoutError):
        close()
