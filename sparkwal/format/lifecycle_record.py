"""One record of a log's lifecycle: the rows in the table, and those that may be deleted (§10)."""

from dataclasses import dataclass, fields

import pyarrow as pa

from sparkwal.errors import InvalidLogError, OptionError
from sparkwal.format import arrowfile, keys, limits
from sparkwal.format.checked import (
    Moment,
    Number,
    Whole,
    WholeOrNone,
    plain,
    prepare,
    read,
    to_json,
)
from sparkwal.format.header import CRC_KEY, HEADER_KEY, crc_hex, document_in

# The kinds of records: a range is fixed before it is written; the table has it; the floor moves.
INTENT = "intent"
DONE = "done"
FLOOR = "floor"
APPEND, MERGE = "append", "merge"
# The table version of a log without a table.
NO_TABLE_VERSION = -1
# In the JSON each of these is an object: {sequencer: position}.
_POSITIONS = ("cut", "to", "floor")


@dataclass(frozen=True)
class Target:
    """The table of a log, and the way rows reach it. The first intent fixes both.

    Attributes:
        mode: APPEND, or MERGE by `keys`.
        sequence_by: for MERGE, the row with the greatest value of this column wins; by default the
            last row in the log.
        delete_when: an SQL condition. A row that fulfils it deletes its key.
        properties: the properties of a new table.
        tombstone_horizon_ms: the sequences of deleted keys are kept for this time; 0 for none.
    """

    table: str
    mode: str = APPEND
    keys: tuple[str, ...] = ()
    sequence_by: str = ""
    delete_when: str = ""
    partition_by: tuple[str, ...] = ()
    cluster_by: tuple[str, ...] = ()
    properties: tuple[tuple[str, str], ...] = ()
    tombstone_horizon_ms: Whole = 0

    @property
    def keeps_tombstones(self) -> bool:
        """Whether the sequences of deleted keys are kept."""
        return self.tombstone_horizon_ms > 0

    @property
    def tombstones(self) -> str:
        """The URL of the Delta table that keeps them, beside the table."""
        return f"{self.table}_tombstones"


@dataclass(frozen=True, kw_only=True)
class LifecycleRecord:
    """The state of a log's lifecycle after one record. The defaults are those without a record.

    Attributes:
        number: the number of the record. Numbers count down from keys.MAX by 1.
        record_id: a random id of the attempt that wrote the record. A read-back compares it.
        log_id: the id of the log. A log that was recreated at the same path has another chain.
        k: the number of intents so far.
        cut: positions below are in the table.
        to: the end of the open range [cut, to), or `cut` if no range is open.
        floor: positions below may be deleted after `gc_grace_ms`.
        target: the table, or None before the first intent.
        table_id: the id of the table of the first intent.
        table_version: the version of the table before the last done; at first, before any row.
        tombstones_id: the id of the table of tombstones, or "" without one.
        tombstones_version: the version of the tombstones, read after that of the table.
    """

    kind: str = ""
    number: Number = keys.MAX + 1
    record_id: str = ""
    log_id: str
    sequencer: str
    k: Whole = 0
    cut: Whole = 0
    to: Whole = 0
    floor: Whole = 0
    target: Target | None = None
    table_id: str = ""
    table_version: WholeOrNone = NO_TABLE_VERSION
    tombstones_id: str = ""
    tombstones_version: WholeOrNone = NO_TABLE_VERSION
    gc_grace_ms: Whole
    timestamp_ms: Moment = 0
    host: str = ""

    @property
    def is_open(self) -> bool:
        """Whether a range was promised to the table and is not confirmed there."""
        return self.to > self.cut

    @property
    def confirmed_k(self) -> int:
        """The last range that the table was confirmed to hold."""
        return self.k - 1 if self.is_open else self.k


prepare(LifecycleRecord)


def encode(state: LifecycleRecord) -> bytes:
    """The bytes of a record.

    Raises:
        OptionError: it is larger than readers take.
    """
    document = plain(state)
    text = to_json(document | {name: {state.sequencer: document[name]} for name in _POSITIONS})
    metadata = {HEADER_KEY: text, CRC_KEY: crc_hex(text)}
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, pa.schema([]).with_metadata(metadata)):
        pass
    body = bytes(sink.getvalue())
    if len(body) > limits.LIFECYCLE_RECORD:
        raise OptionError(
            f"a lifecycle record of {len(body)} bytes; {limits.LIFECYCLE_RECORD} are read: give "
            "the table fewer or shorter properties, columns and conditions"
        )
    return body


def is_torn(body: bytes) -> bool:
    """Whether these are the first bytes of a record, and not all of them."""
    if arrowfile.is_cut_front(body):
        return True
    try:
        metadata = pa.ipc.read_schema(pa.BufferReader(body[len(arrowfile.MAGIC) :])).metadata
        complete = encode(_decoded(metadata, "it"))
    except (pa.ArrowException, OSError, ValueError, InvalidLogError, OptionError):
        return False
    return len(body) < len(complete) and complete.startswith(body)


def decode(body: bytes, location: str) -> LifecycleRecord:
    """Decode and check a record.

    Raises:
        InvalidLogError: the record is damaged, or a field is missing or wrong.
    """
    try:
        metadata = pa.ipc.open_file(body).schema.metadata
    except (pa.ArrowException, OSError, ValueError, KeyError):
        raise InvalidLogError(f"{location}: this is no record of a log's lifecycle") from None
    return _decoded(metadata, location)


def _decoded(metadata: dict[bytes, bytes] | None, location: str) -> LifecycleRecord:
    document = document_in(metadata, location, "record")
    for name in _POSITIONS:
        positions = document.get(name)
        by_sequencer = positions if isinstance(positions, dict) else {}
        document[name] = by_sequencer.get(str(document.get("sequencer")))
    # A default must not replace a field that the writer left out.
    target, lacks = document.get("target"), _names(LifecycleRecord) - {*document}
    if isinstance(target, dict):
        lacks |= _names(Target) - {*target}
    if lacks:
        raise InvalidLogError(f"{location}: it has no {', '.join(sorted(lacks))}")
    state = read(LifecycleRecord, document, location)
    if state.kind not in (INTENT, DONE, FLOOR):
        raise InvalidLogError(f"{location}: field 'kind' must be {INTENT}, {DONE} or {FLOOR}")
    if state.target is not None:
        _check(state.target, location)
    if not (state.cut <= state.to and (state.target is None or state.floor <= state.cut)):
        raise InvalidLogError(f"{location}: floor ≤ cut ≤ to is expected")
    if state.is_open and state.target is None:
        raise InvalidLogError(f"{location}: it has an open range and no table")
    if max(state.to, state.floor) > keys.MOST_POSITIONS:
        raise InvalidLogError(f"{location}: no log has so many positions")
    return state


def _check(target: Target, location: str) -> None:
    """Check a target.

    Raises:
        InvalidLogError: no compaction has such a target.
    """
    columns = (*target.keys, *target.partition_by, *target.cluster_by)
    is_sound = (
        target.mode in (APPEND, MERGE)
        and (target.mode == MERGE) == bool(target.keys)
        and (bool(target.keys) or not (target.sequence_by or target.delete_when))
        and not (target.partition_by and target.cluster_by)
        and bool(target.table.strip())
        and all(map(str.strip, columns))
    )
    if not is_sound:
        raise InvalidLogError(f"{location}: no compaction fills a table as its 'target' says")


def _names(kind: type) -> set[str]:
    return {field.name for field in fields(kind)}
