"""What Spark plans of a log: where a stream's microbatches begin and end, and how a range is shared
among read tasks, which read it."""

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from math import inf

import pyarrow as pa

from sparkwal.errors import InvalidLogError
from sparkwal.format.header import CommitHeader
from sparkwal.options.reading import SourceOptions
from sparkwal.protocol.clock import SYSTEM, Clock
from sparkwal.protocol.replay import WIDEST_PROBE, AnotherLog, about_bytes, live_records
from sparkwal.reading.floor import NEW_LOG, Floor, Looked
from sparkwal.reading.log_range import PLANNED_RECORDS, LogRange
from sparkwal.reading.rows import Piece, pack, pieces_of, read_pieces, split
from sparkwal.store.base import LogStore, Store

# Of a range above PLANNED_RECORDS each task gets a stretch of positions and reads their
# records itself. A few of its records show how much such a range holds.
_SAMPLES = 8

# A read task below this size costs more to start than to run.
_SMALLEST_TASK = 4 * 2**20
_LARGEST_TASK = 128 * 2**20
# What reading a record of its own takes, in bytes that take as long.
_RECORD = 64 * 2**10


class Budget:
    """What one microbatch may hold, over all the logs it reads."""

    def __init__(self, options: SourceOptions) -> None:
        limits = options.max_rows, options.max_bytes, options.max_commits
        self._left = [limit or inf for limit in limits]
        self._begun = self.spent = False

    def takes(self, header: CommitHeader) -> bool:
        """Whether this commit still fits. The first one does: a commit is never split."""
        taken = header.rows, header.bytes, 1
        self._left = [left - each for left, each in zip(self._left, taken, strict=True)]
        self.spent, self._begun = self._begun and min(self._left) < 0, True
        return not self.spent


class StreamedLog(LogRange):
    """One sequencer's log, which the stream keeps."""

    # A startingTimestamp that no record had reached when the stream began, in ms, and the position
    # below which all records are known to be older.
    not_before: int | None = None
    _passed = 0
    _entry: int | None = None

    def start(self, *, from_floor: bool = False) -> int:
        start = super().start(from_floor=from_floor)
        moment = self.options.starting_timestamp_ms
        if moment is not None and start == self.gap:
            # Commits before that moment may still come.
            self.not_before, self._passed = moment, start
        return start

    def entry(self) -> int:
        """Where a stream begins to read a log that appeared after it had begun.

        Raises:
            CollectedError: rows that it has not seen were collected.
        """
        if self._entry is None:
            timed = self.options.starting_timestamp_ms is not None
            self._entry = self.start() if timed else self.first_of_new(NEW_LOG)
        return self._entry

    def check_offset(self, position: int, log_id: int | str | None) -> None:
        """Raises InvalidLogError unless a stream that has read up to `position` of the log with
        this log_id, if the checkpoint knows it, can go on here."""
        if None not in (log_id, self.log_id) and log_id != self.log_id:
            raise InvalidLogError(
                f"the log at {self._path} was recreated: the checkpoint belongs to the log "
                f"{log_id}, now there is {self.log_id}. Use a new checkpoint to read it from "
                "the start"
            )
        if position and self.log_id is None:
            raise InvalidLogError(
                f"the stream has read up to position {position} of {self._path}, and there is no "
                "log now: it was deleted or moved. Bring it back, or use a new checkpoint"
            )
        if position > self.gap:
            raise InvalidLogError(
                f"the stream has read up to position {position} of {self._path}, but the "
                f"log ends at {self.gap}. If its end is damaged or missing (sparkwal verify shows "
                "it), restore that and go on. If it was recreated or cut, use a new checkpoint: "
                "that reads all rows from the start"
            )

    def advance(self, begin: int, end: int, budget: Budget | None) -> int:
        """How far the next microbatch reaches, between `begin` and `end`."""
        if begin >= end or (budget is not None and budget.spent):
            return begin
        first = self.first(begin)
        if self.not_before is not None:
            # Look for the first record of a moment that was in the future when the stream began.
            for record in self.records(first, end):
                if record.header.timestamp_ms >= self.not_before:
                    self.not_before, self._passed = None, record.header.position
                    break
            else:
                self._passed = end
                self.forget(end)
                return begin
            first = self.first(begin)
        if budget is not None:
            end = self._limited(first, end, budget)
        end = self.intact_end(first, end)
        return end if end > first else begin

    def first(self, begin: int) -> int:
        """The first position to read of a microbatch that begins at `begin`; as `usable`."""
        return max(self.usable(begin, "the stream goes on"), self._passed)

    def _limited(self, begin: int, end: int, budget: Budget) -> int:
        reached = begin
        try:
            # A limit may end this soon: every record is paid for.
            for record in self.records(begin, end, at_once=1):
                self.know(record)
                if isinstance(record.header, CommitHeader) and not budget.takes(record.header):
                    return reached
                reached = record.header.position + 1
                if reached - begin > PLANNED_RECORDS:
                    return reached
        except AnotherLog:
            raise
        except InvalidLogError:
            if self.options.on_corruption != "stop":
                raise
            return reached
        return end


@dataclass(frozen=True)
class ReadTask:
    """Pieces of known objects; None: positions start … end−1 of a log, whose records the task reads
    itself."""

    looked: Looked
    pieces: list[Piece] | None
    window: int
    start: int
    end: int


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
        return [ReadTask(looked, None, log.window, *ends) for ends in pairwise(bounds)]
    found = [piece for record in log.records(start, end) for piece in pieces_of(log.log, record)]
    if least is not None and len(found) < least:
        found = split(found)
    wanted = least or _by_size(sum(piece.length for piece in found), parallelism)
    return [ReadTask(looked, group, log.window, start, end) for group in pack(found, wanted)]


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
    store: Store, task: ReadTask, target: pa.Schema, options: SourceOptions, clock: Clock = SYSTEM
) -> Iterator[pa.RecordBatch]:
    """The rows of a read task, in the log's order. Raises InvalidLogError, CollectedError."""
    looked = task.looked
    floor = Floor(LogStore(store, looked.prefix), looked.log_id, clock, looked)
    pieces: Iterable[Piece] | None = task.pieces
    if pieces is None:
        found = live_records(
            floor.log,
            task.window,
            task.start,
            task.end,
            log_id=floor.log_id,
            tolerant=options.tolerant,
            at_once=WIDEST_PROBE,
        )
        records = floor.usable(task.start, task.end, found)
        pieces = (piece for record in records for piece in pieces_of(floor.log, record))
    yield from read_pieces(
        store,
        pieces,
        target,
        verify=options.verify_checksums,
        texts=options.verify_texts,
        check=floor.check,
    )
