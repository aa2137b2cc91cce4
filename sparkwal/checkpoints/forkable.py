"""Decides whether a query can be forked at a position of its log (PROTOCOL §12)."""

from bisect import bisect_left
from collections.abc import Set
from dataclasses import dataclass

from sparkwal.checkpoints import packing
from sparkwal.errors import InvalidLogError
from sparkwal.format.header import REMOTE, STATEFUL, Checkpoint
from sparkwal.protocol.archive import recall
from sparkwal.protocol.liveness import live_until
from sparkwal.protocol.recovery import LIST_LIMIT, Head
from sparkwal.protocol.slots import GLANCE
from sparkwal.store.base import LogStore

# The reasons of a record that carries no checkpoint, by its `reason`.
_REASONS = {
    STATEFUL: "the query is stateful, and its state is not in the log",
    REMOTE: "its checkpoint was not on the driver's disk, so the record carries nothing of it",
}
COLLECTED = "its record was collected"


@dataclass(frozen=True)
class Kept:
    """The records that no collection deletes.

    Attributes:
        floor: the log's floor. A collection leaves the records before it too.
        named: the positions that the live head names, as `archive.named_records`.
    """

    floor: int
    named: Set[int] = frozenset()

    def holds(self, position: int) -> bool:
        """Whether the record at a position is kept. In a freed slot another record may lie."""
        return position >= self.floor - LIST_LIMIT or position in self.named

    def holds_all(self, entry: Checkpoint) -> bool:
        """Whether each record is kept that carries a part of the checkpoint."""
        return all(map(self.holds, carrying(entry)))


def carrying(entry: Checkpoint) -> set[int]:
    """The positions of the records that carry a checkpoint without gaps."""
    of_state = entry.state.positions if entry.state else ()
    return {entry.position, *(position for position, _ in entry.files.values()), *of_state}


def not_carried(entry: Checkpoint) -> str:
    """The reason if the records do not carry the whole checkpoint, else ""."""
    if entry.reason:
        return _REASONS.get(entry.reason, f"the record carries nothing of it ({entry.reason})")
    if too_large := entry.too_large:
        return f"{too_large[0]} was larger than checkpointMaxBytes"
    if entry.state is not None and not entry.state.base:
        return "the next records carry the rest of its state, which is large"
    return ""


def not_forkable(
    log: LogStore, window: int, query_id: str, entry: Checkpoint | None, kept: Kept
) -> str:
    """The reason if a query cannot be forked where the log has this checkpoint of it, else "".

    It costs no request, unless a record may have been collected.
    """
    if entry is None:
        return "no record carries its checkpoint"
    if why := not_carried(entry):
        return why
    if kept.holds_all(entry):
        return ""
    if entry.state is not None:
        # The fork asks the same: it does not read thousands of records to find one that is left.
        return COLLECTED
    try:
        packing.read_files(log, window, query_id, entry)
    except InvalidLogError:
        return COLLECTED
    return ""


def first_forkable(
    log: LogStore, head: Head, query_id: str, entry: Checkpoint, kept: Kept, last: int
) -> int:
    """The first position, not below the floor, from which on the query can be forked.

    It costs no request, unless a record before the floor is needed or an older version wrote the
    entry: then log₂ n GETs, and those of `not_forkable`.

    Args:
        log: the log.
        head: its head.
        query_id: the query.
        entry: a checkpoint of it that can be forked, the last one that counts.
        kept: the records that are kept.
        last: the last position that counts.
    """
    # The state at an earlier position may need records before it.
    if entry.since >= kept.floor and (entry.state is None or kept.floor == 0):
        return entry.since
    if entry.position <= kept.floor:
        return min(kept.floor, last)

    view = head.view(log)

    def can_be_forked(position: int) -> bool:
        try:
            live = live_until(view, position, GLANCE)
            if live is None:
                return False
            _, then = recall(lambda: log, live.header, query_id)
            return not not_forkable(log, head.window, query_id, then, kept)
        except InvalidLogError:
            return False

    positions = range(kept.floor, entry.position)
    return kept.floor + bisect_left(positions, True, key=can_be_forked)
