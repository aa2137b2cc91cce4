"""One log as the source plans it: where a read begins and ends, what a microbatch may
hold, which bytes each task reads."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace

from sparkwal.errors import InvalidLogError, OptionError
from sparkwal.format import schema
from sparkwal.format.header import CommitHeader
from sparkwal.format.keys import sequencer_prefix
from sparkwal.options.reading import SourceOptions
from sparkwal.protocol.log_store import LogStore
from sparkwal.protocol.recovery import Head, find_head
from sparkwal.protocol.replay import WIDEST_PROBE, first_at_or_after, live_records, newer
from sparkwal.protocol.slots import GLANCE, SlotRecord, read_slot
from sparkwal.reading.pieces import Piece, pack, pieces_of, split
from sparkwal.reading.rows import read_pieces

# Up to so many positions are planned record by record on the driver; of a longer
# range each task gets a stretch of positions and reads their records itself.
PLANNED_RECORDS = 512
_STRETCH = 256
_MOST_STRETCHES = 200

# A read task below this size costs more to start than to run.
_SMALLEST_TASK = 4 * 2**20
_LARGEST_TASK = 128 * 2**20


@dataclass(frozen=True)
class PieceTask:
    """Pieces of known objects."""

    pieces: list[Piece]


@dataclass(frozen=True)
class StretchTask:
    """Positions start … end−1, whose records the task reads itself."""

    prefix: str
    window: int
    start: int
    end: int


ReadTask = PieceTask | StretchTask


class Budget:
    """What one microbatch may hold, over all the logs it reads."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._rows = self._size = self._count = 0
        self.spent = False

    def takes(self, header: CommitHeader) -> bool:
        """Whether this commit still fits. The first one does: a commit is never split."""
        self._rows += header.rows
        self._size += header.bytes
        self._count += 1
        over = (
            self._rows > (self._options.max_rows or self._rows)
            or self._size > (self._options.max_bytes or self._size)
            or self._count > (self._options.max_commits or self._count)
        )
        self.spent = over and self._count > 1
        return not self.spent


