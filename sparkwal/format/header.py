"""The header of one object: its fields, its JSON, its checks.

Decoding trusts nothing: every field's type and range is checked, the number
must agree with position and window, and the JSON is covered by a CRC-32.
"""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass, fields
from typing import Any, ClassVar, NamedTuple

from sparkwal.errors import InvalidLogError
from sparkwal.format import keys

FORMAT = 1
HEADER_KEY = b"weaselwal"
CRC_KEY = b"weaselwal.crc32"
SCHEMA_KEY = b"weaselwal.spark_schema"
LARGEST_NUMBER = 2**63 - 1  # of every field that is a JSON number

# Appends without a name of their own begin so: their entry in `txns` guards the record that
# carries it and is dropped by the next, since nobody will ask for it again.
ANONYMOUS = "append:"

# {query_id: (last batch_id, timestamp_ms)}: which microbatches the log holds.
Txns = dict[str, tuple[int, int]]


class Frame(NamedTuple):
    """One Arrow record batch of an object.

    Attributes:
        offset, length: in bytes, from the object's start.
    """

    offset: int
    length: int
    rows: int
    crc32: int


@dataclass(frozen=True)
class Batch:
    """One data object as its commit record names it.

    `crc32` covers the whole object; `frames` are all its Arrow record batches.
    """

    number: int
    partition: int
    rows: int
    bytes: int
    crc32: int
    frames: tuple[Frame, ...]


@dataclass(frozen=True)
class Inline:
    """Rows of one partition that travel inside the commit record itself.

    They are `record_batches` messages of `bytes` bytes in all, one partition
    after the other, directly after the schema message; `crc32` covers those bytes.
    """

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
    log_id: str  # drawn by the log's first leader record: a log made again is another log

    kind: ClassVar[str]


@dataclass(frozen=True)
class DataHeader(Header):
    """Rows of one Spark partition; durable only once a commit record names it."""

    query_id: str
    batch_id: int
    partition: int
    rows: int
    # Which attempt wrote it, by Spark's id of the task attempt: PySpark tells no task which
    # attempt of its stage it belongs to, and no two attempts of a stage share a task attempt.
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

    kind: ClassVar[str] = "commit"


@dataclass(frozen=True)
class LeaderHeader(Header):
    """A claim of leadership: from here on a new term. Holds no rows."""

    prev_position: int  # the head it saw; −1 in an empty log
    txns: Txns
    reason: str
    host: str

    kind: ClassVar[str] = "leader"


SlotHeader = CommitHeader | LeaderHeader
_KINDS: dict[str, type[Header]] = {
    cls.kind: cls for cls in (DataHeader, CommitHeader, LeaderHeader)
}


def to_json(header: Header) -> bytes:
    """The header as UTF-8 JSON; numbers of 20 digits travel as strings."""
    document: dict[str, Any] = {"format": FORMAT, "kind": header.kind}
    for field in fields(header):
        document[field.name] = getattr(header, field.name)
    document["number"] = keys.encode(header.number)
    if isinstance(header, CommitHeader):
        document["batches"] = [
            {**vars(batch), "number": keys.encode(batch.number)} for batch in header.batches
        ]
        document["inline"] = [vars(inline) for inline in header.inline]
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode()


def crc_hex(data: bytes) -> bytes:
    """CRC-32 as 8 hex digits."""
    return b"%08x" % zlib.crc32(data)


