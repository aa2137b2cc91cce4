"""The header of an object: its fields, its JSON, and the checks of decoding (PROTOCOL §2)."""

from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Annotated, Any, ClassVar, NamedTuple

from isal.isal_zlib import crc32
from msgspec import Meta

from sparkwal.errors import InvalidLogError
from sparkwal.format import checked, keys, limits, versions
from sparkwal.format.checked import LARGEST_NUMBER, LATER, Crc, Moment, Number, Whole, WholeOrNone

HEADER_KEY = b"weaselwal"
CRC_KEY = b"weaselwal.crc32"
SCHEMA_KEY = b"weaselwal.spark_schema"
# The reason of the leader records that a leader writes after its first one.
SEAL = "seal"


# The begin of the name of an append without an id. The next record drops its entry in `txns`.
ANONYMOUS = "append:"

REMOTE, STATEFUL = "remote", "stateful"
NOWHERE, HERE = -1, -2
_Pair = tuple[WholeOrNone, WholeOrNone]

# {query_id: (last batch_id, timestamp_ms)}: the last microbatch of each query in the log.
Txns = dict[str, _Pair]


@dataclass(frozen=True)
class Origin:
    """The place in another log from which a query was forked (PROTOCOL §12).

    Attributes:
        log: that log, as `LogStore.identity`.
        log_id: its id.
        query_id: the query that was forked.
        name: its name, as the fork gave it.
        at: the position or moment that the fork gave.
        position: the position of the last record of the forked query at or before that.
        batch_id: the microbatch in that record.
    """

    log: str
    log_id: str
    query_id: str
    name: str
    at: str
    position: Whole
    batch_id: Whole

    @property
    def begin(self) -> tuple[str, str, int]:
        """Equal for forks that continue the same microbatch."""
        return self.log_id, self.query_id, self.position


@dataclass(frozen=True)
class Copy:
    """A copy of the whole state that several records carry, one part each.

    Attributes:
        begin: the position of the record with the first part.
        list_crc32: the CRC-32 of the list of its files. It names the copy.
        done: the bytes of its files that records carry already.
        since: the bytes of the state's changes that records carry from `begin` on.
    """

    begin: Whole
    list_crc32: Crc
    done: Whole
    since: Whole


@dataclass(frozen=True)
class QueryState:
    """The state of a query before its microbatch N, in the record of N and in earlier ones.

    Attributes:
        version: N.
        bytes: the size of the part that this record carries.
        crc32: the CRC-32 of that part.
        records: (first, last) of each run of positions, in order: their records carry the state
            together. The last one is this record.
        base: the name of the copy of the whole state with which they begin.
        base_bytes: the bytes of that copy.
        since: the bytes of the changes after it.
        copy: the copy that is on its way to replace these records, or None.
    """

    version: Whole
    bytes: Whole
    crc32: Crc
    records: tuple[tuple[Whole, Whole], ...]
    base: Crc
    base_bytes: Whole
    since: Whole
    copy: Annotated[Copy | None, LATER] = None

    def __post_init__(self) -> None:
        # A reader lists the positions, and anybody may have written the record.
        ends = [-1, *(end for run in self.records for end in run)]
        if any(last < first for first, last in self.records) or ends != sorted(ends):
            raise ValueError("the records of the state have no order")
        if sum(last - first + 1 for first, last in self.records) > limits.STATE_RECORDS:
            raise ValueError(f"the state lies in more than {limits.STATE_RECORDS} records")

    def at(self, position: int) -> "QueryState":
        """This state in the record at `position`, which is not among `records` yet."""
        *earlier, last = self.records or ((position, position),)
        if last[1] == position - 1:
            earlier.append((last[0], position))
        elif last[1] < position:
            earlier += [last, (position, position)]
        else:
            earlier.append(last)
        copy = self.copy
        if copy is not None and copy.begin == HERE:
            copy = replace(copy, begin=position)
        return replace(self, records=tuple(earlier), copy=copy)

    @property
    def positions(self) -> list[int]:
        """The positions of the records that carry it, in order."""
        return [position for first, last in self.records for position in range(first, last + 1)]


