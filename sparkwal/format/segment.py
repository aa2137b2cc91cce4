"""A segment: one object that copies a block of records and the small rows of their commits (§13).

It is an object of the log's format, with the columns of the log and those of `_COLUMNS`. Its first
frames have one row for each record and null in the log's columns. The other frames have the rows of
commits, in the log's order, and null in `_COLUMNS`. No part of a commit is in two frames.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import ClassVar

import pyarrow as pa

from sparkwal.errors import InvalidLogError
from sparkwal.format import arrowfile, schema
from sparkwal.format.header import (
    CommitHeader,
    Frame,
    LeaderHeader,
    SegmentHeader,
    SlotHeader,
    check_parts,
    parse_text,
)

# The text of a record's header.
_RECORD = "_wal_record"
# The Spark schema of a record, or null if it is that of the record before.
_SCHEMA = "_wal_schema"
# The offset of a record's inlined rows.
_BODY = "_wal_body"
# A digit for each part of a record's rows: 1 if this segment has them.
_COPIED = "_wal_copied"
_COLUMNS = {_RECORD: "binary", _SCHEMA: "string", _BODY: "long", _COPIED: "string"}
_TYPES = {_RECORD: pa.binary(), _SCHEMA: pa.string(), _BODY: pa.int64(), _COPIED: pa.string()}
# The most bytes of one part that is copied, and of all parts in a segment.
LARGEST_PART = 2**20
MOST_ROWS = 32 * 2**20
# A frame is complete with so many bytes.
_FRAME = 2**20
# The most bytes of frames that a reader fetches together.
RUN_SIZE = 16 * 2**20
# More bytes than any frame that `encode` makes.
_DRAFT = Frame(2**40, 2**40, 2**40, 2**32 - 1)


@dataclass(frozen=True)
class Copied:
    """The place of one part of a commit in a segment: a frame, and its first row there."""

    segment: Segment
    frame: int
    first_row: int


@dataclass(frozen=True)
class Copy:
    """One record as a segment has it.

    Attributes:
        header: its header.
        text: the text of the header.
        spark_schema: its schema.
        body: the offset of its inlined rows in the record itself.
        parts: the parts of its rows that the segment has, by partition.
    """

    header: SlotHeader
    text: bytes
    spark_schema: str
    body: int
    parts: dict[int, Copied]


@dataclass(frozen=True)
class Source:
    """One record for a new segment.

    Attributes:
        text: the text of its header.
        spark_schema: its schema.
        body: the offset of its inlined rows.
        parts: for each part of its rows the rows to copy, or None.
    """

    text: bytes
    spark_schema: str
    body: int
    parts: Sequence[pa.RecordBatch | None]


def parts_of(header: SlotHeader) -> list[tuple[int, int, int]]:
    """The partition, the rows and the bytes of each part of a commit, by partition."""
    if not isinstance(header, CommitHeader):
        return []
    return sorted(
        (part.partition, part.rows, part.bytes) for part in header.batches + header.inline
    )


def columns_of(spark_schema: str) -> str:
    """The schema of a segment, from that of the log at the end of its block."""
    extra = [
        {"name": name, "type": kind, "nullable": True, "metadata": {}}
        for name, kind in _COLUMNS.items()
    ]
    return schema.append_fields(spark_schema, extra)


def has_room(spark_schema: str) -> bool:
    """Whether the log has no column with a name of `_COLUMNS`."""
    return not any(name.lower() in _COLUMNS for name in schema.columns(spark_schema))


def encode(header: SegmentHeader, spark_schema: str, sources: Sequence[Source]) -> bytes:
    """The bytes of a segment.

    Args:
        header: its header, without frames.
        spark_schema: the schema of the log at the end of the block.
        sources: its records.
    """
    with_columns = columns_of(spark_schema)
    target = schema.to_arrow(with_columns)
    groups = [*_groups(sources)]
    header = replace(header, schema_crc32=arrowfile.schema_crc(with_columns))
    draft = replace(header, frames=(_DRAFT,) * (1 + len(groups)))
    writer = arrowfile.FileWriter(draft, with_columns, "zstd")
    frames = [writer.frame(_records(sources, target))]
    # Join the rows of one frame at a time: a copy of all would take as much memory again.
    frames += [writer.frame(_joined(group, target)) for group in groups]
    prefix, tail, _ = writer.finish(replace(header, frames=tuple(writer.frames)))
    return b"".join([prefix, *frames, tail])


def _records(sources: Sequence[Source], target: pa.Schema) -> pa.RecordBatch:
    """The records of a segment, as its first frame."""
    before = [None, *(source.spark_schema for source in sources)]
    schemas = [
        None if source.spark_schema == last else source.spark_schema
        for source, last in zip(sources, before, strict=False)
    ]
    copied = ["".join("01"[part is not None] for part in source.parts) for source in sources]
    values = {
        _RECORD: [source.text for source in sources],
        _SCHEMA: schemas,
        _BODY: [source.body for source in sources],
        _COPIED: copied,
    }
    arrays = [
        pa.array(values[column.name], column.type)
        if column.name in values
        else pa.nulls(len(sources), column.type)
        for column in target
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=target)


def _groups(sources: Sequence[Source]) -> Iterator[list[pa.RecordBatch]]:
    """The parts of a segment in groups, one for each frame: a frame ends where a part ends."""
    waiting: list[pa.RecordBatch] = []
    size = 0
    for part in (part for source in sources for part in source.parts if part is not None):
        if not part.num_rows:
            continue
        waiting.append(part)
        size += part.nbytes
        if size >= _FRAME:
            yield waiting
            waiting = []
            size = 0
    if waiting:
        yield waiting


def _joined(parts: list[pa.RecordBatch], target: pa.Schema) -> pa.RecordBatch:
    # All parts have the columns of the log.
    (batch,) = pa.Table.from_batches(parts).combine_chunks().to_batches()
    return schema.conform(batch, target)


class State:
    """The state of a reader of one segment. It is not sent to another process.

    Attributes:
        faults: the damage that it found. A segment with damage is used no more.
        frames, data: the frames that it fetched last, and their bytes, if it needs them again.
        decoded, batch: the frame and columns that it decoded last, and the rows.
    """

    def __init__(self) -> None:
        self.faults: list[str] = []
        self.frames: range | None = None
        self.data = b""
        self.decoded: tuple[int, list[int]] | None = None
        self.batch: pa.RecordBatch | None = None

    def __reduce__(self) -> tuple[type[State], tuple[()]]:
        return State, ()


@dataclass(frozen=True)
class Segment:
    """The checked front of a segment.

    Attributes:
        key: its key in the store.
        location: its name for people.
        header: its header.
        spark_schema: the schema of its frames.
        state: the state of its reader.
    """

    key: str
    location: str
    header: SegmentHeader
    spark_schema: str
    state: State = field(default_factory=State, compare=False)
    columns: ClassVar[Sequence[str]] = tuple(_COLUMNS)

    @cached_property
    def of_records(self) -> tuple[Frame, ...]:
        """The frames of the records."""
        rows = 0
        for index, frame in enumerate(self.header.frames):
            if rows == self.header.records:
                return self.header.frames[:index]
            rows += frame.rows
        return self.header.frames

    @cached_property
    def of_rows(self) -> tuple[Frame, ...]:
        """The frames of the rows of commits."""
        return self.header.frames[len(self.of_records) :]

    @property
    def end(self) -> int:
        """The offset after the frames of the records."""
        return self.of_records[-1].end

    @cached_property
    def runs(self) -> list[range]:
        """The frames of rows in groups, of which each is fetched by one request."""
        runs: list[range] = []
        for index, frame in enumerate(self.of_rows):
            if runs and frame.end - self.of_rows[runs[-1].start].offset <= RUN_SIZE:
                runs[-1] = range(runs[-1].start, index + 1)
            else:
                runs.append(range(index, index + 1))
        return runs

    def check(self, frames: Sequence[Frame], data: bytes) -> None:
        """Check the bytes of consecutive frames.

        Raises:
            InvalidLogError: they are damaged.
        """
        begin = frames[0].offset
        for frame in frames:
            of_frame = data[frame.offset - begin : frame.end - begin]
            if len(of_frame) != frame.length:
                raise InvalidLogError(f"{self.location}: it is cut off")
            arrowfile.check_crc(of_frame, frame.crc32, self.location)

    def read(
        self, data: bytes, frame: Frame, columns: list[int] | None = None, *, texts: bool = True
    ) -> pa.RecordBatch:
        """Check and decode one frame.

        Args:
            data: its bytes.
            frame: the frame.
            columns: the indices of the columns to decode, by default all.
            texts: see `arrowfile.read_frames`.

        Raises:
            InvalidLogError: the frame is damaged.
        """
        self.check([frame], data)
        location = self.location
        batches = [*arrowfile.read_frames(data, self.spark_schema, location, columns, texts=texts)]
        if len(batches) != 1 or batches[0].num_rows != frame.rows:
            raise InvalidLogError(f"{self.location}: a frame has other rows than announced")
        return batches[0]

    def records(self, data: bytes) -> list[Copy]:
        """Decode the records.

        Args:
            data: the bytes of their frames.

        Raises:
            InvalidLogError: they are damaged, or are not those of the block.
        """
        names = schema.to_arrow(self.spark_schema).names
        columns = [names.index(name) for name in _COLUMNS]
        begin = self.header.frames[0].offset
        copies: list[Copy] = []
        places = _Places(self)
        spark_schema = ""
        for frame in self.of_records:
            of_frame = data[frame.offset - begin : frame.end - begin]
            batch = self.read(of_frame, frame, columns)
            values = [batch.column(name).to_pylist() for name in _COLUMNS]
            for text, new_schema, body, copied in zip(*values, strict=True):
                if text is None or body is None or copied is None or body < 0:
                    raise InvalidLogError(f"{self.location}: a record in it is incomplete")
                if new_schema is not None:
                    spark_schema = _schema(new_schema, self.location)
                header = self._header(text, copies[-1].header if copies else None)
                parts = places.of(header, copied)
                copies.append(Copy(header, text, spark_schema, body, parts))
        places.check_end()
        last = copies[-1].header
        if not spark_schema or (last.position, last.plan_id) != self.header.last[:2]:
            raise InvalidLogError(f"{self.location}: its last record is not the one that it names")
        return copies

    def _header(self, text: bytes, before: SlotHeader | None) -> SlotHeader:
        """Decode the header of a record, and check it as that of the record in its slot.

        Raises:
            InvalidLogError: it is no record of the block, or not after the one `before`.
        """
        header, own = parse_text(text, self.location), self.header
        if not isinstance(header, CommitHeader | LeaderHeader):
            raise InvalidLogError(f"{self.location}: a {header.kind} object among its records")
        if isinstance(header, CommitHeader):
            check_parts(header, self.location)
        after = own.first if before is None else before.position + 1
        is_of_block = after <= header.position <= own.position
        if not is_of_block or (header.log_id, header.window) != (own.log_id, own.window):
            raise InvalidLogError(
                f"{self.location}: the record of position {header.position} is not one of its block"
            )
        return header


class _Places:
    """Finds the rows of parts in the frames of a segment, one part after the other."""

    def __init__(self, segment: Segment) -> None:
        self._segment = segment
        self._frame = 0
        self._row = 0

    def of(self, header: SlotHeader, copied: str) -> dict[int, Copied]:
        """The places of the parts of one record.

        Raises:
            InvalidLogError: the segment has no place for them.
        """
        parts, segment = parts_of(header), self._segment
        if len(copied) != len(parts) or not {*copied} <= {*"01"}:
            raise InvalidLogError(f"{segment.location}: it names other rows than a record in it")
        places = {}
        for (partition, rows, _), is_copied in zip(parts, copied, strict=True):
            if is_copied == "1":
                places[partition] = self._next(rows)
        return places

    def _next(self, rows: int) -> Copied:
        frames = self._segment.of_rows
        if rows and self._frame < len(frames) and self._row == frames[self._frame].rows:
            self._frame += 1
            self._row = 0
        copied = Copied(self._segment, self._frame, self._row)
        self._row += rows
        if rows and (self._frame >= len(frames) or self._row > frames[self._frame].rows):
            raise InvalidLogError(f"{self._segment.location}: it has fewer rows than its records")
        return copied

    def check_end(self) -> None:
        """Check that all rows have a record.

        Raises:
            InvalidLogError: the segment has more rows than its records.
        """
        frames = self._segment.of_rows
        if frames and (self._frame, self._row) != (len(frames) - 1, frames[-1].rows):
            raise InvalidLogError(f"{self._segment.location}: it has more rows than its records")


def _schema(text: str, location: str) -> str:
    try:
        return schema.read(text.encode())
    except ValueError as error:
        raise InvalidLogError(f"{location}: the schema of a record is damaged: {error}") from None


def open_segment(front: bytes, number: int, key: str, location: str) -> Segment:
    """Decode the front of a segment.

    Args:
        front: its first bytes, at least `arrowfile.needed` of them.
        number: the number in its key.
        key: its key.
        location: its name for people.

    Raises:
        InvalidLogError: it is damaged, or no segment of this number.
    """
    opened = arrowfile.open_front(front, location)
    header = opened.header
    if not isinstance(header, SegmentHeader) or header.number != number:
        raise InvalidLogError(f"{location}: this is not the segment with this number")
    segment = Segment(key, location, header, opened.spark_schema)
    last_columns = list(schema.to_arrow(opened.spark_schema))[-len(_COLUMNS) :]
    is_sound = (
        header.frames
        and header.frames[0].offset == opened.body
        and sum(frame.rows for frame in segment.of_records) == header.records
        and all(frame.length <= arrowfile.LARGEST_FRAME for frame in header.frames)
        and sum(frame.length for frame in segment.of_records) <= arrowfile.LARGEST_FRAME
        and {column.name: column.type for column in last_columns} == _TYPES
    )
    if not is_sound:
        raise InvalidLogError(f"{location}: its frames are not those of a segment")
    return segment
