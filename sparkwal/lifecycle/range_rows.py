"""Reads the rows of an open range without Spark."""

import heapq
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from operator import itemgetter

import pyarrow as pa

from sparkwal.errors import ReadError, SparkWalError, WriteError
from sparkwal.format.lifecycle_record import OpenRange, Promise
from sparkwal.format.schema import to_arrow
from sparkwal.protocol.records import live_records
from sparkwal.protocol.recovery import find_head
from sparkwal.protocol.segments import with_copies
from sparkwal.protocol.view import LogView
from sparkwal.reading.metadata import COLUMNS, COMMIT_TIME, PARTITION, POSITION, ROW
from sparkwal.reading.planning import plan_ranges
from sparkwal.reading.rows import pieces_of, read_pieces
from sparkwal.store.base import LogStore
from sparkwal.store.parallel import run_parallel

# The position, the partition and the number of a row in its log.
Place = tuple[int, int, int]
_PLACE = [
    pa.field(POSITION, pa.int64()),
    pa.field(PARTITION, pa.int32()),
    pa.field(ROW, pa.int64()),
]
_TIME = pa.field(COMMIT_TIME, pa.timestamp("us", "UTC"))
# The columns of `placed` beside those of the log.
PLACED = [*_PLACE, _TIME]
# Why a table refuses a row; no column of a log has such a name.
REASON = "_wal_reason"
# The most characters of a reason.
LONGEST_REASON = 500
# The most writes that only show whether a table takes rows of a range.
MOST_TRIES = 400
# The columns of the table that keeps refused rows. They take any row of any log.
REFUSED_COLUMNS = pa.schema(
    [
        ("sequencer", pa.string()),
        ("log_id", pa.string()),
        ("position", pa.int64()),
        ("partition", pa.int32()),
        ("row", pa.int64()),
        ("commit_time", _TIME.type),
        ("sequence", pa.string()),
        ("range", pa.int64()),
        ("reason", pa.string()),
        ("values", pa.string()),
    ]
)


class RowsNotFound(Exception):
    """The rows that a table refuses cannot be found."""


@dataclass(frozen=True)
class RangeRows:
    """The rows of the open range of a promise.

    Attributes:
        root: the log at the path.
        promise: the promise.
        spark_schema: the columns of the logs at the end of the range.
        common: the columns that all records have, in lower case.
        aside: the places of rows that are left out.
    """

    root: LogStore
    promise: Promise
    spark_schema: str
    common: frozenset[str]
    aside: frozenset[Place] = frozenset()

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows, log by log.

        Raises:
            ReadError: the log is unreadable.
        """
        columns = to_arrow(self.spark_schema)
        for part in self.promise.ranges:
            yield from self._read(part, columns)

    def placed(self) -> Iterator[pa.RecordBatch]:
        """The rows, log by log, with the columns PLACED.

        Raises:
            ReadError: the log is unreadable.
        """
        columns = pa.schema([*to_arrow(self.spark_schema), *PLACED])
        for part in self.promise.ranges:
            yield from self._read(part, columns)

    def in_order(self) -> Iterator[pa.RecordBatch]:
        """The rows with COLUMNS by the times of their commits, and then by the logs' names.

        Raises:
            ReadError: the log is unreadable.
        """
        marked = to_arrow(self.spark_schema).append(pa.field(COLUMNS, pa.string()))
        timed = marked.append(_TIME)

        def dated(number: int, part: OpenRange) -> Iterator[tuple[int, int, pa.RecordBatch]]:
            for batch in self._read(part, timed):
                if batch.num_rows:
                    # All rows of a batch are of one commit.
                    yield batch.column(COMMIT_TIME)[0].value, number, batch

        streams = (dated(*numbered) for numbered in enumerate(self.promise.ranges))
        for _, _, batch in heapq.merge(*streams, key=itemgetter(0, 1)):
            yield batch.drop_columns([COMMIT_TIME])

    def _read(self, part: OpenRange, target: pa.Schema) -> Iterator[pa.RecordBatch]:
        log = with_copies(self.root.sequencer(part.sequencer))
        try:
            view = LogView(log, find_head(log).window, part.log_id)
            pieces = (
                piece
                for record in live_records(view, part.cut, part.to)
                for piece in pieces_of(log, record)
            )
            if not self.aside:
                yield from read_pieces(log, pieces, target)
                return
            hidden = [field for field in _PLACE if field.name not in target.names]
            for batch in read_pieces(log, pieces, pa.schema([*target, *hidden])):
                yield self._without_aside(batch).select(target.names)
        except SparkWalError as error:
            raise _unreadable(self.promise, error) from error

    def _without_aside(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        places = zip(*(batch.column(field.name).to_pylist() for field in _PLACE), strict=True)
        return batch.filter(pa.array([place not in self.aside for place in places], pa.bool_()))


def range_rows(root: LogStore, promise: Promise) -> RangeRows:
    """Look at the columns of the open range.

    Raises:
        ReadError: the log is unreadable.
    """
    try:
        planned = plan_ranges(root, promise.ranges, parallelism=1)
    except SparkWalError as error:
        raise _unreadable(promise, error) from error
    return RangeRows(root, promise, planned.spark_schema, planned.common)


def _unreadable(promise: Promise, error: SparkWalError) -> ReadError:
    return ReadError(f"{range_name(promise)} is unreadable: {error}")


def range_name(promise: Promise) -> str:
    """The open range, as errors name it."""
    parts = promise.ranges
    if promise.is_again:
        return f"refused rows of {parts[0].sequencer} (range {promise.table.k})"
    if len(parts) > 1:
        names = ", ".join(part.sequencer for part in parts[:3])
        more = ", …" if len(parts) > 3 else ""
        return f"range {promise.table.k} of {len(parts)} logs ({names}{more})"
    return f"positions {parts[0].cut}…{parts[0].to - 1} (range {promise.table.k})"


def refused(table: str, promise: Promise, why: str, change: str = "change it") -> WriteError:
    """The error for a table that did not take the open range, with the ways to continue.

    Args:
        table: the table, or one beside it.
        promise: the open range.
        why: the table's reason.
        change: how a user changes the table, for people.
    """
    condition = promise.target.delete_when
    other = f". If delete_when {condition!r} fails on them, change it with --change-target"
    return WriteError(
        f"{table} did not take {range_name(promise)}: {why}. If the table refuses these rows, "
        f"{change} and run again; or give the range up with --give-up-range "
        f"(give_up_range()), and its rows are promised again"
        f"{f'{other} (change_target())' if condition else ''}. No row is lost: they stay in "
        f"{promise.target.refused if promise.is_again else 'the log'}"
    )


def unreadable(root: LogStore, ranges: Iterable[OpenRange]) -> dict[str, SparkWalError]:
    """Read all rows of ranges, side by side.

    Args:
        root: the log at the path.
        ranges: the ranges, one for each log.

    Returns:
        The errors of the logs that cannot be read, by name.
    """

    def check(part: OpenRange) -> tuple[str, SparkWalError | None]:
        log = with_copies(root.sequencer(part.sequencer))
        try:
            view = LogView(log, find_head(log).window, part.log_id)
            for record in live_records(view, part.cut, part.to):
                columns = to_arrow(record.spark_schema)
                for _ in read_pieces(log, pieces_of(log, record), columns):
                    pass
        except SparkWalError as error:
            return part.sequencer, error
        return part.sequencer, None

    checked = run_parallel(root.store, check, ranges)
    return {name: error for name, error in checked if error is not None}