@dataclass(frozen=True)
class Checkpoint:
    """The checkpoint of one query. The last record of the query carries it in a block of files.

    Attributes:
        position: the position of that record.
        rows: the rows of that record.
        bytes: the size of the block, or 0 if the record carries none.
        crc32: the CRC-32 of the block.
        reason: the reason without a block: REMOTE, STATEFUL or "".
        files: {name: (position, bytes)} of the files that an earlier record carries. The position
            is NOWHERE for a file that was too large.
        inputs: {name: CRC-32} of the files that describe the input of the microbatch.
        name: the name of the query, if it was given to `sparkwal.checkpoint`.
        origin: the place from which the query was forked, or None.
        since: from this position on each record of the query carries its whole checkpoint; −1 if
            this one does not, or if an older version wrote it.
        state: the state of a stateful query, after the block. None without one.
    """

    position: Whole
    rows: Whole
    bytes: Whole
    crc32: Crc
    reason: str
    files: dict[str, _Pair]
    inputs: dict[str, Crc]
    name: Annotated[str, LATER] = ""
    origin: Annotated[Origin | None, LATER] = None
    since: Annotated[WholeOrNone, LATER] = -1
    state: Annotated[QueryState | None, LATER] = None

    @property
    def size(self) -> int:
        """The bytes of the block and of the state after it."""
        return self.bytes + (self.state.bytes if self.state else 0)

    @property
    def is_whole(self) -> bool:
        """Whether this record and earlier ones carry all files of the checkpoint."""
        is_copied = self.state is None or self.state.base != 0
        return not self.reason and not self.too_large and is_copied

    @property
    def too_large(self) -> list[str]:
        """The files that no record carries, because they were above `checkpointMaxBytes`."""
        return [name for name, (position, _) in self.files.items() if position == NOWHERE]


# {query_id: …} of every stream that wrote to the log.
Checkpoints = dict[str, Checkpoint]


@dataclass(frozen=True)
class QueryProgress:
    """The progress of all queries, as a record holds it. `txns_archive` has older queries."""

    txns: Txns
    checkpoints: Checkpoints
    txns_archive: Annotated[str, LATER] = ""


class Frame(NamedTuple):
    """One Arrow record batch of an object: `length` bytes at `offset` from the object's start."""

    offset: Whole
    length: Whole
    rows: Whole
    crc32: Whole

    @property
    def end(self) -> int:
        return self.offset + self.length


@dataclass(frozen=True)
class Batch:
    """One data object, as its commit record names it. `crc32` covers the complete object."""

    number: Number
    partition: Whole
    rows: Whole
    bytes: Whole
    crc32: Crc
    frames: tuple[Frame, ...]


@dataclass(frozen=True)
class Inline:
    """Rows of one partition inside the commit record.

    They are `record_batches` messages with `bytes` bytes and this `crc32`. The partitions follow
    each other, directly after the schema message.
    """

    partition: Whole
    rows: Whole
    record_batches: Whole
    bytes: Whole
    crc32: Crc


@dataclass(frozen=True)
class Header:
    """The fields of every object."""

    number: Number
    position: Whole
    window: Whole
    leader_id: str
    term: Annotated[int, Meta(ge=1, le=LARGEST_NUMBER)]
    plan_id: str
    in_flight_limit: Annotated[int, Meta(ge=1, le=1000)]
    timestamp_ms: Moment
    # The CRC-32 of the Spark schema's JSON, which is beside the header.
    schema_crc32: Crc
    # A random id from the log's first leader record. A recreated log has another one.
    log_id: str
    # Every position up to this one held a durable record when the object was built. That stays
    # true, even if this object is dead. −1, as in objects of older versions: no such position.
    decided: Annotated[WholeOrNone, LATER] = field(default=-1, kw_only=True)

    kind: ClassVar[str]


@dataclass(frozen=True)
class DataHeader(Header):
    """The header of a data object. Its rows are durable once a commit record names the object."""

    query_id: str
    batch_id: WholeOrNone
    partition: Whole
    rows: Whole
    # Spark's id of the task attempt, since PySpark does not show the stage's attempt. Attempts of a
    # stage have different task attempts.
    stage_attempt: Whole

    kind: ClassVar[str] = "data"


