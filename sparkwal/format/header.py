"""The header of one object: its fields, its JSON, its checks.

Decoding trusts nothing: every field's type and range is checked, the number must agree with
position and window, and the JSON is covered by a CRC-32.
"""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

from sparkwal.errors import InvalidLogError
from sparkwal.format import keys
from sparkwal.format.checked import FORMAT, Check, are_whole
from sparkwal.format.memory import Checkpoints, Txns, checkpoints_in, to_plain, txns_in

HEADER_KEY = b"weaselwal"
CRC_KEY = b"weaselwal.crc32"
SCHEMA_KEY = b"weaselwal.spark_schema"
# The reason of the records that a leader writes after its first.
SEAL = "seal"


class Frame(NamedTuple):
    """One Arrow record batch of an object: `length` bytes at `offset` from the object's start."""

    offset: int
    length: int
    rows: int
    crc32: int


@dataclass(frozen=True)
class Batch:
    """One data object as its commit record names it; `crc32` covers all of it."""

    number: int
    partition: int
    rows: int
    bytes: int
    crc32: int
    frames: tuple[Frame, ...]


@dataclass(frozen=True)
class Inline:
    """Rows of one partition that travel inside the commit record itself, as `record_batches`
    messages of `bytes` bytes in all, one partition after the other, directly after the schema
    message; `crc32` covers those bytes."""

    partition: int
    rows: int
    record_batches: int
    bytes: int
    crc32: int


@dataclass(frozen=True)
class Header:
    """What every object says of itself."""

    number: int
    position: int
    window: int
    leader_id: str
    term: int
    plan_id: str
    in_flight_limit: int
    timestamp_ms: int
    schema_crc32: int  # of the Spark schema's JSON beside the header
    log_id: str  # drawn by the log's first leader record: a log recreated is another log
    # Every position up to it held a durable record when this object was built. That stays true,
    # also where the object is dead. −1: nothing is known, as in the objects of older versions.
    decided: int = field(default=-1, kw_only=True)

    kind: ClassVar[str]


@dataclass(frozen=True)
class DataHeader(Header):
    """Rows of one Spark partition; durable only once a commit record names it."""

    query_id: str
    batch_id: int
    partition: int
    rows: int
    # Spark's id of the task attempt: PySpark shows no task which attempt of its stage it belongs
    # to, and no two attempts of a stage share a task attempt.
    stage_attempt: int

    kind: ClassVar[str] = "data"


@dataclass(frozen=True)
class CommitHeader(Header):
    """One committed microbatch."""

    query_id: str
    batch_id: int
    rows: int
    bytes: int
    batches: tuple[Batch, ...]
    inline: tuple[Inline, ...]
    txns: Txns
    metrics: dict[str, float]
    checkpoints: Checkpoints = field(default_factory=dict)
    txns_archive: str = ""

    kind: ClassVar[str] = "commit"

    @property
    def query(self) -> str:
        """The query's name where the log knows it, else its id; a producer's is its name."""
        entry = self.checkpoints.get(self.query_id)
        return entry.name if entry and entry.name else self.query_id

    def metric(self, name: str) -> float | None:
        """A number to count with; None for NaN or beyond a float, which others may write."""
        value = self.metrics.get(name)
        return float(value) if value is not None and 0 <= value < 1e15 else None


@dataclass(frozen=True)
class LeaderHeader(Header):
    """A claim of leadership: from here on a new term. Holds no rows."""

    prev_position: int  # the head it saw; −1 in an empty log
    txns: Txns
    reason: str
    host: str
    checkpoints: Checkpoints = field(default_factory=dict)
    txns_archive: str = ""

    kind: ClassVar[str] = "leader"

    @property
    def is_seal(self) -> bool:
        """Whether it only decides a slot that a former leader could still have reached."""
        return self.reason == SEAL


SlotHeader = CommitHeader | LeaderHeader


def host_of(header: SlotHeader) -> str:
    """Of the leader that wrote it: its id begins with its host."""
    return header.host if isinstance(header, LeaderHeader) else header.leader_id.partition(":")[0]


