"""From a commit record to rows: which bytes hold them, and decoding those bytes."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby

import pyarrow as pa

from sparkwal import arrowfile, numbering, schema
from sparkwal.errors import InvalidLogError, OptionError
from sparkwal.protocol.slots import SlotRecord
from sparkwal.record import CommitHeader
from sparkwal.store.base import NotFound, Store, run_parallel

# Frames are fetched together up to this size: fewer requests, bounded memory.
RUN_SIZE = 8 * 2**20
# Fetched ahead of the piece that is being decoded.
AHEAD = 4 * RUN_SIZE

METADATA = {
    "_wal_position": "long",
    "_wal_timestamp": "timestamp",
    "_wal_partition": "integer",
    "_wal_leader_id": "string",
    "_wal_batch_id": "long",
}


@dataclass(frozen=True)
class Piece:
    """Consecutive frames of one object: one range GET.

    Attributes:
        offset: bytes from the object's start.
        spans: (length, rows, crc32) of each checked span, in order. A span is one
            frame, or all the rows that one partition inlined.
        data: the bytes, where they came along with the commit record.
    """

    key: str
    offset: int
    spans: tuple[tuple[int, int, int], ...]
    spark_schema: str
    position: int
    timestamp_ms: int
    partition: int
    leader_id: str
    batch_id: int
    data: bytes | None = None

    @property
    def length(self) -> int:
        return sum(length for length, _, _ in self.spans)

    @property
    def rows(self) -> int:
        return sum(rows for _, rows, _ in self.spans)


def pieces(record: SlotRecord, prefix: str) -> list[Piece]:
    """Where the rows of a record are, in partition order; none in a leader record."""
    header = record.header
    found: list[Piece] = []
    if not isinstance(header, CommitHeader):
        return found

    leader_id, batch_id = header.leader_id, header.batch_id

    def add(
        number: int,
        partition: int,
        offset: int,
        spans: list[tuple[int, int, int]],
        data: bytes | None = None,
    ) -> None:
        found.append(
            Piece(
                key=numbering.key(prefix, number),
                offset=offset,
                spans=tuple(spans),
                spark_schema=record.spark_schema,
                position=header.position,
                timestamp_ms=header.timestamp_ms,
                partition=partition,
                leader_id=leader_id,
                batch_id=batch_id,
                data=data,
            )
        )

    for batch in header.batches:
        run: list[tuple[int, int, int]] = []
        start = end = batch.frames[0][0] if batch.frames else 0
        for offset, length, rows, crc32 in batch.frames:
            if run and (offset != end or end + length - start > RUN_SIZE):
                add(batch.number, batch.partition, start, run)
                run, start = [], offset
            run.append((length, rows, crc32))
            end = offset + length
        if run:
            add(batch.number, batch.partition, start, run)
    offset = record.body
    for inline in header.inline:
        data = None
        if record.inlined is not None:
            begin = offset - record.body
            data = record.inlined[begin : begin + inline.bytes]
        span = (inline.bytes, inline.rows, inline.crc32)
        add(header.number, inline.partition, offset, [span], data)
        offset += inline.bytes
    return sorted(found, key=lambda piece: piece.partition)


def read_pieces(
    store: Store, found: Iterable[Piece], target: pa.Schema, *, verify: bool = True
) -> Iterator[pa.RecordBatch]:
    """The rows of pieces with exactly `target`'s columns, in order; later pieces are fetched
    while earlier ones are decoded and consumed.

    Args:
        target: any of the log's columns, and of METADATA; older records' missing
            columns come as null.

    Raises InvalidLogError for a missing or damaged object.
    """

    def fetch(piece: Piece) -> tuple[Piece, bytes]:
        return piece, _fetch(store, piece)

    def weigh(piece: Piece) -> int:
        return piece.length

    ahead = partial(run_parallel, store, weigh=weigh, capacity=AHEAD)
    for came_along, group in groupby(found, key=lambda piece: piece.data is not None):
        # Handing what is there to other threads takes longer than decoding it.
        each = map if came_along else ahead
        for piece, data in each(fetch, group):
            yield from _decode(store, piece, data, target, verify)


def _decode(
    store: Store, piece: Piece, data: bytes, target: pa.Schema, verify: bool
) -> Iterator[pa.RecordBatch]:
    where = _where(store, piece)
    if len(data) != piece.length:
        raise InvalidLogError(f"{where}: {len(data)} bytes, {piece.length} expected; it is cut off")
    if verify:
        offset = 0
        view = memoryview(data)
        for length, _, crc32 in piece.spans:
            if zlib.crc32(view[offset : offset + length]) != crc32:
                raise InvalidLogError(
                    f"{where}: bytes {piece.offset + offset}…{piece.offset + offset + length} do "
                    "not match their CRC-32. Restore the object, or read up to the position "
                    "before it (endingPosition, or onCorruption=stop)"
                )
            offset += length
    names = list(schema.columns(piece.spark_schema))
    wanted = [names.index(field.name) for field in target if field.name in names]
    # Arrow reads an empty list of fields as "all"; one column still tells the rows.
    for batch in arrowfile.read_frames(data, piece.spark_schema, where, wanted or [0]):
        yield schema.conform(_with_metadata(batch, piece, target), target)


def _where(store: Store, piece: Piece) -> str:
    return f"{store.url}/{piece.key} (position {piece.position}, partition {piece.partition})"


def _fetch(store: Store, piece: Piece) -> bytes:
    if piece.data is not None:
        return piece.data
    try:
        return store.get_range(piece.key, piece.offset, piece.length)
    except NotFound:
        raise InvalidLogError(
            f"{_where(store, piece)} is missing, though its commit record names it. It was "
            "deleted from outside (or collected while it was read): restore it, or start behind it"
        ) from None


def _with_metadata(batch: pa.RecordBatch, piece: Piece, target: pa.Schema) -> pa.RecordBatch:
    values = {
        "_wal_position": piece.position,
        "_wal_timestamp": piece.timestamp_ms * 1000,
        "_wal_partition": piece.partition,
        "_wal_leader_id": piece.leader_id,
        "_wal_batch_id": piece.batch_id,
    }
    for field in target:
        if field.name in values and field.name not in batch.schema.names:
            column = pa.repeat(pa.scalar(values[field.name], field.type), batch.num_rows)
            batch = batch.append_column(field, column)
    return batch


def with_metadata_columns(spark_schema: str) -> str:
    """The schema with the `_wal_…` columns behind the log's own."""
    extra = [
        {"name": name, "type": kind, "nullable": True, "metadata": {}}
        for name, kind in METADATA.items()
    ]
    return schema.append_fields(spark_schema, extra)