@dataclass(frozen=True)
class CommitHeader(Header):
    """The header of a commit: one microbatch, or one batch of an appender (PROTOCOL §2).

    Attributes:
        position: the commit's position in the log.
        timestamp_ms: the time of the commit, in milliseconds since 1970.
        term: the term of its leader.
        leader_id: the id of its leader, which begins with the host.
        log_id: the id of the log.
        decided: each position up to this one held a record when this one was written.
        query_id: the id of the query, or the name of the producer.
        batch_id: the number of the microbatch, or the sequence of the last append.
        rows: the number of its rows.
        bytes: the size of its rows, as stored.
        batches: the objects that hold its rows.
        inline: the parts of its rows that the record itself holds.
        txns: the last microbatch and its time, by query and producer.
        metrics: numbers about its writer, for people.
        checkpoints: the position of the last checkpoint of each query.
        txns_archive: the object that holds `txns` of older queries.
        erased: the parts of its rows that the record held until a collection erased them. `inline`
            is empty then, and `rows` and `bytes` count the objects only.
    """

    query_id: str
    batch_id: WholeOrNone
    rows: Whole
    bytes: Whole
    batches: tuple[Batch, ...]
    inline: tuple[Inline, ...]
    txns: Txns
    metrics: dict[str, int | float]
    checkpoints: Annotated[Checkpoints, LATER] = field(default_factory=dict)
    txns_archive: Annotated[str, LATER] = ""
    erased: Annotated[tuple[Inline, ...], LATER] = ()

    kind: ClassVar[str] = "commit"

    @property
    def query(self) -> str:
        """The query's name, or its id if the log does not know the name."""
        entry = self.checkpoints.get(self.query_id)
        return entry.name if entry and entry.name else self.query_id

    def metric(self, name: str) -> float | None:
        """Read one of the numbers about the writer.

        Args:
            name: its name in `metrics`.

        Returns:
            The number, or None if it is missing or out of range.
        """
        value = self.metrics.get(name)
        return float(value) if value is not None and 0 <= value < 1e15 else None


@dataclass(frozen=True)
class LeaderHeader(Header):
    """The header of a leader record: it begins a new term and holds no rows (PROTOCOL §2).

    Attributes:
        position: the record's position in the log.
        timestamp_ms: the time of the record, in milliseconds since 1970.
        term: the new term.
        leader_id: the id of the leader, which begins with the host.
        log_id: the id of the log.
        decided: each position up to this one held a record when this one was written.
        prev_position: the head that the leader found; −1 in an empty log.
        reason: the cause of the takeover, or "seal".
        host: the leader's host.
        txns: the last microbatch and its time, by query and producer.
        checkpoints: the position of the last checkpoint of each query.
        txns_archive: the object that holds `txns` of older queries.
    """

    prev_position: WholeOrNone
    txns: Txns
    reason: str
    host: str
    checkpoints: Annotated[Checkpoints, LATER] = field(default_factory=dict)
    txns_archive: Annotated[str, LATER] = ""

    kind: ClassVar[str] = "leader"


class Mark(NamedTuple):
    """Identifies one record of a log. `crc32` is that of the text of its header."""

    position: Whole
    plan_id: str
    crc32: Crc


@dataclass(frozen=True)
class SegmentHeader(Header):
    """The header of a segment, a copy of one block of records (PROTOCOL §13).

    `position` is the block's last position. Term, time and writer are those of the last record.

    Attributes:
        records: the number of live records in the block.
        last: the last live record in the block.
        follows: the last live record before the block, or None.
        witness: the first live record after the block whose `decided` reaches the block's end, or
            else its last record, if that has decided all before it.
        frames: the frames of the records, then those of their rows.
    """

    records: Annotated[int, Meta(ge=1, le=keys.BLOCK)]
    last: Mark
    follows: Mark | None
    witness: Mark
    frames: tuple[Frame, ...]

    kind: ClassVar[str] = "segment"

    @property
    def first(self) -> int:
        """The first position of the block."""
        return self.position + 1 - keys.BLOCK


SlotHeader = CommitHeader | LeaderHeader
_KINDS = (DataHeader, CommitHeader, LeaderHeader, SegmentHeader)
checked.prepare(*_KINDS, QueryProgress, Origin)


def host_of(header: SlotHeader) -> str:
    """The host of the leader that wrote a record."""
    return header.host if isinstance(header, LeaderHeader) else header.leader_id.partition(":")[0]


def to_json(header: Header) -> bytes:
    """The header as UTF-8 JSON. Object numbers are strings of 20 digits."""
    return checked.to_json(versions.LOG, {"kind": header.kind, **checked.plain(header)})


def crc_hex(data: bytes) -> bytes:
    """The CRC-32 of data, as 8 hex digits."""
    return b"%08x" % crc32(data)


def document_in(metadata: dict[bytes, bytes] | None, location: str, kind: str) -> dict[str, Any]:
    """The JSON document in an object's Arrow metadata.

    Raises:
        InvalidLogError: the document is missing or damaged.
        NewerFormatError: a newer version wrote it.
    """
    if not metadata or HEADER_KEY not in metadata:
        raise InvalidLogError(f"{location}: no weaselwal header; this is not an object of a log")
    text = metadata[HEADER_KEY]
    if metadata.get(CRC_KEY) != crc_hex(text):
        raise InvalidLogError(f"{location}: the header's CRC-32 does not match its bytes")
    return checked.parse(text, location, kind)


