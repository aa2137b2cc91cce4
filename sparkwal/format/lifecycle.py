"""One record of a log's lifecycle: which rows are safe in a table, and which may be gone.

Every record carries the whole state, so the newest one is all that anybody has to read. It is an
Arrow IPC file without rows, like every object, with the record as JSON in its metadata.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa

from sparkwal.errors import InvalidLogError
from sparkwal.format import keys
from sparkwal.format.checked import FORMAT, Check
from sparkwal.format.header import CRC_KEY, HEADER_KEY, crc_hex

# What a record is put for: to fix a range before any of it is written; to record that the
# table has it; to move the floor.
INTENT, DONE, FLOOR = "intent", "done", "floor"
APPEND, MERGE = "append", "merge"
# A log whose lifecycle has no table.
NO_TABLE_VERSION = -1


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


@dataclass(frozen=True)
class LifecycleRecord:
    """The state of a log's life after one record of its chain.

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
        table_version: the table's, as it was read before the last done; of the first intent: before
            any row was written.
    """

    kind: str
    number: int
    record_id: str
    log_id: str
    sequencer: str
    k: int
    cut: int
    to: int
    floor: int
    target: Target | None
    table_id: str
    table_version: int
    gc_grace_ms: int
    timestamp_ms: int
    host: str

    @property
    def is_open(self) -> bool:
        """Whether a range was promised to the table and is not confirmed there."""
        return self.to > self.cut

    @property
    def confirmed_k(self) -> int:
        """The last range that the table was confirmed to hold."""
        return self.k - 1 if self.is_open else self.k


def encode(state: LifecycleRecord) -> bytes:
    document: dict[str, Any] = {"format": FORMAT, **asdict(state)}
    document["number"] = keys.encode(state.number)
    for name in ("cut", "to", "floor"):
        document[name] = {state.sequencer: document[name]}
    text = json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode()
    metadata = {HEADER_KEY: text, CRC_KEY: crc_hex(text)}
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, pa.schema([]).with_metadata(metadata)):
        pass
    return bytes(sink.getvalue())


def decode(body: bytes, where: str) -> LifecycleRecord:
    """Raises InvalidLogError naming `where` and what was expected."""
    try:
        metadata = pa.ipc.open_file(body).schema.metadata or {}
        text = metadata[HEADER_KEY]
        intact = metadata[CRC_KEY] == crc_hex(text)
        document = json.loads(text)
    except (pa.ArrowException, OSError, ValueError, KeyError, RecursionError):
        raise InvalidLogError(f"{where}: this is no record of a log's lifecycle") from None
    if not intact:
        raise InvalidLogError(f"{where}: the record's CRC-32 does not match its bytes")
    check = Check(document, where)
    check.format("record")
    sequencer = check.text("sequencer")

    def position(name: str) -> int:
        return Check(check.mapping(name), where).whole(sequencer)

    state = check.read(
        LifecycleRecord,
        number=check.number("number"),
        cut=position("cut"),
        to=position("to"),
        floor=position("floor"),
        target=_target(check),
        table_version=check.whole("table_version", low=NO_TABLE_VERSION),
    )
    if state.kind not in (INTENT, DONE, FLOOR):
        raise check.fail("kind", f"{INTENT}, {DONE} or {FLOOR}")
    if not (state.cut <= state.to and (state.target is None or state.floor <= state.cut)):
        raise InvalidLogError(f"{where}: floor ≤ cut ≤ to is expected")
    return state


def _target(outer: Check) -> Target | None:
    if outer.document.get("target") is None:
        return None
    check = Check(outer.mapping("target"), outer.where)

    def texts(name: str) -> tuple[str, ...]:
        found = check.items(name)
        if not all(isinstance(item, str) for item in found):
            raise check.fail(name, "a list of strings")
        return tuple(found)

    pairs = check.items("properties")
    if not all(
        isinstance(pair, list) and len(pair) == 2 and all(isinstance(part, str) for part in pair)
        for pair in pairs
    ):
        raise check.fail("properties", "a list of [name, value]")
    return check.read(
        Target,
        keys=texts("keys"),
        partition_by=texts("partition_by"),
        cluster_by=texts("cluster_by"),
        properties=tuple((name, value) for name, value in pairs),
    )
