"""Plans Spark's reads: the range of each microbatch, and the read tasks that share a range."""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import inf
from types import MappingProxyType
from typing import Any

import pyarrow as pa

from sparkwal.errors import InvalidLogError
from sparkwal.format import keys, schema
from sparkwal.format.arrowfile import Opened
from sparkwal.format.header import CommitHeader
from sparkwal.format.lifecycle_record import OpenRange
from sparkwal.format.merging import union_of
from sparkwal.options.reading import SourceOptions
from sparkwal.protocol.clock import SYSTEM, Clock
from sparkwal.protocol.records import WIDEST_PROBE, about_bytes, live_records
from sparkwal.protocol.recovery import DEFAULT_WINDOW, find_head
from sparkwal.protocol.segments import with_copies
from sparkwal.protocol.slots import GLANCE, WHOLE, SlotRecord
from sparkwal.protocol.view import LogView
from sparkwal.reading.floor import NEW_LOG, Floor, Looked, look_at_floors
from sparkwal.reading.log_range import PLANNED_RECORDS, LogRange, damage_policy
from sparkwal.reading.pieces import Piece
from sparkwal.reading.rows import Checks, pack, pieces_of, read_pieces, split
from sparkwal.reading.segments import Segments, read_records
from sparkwal.store.base import LogStore, Store
from sparkwal.store.parallel import run_parallel

# In a range above PLANNED_RECORDS each task reads the records of its positions itself. This many
# records are sampled to estimate the size of such a range.
_SAMPLES = 8

# A smaller read task costs more to start than to run.
_SMALLEST_TASK = 4 * 2**20
_LARGEST_TASK = 128 * 2**20
_NONE: Mapping[Any, Any] = MappingProxyType({})
# Reading one record takes as long as reading this many bytes.
_RECORD = 64 * 2**10


class Budget:
    """The limits of one microbatch, over all the logs that it reads."""

    def __init__(self, options: SourceOptions) -> None:
        limits = options.max_rows, options.max_bytes, options.max_commits
        self._left = [limit or inf for limit in limits]
        self._begun = self.spent = False

    def takes(self, rows: int, size: int) -> bool:
        """Whether a commit or a file of so many rows and bytes still fits.

        The first one always does: it is never split.
        """
        used = rows, size, 1
        self._left = [left - part for left, part in zip(self._left, used, strict=True)]
        self.spent, self._begun = self._begun and min(self._left) < 0, True
        return not self.spent


class StreamedLog(LogRange):
    """One sequencer's log, which a stream reads over many microbatches."""

    # A startingTimestamp, in ms, that no record had reached when the stream began. All records
    # below the position `_passed` are older.
    not_before: int | None = None
    _passed = 0
    _entry: int | None = None

    def start(self, *, from_floor: bool = False) -> int:
        start = super().start(from_floor=from_floor)
        moment = self.options.starting_timestamp_ms
        if moment is not None and start == self.gap:
            # Commits before that time may still arrive.
            self.not_before, self._passed = moment, start
        return start

    def entry(self) -> int:
        """The first position to read of a log that appeared after the stream had begun.

        Raises:
            CollectedError: rows that the stream has not seen were collected.
        """
        if self._entry is None:
            timed = self.options.starting_timestamp_ms is not None
            self._entry = self.start() if timed else self.first_of_new(NEW_LOG)
        return self._entry

    def check_offset(self, position: int, log_id: int | str | None) -> None:
        """Check that a stream can continue here.

        Args:
            position: the stream has read up to it.
            log_id: the log that it has read, if the checkpoint names it.

        Raises:
            InvalidLogError: the log was deleted, recreated or cut.
        """
        if None not in (log_id, self.log_id) and log_id != self.log_id:
            raise InvalidLogError(
                f"the log at {self._path} was recreated: the checkpoint belongs to the log "
                f"{log_id}, and the log is {self.log_id} now. Use a new checkpoint to read it from "
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
                "it), restore that and continue. If it was recreated or cut, use a new checkpoint: "
                "that reads all rows from the start"
            )

    def advance(self, begin: int, end: int, budget: Budget | None) -> int:
        """The end of the next microbatch, between `begin` and `end`."""
        if begin >= end or (budget is not None and budget.spent):
            return begin
        first = self.first(begin)
        if self.not_before is not None:
            # The startingTimestamp was in the future when the stream began: find its first record.
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
        """The first position to read of a microbatch that begins at `begin`; see `usable`."""
        return max(self.usable(begin, "the stream's offset"), self._passed)

    def _limited(self, begin: int, end: int, budget: Budget) -> int:
        reached = begin
        try:
            # A limit may end this soon, so request one record at a time.
            for record in self.records(begin, end, at_once=1):
                self.remember(record)
                if isinstance(record.header, CommitHeader) and not budget.takes(
                    record.header.rows, record.header.bytes
                ):
                    return reached
                reached = record.header.position + 1
                if reached - begin > PLANNED_RECORDS:
                    return reached
        except InvalidLogError as error:
            if not self.damage.ends_before(error):
                raise
            return reached
        return end


