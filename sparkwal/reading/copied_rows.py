"""Reads rows of many commits from the frames of their segment."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial

import pyarrow as pa

from sparkwal.errors import InvalidLogError
from sparkwal.format import schema
from sparkwal.format.merging import narrower
from sparkwal.format.segment import Segment
from sparkwal.reading.pieces import Piece
from sparkwal.store.base import Store, sound


class Run:
    """Pieces whose rows are in frames of one segment that one range GET reads.

    Attributes:
        segment: the segment.
        pieces: the pieces, in order.
    """

    def __init__(self, segment: Segment, frames: range, pieces: list[Piece]) -> None:
        self.segment = segment
        self.pieces = pieces
        self._frames = frames
        self.key = segment.key
        self.position = pieces[0].position
        first, last = segment.of_rows[frames.start], segment.of_rows[frames.stop - 1]
        self.offset = first.offset
        self.length = last.end - first.offset

    @property
    def data(self) -> bytes | None:
        """The bytes of the frames, if they were read for the pieces before these."""
        state = self.segment.state
        return state.data if state.frames == self._frames else None

    def checked(self, store: Store, data: bytes | None) -> bytes:
        """Check the bytes of the frames, and keep them if the pieces after these need them.

        Raises:
            InvalidLogError: they are missing or damaged, or the segment is used no more.
        """
        state = self.segment.state
        if state.faults:
            raise InvalidLogError(state.faults[0])
        if data is None:
            # SAFETY(segment-rows-fall-back) §13: a reader without a segment reads the records
            raise InvalidLogError(f"{self.segment.location}: it was deleted meanwhile")
        frames = self.segment.of_rows[self._frames.start : self._frames.stop]

        def check(data: bytes) -> bytes:
            self.segment.check(frames, data)
            return data

        def again() -> bytes:
            return check(store.get_range(self.key, self.offset, self.length))

        if data is not state.data:
            data = sound(self.key, partial(check, data), again)
        # A reader that takes one record at a time needs them again.
        is_complete = _end(self.pieces[-1]) == (self._frames.stop - 1, self._last_row)
        state.frames, state.data = (None, b"") if is_complete else (self._frames, data)
        return data

    @property
    def _last_row(self) -> int:
        return self.segment.of_rows[self._frames.stop - 1].rows

    def batches(
        self, data: bytes, target: pa.Schema, *, texts: bool
    ) -> Iterator[tuple[list[Piece], pa.RecordBatch]]:
        """Decode the rows of pieces in order: consecutive ones of one frame together.

        Raises:
            InvalidLogError: a frame is damaged.
        """
        segment = self.segment
        names = schema.to_arrow(segment.spark_schema).names[: -len(segment.columns)]
        wanted = [index for index, name in enumerate(names) if name in target.names]
        for pieces in _consecutive(self.pieces):
            index, first_row = _begin(pieces[0])
            _, after = _end(pieces[-1])
            frame = segment.of_rows[index]
            cached = (index, wanted)
            batch = segment.state.batch if segment.state.decoded == cached else None
            if batch is None:
                begin = frame.offset - self.offset
                of_frame = data[begin : begin + frame.length]
                batch = segment.read(of_frame, frame, wanted or [0], texts=texts)
            is_complete = after == frame.rows
            segment.state.decoded = None if is_complete else cached
            segment.state.batch = None if is_complete else batch
            yield pieces, batch.slice(first_row, after - first_row)


def _begin(piece: Piece) -> tuple[int, int]:
    """The frame of a piece, and its first row there."""
    assert piece.copied is not None
    return piece.copied.frame, piece.copied.first_row + piece.first_row


def _end(piece: Piece) -> tuple[int, int]:
    """The frame of a piece, and the row after its last one there."""
    frame, row = _begin(piece)
    return frame, row + piece.rows


def _consecutive(pieces: Iterable[Piece]) -> Iterator[list[Piece]]:
    group: list[Piece] = []
    for piece in pieces:
        if group and _end(group[-1]) != _begin(piece):
            yield group
            group = []
        group.append(piece)
    if group:
        yield group


def runs_in(pieces: Iterable[Piece], target: pa.Schema) -> Iterator[Piece | Run]:
    """Join consecutive pieces whose rows are in one run of frames of a segment."""
    waiting: list[Piece] = []
    segment: Segment | None = None
    frames = range(0)
    usable: dict[str, bool] = {}

    def joined() -> Iterator[Run]:
        nonlocal waiting
        if waiting:
            assert segment is not None
            yield Run(segment, frames, waiting)
        waiting = []

    for piece in pieces:
        copied = piece.copied
        if copied is None:
            yield from joined()
            yield piece
            continue
        if not piece.rows:
            continue
        if copied.segment is not segment or copied.frame not in frames:
            yield from joined()
            segment = copied.segment
            frames = next(frames for frames in segment.runs if copied.frame in frames)
        if segment.spark_schema not in usable:
            stored = schema.to_arrow(segment.spark_schema)
            usable[segment.spark_schema] = narrower(stored, target) is None
        # The records themselves are read up to the first one that is too wide.
        if segment.state.faults or not usable[segment.spark_schema]:
            yield from joined()
            yield replace(piece, copied=None)
            continue
        waiting.append(piece)
    yield from joined()
