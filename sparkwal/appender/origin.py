"""Whether what the log has of a producer was sent from its journal, or by another appender.

Sequences tell only how far a producer came. An appender that was opened without the journal while
entries waited there wrote other rows under the sequences of these.
"""

from __future__ import annotations

from typing import TypeGuard

from sparkwal.appender.session import Session
from sparkwal.errors import OptionError
from sparkwal.format.header import CommitHeader, LeaderHeader, SlotHeader
from sparkwal.journal.scanning import Contents
from sparkwal.journal.sender import whose
from sparkwal.protocol.archive import last_batch
from sparkwal.protocol.log_store import LogStore
from sparkwal.protocol.recovery import last_live
from sparkwal.protocol.slots import GLANCE, read_slot
from sparkwal.reading.floor import Floor

# Leaders that wrote nothing to step over before the search begins.
_STEPS = 4


def check_sent(log: LogStore, producer: str, session: Session, contents: Contents) -> None:
    """No request where nothing can have been sent since the last sender began; else a few, or as
    many as a binary search takes.

    Raises OptionError where entries that were not known to be in the log may have to give way to
    rows of another, InvalidLogError.
    """
    segments, cursor, sender = contents.segments, contents.cursor, contents.sender
    mine = (session.log_id, producer)
    if segments and segments[0].header.owner != mine:
        return  # of another log or producer: whoever opens the journal is told
    if sender is not None and sender.whose != whose(*mine):
        sender = None
    known_done = [contents.first - 1]
    if cursor is not None and cursor.owner == mine:
        known_done.append(cursor.sequence)
    if sender is not None:
        known_done.append(sender.sequence)
    first = max(known_done) + 1
    newest = contents.damage.newest if contents.damage is not None else -1
    last = min(max(contents.last, newest), session.known)
    # Safety (§11): "rows of another appender count as the journal's after a restart"
    if first <= last and (
        sender is None or _last_leader(log, producer, session) != sender.leader_id
    ):
        raise OptionError(
            f"the log has appends of producer {producer!r} up to {session.known}, and another "
            f"appender than the journal's wrote the last of them: entries {first} to {last} of the "
            "journal may not be among them. They are in the journal still, which sends nothing "
            "more: see what the log has, and give another journal folder. Use a producer_id with "
            "one journal only"
        )


def _last_leader(log: LogStore, producer: str, session: Session) -> str | None:
    """Who wrote the producer's last commit; None where its record was collected."""
    lead = session.leadership
    low, high = Floor(log, lead.log_id).current(), lead.began

    def live(position: int) -> SlotHeader | None:
        record = read_slot(log, position, lead.window, GLANCE) if position >= low else None
        return None if record is None else last_live(log, record).header

    def is_it(header: SlotHeader | None) -> TypeGuard[CommitHeader]:
        mine = (producer, session.known)
        return isinstance(header, CommitHeader) and (header.query_id, header.batch_id) == mine

    # Most often nobody has written since, or leaders only.
    header = live(high - 1)
    for _ in range(_STEPS):
        if isinstance(header, LeaderHeader):
            header = live(header.prev_position)
    if is_it(header):
        return header.leader_id
    # The first position at which the log had all that it has of the producer.
    while low < high:
        middle = (low + high) // 2
        header = live(middle)
        if header is None:
            return None
        if last_batch(lambda: log, header, producer) < session.known:
            low = middle + 1
        else:
            high = middle
    header = live(low)
    return header.leader_id if is_it(header) else None