@dataclass(frozen=True)
class ReadTask:
    """The pieces that a task reads. If `pieces` is None, it reads the records of start … end−1
    itself; with `segmented` it looks for segments."""

    looked: Looked
    pieces: list[Piece] | None
    window: int
    start: int
    end: int
    segmented: bool = False


def read_tasks(
    log: LogRange, start: int, end: int, least: int | None, parallelism: int | None
) -> list[ReadTask]:
    """Divide positions start … end−1 into read tasks, in order.

    Args:
        log: the log.
        start: the first position.
        end: the position after the last.
        least: the minimum number of tasks, as far as the frames allow it.
        parallelism: the number of tasks that run at once, or None if it is unknown.
    """
    looked = log.floor.looked()
    count = end - start
    if count > PLANNED_RECORDS and not log.damage.stops:
        size = about_bytes(log.log, log.window, start, end, _SAMPLES) + count * _RECORD
        tasks = min(max(least or 1, _by_size(size, parallelism)), count)
        return _long_tasks(looked, log.view, (start, end), tasks)
    pieces = [piece for record in log.records(start, end) for piece in pieces_of(log.log, record)]
    if least is not None and len(pieces) < least:
        pieces = split(pieces)
    tasks = least or _by_size(sum(piece.length for piece in pieces), parallelism)
    return [ReadTask(looked, group, log.window, start, end) for group in pack(pieces, tasks)]


