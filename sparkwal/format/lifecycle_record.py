"""One record of a log's lifecycle: which rows a table has, which may be gone (PROTOCOL §10)."""

from dataclasses import dataclass, fields

import pyarrow as pa

from sparkwal.errors import InvalidLogError
from sparkwal.format import arrowfile, keys
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

# Why a record is put: to fix a range before it is written; the table has it; to move the floor.
INTENT = "intent"
DONE = "done"
FLOOR = "floor"
APPEND, MERGE = "append", "merge"
# A log whose lifecycle has no table.
NO_TABLE_VERSION = -1
# Each of these is an object in the JSON: {sequencer: position}.
_POSITIONS = ("cut", "to", "floor")


@dataclass(frozen=True)
class Target:
    """The table that a log is compacted into, and how: fixed by the first intent. `mode` is APPEND,
    or MERGE by `keys` with the last writer winning, or the greatest value of the column
    `sequence_by`. `delete_when`: an SQL condition on a row that deletes its key; `properties`: of a
    new table."""

    table: str
    mode: str = APPEND
    keys: tuple[str, ...] = ()
    sequence_by: str = ""
    delete_when: str = ""
    partition_by: tuple[str, ...] = ()
    cluster_by: tuple[str, ...] = ()
    properties: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, kw_only=True)
class LifecycleRecord:
    """The state of a log's life after one record of its chain; by default, of a log without one.

    Attributes:
        number: of the record; counts down from keys.MAX by 1.
        record_id: drawn for the attempt that wrote the record; a read-back compares it.
        log_id: of the log; a log recreated at the same path begins a chain of its own.
        k: counts the intents, from 1; 0 before the first.
        cut: positions below are in the table.
        to: the end of the open intent's range [cut, to); equal to `cut` when none is open.
        floor: positions below may be deleted, `gc_grace_ms` later at the earliest.
        target: None while no intent was made.
        table_id: of the table that the first intent found or made.
        table_version: the table's, read before the last done; at first: before any row.
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
    document = plain(state)
    text = to_json(document | {name: {state.sequencer: document[name]} for name in _POSITIONS})
    metadata = {HEADER_KEY: text, CRC_KEY: crc_hex(text)}
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, pa.schema([]).with_metadata(metadata)):
        pass
    return bytes(sink.getvalue())


def is_torn(body: bytes) -> bool:
    """Whether these are the first bytes of a record, and not all of them."""
    if arrowfile.is_cut_front(body):
        return True
    try:
        metadata = pa.ipc.read_schema(pa.BufferReader(body[len(arrowfile.MAGIC) :])).metadata
        whole = encode(_decoded(metadata, "it"))
    except (pa.ArrowException, OSError, ValueError, InvalidLogError):
        return False
    return len(body) < len(whole) and whole.startswith(body)


def decode(body: bytes, where: str) -> LifecycleRecord:
    """Raises InvalidLogError naming `where` and what was expected."""
    try:
        metadata = pa.ipc.open_file(body).schema.metadata
    except (pa.ArrowException, OSError, ValueError):
        raise InvalidLogError(f"{where}: this is no record of a log's lifecycle") from None
    return _decoded(metadata, where)


def _decoded(metadata: dict[bytes, bytes] | None, where: str) -> LifecycleRecord:
    document = document_in(metadata, where, "record")
    for name in _POSITIONS:
        found = document.get(name)
        of_sequencer = found if isinstance(found, dict) else {}
        document[name] = of_sequencer.get(str(document.get("sequencer")))
    # No default stands for what its writer left out.
    target, lacks = document.get("target"), _names(LifecycleRecord) - {*document}
    if isinstance(target, dict):
        lacks |= _names(Target) - {*target}
    if lacks:
        raise InvalidLogError(f"{where}: it has no {', '.join(sorted(lacks))}")
    state = read(LifecycleRecord, document, where)
    if state.kind not in (INTENT, DONE, FLOOR):
        raise InvalidLogError(f"{where}: field 'kind' must be {INTENT}, {DONE} or {FLOOR}")
    if not (state.cut <= state.to and (state.target is None or state.floor <= state.cut)):
        raise InvalidLogError(f"{where}: floor ≤ cut ≤ to is expected")
    return state


def _names(kind: type) -> set[str]:
    return {each.name for each in fields(kind)}
