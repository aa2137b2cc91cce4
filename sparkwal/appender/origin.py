"""Whether what the log has of a producer was sent from its journal, or by another appender.

Sequences tell only how far a producer came. An appender that was opened without the journal while
entries waited there wrote other rows under the sequences of these.
"""

from __future__ import annotations

from sparkwal.appender.session import Session
from sparkwal.errors import OptionError
from sparkwal.format.header import CommitHeader
from sparkwal.journal.scanning import Contents
from sparkwal.journal.sender import Sender, whose
from sparkwal.protocol.archive import read_archive
from sparkwal.protocol.log_store import LogStore
from sparkwal.protocol.recovery import Head, last_live
from sparkwal.protocol.replay import first_at_or_after
from sparkwal.protocol.slots import GLANCE, read_slot
from sparkwal.reading.floor import Floor

# Leaders that wrote nothing to step over before the search begins.
_STEPS = 4


def check_sent(
    log: LogStore, producer: str, session: Session, contents: Contents, sender: Sender | None
) -> None:
    """No request where nothing can have been sent since `sender` began; else a few, or as many as
    a binary search takes.

    Raises OptionError where entries that were not known to be in the log may have to give way to
    rows of another, InvalidLogError.
    """
    segments, cursor = contents.segments, contents.cursor
    mine = (session.log_id, producer)
    if segments and (segments[0].header.log_id, segments[0].header.producer) != mine:
        return  # of another log or producer: whoever opens the journal is told
    if sender is not None and sender.whose != whose(*mine):
        sender = None
    known_done = [contents.first - 1]
    if cursor is not None and (cursor.log_id, cursor.producer) == mine:
        known_done.append(cursor.sequence)
    if sender is not None:
        known_done.append(sender.sequence)
    first = max(known_done) + 1
    newest = contents.damage.newest if contents.damage is not None else -1
    last = min(max(contents.last, newest), session.known)
    # Defends against: rows of another appender count as the journal's after a restart
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
    txns = lead.txns
    if producer not in txns:
        txns = read_archive(log, lead.txns_archive).txns
    _, written_ms = txns[producer]
    floor = Floor(log, lead.log_id).current()

    def at(position: int) -> CommitHeader | int | None:
        """The commit, if it is here; else where it may be at the latest, or None."""
        record = read_slot(log, position, lead.window, GLANCE) if position >= floor else None
        if record is None:
            return None
        header = last_live(log, record).header
        if not isinstance(header, CommitHeader):
            return header.prev_position
        is_it = (header.query_id, header.timestamp_ms) == (producer, written_ms)
        return header if is_it else None

    position = lead.began - 1
    for _ in range(_STEPS):
        found = at(position)
        if isinstance(found, CommitHeader):
            return found.leader_id
        if found is None:
            break
        position = found
    head = Head(lead.began - 1, None, lead.window)
    found = at(first_at_or_after(log, head, written_ms, start=floor))
    return found.leader_id if isinstance(found, CommitHeader) else None
