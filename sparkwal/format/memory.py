"""What every slot record remembers of the queries that wrote to the log."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from sparkwal.errors import InvalidLogError
from sparkwal.format.checked import Check, are_whole

# Appends without a name begin so: their entry in `txns` guards the record that carries it, and
# the next drops it, since nobody will ask for it again.
ANONYMOUS = "append:"

# {query_id: (last batch_id, timestamp_ms)}: which microbatches the log holds.
Txns = dict[str, tuple[int, int]]


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
    crc32: int
    reason: str
    files: dict[str, tuple[int, int]]
    inputs: dict[str, int] = field(default_factory=dict)
    name: str = ""


REMOTE, STATEFUL = "remote", "stateful"
NOWHERE = -1

# {query_id: …} of every stream that wrote to the log.
Checkpoints = dict[str, Checkpoint]


@dataclass(frozen=True)
class QueryProgress:
    """What a record remembers; the object `txns_archive` holds those of older queries."""

    txns: Txns
    checkpoints: Checkpoints
    txns_archive: str = ""


def to_plain(checkpoints: Checkpoints) -> dict[str, Any]:
    return {
        query: {name: value for name, value in vars(each).items() if value or name != "name"}
        for query, each in checkpoints.items()
    }


def txns_in(check: Check) -> Txns:
    value = check.mapping("txns")
    for pair in value.values():
        if not are_whole(pair, 2, low=-1):
            raise check.fail("txns", "{query_id: [batch_id, timestamp_ms]}")
    return {query: (pair[0], pair[1]) for query, pair in value.items()}


def checkpoints_in(outer: Check) -> Checkpoints:
    found: Checkpoints = {}
    for query, document in outer.mapping("checkpoints", absent={}).items():
        check = Check(document, outer.where)
        inputs = Check(check.mapping("inputs"), outer.where)
        files = {}
        for name, pair in check.mapping("files").items():
            if not are_whole(pair, 2, low=NOWHERE):
                raise InvalidLogError(
                    f"{outer.where}: a checkpoint's file is not [position, bytes]"
                )
            files[name] = (pair[0], pair[1])
        found[query] = check.read(
            Checkpoint,
            files=files,
            inputs={name: inputs.whole(name, high=2**32 - 1) for name in inputs.document},
            name=check.text("name", absent=""),
        )
    return found
