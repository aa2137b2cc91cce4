"""The first rows of a log, the newest, and those that come: no record is read that is not needed
for them, and each row is shown once."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from sparkwal.cli.open_logs import wait
from sparkwal.errors import StoreUnavailableError
from sparkwal.protocol.slots import WHOLE, SlotRecord
from sparkwal.reading.history import Collected, Follower, apply_policy, walk
from sparkwal.reading.log_range import LogRange
from sparkwal.reading.rows import Piece, pieces_of, split
from sparkwal.sql.database import Condition, Pushdown, join_batches
from sparkwal.sql.relations import bounds, read, rows

# Read together, however many rows are wanted.
_MOST_TOGETHER = 16 * 2**20
_LONGEST_MS = 30_000


@dataclass(frozen=True)
class Shown:
    known: pa.Schema
    columns: tuple[str, ...]
    where: Condition | None = None

    @property
    def target(self) -> pa.Schema:
        """All columns that are read: those shown come first."""
        others = sorted(self.where.columns - set(self.columns)) if self.where is not None else ()
        return pa.schema([self.known.field(name) for name in (*self.columns, *others)])

    @property
    def schema(self) -> pa.Schema:
        return pa.schema([self.known.field(name) for name in self.columns])

    @property
    def pushdown(self) -> Pushdown | None:
        return self.where.pushdown if self.where is not None else None


def kept(batches: Iterable[pa.RecordBatch], shown: Shown) -> Iterator[pa.RecordBatch]:
    """What the condition leaves of batches, with the columns that are shown; none is empty."""
    for batch in batches:
        left = shown.where.filter(batch) if shown.where is not None else batch
        if left.num_rows:
            yield left.select(list(shown.columns))


def first_rows(logs: Sequence[LogRange], shown: Shown, count: int) -> Iterator[pa.RecordBatch]:
    def in_turn(log: LogRange) -> Iterator[pa.RecordBatch]:
        """One piece after the other: nothing is asked for that may not be needed."""
        for record in log.records(*bounds(log), at_once=1, size=WHOLE):
            found = pieces_of(log.log, record)
            # `count` is what is left to show.
            for piece in split(found) if sum(each.rows for each in found) > count else found:
                yield from read(log, [piece], shown.target)

    is_plain = len(logs) == 1 and shown.where is None
    batches = in_turn(logs[0]) if is_plain else rows(logs, shown.target, shown.pushdown)
    for batch in kept(batches, shown) if count else ():
        yield batch.slice(0, count)
        count -= batch.num_rows
        if count <= 0:
            return


def last_rows(logs: Sequence[LogRange], shown: Shown, count: int) -> Iterator[pa.RecordBatch]:
    """The last `count` rows of a range, of several logs in the order of their commits' times."""
    if not count:
        return
    if len(logs) == 1:
        yield from _last_of(logs[0], shown, count)
        return
    extra = [name for name in ("_wal_timestamp", "_wal_sequencer") if name not in shown.columns]
    order = Shown(shown.known, (*shown.columns, *extra), shown.where)
    found = [batch for log in logs for batch in _last_of(log, order, count)]
    if found:
        # Stable: the rows of one log come in its order.
        keys = [("_wal_timestamp", "ascending"), ("_wal_sequencer", "ascending")]
        table = pa.Table.from_batches(found).sort_by(keys)[-count:]
        yield from table.select(list(shown.columns)).to_batches()


def _last_of(log: LogRange, shown: Shown, count: int) -> Iterator[pa.RecordBatch]:
    backwards = _newest_pieces(log, shown.pushdown)
    held: deque[pa.RecordBatch] = deque()
    wanted, there = count, 0
    while there < count:
        group: list[Piece] = []
        found = size = 0
        for piece in backwards:
            group.insert(0, piece)
            found, size = found + piece.rows, size + piece.length
            if found >= wanted or size >= _MOST_TOGETHER:
                break
        if not group:
            break
        newer = list(kept(join_batches(read(log, group, shown.target)), shown))
        there += sum(batch.num_rows for batch in newer)
        held.extendleft(reversed(newer))
        wanted *= 2
    if held:
        yield from pa.Table.from_batches(held).slice(max(there - count, 0)).to_batches()


def _newest_pieces(log: LogRange, pushdown: Pushdown | None) -> Iterator[Piece]:
    """From the last back to the first, each of one frame."""
    first, after = bounds(log, pushdown)
    for record in apply_policy(log, walk(log, first, after, newest_first=True, at_once=1)):
        if isinstance(record, SlotRecord):
            yield from reversed(split(pieces_of(log.log, record)))


def followed(
    logs: Sequence[LogRange],
    shown: Callable[[Sequence[str | None]], Shown],
    interval_ms: int,
    notify: Callable[[str], None],
) -> Iterator[pa.RecordBatch | None]:
    """The rows after those that `logs` had when they were looked at last, without end; None stands
    for a pause: everything that is there was shown. A look that finds nothing is 1 GET of each log.

    Args:
        shown: what is shown of logs with these Spark schemas, which may get more columns.

    Raises AnotherLog where a log was recreated or is gone, InvalidLogError, BrokenPipeError.
    """
    followers = [Follower(log, log.gap) for log in logs]
    schemas = [log.spark_schema for log in logs]
    now, patience = shown(schemas), interval_ms
    while True:
        try:
            for place, follower in enumerate(followers):
                for record in follower.new(at_once=1, size=WHOLE):
                    if isinstance(record, Collected):
                        notify(
                            f"positions {record.start}…{record.end - 1} were collected before they "
                            f"were shown; going on at {record.end}"
                        )
                        continue
                    # A writer may have added columns.
                    if schemas[place] != record.spark_schema:
                        schemas[place] = record.spark_schema
                        now = shown(schemas)
                    # All of a record at once: where the store goes away meanwhile it comes again.
                    pieces = pieces_of(follower.log.log, record)
                    yield from [*kept(read(follower.log, pieces, now.target), now)]
            patience = interval_ms
        except StoreUnavailableError as error:
            if patience == interval_ms:
                notify(f"{error}; still trying")
            patience = max(interval_ms, min(2 * patience + 1, _LONGEST_MS))
        yield None
        wait(patience)
