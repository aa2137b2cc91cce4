"""The source: plans which bytes each task reads, and what a microbatch may hold."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxFiles,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from sparkwal import reading, schema
from sparkwal.errors import InvalidLogError, OptionError
from sparkwal.options import SourceOptions
from sparkwal.protocol.recovery import Head, find_head
from sparkwal.protocol.replay import first_at_or_after, live_records, newer
from sparkwal.protocol.slots import SlotRecord, read_slot
from sparkwal.reading import Piece
from sparkwal.record import CommitHeader
from sparkwal.spark.readable import readable_errors

if TYPE_CHECKING:
    import pyarrow as pa

SEQUENCER = "default"

# Up to so many positions are planned record by record on the driver; of a longer
# range each task gets a stretch of positions and reads their records itself.
PLANNED_RECORDS = 512
_STRETCH = 256
_MOST_STRETCHES = 200

# A read task below this size costs more to start than to run.
_SMALLEST_TASK = 4 * 2**20
_LARGEST_TASK = 128 * 2**20


@dataclass
class PieceTask(InputPartition):
    """Pieces of known objects."""

    pieces: list[Piece]


@dataclass
class StretchTask(InputPartition):
    """Positions start … end−1, whose records the task reads itself."""

    prefix: str
    window: int
    start: int
    end: int


def log_schema(options: SourceOptions) -> StructType:
    """The schema of the log's head, with the metadata columns if asked for.

    Raises OptionError when there is no log.
    """
    store, prefix = options.open(fail_fast=True)
    head = find_head(store, prefix, tolerant=not options.fail_on_data_loss)
    if head.live is None:
        raise OptionError(
            f"there is no log at {options.path}: check the path, or give the schema with "
            ".schema(…) to wait for one"
        )
    spark_schema = head.live.spark_schema
    if options.include_metadata:
        spark_schema = reading.with_metadata_columns(spark_schema)
    return StructType.fromJson(json.loads(spark_schema))


class _Reader:
    """What a batch read and a stream have in common: it is pickled to the tasks."""

    def __init__(self, options: SourceOptions, spark_schema: StructType) -> None:
        self.options = options
        self.spark_schema = spark_schema
        self._store, self._prefix = options.open()

    def __getstate__(self) -> dict[str, object]:
        return {"options": self.options, "spark_schema": self.spark_schema}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        self._store, self._prefix = self.options.open()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._rows(partition)

    def _rows(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        from pyspark.sql.pandas.types import to_arrow_schema

        target = to_arrow_schema(self.spark_schema, timezone="UTC")
        with readable_errors():
            for piece in self._pieces(partition):
                yield from reading.read_piece(
                    self._store, piece, target, verify=self.options.verify_checksums
                )

    def _pieces(self, partition: InputPartition) -> Iterator[Piece]:
        if isinstance(partition, PieceTask):
            yield from partition.pieces
        elif isinstance(partition, StretchTask):
            for record in self._records(partition.window, partition.start, partition.end, {}):
                yield from reading.pieces(record, partition.prefix)

    def _records(
        self, window: int, start: int, end: int, known: dict[int, SlotRecord]
    ) -> Iterator[SlotRecord]:
        return live_records(
            self._store,
            self._prefix,
            window,
            start,
            end,
            skip_missing=not self.options.fail_on_data_loss,
            known=known,
        )

    def _find_head(self) -> Head:
        head = find_head(self._store, self._prefix, tolerant=not self.options.fail_on_data_loss)
        if head.live is not None:
            wanted = schema.normalize(self.spark_schema.jsonValue())
            reading.check_projection(wanted, head.live.spark_schema)
        return head

    def _start(self, head: Head) -> int:
        """The first position to read, from the options."""
        options = self.options
        if options.starting_timestamp_ms is not None:
            return first_at_or_after(self._store, self._prefix, head, options.starting_timestamp_ms)
        if options.starting_position in (None, "earliest"):
            return head.floor
        if options.starting_position == "latest":
            return head.gap
        start = int(options.starting_position or 0)
        if start > head.gap:
            raise OptionError(
                f"startingPosition {start} lies behind the end of the log: the next position is "
                f"{head.gap}"
            )
        return self._above_floor(start, head)

    def _above_floor(self, start: int, head: Head) -> int:
        if start < head.floor and self.options.fail_on_data_loss:
            raise InvalidLogError(
                f"position {start} of {self.options.path} was collected: the log begins at "
                f"{head.floor} now. Start there, or set failOnDataLoss=false"
            )
        return max(start, head.floor)

    def _tasks(
        self, window: int, start: int, end: int, known: dict[int, SlotRecord]
    ) -> list[InputPartition]:
        """Read tasks for the positions start … end−1."""
        least = self.options.min_partitions or 1
        count = end - start
        if count > PLANNED_RECORDS and self.options.on_corruption == "fail":
            tasks = min(max(least, -(-count // _STRETCH)), max(least, _MOST_STRETCHES), count)
            bounds = [start + count * i // tasks for i in range(tasks + 1)]
            return [
                StretchTask(self._prefix, window, low, high)
                for low, high in zip(bounds, bounds[1:], strict=False)
            ]
        found = [
            piece
            for record in self._records(window, start, end, known)
            for piece in reading.pieces(record, self._prefix)
        ]
        if len(found) < least:
            found = reading.split(found)
        total = sum(piece.length for piece in found)
        if self.options.min_partitions:
            size = max(total // least, 1)
        else:
            size = min(max(total // (os.cpu_count() or 1), _SMALLEST_TASK), _LARGEST_TASK)
        return [PieceTask(group) for group in reading.pack(found, size)]

    def _intact_end(self, window: int, start: int, end: int, known: dict[int, SlotRecord]) -> int:
        """onCorruption=stop: the first position at or after `start` that is not intact, or
        `end`. Reads everything: a replay may only pass what is known to be good."""
        target = schema.to_arrow(schema.normalize(self.spark_schema.jsonValue()))
        position = start
        try:
            for record in self._records(window, start, end, known):
                position = record.header.position
                for piece in reading.pieces(record, self._prefix):
                    for _ in reading.read_piece(self._store, piece, target):
                        pass
                position += 1
        except InvalidLogError:
            return position
        return end


class BatchReader(_Reader, DataSourceReader):
    """`spark.read`: one range of the log as it is now."""

    def partitions(self) -> list[InputPartition]:
        with readable_errors():
            head = self._find_head()
            if head.live is None:
                return []
            start, end = self._start(head), self._end(head)
            if self.options.on_corruption == "stop":
                end = self._intact_end(head.window, start, end, {})
            if end <= start:
                return []
            return self._tasks(head.window, start, end, {})

    def _end(self, head: Head) -> int:
        if self.options.ending_timestamp_ms is not None:
            return first_at_or_after(
                self._store, self._prefix, head, self.options.ending_timestamp_ms + 1
            )
        if self.options.ending_position is None:
            return head.gap
        if self.options.ending_position >= head.gap and self.options.fail_on_data_loss:
            raise OptionError(
                f"endingPosition {self.options.ending_position} lies behind the end of the log: "
                f"its last position is {head.position}"
            )
        return min(self.options.ending_position + 1, head.gap)


class StreamReader(_Reader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """`spark.readStream`: the log as it grows. Offsets are {"default": next position}."""

    def __init__(self, options: SourceOptions, spark_schema: StructType) -> None:
        super().__init__(options, spark_schema)
        for name, value in (
            ("endingPosition", options.ending_position),
            ("endingTimestamp", options.ending_timestamp_ms),
        ):
            if value is not None:
                raise OptionError(f"{name} is for spark.read; a stream has no end: remove it")
        self._head: Head | None = None
        self._gap = 0
        self._target: int | None = None
        # Records seen while looking for the head, until their microbatch is planned.
        self._known: dict[int, SlotRecord] = {}

    def initialOffset(self) -> dict[str, int]:
        with readable_errors():
            self._look()
            assert self._head is not None
            return {SEQUENCER: self._start(self._head)}

    def _look(self) -> int:
        """The first gap now: 1 LIST + 1 GET the first time, then 1 GET when idle."""
        if self._head is None or self._head.live is None:
            self._head = self._find_head()
            self._gap = self._head.gap
        else:
            for record in self._newer(self._head.window):
                self._known[record.header.position] = record
                self._gap = record.header.position + 1
        return self._gap

    def _newer(self, window: int) -> list[SlotRecord]:
        try:
            return newer(self._store, self._prefix, window, self._gap)
        except InvalidLogError:
            if self.options.on_corruption != "stop":
                raise
        # Up to the damaged record, one by one.
        found: list[SlotRecord] = []
        with suppress(InvalidLogError):
            while record := read_slot(self._store, self._prefix, self._gap + len(found), window):
                found.append(record)
        return found

    def prepareForTriggerAvailableNow(self) -> None:
        with readable_errors():
            self._target = self._look()

    def getDefaultReadLimit(self) -> ReadLimit:
        # Spark hands one limit back; latestOffset applies all that are set.
        if self.options.max_rows is not None:
            return ReadMaxRows(self.options.max_rows)
        if self.options.max_bytes is not None:
            return ReadMaxBytes(self.options.max_bytes)
        if self.options.max_commits is not None:
            return ReadMaxFiles(self.options.max_commits)
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        with readable_errors():
            begin = _position(start)
            end = self._look() if self._target is None else self._target
            if self._head is None:
                self._look()
            assert self._head is not None
            if begin > end and self._target is None:
                raise InvalidLogError(
                    f"the stream has read up to position {begin} of {self.options.path}, but the "
                    f"log ends at {end}: it was replaced or cut. Use a new checkpoint to read it "
                    "from the start"
                )
            if begin >= end:
                return {SEQUENCER: begin}
            begin = self._above_floor(begin, self._head)
            if self.options.on_corruption == "stop":
                end = self._intact_end(self._head.window, begin, end, self._known)
            if not isinstance(limit, ReadAllAvailable):
                end = self._limited(begin, end)
            return {SEQUENCER: end}

    def _limited(self, begin: int, end: int) -> int:
        """As far as the limits allow, but at least over one commit: a commit is never split."""
        assert self._head is not None
        rows = size = count = 0
        reached = begin
        for record in self._records(self._head.window, begin, end, self._known):
            self._known[record.header.position] = record
            if isinstance(record.header, CommitHeader):
                rows += record.header.rows
                size += record.header.bytes
                count += 1
                over = (
                    rows > (self.options.max_rows or rows)
                    or size > (self.options.max_bytes or size)
                    or count > (self.options.max_commits or count)
                )
                if over and count > 1:
                    return reached
            reached = record.header.position + 1
            if len(self._known) > PLANNED_RECORDS:
                return reached
        return end

    def reportLatestOffset(self) -> dict[str, int] | None:
        return {SEQUENCER: self._gap} if self._head is not None else None

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        with readable_errors():
            first, last = _position(start), _position(end)
            if first >= last:
                return []
            if self._head is None or self._head.live is None:
                # After a restart Spark plans the last microbatch again before it looks on.
                self._look()
            assert self._head is not None
            first = self._above_floor(first, self._head)
            tasks = self._tasks(self._head.window, first, last, self._known)
            self._known = {p: r for p, r in self._known.items() if p >= last}
            return tasks


def _position(offset: dict[str, int]) -> int:
    try:
        return int(offset[SEQUENCER])
    except (KeyError, TypeError, ValueError):
        raise InvalidLogError(
            f"the checkpoint holds the offset {json.dumps(offset)}, which is none of this source; "
            "use a new checkpoint"
        ) from None