class LogRange:
    """One sequencer's log. A stream keeps it: it remembers the head it has seen.

    Args:
        root: the log at the path; the log itself unless the option is `*`.
    """

    def __init__(self, options: SourceOptions, name: str, root: LogStore) -> None:
        self.options, self.name = options, name
        several = options.sequencers is not None
        self.log = LogStore(root.store, sequencer_prefix(root.prefix, name)) if several else root
        self._path = f"{options.path}, sequencer {name}" if several else options.log_path
        self.head: Head | None = None
        self.gap = 0
        # Records seen while looking for the head, until their microbatch is planned.
        self._known: dict[int, SlotRecord] = {}

    @property
    def window(self) -> int:
        assert self.head is not None
        return self.head.window

    @property
    def spark_schema(self) -> str | None:
        """Of the head that was seen, if there was a log."""
        return self.head.live.spark_schema if self.head and self.head.live else None

    def records(self, start: int, end: int, at_once: int = WIDEST_PROBE) -> Iterator[SlotRecord]:
        return live_records(
            self.log,
            self.window,
            start,
            end,
            tolerant=self.options.tolerant,
            known=self._known,
            size=GLANCE,
            at_once=at_once,
        )

    def look(self) -> int:
        """The first gap now: 1 LIST + 1 GET the first time, then 1 GET when idle."""
        if self.head is None or self.head.live is None:
            tolerant = not self.options.fail_on_data_loss
            self.head = find_head(self.log, tolerant=tolerant)
            self.gap = self.head.gap
            if self.head.live is not None:
                self._know(self.head.live)
        else:
            for record in self._newer():
                self._know(record)
                self.gap = record.header.position + 1
        return self.gap

    def _know(self, record: SlotRecord) -> None:
        # Rows that came along travel in the task, where many are better fetched.
        if record.inlined is not None and len(record.inlined) > GLANCE:
            record = replace(record, inlined=None)
        self._known[record.header.position] = record

    def _newer(self) -> list[SlotRecord]:
        try:
            return newer(self.log, self.window, self.gap)
        except InvalidLogError:
            if self.options.on_corruption != "stop":
                raise
        # Up to the damaged record, one by one.
        found: list[SlotRecord] = []
        with suppress(InvalidLogError):
            while record := self._glance(self.gap + len(found)):
                found.append(record)
        return found

    def _glance(self, position: int) -> SlotRecord | None:
        return read_slot(self.log, position, self.window, GLANCE)

    def start(self) -> int:
        """The first position to read, from the options."""
        options, head = self.options, self.head
        assert head is not None
        if options.starting_timestamp_ms is not None:
            return first_at_or_after(self.log, head, options.starting_timestamp_ms)
        if options.starting_position in (None, "earliest"):
            return 0
        if options.starting_position == "latest":
            return head.gap
        start = int(options.starting_position or 0)
        if start > head.gap:
            raise OptionError(
                f"startingPosition {start} lies behind the end of the log: the next position is "
                f"{head.gap}"
            )
        return start

    def end(self) -> int:
        """The position behind the last to read, from the options."""
        options, head = self.options, self.head
        assert head is not None
        if options.ending_timestamp_ms is not None:
            return first_at_or_after(self.log, head, options.ending_timestamp_ms + 1)
        if options.ending_position is None:
            return head.gap
        if options.ending_position >= head.gap and options.fail_on_data_loss:
            raise OptionError(
                f"endingPosition {options.ending_position} lies behind the end of the log: "
                f"its last position is {head.position}"
            )
        return min(options.ending_position + 1, head.gap)

    def advance(self, begin: int, end: int, budget: Budget | None) -> int:
        """How far the next microbatch reaches, between `begin` and `end`."""
        if begin > end:
            raise InvalidLogError(
                f"the stream has read up to position {begin} of {self._path}, but the "
                f"log ends at {end}: it was replaced or cut. Use a new checkpoint to read it "
                "from the start"
            )
        if begin >= end or (budget is not None and budget.spent):
            return begin
        if budget is not None:
            end = self._limited(begin, end, budget)
        if self.options.on_corruption == "stop":
            end = self.intact_end(begin, end)
        return end

    def _limited(self, begin: int, end: int, budget: Budget) -> int:
        reached = begin
        try:
            # A limit may end this soon: every record is paid for.
            for record in self.records(begin, end, at_once=1):
                self._know(record)
                if isinstance(record.header, CommitHeader) and not budget.takes(record.header):
                    return reached
                reached = record.header.position + 1
                if len(self._known) > PLANNED_RECORDS:
                    return reached
        except InvalidLogError:
            if self.options.on_corruption != "stop":
                raise
            return reached
        return end

    def intact_end(self, start: int, end: int) -> int:
        """onCorruption=stop: the first position at or after `start` that is not intact, or
        `end`. Reads everything: a replay may only pass what is known to be good."""
        position = start
        try:
            for record in self.records(start, end):
                position = record.header.position
                target = schema.to_arrow(record.spark_schema)
                for _ in read_pieces(self.log.store, pieces_of(self.log, record), target):
                    pass
                position += 1
        except InvalidLogError:
            return position
        return end

    def tasks(self, start: int, end: int, least: int) -> list[ReadTask]:
        """Read tasks for the positions start … end−1, at least so many where frames allow."""
        count = end - start
        if count > PLANNED_RECORDS and self.options.on_corruption == "fail":
            tasks = min(max(least, -(-count // _STRETCH)), max(least, _MOST_STRETCHES), count)
            bounds = [start + count * i // tasks for i in range(tasks + 1)]
            return [
                StretchTask(self.log.prefix, self.window, low, high)
                for low, high in zip(bounds, bounds[1:], strict=False)
            ]
        found = [
            piece for record in self.records(start, end) for piece in pieces_of(self.log, record)
        ]
        if len(found) < least:
            found = split(found)
        total = sum(piece.length for piece in found)
        if self.options.min_partitions:
            count = least
        else:
            size = min(max(-(-total // (os.cpu_count() or 1)), _SMALLEST_TASK), _LARGEST_TASK)
            count = -(-total // size)
        return [PieceTask(group) for group in pack(found, count)]

    def forget(self, below: int) -> None:
        """Records of planned microbatches are not needed again."""
        self._known = {p: r for p, r in self._known.items() if p >= below}


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
        tolerant=options.tolerant,
        at_once=WIDEST_PROBE,
    )
    for record in found:
        yield from pieces_of(log, record)
