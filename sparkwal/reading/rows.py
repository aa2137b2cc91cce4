"""A commit's rows: which bytes hold them, how those are shared among read tasks, and the reading of
them: fetched ahead, checked against their CRCs, decoded in order."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from operator import attrgetter

import pyarrow as pa
from isal.isal_zlib import crc32

from sparkwal.errors import InvalidLogError, OptionError
from sparkwal.format import arrowfile, schema
from sparkwal.format.header import CommitHeader, Frame
from sparkwal.format.merging import narrower
from sparkwal.protocol.slots import SlotRecord
from sparkwal.reading.metadata import METADATA, RESERVED, ROW
from sparkwal.store.base import LogStore, NotFound, Store
from sparkwal.store.parallel import GetRange, Range, read_parallel

# Frames are fetched together up to this size: fewer requests, bounded memory.
RUN_SIZE = 8 * 2**20
# Fetched ahead of the piece that is being decoded.
AHEAD = 4 * RUN_SIZE
# Bytes of columns that one record batch is given, as the frames do not hold them.
MOST_ADDED = 2**31
_ADDED = frozenset((*METADATA, ROW))
# Called for each record or object that is damaged or missing; the look goes on after it.
PassedOver = Callable[[InvalidLogError], None]


@dataclass(frozen=True)
class Piece:
    """Consecutive frames of one object: one range GET. `data` are its bytes, where they came along
    with the commit record; `inlined` says that they stand in it: all the rows that one partition
    inlined count as one frame, as they have one CRC. `first_row`: how many rows of its partition
    come before it in the commit."""

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
        """`first_row` of each frame."""
        return accumulate((frame.rows for frame in self.frames), initial=self.first_row)

    @property
    def timestamp(self) -> int:
        """As the column has it: microseconds."""
        return self.timestamp_ms * 1000


def pieces_of(log: LogStore, record: SlotRecord) -> list[Piece]:
    """Where the rows of a record are, in partition order; none in a leader record."""
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
    found: list[Piece] = []
    for batch in header.batches:
        of_batch = partial(piece, key=log.key(batch.number), partition=batch.partition)
        run, first = list[Frame](), 0
        for frame in batch.frames:
            if run and (frame.offset != run[-1].end or frame.end - run[0].offset > RUN_SIZE):
                found.append(of_batch(frames=tuple(run), first_row=first))
                run, first = [], first + found[-1].rows
            run.append(frame)
        if run:
            found.append(of_batch(frames=tuple(run), first_row=first))
    begin, of_record = 0, partial(piece, key=log.key(header.number), inlined=True)
    for part in header.inline:
        end = begin + part.bytes
        data = None if record.inlined is None else record.inlined[begin:end]
        whole = Frame(record.body + begin, part.bytes, part.rows, part.crc32)
        found.append(of_record(frames=(whole,), partition=part.partition, data=data))
        begin = end
    return sorted(found, key=lambda each: each.partition)


def split(found: Sequence[Piece]) -> list[Piece]:
    """The same rows with every frame a piece of its own."""
    # Only a piece of one frame has its data.
    return [
        replace(piece, frames=(frame,), first_row=first)
        for piece in found
        for frame, first in zip(piece.frames, piece.first_rows, strict=False)
    ]


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


def read_pieces(
    store: Store,
    found: Iterable[Piece],
    target: pa.Schema,
    *,
    verify: bool = True,
    texts: bool = True,
    at_once: int | None = None,
    check: Callable[[int], None] = lambda position: None,
    passed_over: PassedOver | None = None,
) -> Iterator[pa.RecordBatch]:
    """The rows of pieces with exactly `target`'s columns, in order; later pieces are fetched while
    earlier ones are decoded and consumed.

    Args:
        target: any of the log's columns, of METADATA, and ROW; older records' missing columns come
            as null.
        verify: whether to check the CRC-32 of every frame.
        texts: as for `arrowfile.read_frames`.
        at_once: as for `read_parallel`.
        check: called with the position of what was fetched, before it is looked at; it may raise.
        passed_over: gets the error of each missing or damaged piece, instead of raising.

    Raises InvalidLogError for a missing or damaged object, OptionError where a column is wider than
    in `target`.
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
                f"{_where(store, piece)} is missing, though its commit record names it. It was "
                "deleted from outside, or collected meanwhile: restore it, or start after it"
            )

    fetched = read_parallel(
        store,
        fetch,
        found,
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
            _check_bytes(store, piece, data, verify)
            yield from _decode(store, piece, data, target, texts)
        except InvalidLogError as error:
            error.key = piece.key
            if passed_over is None:
                raise
            passed_over(error)


def _check_bytes(store: Store, piece: Piece, data: bytes, verify: bool) -> None:
    where = _where(store, piece)
    if len(data) != piece.length:
        raise InvalidLogError(f"{where}: {len(data)} bytes, {piece.length} expected; it is cut off")
    view = memoryview(data)
    for frame in piece.frames if verify else ():
        begin = frame.offset - piece.offset
        if crc32(view[begin : begin + frame.length]) != frame.crc32:
            raise InvalidLogError(
                f"{where}: bytes {frame.offset}…{frame.end} do "
                "not match their CRC-32. Restore the object, or read up to the position "
                "before it (endingPosition, or onCorruption=stop)"
            )


def _decode(
    store: Store, piece: Piece, data: bytes, target: pa.Schema, texts: bool
) -> Iterator[pa.RecordBatch]:
    where = _where(store, piece)
    stored = schema.to_arrow(piece.spark_schema)
    if (name := narrower(stored, target)) is not None:
        raise OptionError(
            f"column {name!r} is {stored.field(name).type} in the log since position "
            f"{piece.position} or before, and {target.field(name).type} in this read, which began "
            "earlier: start it again, and it reads the column as it is now"
        )
    names = stored.names
    wanted = [names.index(name) for name in target.names if name in names]
    added = sum(_added_bytes(piece, field) for field in target if field.name not in names)
    rows = 0
    # Arrow reads an empty list of fields as "all"; one column still gives their number.
    for batch in arrowfile.read_frames(data, piece.spark_schema, where, wanted or [0], texts=texts):
        before, rows = rows, rows + batch.num_rows
        if rows > piece.rows:
            break
        if batch.num_rows * added > MOST_ADDED:
            raise InvalidLogError(
                f"{where}: the columns that a frame of {batch.num_rows} rows does not hold take "
                f"{added} bytes for each; {MOST_ADDED} in all are given. Read fewer columns"
            )
        yield schema.conform(with_metadata(batch, piece, target, before), target)
    if rows != piece.rows:
        raise InvalidLogError(f"{where}: {rows} rows or more, {piece.rows} expected")


def _added_bytes(piece: Piece, field: pa.Field) -> int:
    """Bytes in each row of a column that the frames do not hold, about."""
    if pa.types.is_string(field.type) and field.name in METADATA:
        return len(getattr(piece, field.name.removeprefix(RESERVED)))
    return field.type.bit_width // 8 if pa.types.is_primitive(field.type) else 8


def with_metadata(
    batch: pa.RecordBatch, piece: Piece, target: pa.Schema, before: int
) -> pa.RecordBatch:
    """The batch with those columns of METADATA that the target has, and ROW. `before`: how many
    rows of the piece come before it."""
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


def _where(store: Store, piece: Piece) -> str:
    return f"{store.url}/{piece.key} (position {piece.position}, partition {piece.partition})"
