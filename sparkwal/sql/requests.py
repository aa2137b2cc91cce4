"""The requests that a record proves its writer made."""

from __future__ import annotations

from collections import Counter

from sparkwal.format.header import SEAL, CommitHeader, LeaderHeader, SlotHeader
from sparkwal.store.base import PART_SIZE

# The default of the option multipartThreshold: no record holds another.
MULTIPART = 16 * 2**20
# As many bytes one GET of a read asks for at most.
_RUN = 8 * 2**20


def made(header: SlotHeader, before: SlotHeader | None) -> Counter[str]:
    """The PUT of the record and of its data objects; of a leader record the look at the log before
    it, and the archive that it began. `before` is the live record before it, where it is known."""
    found = Counter(PUT=1)
    if isinstance(header, CommitHeader):
        for batch in header.batches:
            found["PUT"] += uploads(batch.bytes)
    elif header.reason != SEAL:
        found["LIST"] += 1
        if header.prev_position >= 0:
            # The head, and before it what a writer with many slots in flight may have left.
            reach = before.in_flight_limit if before else 1
            found["GET"] += 1 + min(reach - 1, header.prev_position)
        if before is not None and header.txns_archive != before.txns_archive:
            found["PUT"] += 1
            found["GET"] += 1 if before.txns_archive else 0
    return found


def uploads(size: int) -> int:
    """Requests that store an object: one, or its parts, and that they begin and end."""
    return 1 if size <= MULTIPART else 2 + -(-size // PART_SIZE)


def to_read(header: SlotHeader) -> int:
    """GETs that read this record and its rows."""
    if isinstance(header, LeaderHeader):
        return 1
    return 1 + sum(max(1, -(-batch.bytes // _RUN)) for batch in header.batches)
