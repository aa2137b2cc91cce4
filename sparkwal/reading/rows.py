"""The rows of pieces: fetched ahead, checked against their CRCs, decoded in order."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator
from operator import attrgetter

import pyarrow as pa

from sparkwal.errors import InvalidLogError
from sparkwal.format import arrowfile, schema
from sparkwal.reading.metadata import with_metadata
from sparkwal.reading.pieces import RUN_SIZE, Piece
from sparkwal.store.base import NotFound, Store
from sparkwal.store.parallel import run_parallel

# Fetched ahead of the piece that is being decoded.
AHEAD = 4 * RUN_SIZE
# Called for each record or object that is damaged or missing; the look goes on after it.
PassedOver = Callable[[InvalidLogError], None]


def read_pieces(
    store: Store,
    found: Iterable[Piece],
    target: pa.Schema,
    *,
    verify: bool = True,
    full: bool = False,
    at_once: int | None = None,
    check: Callable[[int], None] = lambda position: None,
    passed_over: PassedOver | None = None,
) -> Iterator[pa.RecordBatch]:
    """The rows of pieces with exactly `target`'s columns, in order; later pieces are fetched while
    earlier ones are decoded and consumed.

    Args:
        target: any of the log's columns, and of METADATA; older records' missing columns come as
            null.
        full: look at every offset and text of every frame, not only where the rows came from
            outside of Spark.
        at_once: as for `run_parallel`.
        check: called with the position of what was fetched, before it is looked at; it may raise.
        passed_over: gets the error of each missing or damaged piece, instead of raising.

    Raises InvalidLogError for a missing or damaged object.
    """

    def fetch(piece: Piece) -> tuple[Piece, bytes | InvalidLogError]:
        if piece.data is not None:
            return piece, piece.data
        try:
            return piece, store.get_range(piece.key, piece.offset, piece.length)
        except NotFound:
            return piece, InvalidLogError(
                f"{_where(store, piece)} is missing, though its commit record names it. It was "
                "deleted from outside (or collected while it was read): restore it, or start after "
                "it"
            )

    fetched = run_parallel(
        store, fetch, found, at_once=at_once, weigh=attrgetter("length"), capacity=AHEAD,
        is_here=lambda piece: piece.data is not None,
    )  # fmt: skip
    for piece, data in fetched:
        check(piece.position)
        try:
            if isinstance(data, InvalidLogError):
                raise data
            yield from _decode(store, piece, data, target, verify, full)
        except InvalidLogError as error:
            error.key = piece.key
            if passed_over is None:
                raise
            passed_over(error)


def _decode(
    store: Store, piece: Piece, data: bytes, target: pa.Schema, verify: bool, full: bool
) -> Iterator[pa.RecordBatch]:
    where = _where(store, piece)
    if len(data) != piece.length:
        raise InvalidLogError(f"{where}: {len(data)} bytes, {piece.length} expected; it is cut off")
    if verify:
        offset = 0
        view = memoryview(data)
        for span in piece.spans:
            if zlib.crc32(view[offset : offset + span.length]) != span.crc32:
                begin = piece.offset + offset
                raise InvalidLogError(
                    f"{where}: bytes {begin}…{begin + span.length} do "
                    "not match their CRC-32. Restore the object, or read up to the position "
                    "before it (endingPosition, or onCorruption=stop)"
                )
            offset += span.length
    names = schema.to_arrow(piece.spark_schema).names
    wanted = [names.index(name) for name in target.names if name in names]
    # Arrow reads an empty list of fields as "all"; one column still gives their number.
    # What Spark handed over is Arrow's own work. Inlined rows may come from any program, and
    # without a CRC nothing is known of the bytes.
    full = full or piece.inlined or not verify
    rows = 0
    for batch in arrowfile.read_frames(data, piece.spark_schema, where, wanted or [0], full=full):
        rows += batch.num_rows
        if rows > piece.rows:
            break
        yield schema.conform(with_metadata(batch, piece, target), target)
    if rows != piece.rows:
        raise InvalidLogError(f"{where}: {rows} rows or more, {piece.rows} expected")


def _where(store: Store, piece: Piece) -> str:
    return f"{store.url}/{piece.key} (position {piece.position}, partition {piece.partition})"
