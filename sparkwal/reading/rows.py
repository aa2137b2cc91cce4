"""Reads a commit's rows: finds their bytes, divides them among read tasks, checks and decodes
them."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from operator import attrgetter

import pyarrow as pa
from isal.isal_zlib import crc32

from sparkwal import events
from sparkwal.errors import InvalidLogError, OptionError
from sparkwal.format import arrowfile, schema
from sparkwal.format.header import CommitHeader, Frame
from sparkwal.format.merging import narrower
from sparkwal.protocol.slots import SlotRecord
from sparkwal.reading.damage import OnDamage
from sparkwal.reading.metadata import METADATA, RESERVED, ROW
from sparkwal.store.base import LogStore, NotFound, Store
from sparkwal.store.parallel import GetRange, Range, read_parallel

# Frames are fetched together up to this size: fewer requests, bounded memory.
RUN_SIZE = 8 * 2**20
# The bytes that are fetched ahead of the piece that is being decoded.
AHEAD = 4 * RUN_SIZE
# The limit of bytes of columns that a record batch gets and its frames do not hold.
MAX_ADDED_BYTES = 2**31
_ADDED = frozenset((*METADATA, ROW))


@dataclass(frozen=True)
class Checks:
    """The checks of a read: the CRC-32 of every frame, and that texts are UTF-8."""

    checksums: bool = True
    texts: bool = True


_ALL_CHECKS = Checks()


@dataclass(frozen=True)
class Piece:
    """Consecutive frames of one object, which one range GET reads.

    Attributes:
        inlined: the rows are in the commit record. All rows of one partition are one frame then,
            because they share a CRC.
        data: the bytes of an inlined piece, if they were read with the record.
        first_row: the number of rows of the same partition and commit before this piece.
    """

    key: str
    frames: tuple[Frame, ...]
    spark_schema: str
    position: int
    timestamp_ms: int
    partition: int
    leader_id: str
    batch_id: int
    query_id: str = ""
    inlined: bool = False
    data: bytes | None = None
    first_row: int = 0

    @property
    def offset(self) -> int:
        return self.frames[0].offset

    @property
    def length(self) -> int:
        return sum(frame.length for frame in self.frames)

    @property
    def rows(self) -> int:
        return sum(frame.rows for frame in self.frames)

    @property
    def first_rows(self) -> Iterator[int]:
        """The `first_row` of each frame."""
        return accumulate((frame.rows for frame in self.frames), initial=self.first_row)

    @property
    def timestamp(self) -> int:
        """The value of the column, in microseconds."""
        return self.timestamp_ms * 1000


def pieces_of(log: LogStore, record: SlotRecord) -> list[Piece]:
    """The pieces of a record's rows, in partition order. A leader record has none."""
    header = record.header
    if not isinstance(header, CommitHeader):
        return []
    piece = partial(
        Piece,
        spark_schema=record.spark_schema,
        position=header.position,
        timestamp_ms=header.timestamp_ms,
        leader_id=header.leader_id,
        batch_id=header.batch_id,
        query_id=header.query_id,
    )
    pieces: list[Piece] = []
    for batch in header.batches:
        of_batch = partial(piece, key=log.key(batch.number), partition=batch.partition)
        run, first = list[Frame](), 0
        for frame in batch.frames:
            if run and (frame.offset != run[-1].end or frame.end - run[0].offset > RUN_SIZE):
                pieces.append(of_batch(frames=tuple(run), first_row=first))
                run, first = [], first + pieces[-1].rows
            run.append(frame)
        if run:
            pieces.append(of_batch(frames=tuple(run), first_row=first))
    begin, of_record = 0, partial(piece, key=log.key(header.number), inlined=True)
    for part in header.inline:
        end = begin + part.bytes
        data = None if record.inlined is None else record.inlined[begin:end]
        frame = Frame(record.body + begin, part.bytes, part.rows, part.crc32)
        pieces.append(of_record(frames=(frame,), partition=part.partition, data=data))
        begin = end
    return sorted(pieces, key=lambda piece: piece.partition)


def split(pieces: Sequence[Piece]) -> list[Piece]:
    """Split pieces into one piece for each frame."""
    # Only a piece with a single frame has data, so no data must be split.
    return [
        replace(piece, frames=(frame,), first_row=first)
        for piece in pieces
        for frame, first in zip(piece.frames, piece.first_rows, strict=False)
    ]