_KINDS: dict[str, type[Header]] = {
    cls.kind: cls for cls in (DataHeader, CommitHeader, LeaderHeader)
}


def to_json(header: Header) -> bytes:
    """The header as UTF-8 JSON; numbers of 20 digits travel as strings."""
    document: dict[str, Any] = {"format": FORMAT, "kind": header.kind, **vars(header)}
    document["number"] = keys.encode(header.number)
    if isinstance(header, CommitHeader):
        document["batches"] = [
            {**vars(batch), "number": keys.encode(batch.number)} for batch in header.batches
        ]
        document["inline"] = [vars(inline) for inline in header.inline]
    if isinstance(header, (CommitHeader, LeaderHeader)):
        document["checkpoints"] = to_plain(header.checkpoints)
        for name in ("checkpoints", "txns_archive"):
            if not document[name]:
                del document[name]
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode()


def crc_hex(data: bytes) -> bytes:
    """CRC-32 as 8 hex digits."""
    return b"%08x" % zlib.crc32(data)


def from_metadata(metadata: dict[bytes, bytes] | None, where: str) -> tuple[Header, str]:
    """The checked header and the Spark schema's JSON of an object's Arrow metadata. Raises
    InvalidLogError naming `where` and what was expected."""
    if not metadata or HEADER_KEY not in metadata:
        raise InvalidLogError(f"{where}: no weaselwal header; this is not an object of a log")
    text = metadata[HEADER_KEY]
    if metadata.get(CRC_KEY) != crc_hex(text):
        raise InvalidLogError(f"{where}: the header's CRC-32 does not match its bytes")
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        raise InvalidLogError(f"{where}: the header is not JSON") from None
    header = _from_document(document, where)
    schema = metadata.get(SCHEMA_KEY, b"")
    if zlib.crc32(schema) != header.schema_crc32:
        raise InvalidLogError(f"{where}: the schema's CRC-32 does not match the header's")
    return header, schema.decode()


def _from_document(document: Any, where: str) -> Header:
    check = Check(document, where)
    check.format("log")
    kind = _KINDS.get(check.text("kind"))
    window = check.whole("window")
    if kind is None or window not in keys.WINDOWS:
        raise InvalidLogError(f"{where}: unknown kind or window in the header")
    position = check.whole("position", high=keys.last_position(window))
    known: dict[str, Any] = {
        "number": check.number("number"),
        "position": position,
        "term": check.whole("term", low=1),
        "in_flight_limit": check.whole("in_flight_limit", low=1, high=1000),
        "decided": check.whole("decided", low=-1, high=position - 1, absent=-1),
    }
    if kind is not LeaderHeader:
        known["batch_id"] = check.whole("batch_id", low=-1)
    if kind is DataHeader:
        known["partition"] = check.whole("partition", high=window - 2)
        expected = keys.data(position, window, known["partition"])
    else:
        known |= {"txns": txns_in(check), "checkpoints": checkpoints_in(check)}
        known["txns_archive"] = check.text("txns_archive", absent="")
        expected = keys.slot(position, window)
    if kind is LeaderHeader:
        known["prev_position"] = check.whole("prev_position", low=-1)
    elif kind is CommitHeader:
        known["batches"] = tuple(_batch(item, where) for item in check.items("batches"))
        inline = (Check(item, where) for item in check.items("inline"))
        known["inline"] = tuple(each.read(Inline) for each in inline)
        known["metrics"] = check.mapping("metrics")
        if not all(isinstance(item, (int, float)) for item in known["metrics"].values()):
            raise check.fail("metrics", "an object of numbers")
    header = check.read(kind, **known)
    if header.number != expected:
        raise InvalidLogError(
            f"{where}: the header says number {header.number}, expected {expected}"
        )
    return header


def _batch(document: Any, where: str) -> Batch:
    check = Check(document, where)
    frames = check.items("frames")
    if not all(are_whole(frame, 4) for frame in frames):
        raise InvalidLogError(f"{where}: a frame is not [offset, length, rows, crc32]")
    known = tuple(Frame(*frame) for frame in frames)
    return check.read(Batch, number=check.number("number"), frames=known)
