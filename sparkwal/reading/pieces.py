"""A part of a commit's rows that one request reads."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate

from sparkwal.format.header import Frame
from sparkwal.format.segment import Copied
from sparkwal.reading.metadata import names_text


@dataclass(frozen=True)
class Piece:
    """Consecutive frames of one object, which one range GET reads.

    Attributes:
        window: the window of the log.
        inlined: the rows are in the commit record. All rows of one partition are one frame then,
            because they share a CRC.
        data: the bytes of an inlined piece, if they were read with the record.
        first_row: the number of rows of the same partition and commit before this piece.
        copied: the place in a segment of all rows of the same partition and commit, if one has
            them.
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
    window: int = 0
    inlined: bool = False
    data: bytes | None = None
    first_row: int = 0
    copied: Copied | None = None

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
    def columns(self) -> str:
        """The names of the record's columns."""
        return names_text(self.spark_schema)

    @property
    def timestamp(self) -> int:
        """The value of the column, in microseconds."""
        return self.timestamp_ms * 1000
