"""Whether what the log has of a producer was sent from its journal, or by another appender.

If entries wait in the journal and an appender is opened without it, that appender writes other rows
under their sequences. The producer's last commit record names its leader, and the journal's note
names who sent from there. If one of the two is gone, the answer is unknown: neither yes nor no.
"""

from bisect import bisect_left
from typing import TypeGuard

from sparkwal.appender.context import AppenderContext
from sparkwal.errors import OptionError
from sparkwal.format.header import CommitHeader, LeaderHeader, SlotHeader
from sparkwal.journal.files import Sender, whose
from sparkwal.journal.scanning import Contents
from sparkwal.protocol.archive import last_batch
from sparkwal.protocol.recovery import Head, last_live
from sparkwal.protocol.slots import GLANCE, read_slot
from sparkwal.reading.floor import KEPT_SLOTS, Floor

# Leader records to step over before the search begins.
_STEPS = 4


def check_sent(
    context: AppenderContext, head: Head, log_id: str, known: int, contents: Contents, path: str
) -> None:
    """Call before anything is written. Costs no request if nothing can have been sent since the
    last sender began. Raises OptionError if the log may hold another appender's rows under
    the sequences of entries that wait; InvalidLogError."""
    segments, sender = contents.segments, contents.sender
    mine = (log_id, context.producer_id)
    if segments and segments[0].header.owner != mine:
        return  # another log's or producer's: opening the journal reports it
    if isinstance(sender, Sender) and sender.whose != whose(*mine):
        sender = f"{path} names a sender of another log or producer"
    begun = sender.sequence if isinstance(sender, Sender) else -1
    first = max(contents.first - 1, contents.done(mine), begun) + 1
    newest = contents.damage.newest if contents.damage is not None else -1
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

    def live(position: int) -> SlotHeader | None:
        record = read_slot(log, position, head.window, GLANCE) if position >= kept else None
        if record is None or max(0, position + 1 - record.header.in_flight_limit) < kept:
            return None  # the record could be dead
        return last_live(log, record).header

    def is_it(header: SlotHeader | None) -> TypeGuard[CommitHeader]:
        mine = (producer, known)
        return isinstance(header, CommitHeader) and (header.query_id, header.batch_id) == mine

    # Usually only leader records follow it, or none.
    header = live(head.gap - 1)
    for _ in range(_STEPS):
        if isinstance(header, LeaderHeader):
            header = live(header.prev_position)
    if is_it(header):
        return header.leader_id

    def knows(position: int) -> bool:
        header = live(position)
        return header is not None and last_batch(lambda: log, header, producer) >= known

    header = live(bisect_left(range(head.gap), True, lo=min(kept, head.gap), key=knows))
    return header.leader_id if is_it(header) else None