def check_names(spark_schema: str) -> None:
    """For writers: raises OptionError for a column that METADATA would hide from readers."""
    for name in schema.columns(spark_schema):
        if name.lower() in METADATA:
            raise OptionError(
                f"column {name!r} has a name that readers of a log use for metadata; rename it "
                f'before writing, for example withColumnRenamed("{name}", "source{name}")'
            )


def check_projection(wanted: str, log_schema: str) -> None:
    """Raises OptionError unless every wanted column is the log's (or metadata) with its type."""
    have = {**METADATA, **schema.columns(log_schema)}
    for name, kind in schema.columns(wanted).items():
        if name not in have:
            raise OptionError(
                f"column {name!r} of the given schema is not in the log; it has "
                f"{', '.join(schema.columns(log_schema))}"
            )
        if have[name] != kind:
            raise OptionError(
                f"column {name!r} is {schema.type_name(have[name])} in the log, not "
                f"{schema.type_name(kind)}; read it as it is and cast it"
            )


def split(found: Sequence[Piece]) -> list[Piece]:
    """The same rows with every span a piece of its own."""
    single: list[Piece] = []
    for piece in found:
        offset = piece.offset
        for span in piece.spans:
            # Only a piece of one span has its data.
            single.append(replace(piece, offset=offset, spans=(span,)))
            offset += span[0]
    return single


def pack(found: Sequence[Piece], count: int) -> list[list[Piece]]:
    """Pieces in order, joined into at most `count` groups of about equal size: one group, one
    read task."""
    groups: list[list[Piece]] = [[] for _ in range(count)]
    total = sum(piece.length for piece in found)
    passed = 0
    for piece in found:
        # By its middle: no last group gets only what the others had no room for.
        groups[(2 * passed + piece.length) * count // (2 * total)].append(piece)
        passed += piece.length
    return [group for group in groups if group]
