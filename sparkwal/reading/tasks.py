"""How a range of a log is shared among read tasks, and what each of them reads."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

from sparkwal.options.reading import SourceOptions
from sparkwal.protocol.log_store import LogStore
from sparkwal.protocol.replay import WIDEST_PROBE, about_bytes, live_records
from sparkwal.reading.log_range import PLANNED_RECORDS, LogRange
from sparkwal.reading.pieces import Piece, pack, pieces_of, split

# Of a range above PLANNED_RECORDS each task gets a stretch of positions and reads their
# records itself. How much such a range holds is told by a few of its records.
_STRETCH = 256
_MOST_STRETCHES = 200
_SAMPLES = 8

# A read task below this size costs more to start than to run.
_SMALLEST_TASK = 4 * 2**20
_LARGEST_TASK = 128 * 2**20


@dataclass(frozen=True)
class PieceTask:
    """Pieces of known objects."""

    pieces: list[Piece]


@dataclass(frozen=True)
class StretchTask:
    """Positions start … end−1 of a log, whose records the task reads itself."""

    prefix: str
    log_id: str | None
    window: int
    start: int
    end: int


ReadTask = PieceTask | StretchTask


def read_tasks(
    log: LogRange, start: int, end: int, least: int | None, parallelism: int | None
) -> list[ReadTask]:
    """Read tasks for the positions start … end−1, in order.

    Args:
        least: as many at least, where frames allow, whatever they weigh.
        parallelism: how many tasks run at once, if it is known.
    """
    count = end - start
    if count > PLANNED_RECORDS and log.options.on_corruption == "fail":
        size = about_bytes(log.log, log.window, start, end, _SAMPLES)
        records = min(-(-count // _STRETCH), _MOST_STRETCHES)
        tasks = min(max(least or 1, _by_size(size, parallelism), records), count)
        bounds = [start + count * i // tasks for i in range(tasks + 1)]
        return [
            StretchTask(log.log.prefix, log.log_id, log.window, low, high)
            for low, high in zip(bounds, bounds[1:], strict=False)
        ]
    found = [piece for record in log.records(start, end) for piece in pieces_of(log.log, record)]
    if least is not None and len(found) < least:
        found = split(found)
    wanted = least or _by_size(sum(piece.length for piece in found), parallelism)
    return [PieceTask(group) for group in pack(found, wanted)]


def _by_size(size: int, parallelism: int | None) -> int:
    """How many tasks so many bytes are worth."""
    # Enough tasks for a cluster of any size, where nobody told its own.
    largest = _LARGEST_TASK if parallelism else _LARGEST_TASK // 4
    share = -(-size // (parallelism or os.cpu_count() or 1))
    return max(-(-size // min(max(share, _SMALLEST_TASK), largest)), 1)


def task_pieces(root: LogStore, task: ReadTask, options: SourceOptions) -> Iterator[Piece]:
    """What a read task reads, in the log's order."""
    if isinstance(task, PieceTask):
        yield from task.pieces
        return
    log = LogStore(root.store, task.prefix)
    found = live_records(
        log,
        task.window,
        task.start,
        task.end,
        log_id=task.log_id,
        tolerant=options.tolerant,
        at_once=WIDEST_PROBE,
    )
    for record in found:
        yield from pieces_of(log, record)
