"""How a range of a log is shared among read tasks, and what each of them reads."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa

from sparkwal.options.reading import SourceOptions
from sparkwal.protocol.clock import Clock, SystemClock
from sparkwal.protocol.replay import WIDEST_PROBE, about_bytes, live_records
from sparkwal.reading.floor import Floor, Looked
from sparkwal.reading.log_range import PLANNED_RECORDS, LogRange
from sparkwal.reading.pieces import Piece, pack, pieces_of, split
from sparkwal.reading.rows import read_pieces
from sparkwal.store.base import Store
from sparkwal.store.log_store import LogStore

# Of a range above PLANNED_RECORDS each task gets a stretch of positions and reads their
# records itself. A few of its records show how much such a range holds.
_SAMPLES = 8

# A read task below this size costs more to start than to run.
_SMALLEST_TASK = 4 * 2**20
_LARGEST_TASK = 128 * 2**20
# What reading a record of its own takes, in bytes that take as long.
_RECORD = 64 * 2**10

_CLOCK = SystemClock()


@dataclass(frozen=True)
class PieceTask:
    """Pieces of known objects."""

    pieces: list[Piece]
    looked: Looked


@dataclass(frozen=True)
class StretchTask:
    """Positions start … end−1 of a log, whose records the task reads itself."""

    window: int
    start: int
    end: int
    looked: Looked


ReadTask = PieceTask | StretchTask


def read_tasks(
    log: LogRange, start: int, end: int, least: int | None, parallelism: int | None
) -> list[ReadTask]:
    """Read tasks for the positions start … end−1, in order: at least `least`, where frames allow,
    whatever they weigh. `parallelism` is how many run at once, if that is known."""
    looked = log.floor.looked()
    count = end - start
    if count > PLANNED_RECORDS and log.options.on_corruption == "fail":
        size = about_bytes(log.log, log.window, start, end, _SAMPLES) + count * _RECORD
        tasks = min(max(least or 1, _by_size(size, parallelism)), count)
        bounds = [start + count * i // tasks for i in range(tasks + 1)]
        return [
            StretchTask(log.window, low, high, looked)
            for low, high in zip(bounds, bounds[1:], strict=False)
        ]
    found = [piece for record in log.records(start, end) for piece in pieces_of(log.log, record)]
    if least is not None and len(found) < least:
        found = split(found)
    wanted = least or _by_size(sum(piece.length for piece in found), parallelism)
    return [PieceTask(group, looked) for group in pack(found, wanted)]


def _by_size(size: int, parallelism: int | None) -> int:
    """How many tasks so many bytes are worth."""
    # Enough tasks for a cluster of any size, where its size is unknown.
    largest = _LARGEST_TASK if parallelism else _LARGEST_TASK // 4
    at_once = parallelism or os.cpu_count() or 1
    share = -(-size // at_once)
    tasks = max(-(-size // min(max(share, _SMALLEST_TASK), largest)), 1)
    # No last one that keeps one core waiting for the others.
    return tasks if tasks < at_once else -(-tasks // at_once) * at_once


def task_rows(
    store: Store, task: ReadTask, target: pa.Schema, options: SourceOptions, clock: Clock = _CLOCK
) -> Iterator[pa.RecordBatch]:
    """The rows of a read task, in the log's order. Raises InvalidLogError, CollectedError."""
    looked = task.looked
    floor = Floor(LogStore(store, looked.prefix), looked.log_id, clock, looked)
    pieces: Iterable[Piece]
    if isinstance(task, PieceTask):
        pieces = task.pieces
    else:
        found = live_records(
            floor.log, task.window, task.start, task.end, log_id=floor.log_id,
            tolerant=options.tolerant, at_once=WIDEST_PROBE,
        )  # fmt: skip
        records = floor.usable(task.start, task.end, found)
        pieces = (piece for record in records for piece in pieces_of(floor.log, record))
    verify = options.verify_checksums
    yield from read_pieces(store, pieces, target, verify=verify, check=floor.check)
