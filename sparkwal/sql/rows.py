"""The rows of logs with the columns that say where each came from, in the logs' order."""

import heapq
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import inf
from operator import itemgetter

import pyarrow as pa

from sparkwal.errors import OptionError
from sparkwal.format import schema
from sparkwal.protocol.slots import GLANCE, WHOLE, SlotRecord
from sparkwal.reading.log_range import LogRange
from sparkwal.reading.metadata import with_metadata_columns
from sparkwal.reading.rows import Piece, pieces_of, with_metadata
from sparkwal.sql.needs import Needs

# Besides METADATA: the log's name, and the number of a row in its commit and partition.
OWN = pa.schema([("_wal_sequencer", pa.string()), ("_wal_row", pa.int64())])
_METADATA = schema.to_arrow(with_metadata_columns('{"type":"struct","fields":[]}'))


def known_columns(spark_schemas: Iterable[str | None]) -> pa.Schema:
    """All columns of logs, then those that name where a row came from. Raises OptionError where two
    logs have a column of other types."""
    try:
        own = pa.unify_schemas([schema.to_arrow(text) for text in spark_schemas if text])
    except pa.ArrowException as error:
        raise OptionError(f"the sequencers' columns are of different types: {error}") from None
    return pa.schema([*own, *(each for each in (*_METADATA, *OWN) if each.name not in own.names)])


@dataclass
class Numbering:
    """Counts the rows of each commit and partition, whose batches come one after the other."""

    last: tuple[int, int] = (-1, -1)
    rows: int = 0

    def of(self, position: int, partition: int, rows: int) -> pa.Array:
        if (position, partition) != self.last:
            self.last, self.rows = (position, partition), 0
        first, self.rows = self.rows, self.rows + rows
        return pa.array(range(first, self.rows), pa.int64())


def read(
    log: LogRange, pieces: Iterable[Piece], target: pa.Schema, numbering: Numbering | None = None,
    *, counted: bool = False,
) -> Iterator[pa.RecordBatch]:  # fmt: skip
    """The rows of pieces of one log with `target`'s columns. `numbering` is that of a read that
    begins in the middle of a partition, or goes on. Where `counted`, `target` has no column of the
    writers' own, and their objects are not read. Raises InvalidLogError, CollectedError."""
    own = [each for each in target if each.name in OWN.names and each.name not in _theirs(log)]
    base = pa.schema([each for each in target if each not in own])
    if "_wal_row" in [each.name for each in own]:
        for name in ("_wal_position", "_wal_partition"):
            if name not in base.names:
                base = base.append(_METADATA.field(name))
    numbering = numbering or Numbering()
    for batch in _counted(pieces, base) if counted else log.rows(pieces, base):
        if not batch.num_rows:
            continue
        for each in own:
            if each.name == "_wal_row":
                position = batch.column("_wal_position")[0].as_py()
                partition = batch.column("_wal_partition")[0].as_py()
                column = numbering.of(position, partition, batch.num_rows)
            else:
                column = pa.repeat(pa.scalar(log.name, pa.string()), batch.num_rows)
            batch = batch.append_column(each, column)
        yield batch.select(target.names)


def _theirs(log: LogRange) -> list[str]:
    """A log may have a column of such a name itself."""
    return schema.to_arrow(log.spark_schema).names if log.spark_schema else []


def bounds(log: LogRange, needs: Needs | None = None) -> tuple[int, int]:
    """The first position to read and the one after the last: as the log's options say, and within
    those what is needed. A range of times takes log₂ n GETs for each end."""
    first = log.start()
    after = log.intact_end(first, log.end())
    if needs is None or {"_wal_position", "_wal_timestamp"} & {*_theirs(log)}:
        return first, after
    return narrowed(log, first, after, needs, "_wal_position", "_wal_timestamp")


def narrowed(
    log: LogRange, first: int, after: int, needs: Needs, position: str, time: str
) -> tuple[int, int]:
    """The positions of first … after−1 that are within the ranges of these two columns."""
    low, high = needs.of(position)
    first, after = int(max(first, low)), int(min(after, high + 1))
    low, high = needs.of(time)
    if low > -inf and first < after:
        first = max(first, log.at(int(-(-low // 1000))))
    if high < inf and first < after:
        after = min(after, log.at(int(high // 1000) + 1))
    return first, max(first, after)


def rows(
    logs: Sequence[LogRange], target: pa.Schema, needs: Needs | None = None
) -> Iterator[pa.RecordBatch]:
    """All rows of a range, of several logs in the order of their commits' times. Where `target` has
    no column of the writers' own, records alone are read: they know how many rows there are."""
    own = {name for log in logs for name in _theirs(log)}
    records_suffice = not own & {*target.names}

    def records(log: LogRange) -> Iterator[tuple[int, str, LogRange, SlotRecord]]:
        first, after = bounds(log, needs)
        size = GLANCE if records_suffice else WHOLE
        for record in log.records(first, after, at_once=1, size=size):
            yield record.header.timestamp_ms, log.name, log, record

    merged = (
        records(logs[0]) if len(logs) == 1
        else heapq.merge(*map(records, logs), key=itemgetter(0, 1))
    )  # fmt: skip
    for log, group in groupby(merged, key=itemgetter(2)):
        pieces = (piece for *_, record in group for piece in pieces_of(log.log, record))
        yield from read(log, pieces, target, counted=records_suffice)


def _counted(pieces: Iterable[Piece], target: pa.Schema) -> Iterator[pa.RecordBatch]:
    """As many rows as the pieces have, with the columns that are the same in all rows of one."""
    for piece in pieces:
        for done in range(0, piece.rows, 2**17):
            nothing = pa.nulls(min(piece.rows - done, 2**17))
            yield with_metadata(pa.RecordBatch.from_arrays([nothing], names=[""]), piece, target)
