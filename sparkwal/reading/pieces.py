"""Which bytes hold a commit's rows, and how those bytes are shared among read tasks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

from sparkwal.format.header import CommitHeader
from sparkwal.protocol.slots import SlotRecord
from sparkwal.store.log_store import LogStore

# Frames are fetched together up to this size: fewer requests, bounded memory.
RUN_SIZE = 8 * 2**20


class Span(NamedTuple):
    """Bytes under one CRC: one frame, or all the rows that one partition inlined."""

    length: int
    rows: int
    crc32: int


@dataclass(frozen=True)
class Piece:
    """Consecutive frames of one object: one range GET. `data` are its bytes, where they came along
    with the commit record; `inlined` says that they stand in it."""

    key: str
    offset: int
    spans: tuple[Span, ...]
    spark_schema: str
    position: int
    timestamp_ms: int
    partition: int
    leader_id: str
    batch_id: int
    query_id: str = ""
    inlined: bool = False
    data: bytes | None = None

    @property
    def length(self) -> int:
        return sum(span.length for span in self.spans)

    @property
    def rows(self) -> int:
        return sum(span.rows for span in self.spans)


def pieces_of(log: LogStore, record: SlotRecord) -> list[Piece]:
    """Where the rows of a record are, in partition order; none in a leader record."""
    header = record.header
    if not isinstance(header, CommitHeader):
        return []
    piece = partial(
        Piece, spark_schema=record.spark_schema, position=header.position,
        timestamp_ms=header.timestamp_ms, leader_id=header.leader_id, batch_id=header.batch_id,
        query_id=header.query_id,
    )  # fmt: skip
    found: list[Piece] = []
    for batch in header.batches:
        of_batch = partial(piece, key=log.key(batch.number), partition=batch.partition)
        run: list[Span] = []
        start = end = batch.frames[0].offset if batch.frames else 0
        for frame in batch.frames:
            if run and (frame.offset != end or end + frame.length - start > RUN_SIZE):
                found.append(of_batch(offset=start, spans=tuple(run)))
                run, start = [], frame.offset
            run.append(Span(frame.length, frame.rows, frame.crc32))
            end = frame.offset + frame.length
        if run:
            found.append(of_batch(offset=start, spans=tuple(run)))
    begin, key = 0, log.key(header.number)
    for inline in header.inline:
        end = begin + inline.bytes
        data = None if record.inlined is None else record.inlined[begin:end]
        spans = (Span(inline.bytes, inline.rows, inline.crc32),)
        found.append(
            piece(
                key=key, partition=inline.partition, offset=record.body + begin, spans=spans,
                inlined=True, data=data,
            )
        )  # fmt: skip
        begin = end
    return sorted(found, key=lambda each: each.partition)


def split(found: Sequence[Piece]) -> list[Piece]:
    """The same rows with every span a piece of its own."""
    single: list[Piece] = []
    for piece in found:
        offset = piece.offset
        for span in piece.spans:
            # Only a piece of one span has its data.
            single.append(replace(piece, offset=offset, spans=(span,)))
            offset += span.length
    return single


def pack(found: Sequence[Piece], count: int) -> list[list[Piece]]:
    """Pieces in order, joined into at most `count` groups of about equal size: a read task each."""
    groups: list[list[Piece]] = [[] for _ in range(count)]
    total = sum(piece.length for piece in found)
    passed = 0
    for piece in found:
        # By its middle: no last group gets only what the others had no room for.
        groups[(2 * passed + piece.length) * count // (2 * total)].append(piece)
        passed += piece.length
    return [group for group in groups if group]