def pack(pieces: Sequence[Piece], count: int) -> list[list[Piece]]:
    """Group pieces in order into at most `count` groups of about equal size, one for each task."""
    groups: list[list[Piece]] = [[] for _ in range(count)]
    total = sum(piece.length for piece in pieces)
    passed = 0
    for piece in pieces:
        # Assign each piece by its middle, so that the last group does not get only a remainder.
        groups[(2 * passed + piece.length) * count // (2 * total)].append(piece)
        passed += piece.length
    return [group for group in groups if group]


def read_pieces(
    store: Store,
    pieces: Iterable[Piece],
    target: pa.Schema,
    *,
    checks: Checks = _ALL_CHECKS,
    at_once: int | None = None,
    check: Callable[[int], None] = lambda position: None,
    on_damage: OnDamage | None = None,
) -> Iterator[pa.RecordBatch]:
    """Read the rows of pieces with exactly `target`'s columns, in order.

    Later pieces are fetched while earlier ones are decoded and consumed.

    Args:
        store: the store.
        pieces: the pieces.
        target: any of the log's columns, of METADATA, and ROW; a column that an older record lacks
            becomes null.
        checks: see `Checks`.
        at_once: as for `read_parallel`.
        check: called with the position of each fetched piece before it is decoded; it may raise.
        on_damage: gets the error of each missing or damaged piece, which is then not raised.

    Raises:
        InvalidLogError: an object is missing or damaged.
        OptionError: a column is wider than in `target`.
    """

    def first_range(piece: Piece) -> Range | None:
        if piece.data is not None:
            return None
        return Range(piece.key, piece.offset, piece.length, likely=piece.length)

    def fetch(piece: Piece, get_range: GetRange) -> tuple[Piece, bytes | InvalidLogError]:
        if piece.data is not None:
            return piece, piece.data
        try:
            return piece, get_range(piece.key, piece.offset, piece.length)
        except NotFound:
            return piece, InvalidLogError(
                f"{_name(store, piece)} is missing, though its commit record names it. It was "
                "deleted from outside, or collected meanwhile: restore it, or start after it"
            )

    fetched = read_parallel(
        store,
        fetch,
        pieces,
        first_range=first_range,
        at_once=at_once,
        weigh=attrgetter("length"),
        capacity=AHEAD,
    )
    for piece, data in fetched:
        check(piece.position)
        try:
            if isinstance(data, InvalidLogError):
                raise data
            sound = _sound(store, piece, data, verify=checks.checksums)
            if sound is not data:
                check(piece.position)
            yield from _decode(store, piece, sound, target, texts=checks.texts)
        except InvalidLogError as error:
            error.key = piece.key
            if on_damage is None:
                raise
            on_damage(error)


def _sound(store: Store, piece: Piece, data: bytes, *, verify: bool) -> bytes:
    """The bytes of a piece, checked. Damaged ones are read once more.

    They count as damage only if the same bytes come again: a proxy may have changed them.

    Raises:
        InvalidLogError: the bytes are damaged.
    """
    try:
        _check_bytes(store, piece, data, verify=verify)
    except InvalidLogError as error:
        try:
            again = store.get_range(piece.key, piece.offset, piece.length)
        except NotFound:
            raise error from None
        if again == data:
            raise
        _check_bytes(store, piece, again, verify=verify)
        events.emit(events.OtherBytes(key=piece.key, reason=str(error)))
        return again
    return data


def _check_bytes(store: Store, piece: Piece, data: bytes, *, verify: bool) -> None:
    name = _name(store, piece)
    if len(data) != piece.length:
        raise InvalidLogError(f"{name}: {len(data)} bytes, {piece.length} expected; it is cut off")
    view = memoryview(data)
    for frame in piece.frames if verify else ():
        begin = frame.offset - piece.offset
        if crc32(view[begin : begin + frame.length]) != frame.crc32:
            raise InvalidLogError(
                f"{name}: bytes {frame.offset}…{frame.end} do "
                "not match their CRC-32. Restore the object, or read up to the position "
                "before it (endingPosition, or onCorruption=stop)"
            )


def _decode(
    store: Store, piece: Piece, data: bytes, target: pa.Schema, *, texts: bool
) -> Iterator[pa.RecordBatch]:
    object_name = _name(store, piece)
    stored = schema.to_arrow(piece.spark_schema)
    if (name := narrower(stored, target)) is not None:
        raise OptionError(
            f"column {name!r} is {stored.field(name).type} in the log since position "
            f"{piece.position} or before, and {target.field(name).type} in this read, which began "
            "earlier: start it again to read the column with its present type"
        )
    indices = {name: index for index, name in enumerate(stored.names)}
    wanted = [indices[name] for name in target.names if name in indices]
    added = sum(_added_bytes(piece, field) for field in target if field.name not in indices)
    rows = 0
    # For an empty list of columns Arrow reads all. One column is enough to count the rows.
    batches = arrowfile.read_frames(
        data, piece.spark_schema, object_name, wanted or [0], texts=texts
    )
    for batch in batches:
        before, rows = rows, rows + batch.num_rows
        if rows > piece.rows:
            break
        if batch.num_rows * added > MAX_ADDED_BYTES:
            raise InvalidLogError(
                f"{object_name}: the columns that a frame of {batch.num_rows} rows does not hold "
                f"take {added} bytes for each row; the limit is {MAX_ADDED_BYTES} in all. Read "
                "fewer columns"
            )
        yield schema.conform(with_metadata(batch, piece, target, before), target)
    if rows != piece.rows:
        raise InvalidLogError(f"{object_name}: {rows} rows or more, {piece.rows} expected")


def _added_bytes(piece: Piece, field: pa.Field) -> int:
    """About the bytes in each row of a column that the frames do not hold."""
    if pa.types.is_string(field.type) and field.name in METADATA:
        return len(getattr(piece, field.name.removeprefix(RESERVED)))
    return field.type.bit_width // 8 if pa.types.is_primitive(field.type) else 8


def with_metadata(
    batch: pa.RecordBatch, piece: Piece, target: pa.Schema, before: int
) -> pa.RecordBatch:
    """Add the columns of METADATA that the target has, and ROW.

    Args:
        batch: a batch of the piece.
        piece: the piece.
        target: the columns to deliver.
        before: the number of rows of the piece before the batch.
    """
    first = piece.first_row + before
    for field in target:
        if field.name in _ADDED and field.name not in batch.schema.names:
            if field.name == ROW:
                column = pa.array(range(first, first + batch.num_rows), field.type)
            else:
                value = getattr(piece, field.name.removeprefix(RESERVED))
                column = pa.repeat(pa.scalar(value, field.type), batch.num_rows)
            batch = batch.append_column(field, column)
    return batch


def _name(store: Store, piece: Piece) -> str:
    return f"{store.url}/{piece.key} (position {piece.position}, partition {piece.partition})"
