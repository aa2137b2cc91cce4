"""What every slot record remembers of the queries that wrote to the log."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from sparkwal.format.checked import LATER, Crc, Whole

# Appends without a name begin so: their entry in `txns` guards the record that carries it, and
# the next drops it, since nobody will ask for it again.
ANONYMOUS = "append:"

REMOTE, STATEFUL = "remote", "stateful"
NOWHERE = -1
_Pair = Annotated[tuple[int, int], Whole(low=-1)]

# {query_id: (last batch_id, timestamp_ms)}: which microbatches the log holds.
Txns = dict[str, _Pair]


@dataclass(frozen=True)
class Checkpoint:
    """Where the log holds the checkpoint of one query: in the last record of that query.

    Attributes:
        position, rows: of that record.
        bytes, crc32: of the block of files in it; 0 bytes: it carries none.
        reason: why it carries none: REMOTE, STATEFUL or "".
        files: {name: (position, bytes)} of files that records carry once for those after them;
            NOWHERE for a file that was too large to carry.
        inputs: {name: CRC-32} of the files that say what the microbatch read.
        name: of the query, where `sparkwal.checkpoint` was given it.
    """

    position: int
    rows: int
    bytes: int
    crc32: Crc
    reason: str
    files: dict[str, _Pair]
    inputs: dict[str, Crc]
    name: Annotated[str, LATER] = ""


# {query_id: …} of every stream that wrote to the log.
Checkpoints = dict[str, Checkpoint]


@dataclass(frozen=True)
class QueryProgress:
    """What a record remembers; the object `txns_archive` holds those of older queries."""

    txns: Txns
    checkpoints: Checkpoints
    txns_archive: Annotated[str, LATER] = ""