def from_metadata(metadata: dict[bytes, bytes] | None, where: str) -> tuple[Header, str]:
    """The checked header and the Spark schema's JSON of an object's Arrow metadata.

    Raises InvalidLogError naming `where` and what was expected.
    """
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
    check = _Check(document, where)
    if check.whole("format") != FORMAT:
        raise InvalidLogError(
            f"{where}: format {document['format']}, expected {FORMAT}; "
            "a newer sparkwal wrote this log: upgrade this one"
        )
    kind = _KINDS.get(check.text("kind"))
    window = check.whole("window")
    if kind is None or window not in keys.WINDOWS:
        raise InvalidLogError(f"{where}: unknown kind or window in the header")
    common: dict[str, Any] = {
        "log_id": check.text("log_id"),
        "number": check.number("number"),
        "position": check.whole("position", high=keys.last_position(window)),
        "window": window,
        "leader_id": check.text("leader_id"),
        "term": check.whole("term", low=1),
        "plan_id": check.text("plan_id"),
        "in_flight_limit": check.whole("in_flight_limit", low=1, high=1000),
        "timestamp_ms": check.whole("timestamp_ms"),
        "schema_crc32": check.whole("schema_crc32", high=2**32 - 1),
    }
    header: Header
    if kind is LeaderHeader:
        header = LeaderHeader(
            **common,
            prev_position=check.whole("prev_position", low=-1),
            txns=check.txns(),
            reason=check.text("reason"),
            host=check.text("host"),
        )
        expected = keys.slot(header.position, window)
    elif kind is CommitHeader:
        header = CommitHeader(
            **common,
            query_id=check.text("query_id"),
            batch_id=check.whole("batch_id", low=-1),
            rows=check.whole("rows"),
            bytes=check.whole("bytes"),
            batches=tuple(_batch(item, where) for item in check.items("batches")),
            inline=tuple(_inline(item, where) for item in check.items("inline")),
            txns=check.txns(),
            metrics=check.metrics(),
        )
        expected = keys.slot(header.position, window)
    else:
        header = DataHeader(
            **common,
            query_id=check.text("query_id"),
            batch_id=check.whole("batch_id", low=-1),
            partition=check.whole("partition", high=window - 2),
            rows=check.whole("rows"),
            stage_attempt=check.whole("stage_attempt"),
        )
        expected = keys.data(header.position, window, header.partition)
    if header.number != expected:
        raise InvalidLogError(
            f"{where}: the header says number {header.number}, expected {expected}"
        )
    return header


def _batch(document: Any, where: str) -> Batch:
    check = _Check(document, where)
    frames = []
    for frame in check.items("frames"):
        if (
            not isinstance(frame, list)
            or len(frame) != 4
            or not all(type(value) is int and 0 <= value <= LARGEST_NUMBER for value in frame)
        ):
            raise InvalidLogError(f"{where}: a frame is not [offset, length, rows, crc32]")
        frames.append(Frame(*frame))
    return Batch(
        number=check.number("number"),
        partition=check.whole("partition"),
        rows=check.whole("rows"),
        bytes=check.whole("bytes"),
        crc32=check.whole("crc32", high=2**32 - 1),
        frames=tuple(frames),
    )


def _inline(document: Any, where: str) -> Inline:
    check = _Check(document, where)
    return Inline(
        partition=check.whole("partition"),
        rows=check.whole("rows"),
        record_batches=check.whole("record_batches"),
        bytes=check.whole("bytes"),
        crc32=check.whole("crc32", high=2**32 - 1),
    )


class _Check:
    """Typed access to a JSON object that may hold anything."""

    def __init__(self, document: Any, where: str) -> None:
        if not isinstance(document, dict):
            raise InvalidLogError(f"{where}: a JSON object is expected in the header")
        self.document = document
        self.where = where

    def _fail(self, name: str, expected: str) -> InvalidLogError:
        return InvalidLogError(f"{self.where}: header field {name!r} must be {expected}")

    def whole(self, name: str, low: int = 0, high: int = LARGEST_NUMBER) -> int:
        value = self.document.get(name)
        if type(value) is not int or not low <= value <= high:
            raise self._fail(name, f"a whole number from {low} to {high}")
        return value

    def text(self, name: str) -> str:
        value = self.document.get(name)
        if not isinstance(value, str):
            raise self._fail(name, "a string")
        return value

    def number(self, name: str) -> int:
        number = keys.decode(self.text(name))
        if number is None:
            raise self._fail(name, "20 digits")
        return number

    def items(self, name: str) -> list[Any]:
        value = self.document.get(name)
        if not isinstance(value, list):
            raise self._fail(name, "a list")
        return value

    def txns(self) -> Txns:
        value = self.document.get("txns")
        if not isinstance(value, dict):
            raise self._fail("txns", "an object")
        for pair in value.values():
            if (
                not isinstance(pair, list)
                or len(pair) != 2
                or not all(type(item) is int for item in pair)
            ):
                raise self._fail("txns", "{query_id: [batch_id, timestamp_ms]}")
        return {query: (pair[0], pair[1]) for query, pair in value.items()}

    def metrics(self) -> dict[str, float]:
        value = self.document.get("metrics")
        if not isinstance(value, dict) or not all(
            isinstance(item, (int, float)) for item in value.values()
        ):
            raise self._fail("metrics", "an object of numbers")
        return value
