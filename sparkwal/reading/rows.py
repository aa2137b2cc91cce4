"""Reads a commit's rows: finds their bytes, divides them among read tasks, checks and decodes
them."""

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from operator import attrgetter
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from isal.isal_zlib import crc32

from sparkwal.errors import CollectedError, InvalidLogError, OptionError
from sparkwal.format import arrowfile, schema
from sparkwal.format.header import CommitHeader, Frame
from sparkwal.format.merging import narrower
from sparkwal.protocol.segments import ignore
from sparkwal.protocol.slots import WHAT_TO_DO, SlotRecord, copied
from sparkwal.protocol.view import OnDamage
from sparkwal.reading.copied_rows import Run, runs_in
from sparkwal.reading.metadata import COLUMNS, METADATA, RESERVED, ROW
from sparkwal.reading.pieces import Piece
from sparkwal.store.base import LogStore, Store, sound
from sparkwal.store.parallel import Range, get_many

# Frames are fetched together up to this size: fewer requests, bounded memory.
RUN_SIZE = 8 * 2**20
# The limit of bytes of columns that a record batch gets and its frames do not hold.
MAX_ADDED_BYTES = 2**31
_ADDED = frozenset((*METADATA, COLUMNS, ROW))


@dataclass(frozen=True)
class Checks:
    """The checks of a read: the CRC-32 of every frame, and that texts are UTF-8."""

    checksums: bool = True
    texts: bool = True


_ALL_CHECKS = Checks()


