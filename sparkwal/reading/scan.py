"""The rows of a range of one log in this process, as they are needed."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from sparkwal.protocol.slots import WHOLE
from sparkwal.reading.log_range import LogRange
from sparkwal.reading.pieces import pieces_of


def scan(log: LogRange, start: int, end: int, target: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The rows of positions start … end−1 with `target`'s columns, in the log's order.

    Raises CollectedError where the floor overtakes the read, InvalidLogError.
    """
    records = log.records(start, end, at_once=1, size=WHOLE)
    yield from log.rows((piece for each in records for piece in pieces_of(log.log, each)), target)
