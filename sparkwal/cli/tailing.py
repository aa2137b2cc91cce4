"""Reads the first rows of logs, the newest rows, and new rows as they arrive.

It reads only the records that it needs, and returns each row once.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from sparkwal.cli.open_logs import wait
from sparkwal.errors import StoreUnavailableError
from sparkwal.protocol.slots import WHOLE, SlotRecord
from sparkwal.reading.history import Collected, Follower, apply_policy, walk
from sparkwal.reading.log_range import LogRange
from sparkwal.reading.pieces import Piece
from sparkwal.reading.rows import pieces_of, split
from sparkwal.sql.database import Condition, Pushdown, join_batches
from sparkwal.sql.relations import bounds, read, rows

# `last_rows` reads groups of at most this many bytes, also if a group then has too few rows.
_GROUP_BYTES = 16 * 2**20
# The longest pause between two attempts while the store does not answer.
_LONGEST_PAUSE_MS = 30_000


@dataclass(frozen=True)
class Selection:
    """The columns and rows to print.

    Attributes:
        known_columns: all columns of the logs, including the `_wal_…` columns.
        columns: the columns to print.
        condition: which rows to print. The default is all rows.
    """

    known_columns: pa.Schema
    columns: tuple[str, ...]
    condition: Condition | None = None

    @property
    def target(self) -> pa.Schema:
        """The columns to read: those to print, then others that the condition names."""
        others: Sequence[str] = ()
        if self.condition is not None:
            others = sorted(self.condition.columns - set(self.columns))
        return pa.schema([self.known_columns.field(name) for name in (*self.columns, *others)])

    @property
    def schema(self) -> pa.Schema:
        """The columns to print."""
        return pa.schema([self.known_columns.field(name) for name in self.columns])

    @property
    def pushdown(self) -> Pushdown | None:
        return self.condition.pushdown if self.condition is not None else None


def matching_rows(
    batches: Iterable[pa.RecordBatch], selection: Selection
) -> Iterator[pa.RecordBatch]:
    """The rows that match the condition, with the columns to print. No batch is empty."""
    for batch in batches:
        matching = batch if selection.condition is None else selection.condition.filter(batch)
        if matching.num_rows:
            yield matching.select(list(selection.columns))


def first_rows(
    logs: Sequence[LogRange], selection: Selection, count: int
) -> Iterator[pa.RecordBatch]:
    """The first `count` rows of a range; for several logs in the order of their commits' times."""

    def one_by_one(log: LogRange) -> Iterator[pa.RecordBatch]:
        """Read one piece at a time, so that no request is made in vain."""
        for record in log.records(*bounds(log), at_once=1, size=WHOLE):
            pieces = pieces_of(log.log, record)
            # The caller lowers `count` with each batch: it is the number of rows still to read.
            has_too_many = sum(piece.rows for piece in pieces) > count
            for piece in split(pieces) if has_too_many else pieces:
                yield from read(log, [piece], selection.target)

    if len(logs) == 1 and selection.condition is None:
        batches = one_by_one(logs[0])
    else:
        batches = rows(logs, selection.target, selection.pushdown)
    for batch in matching_rows(batches, selection) if count else ():
        yield batch.slice(0, count)
        count -= batch.num_rows
        if count <= 0:
            return


def last_rows(
    logs: Sequence[LogRange], selection: Selection, count: int
) -> Iterator[pa.RecordBatch]:
    """The last `count` rows of a range; for several logs in the order of their commits' times."""
    if not count:
        return
    if len(logs) == 1:
        yield from _last_of(logs[0], selection, count)
        return
    to_sort = [
        name for name in ("_wal_timestamp", "_wal_sequencer") if name not in selection.columns
    ]
    sortable = replace(selection, columns=(*selection.columns, *to_sort))
    batches = [batch for log in logs for batch in _last_of(log, sortable, count)]
    if batches:
        # The sort is stable, so the rows of one log keep their order.
        keys = [("_wal_timestamp", "ascending"), ("_wal_sequencer", "ascending")]
        table = pa.Table.from_batches(batches).sort_by(keys)[-count:]
        yield from table.select(list(selection.columns)).to_batches()


def _last_of(log: LogRange, selection: Selection, count: int) -> Iterator[pa.RecordBatch]:
    """The last matching rows of one log: reads groups of pieces, from the last group back."""
    backwards = _newest_pieces(log, selection.pushdown)
    batches: deque[pa.RecordBatch] = deque()
    wanted_rows = count
    matched = 0
    while matched < count:
        group: list[Piece] = []
        group_rows = 0
        group_bytes = 0
        for piece in backwards:
            group.insert(0, piece)
            group_rows += piece.rows
            group_bytes += piece.length
            if group_rows >= wanted_rows or group_bytes >= _GROUP_BYTES:
                break
        if not group:
            break
        older = list(matching_rows(join_batches(read(log, group, selection.target)), selection))
        matched += sum(batch.num_rows for batch in older)
        batches.extendleft(reversed(older))
        # The condition may match few rows: read twice as many in the next group.
        wanted_rows *= 2
    if batches:
        yield from pa.Table.from_batches(batches).slice(max(matched - count, 0)).to_batches()


def _newest_pieces(log: LogRange, pushdown: Pushdown | None) -> Iterator[Piece]:
    """The pieces of a range, one for each frame, from the last back to the first."""
    first, after = bounds(log, pushdown)
    for record in apply_policy(log, walk(log, first, after, newest_first=True, at_once=1)):
        if isinstance(record, SlotRecord):
            yield from reversed(split(pieces_of(log.log, record)))


def follow_rows(
    logs: Sequence[LogRange],
    select: Callable[[Sequence[str | None]], Selection],
    interval_ms: int,
    notify: Callable[[str], None],
) -> Iterator[pa.RecordBatch | None]:
    """The rows that arrive after `logs` read their heads, without end.

    While there are no new records, each round costs 1 GET for each log.

    Args:
        logs: the logs.
        select: makes the selection from the logs' Spark schemas. It is called again when a log gets
            new columns.
        interval_ms: the time between two rounds.
        notify: receives messages for people.

    Yields:
        Batches, and None after each round, when the caller should flush its output.

    Raises:
        AnotherLog: a log was recreated or deleted.
        InvalidLogError: a record is damaged.
        BrokenPipeError: the reader of standard output ended.
    """
    followers = [Follower(log, log.gap) for log in logs]
    schemas = [log.spark_schema for log in logs]
    selection = select(schemas)
    pause_ms = interval_ms
    while True:
        try:
            for number, follower in enumerate(followers):
                for record in follower.new(at_once=1, size=WHOLE):
                    if isinstance(record, Collected):
                        notify(
                            f"positions {record.start}…{record.end - 1} were collected before they "
                            f"were shown; continuing at {record.end}"
                        )
                        continue
                    # A writer may have added columns.
                    if schemas[number] != record.spark_schema:
                        schemas[number] = record.spark_schema
                        selection = select(schemas)
                    # Read a record completely before its first row is shown: if the store fails
                    # in between, the follower returns the same record again.
                    pieces = pieces_of(follower.log.log, record)
                    batches = read(follower.log, pieces, selection.target)
                    yield from [*matching_rows(batches, selection)]
            pause_ms = interval_ms
        except StoreUnavailableError as error:
            if pause_ms == interval_ms:
                notify(f"{error}; still trying")
            pause_ms = max(interval_ms, min(2 * pause_ms + 1, _LONGEST_PAUSE_MS))
        yield None
        wait(pause_ms)