def _long_tasks(
    looked: Looked, view: LogView, positions: tuple[int, int], tasks: int
) -> list[ReadTask]:
    """Divide many positions into about this many tasks, each of which reads its records itself."""
    start, end = positions
    bounds = [start + (end - start) * i // tasks for i in range(tasks + 1)]
    segmented = bool(Segments(view).listed(start, end))
    if segmented:
        # A task reads whole segments, so it gets whole blocks.
        inner = (bound - bound % keys.BLOCK for bound in bounds[1:-1])
        bounds = sorted({start, *(bound for bound in inner if bound > start), end})
    return [ReadTask(looked, None, view.window, *ends, segmented) for ends in pairwise(bounds)]


@dataclass(frozen=True)
class PlannedRead:
    """The tasks of a read, each with parts of several logs.

    Attributes:
        tasks: the tasks.
        spark_schema: the columns of the logs.
        common: the columns that all records have, in lower case.
        bytes: about the size of the rows, as stored.
    """

    tasks: list[list[ReadTask]]
    spark_schema: str
    common: frozenset[str]
    bytes: int


def plan_ranges(
    root: LogStore,
    ranges: Sequence[OpenRange],
    *,
    parallelism: int | None,
    looked: Mapping[str, Looked] | None = None,
    read_records: Mapping[str, Opened] = _NONE,
    clock: Clock = SYSTEM,
) -> PlannedRead:
    """Plan a read of ranges of several logs, in the order of the ranges and then of positions.

    It costs 1 GET for each other record, and without `looked` 1 LIST and 1 GET for the floors. The
    columns are those of each log's last record in its range.

    Args:
        root: the log at the path.
        ranges: the ranges, one for each log.
        parallelism: the number of tasks that run at once, or None if it is unknown.
        looked: the last look at the floor of each log, by sequencer.
        read_records: a record of each of some logs, by sequencer, that was read already.
        clock: replaces the system's clock.

    Raises:
        InvalidLogError: a record is damaged or missing, or of another log.
        CollectedError: a range was collected.
    """
    seen = look_at_floors(root, clock) if looked is None else None

    def plan(range_: OpenRange) -> _PlannedRange:
        log = with_copies(root.sequencer(range_.sequencer))
        floor = Floor(log, range_.log_id, clock, looked[range_.sequencer] if looked else None)
        if seen is not None:
            floor.take(seen)
        try:
            return _planned(floor, range_, DEFAULT_WINDOW, read_records.get(range_.sequencer))
        except InvalidLogError:
            # The log may have another window.
            window = find_head(log).window
            if window == DEFAULT_WINDOW:
                raise
            return _planned(floor, range_, window, read_records.get(range_.sequencer))

    planned = [*run_parallel(root.store, plan, ranges)]
    columns = (
        (one.last_columns, f"sequencer {range_.sequencer}")
        for one, range_ in zip(planned, ranges, strict=True)
        if one.last_columns
    )
    tasks = [task for one in planned for task in one.tasks]
    firsts = [one.first_columns for one in planned if one.last_columns]
    return PlannedRead(
        _grouped(tasks, parallelism),
        union_of(columns),
        frozenset.intersection(*firsts) if firsts else frozenset(),
        sum(one.bytes for one in planned),
    )


@dataclass(frozen=True)
class _PlannedRange:
    """The tasks of one range.

    Attributes:
        tasks: the tasks.
        first_columns: see `first_columns`.
        last_columns: the columns of its last record, as JSON; "" without a record.
        bytes: about the size of its rows, as stored.
    """

    tasks: list[ReadTask]
    first_columns: frozenset[str]
    last_columns: str
    bytes: int


def _planned(
    floor: Floor, range_: OpenRange, window: int, record: Opened | None = None
) -> _PlannedRange:
    log = floor.log
    start = range_.cut
    end = range_.to
    looked = floor.looked()
    if end - start > PLANNED_RECORDS:
        last = [*_records(floor, window, end - 1, end)]
        size = about_bytes(log, window, start, end, _SAMPLES)
        count = max(1, -(-(size + (end - start) * _RECORD) // _LARGEST_TASK))
        view = LogView(log, window, range_.log_id)
        return _PlannedRange(
            _long_tasks(looked, view, (start, end), count),
            first_columns(floor, window, start, end),
            last[-1].spark_schema if last else "",
            size,
        )
    cached = dict[int, SlotRecord]()
    if isinstance(record, SlotRecord) and record.header.window == window:
        # As if it was read here: more of its rows would make a large task.
        cached = {record.header.position: replace(record, front=record.front[:GLANCE])}
    records = [*_records(floor, window, start, end, at_once=WIDEST_PROBE, cached=cached)]
    pieces = [piece for record in records for piece in pieces_of(log, record)]
    size = sum(piece.length for piece in pieces)
    count = max(1, -(-size // _LARGEST_TASK))
    return _PlannedRange(
        [ReadTask(looked, part, window, start, end) for part in pack(pieces, count)],
        folded_names(schema.columns(records[0].spark_schema)) if records else frozenset(),
        records[-1].spark_schema if records else "",
        size,
    )


def _records(
    floor: Floor,
    window: int,
    start: int,
    end: int,
    *,
    at_once: int = 1,
    cached: Mapping[int, SlotRecord] = _NONE,
) -> Iterator[SlotRecord]:
    view = LogView(floor.log, window, floor.log_id)
    live = live_records(view, start, end, cached=cached, size=GLANCE, at_once=at_once)
    return floor.usable(start, end, live)


def first_columns(floor: Floor, window: int, start: int, end: int) -> frozenset[str]:
    """The columns that all records of a range have, in lower case.

    They are those of the first record, because a log only gains columns. It costs 1 GET or a few.

    Raises:
        InvalidLogError: a record is damaged or missing.
        CollectedError: the range was collected.
    """
    first = next(_records(floor, window, start, end), None)
    return frozenset() if first is None else folded_names(schema.columns(first.spark_schema))


def folded_names(columns: Iterable[str]) -> frozenset[str]:
    """The names of columns in lower case: Spark ignores their case."""
    return frozenset(name.lower() for name in columns)


def _grouped(tasks: Sequence[ReadTask], parallelism: int | None) -> list[list[ReadTask]]:
    """Join small tasks that follow each other: a task of Spark costs more than a small read."""
    sizes = [
        sum(piece.length + _RECORD for piece in task.pieces)
        if task.pieces is not None
        else _LARGEST_TASK
        for task in tasks
    ]
    share = max(sum(sizes) // (parallelism or os.cpu_count() or 1) + 1, _SMALLEST_TASK)
    groups: list[list[ReadTask]] = []
    filled = share
    for task, size in zip(tasks, sizes, strict=True):
        if filled + size > share and filled:
            groups.append([])
            filled = 0
        groups[-1].append(task)
        filled += size
    return groups


def _by_size(size: int, parallelism: int | None) -> int:
    """The number of tasks for this many bytes."""
    # If the size of the cluster is unknown, plan enough tasks for any.
    largest = _LARGEST_TASK if parallelism else _LARGEST_TASK // 4
    at_once = parallelism or os.cpu_count() or 1
    share = -(-size // at_once)
    tasks = max(-(-size // min(max(share, _SMALLEST_TASK), largest)), 1)
    # Avoid a last task that all other cores wait for.
    return tasks if tasks < at_once else -(-tasks // at_once) * at_once


def task_rows(
    store: Store, task: ReadTask, target: pa.Schema, options: SourceOptions, clock: Clock = SYSTEM
) -> Iterator[pa.RecordBatch]:
    """Read the rows of a task, in the log's order.

    Raises:
        InvalidLogError: a record or an object is damaged.
        CollectedError: the floor passed the task.
    """
    looked = task.looked
    log = with_copies(LogStore(store, looked.prefix))
    floor = Floor(log, looked.log_id, clock, looked)
    pieces: Iterable[Piece] | None = task.pieces
    if pieces is None:
        view = LogView(log, task.window, looked.log_id, damage=damage_policy(options))
        read = read_records if task.segmented else live_records
        live = read(view, task.start, task.end, size=WHOLE, at_once=WIDEST_PROBE)
        records = floor.usable(task.start, task.end, live)
        pieces = (piece for record in records for piece in pieces_of(floor.log, record))
    yield from read_pieces(
        log,
        pieces,
        target,
        checks=Checks(options.verify_checksums, options.verify_texts),
        check=floor.check,
    )
