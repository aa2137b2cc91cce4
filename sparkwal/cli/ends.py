"""The first rows of a log and the newest: no record is read that is not needed for them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from sparkwal.cli.rows import Numbering, Shown, bounds, kept, read, rows
from sparkwal.protocol.replay import WIDEST_PROBE, live_records
from sparkwal.protocol.slots import GLANCE, WHOLE, SlotRecord, read_slot
from sparkwal.reading.log_range import LogRange
from sparkwal.reading.pieces import Piece, pieces_of, split

# Read together while a condition decides how many rows are left.
_MOST_TOGETHER = 16 * 2**20


def first_rows(logs: Sequence[LogRange], shown: Shown, count: int) -> Iterator[pa.RecordBatch]:
    """The first `count` rows of a range."""
    if len(logs) == 1 and shown.keep is None:
        batches = read(logs[0], _first_pieces(logs[0], count), shown)
    else:
        batches = rows(logs, shown)
    for batch in batches if count else ():
        yield batch.slice(0, count)
        count -= batch.num_rows
        if count <= 0:
            return


def _first_pieces(log: LogRange, count: int) -> Iterator[Piece]:
    for record in log.records(*bounds(log), at_once=1, size=WHOLE):
        found = pieces_of(log.log, record)
        if sum(piece.rows for piece in found) > count:
            found = split(found)
        for piece in found:
            yield piece
            count -= piece.rows
            if count <= 0:
                return


def last_rows(logs: Sequence[LogRange], shown: Shown, count: int) -> Iterator[pa.RecordBatch]:
    """The last `count` rows of a range, of several logs in the order of their commits' times."""
    if not count:
        return
    if len(logs) == 1:
        yield from _last_of(logs[0], shown, count)
        return
    order = Shown(
        shown.known, shown.columns, shown.needed | {"_wal_timestamp", "_wal_sequencer"}, shown.keep
    )
    found = [b for log in logs if log.log_id is not None for b in _last_of(log, order, count)]
    if found:
        table = pa.Table.from_batches(found)
        # Stable: the rows of one log come in its order.
        keys = [("_wal_timestamp", "ascending"), ("_wal_sequencer", "ascending")]
        places = pc.sort_indices(table.select([name for name, _ in keys]), sort_keys=keys)
        yield from table.take(places[-count:]).select(shown.target.names).to_batches()


def _last_of(log: LogRange, shown: Shown, count: int) -> Iterator[pa.RecordBatch]:
    backwards = _newest_pieces(log)
    held: deque[pa.RecordBatch] = deque()
    wanted, there = count, 0
    while there < count:
        group: list[tuple[Piece, int]] = []
        found = size = 0
        while found < wanted and size < _MOST_TOGETHER:
            if (item := next(backwards, None)) is None:
                break
            group.append(item)
            found, size = found + item[0].rows, size + item[0].length
            if shown.keep is None:
                size = 0  # nothing but these rows is read
        if not group:
            break
        group.reverse()
        (first, before), pieces = group[0], [piece for piece, _ in group]
        numbering = Numbering((first.position, first.partition), before)
        batches = kept(read(log, pieces, shown, numbering), shown)
        if shown.keep is None:
            # Streamed: all of them are needed but the first ones.
            yield from _without_first(batches, found - count)
            return
        newer = list(batches)
        there += sum(batch.num_rows for batch in newer)
        held.extendleft(reversed(newer))
        wanted *= 2
    yield from _without_first(held, there - count)


def _without_first(
    batches: Iterator[pa.RecordBatch] | deque[pa.RecordBatch], drop: int
) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        if drop < batch.num_rows:
            yield batch.slice(max(drop, 0))
        drop -= batch.num_rows


def _newest_pieces(log: LogRange) -> Iterator[tuple[Piece, int]]:
    """From the last back to the first: each frame, and how many rows of its partition's come
    before it in its commit."""
    first, after = bounds(log)
    width = 1
    while after > first:
        low = max(after - width, first)
        for record in reversed(live(log, low, after)):
            counted: list[tuple[Piece, int]] = []
            rows: dict[int, int] = {}
            for piece in split(pieces_of(log.log, record)):
                before = rows.get(piece.partition, 0)
                counted.append((piece, before))
                rows[piece.partition] = before + piece.rows
            yield from reversed(counted)
        after, width = low, min(2 * width, WIDEST_PROBE)


def live(log: LogRange, low: int, after: int) -> list[SlotRecord]:
    """The live records of low … after−1.

    Nothing before the head has a higher term than it. So a record of the head's term is live,
    and the records before it need not be looked at to know that.
    """
    assert log.head is not None and log.head.live is not None
    newest = log.head.live
    term = newest.header.term
    known = {newest.header.position: newest}
    begin = known.get(low) or read_slot(log.log, low, log.window, GLANCE)
    if begin is None or begin.header.term != term:
        return list(log.records(low, after, at_once=WIDEST_PROBE))
    found = live_records(
        log.log, log.window, low, after, log_id=log.log_id, term=term, known={**known, low: begin},
        tolerant=log.options.tolerant, size=GLANCE, at_once=WIDEST_PROBE,
    )  # fmt: skip
    return list(log.floor.usable(low, after, found))
