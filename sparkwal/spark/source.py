"""The source: reads one log, or all sequencers of a path, as a batch or a stream."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from types import MappingProxyType
from typing import TYPE_CHECKING

import msgspec
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from sparkwal.errors import InvalidLogError, OptionError
from sparkwal.format import schema, versions
from sparkwal.format.lifecycle_record import Target
from sparkwal.format.merging import union_of
from sparkwal.format.schema import cut
from sparkwal.lifecycle.consumers.leases import leased
from sparkwal.lifecycle.consumers.publishing import Publisher
from sparkwal.lifecycle.current import with_table
from sparkwal.lifecycle.from_table import (
    NOTES,
    TablePart,
    TablePlace,
    TableTask,
    check_computed,
    choose_start,
    first_place,
    newest_columns,
    place_of,
    task_rows_of_table,
)
from sparkwal.lifecycle.opening import open_table
from sparkwal.lifecycle.table import ReadTable
from sparkwal.options.open import open_log
from sparkwal.options.reading import CONSUMERS, SourceOptions
from sparkwal.options.spark_versions import READ_LIMITS, has, text
from sparkwal.options.store import refuse
from sparkwal.options.types import ALL, TABLE
from sparkwal.protocol.clock import SYSTEM
from sparkwal.protocol.holds import LOG_ID, Holds
from sparkwal.reading.metadata import check_projection, with_metadata_columns
from sparkwal.reading.planning import Budget, ReadTask, StreamedLog, read_tasks, task_rows
from sparkwal.reading.sequencers import logs_of, no_log_at
from sparkwal.reading.several import existing, refresh_all
from sparkwal.spark.interfaces import (
    HERE,
    Offset,
    SparkStreamReader,
    to_arrow_schema,
    to_struct,
)
from sparkwal.spark.readable import readable_errors
from sparkwal.spark.unpickling import PickledByValue
from sparkwal.store.base import LogStore
from sparkwal.store.path import state_folder

if TYPE_CHECKING:
    import pyarrow as pa


# An offset is {sequencer: next position}, with these entries besides. A sequencer's name cannot
# contain a colon.
#
# LOG_ID + sequencer: the log's id.
# _FROM + sequencer: the first position of the microbatch, if that is not the previous offset. This
#   is so when a log first appears, because later its floor is higher; and when a log reaches
#   startingTimestamp.
# _NOT_BEFORE + sequencer: startingTimestamp, until the log reaches it. A restart needs it.
# NOTES + …: the place in the table, while the stream reads the table.
_FROM = "from:"
_NOT_BEFORE = "not before:"
# The version of the offset. Version 1 has none.
_FORMAT = "format:"
_NOTES = LOG_ID, _FROM, _NOT_BEFORE, NOTES, _FORMAT
# The size of an Arrow batch, of which the JVM holds several at once.
_LARGEST_BATCH = 16 * 2**20


class Logs:
    """The logs of a read, by sequencer. It converts positions to the offsets of a stream and back.

    A stream uses the same `Logs` for all microbatches, because a `StreamedLog` caches its head,
    its floor and its position for startingTimestamp.
    """

    def __init__(self, options: SourceOptions, root: LogStore) -> None:
        self._options = options
        self._root = root
        self._by_name: dict[str, StreamedLog] = {}
        # The columns of the table whose rows the read begins with.
        self.in_table: str | None = None

    def __getitem__(self, name: str) -> StreamedLog:
        if name not in self._by_name:
            self._by_name[name] = StreamedLog(self._options, name, self._root)
        return self._by_name[name]

    def opened(self) -> list[StreamedLog]:
        """The logs that were opened so far, sorted by name."""
        return [log for _, log in sorted(self._by_name.items())]

    def refresh(self, wanted: StructType | None = None, *, floor: bool = True) -> list[StreamedLog]:
        """Find all logs of the read, and read the head of each.

        Args:
            wanted: the columns to read.
            floor: read the floors too.

        Raises:
            OptionError: a new log lacks a wanted column.
            InvalidLogError: a record is damaged or missing.
        """
        waited = any(log.spark_schema is None for log in self._by_name.values())
        before = len(self._by_name)
        for name in logs_of(self._root, self._options):
            self[name]
        logs = self._by_name.values()
        refresh_all([*logs], floor=floor)
        is_new = waited or len(self._by_name) > before
        if wanted is not None and is_new and (union := self.columns()) is not None:
            check_projection(schema.normalize(wanted.jsonValue()), union)
        return self.opened()

    def columns(self) -> str | None:
        """The union of the logs' columns, and of the table's if the read begins with it.

        Raises:
            OptionError: two logs, or the table and a log, have different types for one column.
        """
        if self.in_table is None and self._options.starting_position == TABLE:
            self.in_table = newest_columns(self._root, self._options) or ""
        logs = [log for log in self._by_name.values() if log.spark_schema]
        of_logs = union_of((log.spark_schema or "", f"sequencer {log.name}") for log in logs)
        return with_table(of_logs, self.in_table) if of_logs and self.in_table else of_logs or None

    def offset(
        self, positions: Mapping[str, int], entries: Mapping[str, int] = MappingProxyType({})
    ) -> Offset:
        """The offset of a stream.

        Args:
            positions: the next position of each log.
            entries: for some logs, the first position of the microbatch.
        """
        offset: Offset = {_FROM + name: str(entry) for name, entry in entries.items() if entry}
        offset.update(positions)
        for name in positions:
            if (log_id := self[name].log_id) is not None:
                offset[LOG_ID + name] = log_id
            if (moment := self[name].not_before) is not None:
                offset[_NOT_BEFORE + name] = str(moment)
        # Sorted, because Spark compares offsets as text.
        return dict(sorted(offset.items()))

    def positions(self, offset: Offset) -> dict[str, int]:
        """The next position of each log.

        Raises:
            InvalidLogError: the offset belongs to another source, or to more logs than this read.
            NewerFormatError: a newer version wrote it.
        """
        if _FORMAT in offset:
            number = int(offset[_FORMAT]) if str(offset[_FORMAT]).isdecimal() else None
            versions.check(versions.OFFSET, number, "the offset in the checkpoint")
        positions = {name: value for name, value in offset.items() if isinstance(value, int)}
        others = [key for key in offset if key not in positions and not key.startswith(_NOTES)]
        several, single = self._options.sequencers, self._options.sequencer
        if others or not (several or single in positions):
            raise InvalidLogError(
                f"the checkpoint holds the offset {json.dumps(offset)}, which is none of this "
                "source; use a new checkpoint"
            )
        if not several and len(positions) > 1:
            raise InvalidLogError(
                f"the checkpoint continues the logs of {', '.join(sorted(positions))}, and this "
                f"stream reads only {single}: it would drop the offsets of the others, and read "
                "them again later. Set sequencers as before, or use a new checkpoint"
            )
        return positions

    def check(self, offset: Offset, positions: Mapping[str, int]) -> None:
        """Check that the logs are those of an offset.

        Raises:
            InvalidLogError: a log was recreated, or ends before its position.
        """
        for log in self.opened():
            if log.name in positions:
                log.check_offset(positions[log.name], offset.get(LOG_ID + log.name))


def log_schema(options: SourceOptions) -> StructType:
    """All columns of the logs, with the metadata columns if the options include them.

    Raises:
        OptionError: there is no log.
    """
    logs = Logs(options, open_log(options, fail_fast=True))
    logs.refresh(floor=False)
    spark_schema = logs.columns()
    if spark_schema is None:
        raise no_log(options)
    if options.include_metadata:
        spark_schema = with_metadata_columns(spark_schema)
    return to_struct(spark_schema)


def no_log(options: SourceOptions) -> OptionError:
    text = no_log_at(open_log(options, fail_fast=True))
    return OptionError(f"{text}. With .schema(…), a stream waits for its log")


class _Reader(PickledByValue):
    """The reader of a batch or of a stream."""

    def __init__(
        self, options: SourceOptions, spark_schema: StructType, parallelism: int | None
    ) -> None:
        self.options = options
        self.spark_schema = spark_schema
        self.parallelism = parallelism

    def __getstate__(self) -> dict[str, object]:
        return {"options": self.options, "spark_schema": self.spark_schema}

    def _tasks(self, log: StreamedLog, start: int, end: int, logs: int) -> list[ReadTask]:
        in_all = self.options.min_partitions
        least = None if in_all is None else -(-in_all // logs)
        return read_tasks(log, start, end, least, self.parallelism)

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """Read the rows of one task."""
        # If `partitions` returned an empty list, Spark reads one partition: None, or one with None.
        if partition is None or partition.value is None:
            return
        target = to_arrow_schema(self.spark_schema)
        with readable_errors():
            for batch in self._task_rows(partition.value, target):
                yield from cut(batch, _LARGEST_BATCH)

    def _task_rows(self, task: ReadTask | TableTask, target: pa.Schema) -> Iterator[pa.RecordBatch]:
        if isinstance(task, TableTask):
            return task_rows_of_table(task, target, self.options)
        return task_rows(open_log(self.options).store, task, target, self.options)


class BatchReader(_Reader, DataSourceReader):
    # This class has no `pushFilters`. With spark.sql.python.filterPushdown.enabled, Spark 4.2
    # reuses this reader for a later query over the same DataFrame, unless that query pushes
    # filters too. A range that one query's filter narrowed would hide rows from the next query.

    def __init__(
        self,
        options: SourceOptions,
        spark_schema: StructType,
        parallelism: int | None = None,
    ) -> None:
        super().__init__(options, spark_schema, parallelism)
        self._logs = Logs(options, open_log(options))
        refuse(options, "is for spark.readStream; for a long batch read set lease", *CONSUMERS)

    def partitions(self) -> list[InputPartition]:
        with readable_errors(), ExitStack() as leases:
            is_listed = self.options.sequencers == ALL
            logs = existing(
                open_log(self.options), self._logs.refresh(self.spark_schema), listed=is_listed
            )
            tasks: list[ReadTask] = []
            starts, _ = leases.enter_context(leased(logs, StreamedLog.start))
            for log, start in zip(logs, starts, strict=True):
                end = log.intact_end(start, log.end())
                if end > start:
                    tasks += self._tasks(log, start, end, len(logs))
            return [InputPartition(task) for task in tasks]


def packed(tasks: Sequence[Sequence[ReadTask]], files: Sequence[TableTask] = ()) -> str:
    """Tasks as a text for an option. No code is in it: anybody may have written an option."""
    return base64.b64encode(msgspec.msgpack.encode((tasks, files))).decode()


def unpacked(text: str) -> list[list[ReadTask] | list[TableTask]]:
    """The groups of tasks in a text of `packed`. Each file is one.

    Raises:
        OptionError: there are none in it.
    """
    try:
        tasks, files = msgspec.msgpack.decode(
            base64.b64decode(text), type=tuple[list[list[ReadTask]], list[TableTask]]
        )
    except ValueError as error:
        raise OptionError(f"the planned tasks are no tasks: {error}") from None
    return [*tasks, *([file] for file in files)]


class PlannedReader(_Reader, DataSourceReader):
    """Reads ranges of several logs, or files of a table, that the driver has planned."""

    def __init__(
        self,
        options: SourceOptions,
        spark_schema: StructType,
        tasks: list[list[ReadTask] | list[TableTask]],
    ) -> None:
        super().__init__(options, spark_schema, None)
        self._groups = tasks

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(tasks) for tasks in self._groups]

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """Read the rows of one group of tasks."""
        if partition is None or partition.value is None:
            return
        for task in partition.value:
            yield from super().read(InputPartition(task))


class StreamReader(_Reader, SparkStreamReader):
    def __init__(
        self, options: SourceOptions, spark_schema: StructType, parallelism: int | None = None
    ) -> None:
        super().__init__(options, spark_schema, parallelism)
        why = "is for spark.read; a stream has no end"
        refuse(options, why, "endingPosition", "endingTimestamp")
        refuse(options, "is for spark.read; for a stream set consumer", "lease")
        if options.starting_position == TABLE:
            _check_from_table(options)
        self._root = open_log(options)
        self._logs = Logs(options, self._root)
        holds = Holds(state_folder())
        self._publisher = Publisher(options.consumer or "", options.cursor_interval_ms, holds)
        self._table = TablePart(options)
        # What the progress shows of the table, while the stream reads it.
        self._of_table: dict[str, int] = {}
        # The ends of the logs at which availableNow stops.
        self._targets: dict[str, int] | None = None
        # Until the first `plan`, Spark calls with offsets of its checkpoint.
        self._resumes = True
        self._has_advanced = False
        # The log that comes first in the next microbatch: a busy log must not use up every limit.
        self._turn = 0

    def begin(self, heads: Offset) -> Offset:
        with readable_errors():
            if self.options.starting_position == TABLE:
                return self._begin_with_table()
            logs = [log for log in self._refresh() if self._counts(log)]
            begins = {log.name: self._start_of(log, heads) for log in logs}
            for log in self._join(begins):
                begins[log.name] = self._start_of(log, heads)
            return self._logs.offset(begins)

    def _begin_with_table(self) -> Offset:
        opened: dict[str, ReadTable] = {}

        def opening(target: Target) -> ReadTable:
            opened[target.table] = open_table(target, self.options)
            return opened[target.table]

        plan = choose_start(
            lambda: [log for log in self._refresh() if self._counts(log)],
            # A restart that repeats the first microbatch chooses anew. So hold all there is until
            # the end of a microbatch names what is needed.
            lambda logs: self._join(dict.fromkeys((log.name for log in logs), 0)),
            opening,
            is_all=self.options.sequencers == ALL,
        )
        place = first_place(plan)
        self._check_columns(place)
        if place.url:
            check_computed(plan, opened[place.url], self.spark_schema.names)
        return _with_place(self._logs.offset(plan.starts), place)

    def _check_columns(self, place: TablePlace) -> None:
        """Check that the logs, or this version of the table, have the columns to read.

        Raises:
            OptionError: one is unknown.
            TableReadError: the version is gone, or unreadable.
        """
        self._logs.in_table = self._table.columns(place) or ""
        if (columns := self._logs.columns()) is not None:
            check_projection(schema.normalize(self.spark_schema.jsonValue()), columns)

    def _refresh(self) -> list[StreamedLog]:
        if self.options.sequencers == ALL:
            self._publisher.protect_new_logs(self._root)
        return self._logs.refresh(self.spark_schema)

    def _start_of(self, log: StreamedLog, heads: Offset) -> int:
        return min(log.start(), int(heads.get(log.name, log.gap)))

    def _join(self, starts: Mapping[str, int]) -> list[StreamedLog]:
        """Register as a consumer, before the first read of logs from these positions.

        Returns:
            The logs whose floors had passed these positions before the registration.
        """
        logs = [self._logs[name] for name in starts]
        begins = self._publisher.join([(log.log, log.log_id, starts[log.name]) for log in logs])
        passed = [log for log in logs if begins[log.log.name] > starts[log.name]]
        if passed:
            seen = passed[0].floor.look_at_chain()
            for log in passed:
                log.floor.take(seen)
        return passed

    def _committed(self, positions: Mapping[str, int]) -> None:
        self._publisher.committed(self._by_log(positions))

    def _by_log(self, positions: Mapping[str, int]) -> dict[str, int]:
        """These positions by the names of the logs in the store, which need not exist any more."""
        one = None if self.options.sequencers else self._root.name
        return {one or name: position for name, position in positions.items()}

    def commit(self, end: Offset) -> None:
        with readable_errors():
            self._committed(self._logs.positions(end))

    def stop(self) -> None:
        # Spark calls this after an error. If a query is stopped, it only ends this process.
        self._publisher.catch_up()

    def _counts(self, log: StreamedLog) -> bool:
        # A single log may still be missing: the stream waits. Of several, skip one without records.
        return not self.options.sequencers or log.spark_schema is not None

    def fix_heads(self, heads: Offset | None = None) -> None:
        with readable_errors():
            self._targets = self._gaps() if heads is None else self._logs.positions(heads)

    def heads(self) -> Offset:
        with readable_errors():
            moment = self.options.starting_timestamp_ms
            logs = [log for log in self._refresh() if self._counts(log)]
            newest = max((log.live.header.timestamp_ms for log in logs if log.live), default=0)
            if moment is not None and moment > max(newest, SYSTEM.now_ms()):
                raise OptionError(
                    "startingTimestamp is later than now and than every record: a stream waits "
                    f"for it on Spark {text(READ_LIMITS)} or newer"
                )
            ends = {log.name: log.intact_end(log.floor.current(), log.gap) for log in logs}
            return self._logs.offset(ends)

    def check_heads(self, start: Offset) -> None:
        end = self.advance(start, limited=False)
        with readable_errors():
            advice = f"use Spark {text(READ_LIMITS)} or newer, or once the trigger processingTime"
            if any(name.startswith(_NOT_BEFORE) for name in start):
                raise OptionError(
                    "the checkpoint waits for its startingTimestamp, which availableNow would pass "
                    f"over: {advice}"
                )
            for name in self._logs.positions(end).keys() - self._logs.positions(start).keys():
                if _FROM + name in end:
                    raise OptionError(
                        f"the rows of the new sequencer {name} begin at position "
                        f"{end[_FROM + name]}, which availableNow would pass over: {advice}"
                    )

    def _gaps(self) -> dict[str, int]:
        return {log.name: log.gap for log in self._refresh()}

    def advance(self, start: Offset, *, limited: bool) -> Offset:
        with readable_errors():
            begins = self._logs.positions(start)
            targets = self._gaps() if self._targets is None else self._targets
            self._logs.check(start, begins)
            logs = [log for log in self._logs.opened() if log.name in targets]
            for log in logs:
                if (moment := start.get(_NOT_BEFORE + log.name)) is not None:
                    log.not_before = int(moment)
            budget = Budget(self.options) if limited and self.options.limits else None
            ends = dict(begins)
            entries: dict[str, int] = {}
            # Spark calls this after the commit of the microbatch that ends at `start`. But with
            # asynchronous progress tracking, which availableNow excludes, a restart may begin
            # before `start`.
            is_committed = self._targets is not None or self._resumes
            # From the second call on, every source of the query has joined: Spark calls them in
            # turn.
            is_committed &= self._has_advanced
            self._has_advanced = True
            turn = self._turn % max(len(logs), 1)
            logs = [log for log in logs[turn:] + logs[:turn] if self._counts(log)]
            # Read a new sequencer from its beginning; the options' start is for the others.
            starts = {
                log.name: begins[log.name] if log.name in begins else log.entry() for log in logs
            }
            self._join(starts)
            place = place_of(start)
            self._publisher.table_files = None if place is None else self._table.left(place)
            if is_committed:
                self._committed({name: starts[name] for name in starts if name in begins})
            self._of_table = {}
            if place is not None and place.file is not None:
                self._of_table = self._table.newest(place)
                return _with_place(start, self._table.advance(place, budget))
            for log in logs:
                begin, is_new = starts[log.name], log.name not in begins
                end = log.advance(begin, targets[log.name], budget)
                if end > begin:
                    ends[log.name] = end
                    first = log.first(begin)
                    if is_new or first > begin:
                        entries[log.name] = first
            self._turn += 1
            if ends != begins:
                return self._logs.offset(ends, entries)
            if self._targets is not None and is_committed:
                # The run ends here, and Spark ends this process without a call of `stop`.
                self._publisher.catch_up()
            self._publisher.asked(self._by_log(begins))
            return start

    def reportLatestOffset(self) -> dict[str, int] | None:
        logs = [log for log in self._logs.opened() if log.head is not None]
        gaps = {log.name: log.gap for log in logs if self._counts(log)}
        return {**gaps, **self._of_table} or None

    def plan(self, start: Offset, end: Offset) -> list[InputPartition]:
        with readable_errors():
            self._resumes = False
            firsts, lasts = self._logs.positions(start), self._logs.positions(end)
            self._publisher.planned(self._by_log(firsts), self._by_log(lasts))
            if (place := place_of(end)) is not None:
                return self._plan_table(place_of(start), place, end)
            tasks: list[ReadTask] = []
            moved = {name: last for name, last in lasts.items() if firsts.get(name, -1) < last}
            if any(self._logs[name].spark_schema is None for name in moved):
                # After a restart, Spark first plans its last microbatch again.
                self._refresh()
            self._logs.check(end, lasts)
            starts = {
                name: max(firsts.get(name, 0), int(end.get(_FROM + name, 0))) for name in moved
            }
            self._join(starts)
            for name, last in moved.items():
                log, begin = self._logs[name], starts[name]
                tasks += self._tasks(log, log.first(begin), last, len(moved))
                log.forget(last)
            return [InputPartition(task) for task in tasks]

    def _plan_table(
        self, start: TablePlace | None, place: TablePlace, end: Offset
    ) -> list[InputPartition]:
        positions = self._logs.positions(end)
        if any(self._logs[name].spark_schema is None for name in positions):
            self._refresh()
        self._logs.check(end, positions)
        self._join(positions)
        tasks = self._table.tasks(start, place)
        if tasks:
            self._check_columns(place)
        return [InputPartition(task) for task in tasks]


def _check_from_table(options: SourceOptions) -> None:
    """Check that a stream may begin with the table.

    Raises:
        OptionError: it has no consumer, or this Spark calls a stream another way.
    """
    if not has(READ_LIMITS, HERE):
        raise OptionError(
            f"startingPosition=table needs Spark {text(READ_LIMITS)} or newer: an older one asks "
            "for the end of a stream before its start"
        )
    if not options.consumer:
        raise OptionError(
            "startingPosition=table without a consumer: while the stream reads the table, the log "
            "may lose what the table lacks. Set the option consumer, a name for this stream alone"
        )


def _with_place(offset: Offset, place: TablePlace) -> Offset:
    return dict(sorted({**offset, **place.notes()}.items()))