def to_metadata(text: bytes, crc: bytes, spark_schema: str) -> dict[bytes, bytes]:
    return {HEADER_KEY: text, CRC_KEY: crc, SCHEMA_KEY: spark_schema.encode()}


def parse_text(text: bytes, location: str) -> Header:
    """The header in a text of `to_json`, checked as in an object.

    Raises:
        InvalidLogError: the header is damaged or wrong.
    """
    return _from_document(checked.parse(text, location, versions.LOG), location)


def from_metadata(metadata: dict[bytes, bytes] | None, location: str) -> tuple[Header, bytes]:
    """The header, and the Spark schema's JSON, in an object's Arrow metadata.

    Only the CRC-32 of the schema's JSON is checked.

    Raises:
        InvalidLogError: the header is damaged, wrong or too large, or a CRC-32 differs.
    """
    size = len((metadata or {}).get(HEADER_KEY, b""))
    if size > limits.HEADER:
        raise InvalidLogError(f"{location}: a header of {size} bytes; {limits.HEADER} are read")
    header = _from_document(document_in(metadata, location, versions.LOG), location)
    schema = (metadata or {}).get(SCHEMA_KEY, b"")
    if crc32(schema) != header.schema_crc32:
        raise InvalidLogError(f"{location}: the schema's CRC-32 does not match the header's")
    return header, schema


def _from_document(document: dict[str, Any], location: str) -> Header:
    kind = next((header for header in _KINDS if header.kind == document.get("kind")), None)
    if kind is None or document.get("window") not in keys.WINDOWS:
        raise InvalidLogError(f"{location}: unknown kind or window in the header")
    header = checked.read(kind, document, location)
    try:
        expected = keys.slot(header.position, header.window)
        if isinstance(header, DataHeader):
            expected = keys.data(header.position, header.window, header.partition)
    except ValueError as error:
        raise InvalidLogError(f"{location}: {error}") from None
    if header.number != expected:
        raise InvalidLogError(
            f"{location}: the header has number {header.number}, expected {expected}"
        )
    if header.decided >= header.position:
        raise InvalidLogError(f"{location}: field 'decided' must be below the position")
    if isinstance(header, SegmentHeader):
        _check_segment(header, location)
    return header


def _check_segment(header: SegmentHeader, location: str) -> None:
    """Check that a segment covers one block, and that its frames follow each other.

    Raises:
        InvalidLogError: it does not.
    """
    if (header.position + 1) % keys.BLOCK or not header.first <= header.last.position:
        raise InvalidLogError(f"{location}: it does not cover a block of {keys.BLOCK} positions")
    before = header.follows.position if header.follows else -1
    if not before < header.first or not header.last.position <= header.position:
        raise InvalidLogError(f"{location}: its records are not those of its block")
    if header.witness.position <= header.position and header.witness != header.last:
        raise InvalidLogError(f"{location}: its witness is neither after its block nor its last")
    if any(one.end != other.offset for one, other in pairwise(header.frames)):
        raise InvalidLogError(f"{location}: its frames do not follow each other")


def check_parts(header: CommitHeader, location: str) -> None:
    """Check that a commit names objects of its own window, and each row once.

    Raises:
        InvalidLogError: it does not.
    """
    try:
        _check_parts(header)
    except ValueError as error:
        raise InvalidLogError(f"{location}: {error}") from None


def _check_parts(header: CommitHeader) -> None:
    listed = sum(inline.rows for inline in header.inline)
    for batch in header.batches:
        expected = keys.data(header.position, header.window, batch.partition)
        if batch.number != expected:
            raise ValueError(
                f"the object of partition {batch.partition} has number {batch.number}, expected "
                f"{expected}"
            )
        if any(one.end != other.offset for one, other in pairwise(batch.frames)):
            raise ValueError(f"frames of partition {batch.partition} do not follow each other")
        if batch.rows != sum(frame.rows for frame in batch.frames):
            raise ValueError(f"the frames of partition {batch.partition} hold other rows than it")
        listed += batch.rows
    if header.rows != listed:
        raise ValueError(f"{header.rows} rows, but its parts hold {listed}")
    objects = [batch.partition for batch in header.batches]
    inlined = [inline.partition for inline in header.inline]
    for partitions in (objects, inlined):
        if any(one >= other for one, other in pairwise(partitions)):
            raise ValueError("its parts are not in the order of their partitions")
    if {*objects} & {*inlined}:
        raise ValueError("the rows of a partition are in two parts")
    if header.erased and header.inline:
        raise ValueError("it holds rows, although they were erased")