def pieces_of(log: LogStore, record: SlotRecord) -> list[Piece]:
    """The pieces of a record's rows, in partition order. A leader record has none.

    Raises:
        CollectedError: a collection erased the rows.
    """
    header = record.header
    if not isinstance(header, CommitHeader):
        return []
    # SAFETY(erased-not-empty) §10: a record whose rows were erased never counts as one without rows
    if header.erased:
        raise CollectedError(
            f"{log.locate(header.number, header.window)}: a collection erased the rows of this "
            "record, so it is below the log's floor. Begin the read above it; if the path has no "
            "lifecycle/ any more, restore that",
            floor=header.position + 1,
        )
    piece = partial(
        Piece,
        spark_schema=record.spark_schema,
        position=header.position,
        timestamp_ms=header.timestamp_ms,
        leader_id=header.leader_id,
        batch_id=header.batch_id,
        query_id=header.query_id,
        window=header.window,
    )
    pieces: list[Piece] = []
    place_of = record.copied.get
    for batch in header.batches:
        partition = batch.partition
        of_batch = partial(
            piece, key=log.key(batch.number), partition=partition, copied=place_of(partition)
        )
        run, first = list[Frame](), 0
        for frame in batch.frames:
            if run and (frame.offset != run[-1].end or frame.end - run[0].offset > RUN_SIZE):
                pieces.append(of_batch(frames=tuple(run), first_row=first))
                run, first = [], first + pieces[-1].rows
            run.append(frame)
        if run:
            pieces.append(of_batch(frames=tuple(run), first_row=first))
    inlined = record.inlined
    begin, of_record = 0, partial(piece, key=log.key(header.number), inlined=True)
    for part in header.inline:
        end = begin + part.bytes
        data = None if inlined is None else inlined[begin:end]
        frame = Frame(record.body + begin, part.bytes, part.rows, part.crc32)
        copy = place_of(part.partition)
        pieces.append(of_record(frames=(frame,), partition=part.partition, data=data, copied=copy))
        begin = end
    return sorted(pieces, key=attrgetter("partition"))


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
    log: LogStore,
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
        log: the log. If it is a reader's, rows that are lost or damaged come from their segment.
        pieces: the pieces.
        target: any of the log's columns, of METADATA, COLUMNS and ROW; a column that an older
            record lacks becomes null.
        checks: see `Checks`.
        at_once: as for `get_many`.
        check: called with the position of each fetched piece before it is decoded; it may raise.
        on_damage: gets the error of each missing or damaged piece, which is then not raised.

    Raises:
        InvalidLogError: an object is missing or damaged.
        OptionError: a column is wider than in `target`.
    """
    store = log.store
    columns_of: dict[str, _Columns] = {}
    for (unit, cached), fetched in get_many(store, _units(pieces, target), at_once=at_once):
        data = fetched if cached is None else cached
        check(unit.position)
        if isinstance(unit, Run):
            left = yield from _read_run(store, unit, data, target, checks)
            if left:
                # The records themselves have the same rows.
                alone = [replace(piece, copied=None) for piece in left]
                yield from read_pieces(
                    log, alone, target, checks=checks, check=check, on_damage=on_damage
                )
            continue
        checked = None
        try:
            checked = _checked(store, unit, data, verify=checks.checksums)
            if checked is not data:
                check(unit.position)
            columns = columns_of.get(unit.spark_schema)
            if columns is None:
                columns = _columns(schema.to_arrow(unit.spark_schema), target)
                columns_of[unit.spark_schema] = columns
            yield from _decode(store, unit, checked, target, columns, texts=checks.texts)
        except InvalidLogError as error:
            if checked is None and (copy := _copy_of(log, unit)) is not None:
                yield from read_pieces(
                    log.without_copies, [copy], target, checks=checks, check=check
                )
                continue
            error.key = unit.key
            if on_damage is None:
                raise
            on_damage(error)


def _units(
    pieces: Iterable[Piece], target: pa.Schema
) -> Iterator[tuple[tuple[Piece | Run, bytes | None], Range | None]]:
    """Each unit of a read with its bytes if they were read before, or else their place."""
    for unit in runs_in(pieces, target):
        data = unit.data
        missing = Range(unit.key, unit.offset, unit.length) if data is None else None
        yield (unit, data), missing


def _copy_of(log: LogStore, piece: Piece) -> Piece | None:
    """The piece with the place of its rows in a segment, or None if no segment has them."""
    record = copied(log, piece.position, piece.window)
    if record is None or record.header.timestamp_ms != piece.timestamp_ms:
        return None
    copy = record.copied.get(piece.partition)
    return None if copy is None else replace(piece, copied=copy, data=None)


def _read_run(
    store: Store, run: Run, data: bytes | None, target: pa.Schema, checks: Checks
) -> Generator[pa.RecordBatch, None, list[Piece]]:
    """Read the rows of a run from its segment.

    Yields:
        The rows with exactly `target`'s columns.

    Returns:
        The pieces that are left, because the segment is damaged.
    """
    left = run.pieces
    try:
        for pieces, batch in run.batches(run.checked(store, data), target, texts=checks.texts):
            stored = {*batch.schema.names}
            added = [field for field in target if field.name not in stored]
            if added:
                width = max(_added_bytes(piece, added) for piece in pieces)
                _check_added(run.segment.location, batch.num_rows, width)
            yield schema.conform(_with_metadata_of(batch, pieces, target), target)
            left = left[len(pieces) :]
    except InvalidLogError as error:
        ignore(run.segment, str(error))
    return left


def _checked(store: Store, piece: Piece, data: bytes | None, *, verify: bool) -> bytes:
    """The bytes of a piece, checked. Damaged ones are read once more.

    Raises:
        InvalidLogError: the bytes are missing or damaged.
    """
    if data is None:
        raise InvalidLogError(
            f"{_name(store, piece)} is missing, though its commit record names it. It was "
            "deleted from outside, or collected meanwhile: restore it, or start after it"
        )
    check = partial(_check_bytes, store, piece, verify=verify)
    return sound(
        piece.key,
        lambda: check(data),
        lambda: check(store.get_range(piece.key, piece.offset, piece.length)),
    )


def _check_bytes(store: Store, piece: Piece, data: bytes, *, verify: bool) -> bytes:
    name = _name(store, piece)
    if len(data) != piece.length:
        raise InvalidLogError(
            f"{name}: {len(data)} bytes, {piece.length} expected; it is cut off. {WHAT_TO_DO}"
        )
    view = memoryview(data)
    for frame in piece.frames if verify else ():
        begin = frame.offset - piece.offset
        if crc32(view[begin : begin + frame.length]) != frame.crc32:
            raise InvalidLogError(
                f"{name}: bytes {frame.offset}…{frame.end} do not match their CRC-32. {WHAT_TO_DO}"
            )
    return data


class _Columns(NamedTuple):
    """The columns of a read, against those of the objects with one schema.

    Attributes:
        narrower: a column that is narrower in the read than in the objects, or None.
        stored: the indices of the columns to decode.
        added: the columns that the objects do not hold.
    """

    narrower: pa.Field | None
    stored: list[int]
    added: list[pa.Field]


def _columns(stored: pa.Schema, target: pa.Schema) -> _Columns:
    too_narrow = narrower(stored, target)
    indices = {name: index for index, name in enumerate(stored.names)}
    wanted = [indices[name] for name in target.names if name in indices]
    return _Columns(
        narrower=None if too_narrow is None else stored.field(too_narrow),
        # For an empty list of columns Arrow reads all. One column is enough to count the rows.
        stored=wanted or [0],
        added=[field for field in target if field.name not in indices],
    )


def _decode(
    store: Store,
    piece: Piece,
    data: bytes,
    target: pa.Schema,
    columns: _Columns,
    *,
    texts: bool,
) -> Iterator[pa.RecordBatch]:
    object_name = _name(store, piece)
    if columns.narrower is not None:
        name, kind = columns.narrower.name, columns.narrower.type
        raise OptionError(
            f"column {name!r} is {kind} in the log since position "
            f"{piece.position} or before, and {target.field(name).type} in this read, which began "
            "earlier: start it again to read the column with its present type"
        )
    added = _added_bytes(piece, columns.added)
    rows = 0
    batches = arrowfile.read_frames(
        data, piece.spark_schema, object_name, columns.stored, texts=texts
    )
    for batch in batches:
        before, rows = rows, rows + batch.num_rows
        if rows > piece.rows:
            break
        _check_added(object_name, batch.num_rows, added)
        if columns.added:
            batch = with_metadata(batch, piece, target, before)
        yield schema.conform(batch, target)
    if rows != piece.rows:
        raise InvalidLogError(f"{object_name}: {rows} rows or more, {piece.rows} expected")


def _check_added(name: str, rows: int, added: int) -> None:
    """Check the size of the columns that a frame does not hold.

    Raises:
        InvalidLogError: they are too large.
    """
    if rows * added > MAX_ADDED_BYTES:
        raise InvalidLogError(
            f"{name}: the columns that a frame of {rows} rows does not hold take {added} bytes for "
            f"each row; the limit is {MAX_ADDED_BYTES} in all. Read fewer columns"
        )


def _added_bytes(piece: Piece, added: Sequence[pa.Field]) -> int:
    """About the bytes in each row of the columns that the frames do not hold."""
    return sum(_width(piece, field) for field in added)


def _width(piece: Piece, field: pa.Field) -> int:
    if pa.types.is_string(field.type) and field.name in _ADDED:
        return len(getattr(piece, field.name.removeprefix(RESERVED)))
    return field.type.bit_width // 8 if pa.types.is_primitive(field.type) else 8


def with_metadata(
    batch: pa.RecordBatch, piece: Piece, target: pa.Schema, before: int
) -> pa.RecordBatch:
    """Add the columns of METADATA that the target has, COLUMNS and ROW.

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


def _with_metadata_of(
    batch: pa.RecordBatch, pieces: Sequence[Piece], target: pa.Schema
) -> pa.RecordBatch:
    """As `with_metadata`, for a batch with the rows of several pieces."""
    missing = [f for f in target if f.name in _ADDED and f.name not in batch.schema.names]
    if not missing:
        return batch
    ends = [*accumulate((piece.rows for piece in pieces), initial=0)]
    rows = pa.ListArray.from_arrays(pa.array(ends, pa.int32()), pa.nulls(batch.num_rows))
    piece_of_row = pc.list_parent_indices(rows)
    for field in missing:
        if field.name == ROW:
            row = pa.array(range(batch.num_rows), field.type)
            column = pc.subtract(row, pa.array(ends[:-1], field.type).take(piece_of_row))
        else:
            name = field.name.removeprefix(RESERVED)
            values = pa.array([getattr(piece, name) for piece in pieces], field.type)
            column = values.take(piece_of_row)
        batch = batch.append_column(field, column)
    return batch


def _name(store: Store, piece: Piece) -> str:
    return f"{store.url}/{piece.key} (position {piece.position}, partition {piece.partition})"
