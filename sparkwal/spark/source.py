"""The source: one log, or all sequencers of a path, as a table or a stream."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
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

from sparkwal.errors import InvalidLogError, OptionError
from sparkwal.format import schema
from sparkwal.lifecycle.leases import leased
from sparkwal.lifecycle.publishing import publisher
from sparkwal.options.open import open_log
from sparkwal.options.reading import CONSUMERS, SourceOptions, refuse
from sparkwal.protocol.holds import LOG_ID
from sparkwal.reading.budget import Budget
from sparkwal.reading.log_range import LogRange
from sparkwal.reading.metadata import check_projection, with_metadata_columns
from sparkwal.reading.sequencers import all_logs
from sparkwal.reading.tasks import ReadTask, read_tasks, task_rows
from sparkwal.spark.acks import acknowledge_at_once
from sparkwal.spark.readable import readable_errors
from sparkwal.spark.unpickling import Travels
from sparkwal.store.base import Store
from sparkwal.store.log_store import LogStore
from sparkwal.store.parallel import run_parallel

if TYPE_CHECKING:
    import pyarrow as pa


# Positions by sequencer, and under LOG_ID + sequencer the id of the log they belong to. Where a
# log first appears, _FROM + sequencer says which position its rows begin at, unless it is 0: the
# floor of later is not where they began. No sequencer's name holds a colon.
Offset = dict[str, int | str]
_FROM = "from:"


def log_schema(options: SourceOptions) -> StructType:
    """The schema of the log's head, with the metadata columns if asked for.

    Of several logs: all their columns. Raises OptionError when there is no log.
    """
    root = open_log(options, fail_fast=True)
    logs = [LogRange(options, name, root) for name in _names(options, root)]
    _look(root.store, logs, floor=False)
    spark_schema = _union(logs)
    if spark_schema is None:
        raise _no_log(options)
    if options.include_metadata:
        spark_schema = with_metadata_columns(spark_schema)
    return StructType.fromJson(json.loads(spark_schema))


def _no_log(options: SourceOptions) -> OptionError:
    return OptionError(
        f"there is no log at {options.log_path}: check the path. A stream waits for one if it is "
        "given the schema, with .schema(…)"
    )


def _names(options: SourceOptions, root: LogStore) -> list[str]:
    return all_logs(root) if options.sequencers is not None else [options.sequencer]


def _look(store: Store, logs: Iterable[LogRange], *, floor: bool = True) -> None:
    for _ in run_parallel(store, lambda log: log.look(floor=floor), logs):
        pass


def _union(logs: Iterable[LogRange]) -> str | None:
    """All columns of the logs that exist. Raises OptionError where two do not agree."""
    union: str | None = None
    for log in logs:
        if log.spark_schema is None:
            continue
        if union is None:
            union = log.spark_schema
            continue
        try:
            union = schema.merge(union, log.spark_schema, allow_new=True)
        except OptionError as error:
            raise OptionError(
                f"the sequencers' schemas do not fit together: {log.name} differs from those "
                f"before it: {error}. Read them one by one"
            ) from None
    return union


class _Reader(Travels):
    """What a batch read and a stream have in common: it is pickled to the tasks."""

    def __init__(
        self, options: SourceOptions, spark_schema: StructType, parallelism: int | None = None
    ) -> None:
        self.options = options
        self.spark_schema = spark_schema
        self.parallelism = parallelism
        self._root = open_log(options)
        self._logs: dict[str, LogRange] = {}

    def __getstate__(self) -> dict[str, object]:
        return {"options": self.options, "spark_schema": self.spark_schema}

    def __setstate__(self, state: dict[str, object]) -> None:
        super().__setstate__(state)
        acknowledge_at_once()
        self._root = open_log(self.options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._rows(partition)

    def _rows(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        from pyspark.sql.pandas.types import to_arrow_schema

        # Where `partitions` returned none, Spark asks for one partition that holds None.
        if partition.value is None:
            return
        target = to_arrow_schema(self.spark_schema, timezone="UTC")
        with readable_errors():
            yield from task_rows(self._root.store, partition.value, target, self.options)

    def _look(self) -> list[LogRange]:
        """Every log that exists now, with its head; by name."""
        waited = any(log.spark_schema is None for log in self._logs.values())
        known = len(self._logs)
        if self.options.sequencers or not self._logs:
            for name in _names(self.options, self._root):
                self._log(name)
        _look(self._root.store, self._logs.values())
        if waited or len(self._logs) > known:
            union = _union(self._logs.values())
            if union is not None:
                wanted = schema.normalize(self.spark_schema.jsonValue())
                check_projection(wanted, union)
        return [log for _, log in sorted(self._logs.items())]

    def _log(self, name: str) -> LogRange:
        if name not in self._logs:
            self._logs[name] = LogRange(self.options, name, self._root)
        return self._logs[name]

    def _tasks(self, log: LogRange, start: int, end: int, logs: int) -> list[ReadTask]:
        asked = self.options.min_partitions
        least = None if asked is None else -(-asked // logs)
        return read_tasks(log, start, end, least, self.parallelism)


class BatchReader(_Reader, DataSourceReader):
    """`spark.read`: one range of each log as it is now."""

    def __init__(
        self, options: SourceOptions, spark_schema: StructType, parallelism: int | None = None
    ) -> None:
        super().__init__(options, spark_schema, parallelism)
        why = "is for spark.readStream; a batch read that takes long is given a lease instead"
        refuse(options, why, *CONSUMERS)

    def partitions(self) -> list[InputPartition]:
        with readable_errors():
            logs = [log for log in self._look() if log.spark_schema is not None]
            if not logs:
                raise _no_log(self.options)
            tasks: list[ReadTask] = []
            for log in logs:
                log.check_id()
                start, end = leased(log, log.start).start, log.end()
                if self.options.on_corruption == "stop":
                    end = log.intact_end(start, end)
                if end > start:
                    tasks += self._tasks(log, start, end, len(logs))
            return [InputPartition(task) for task in tasks]


class StreamReader(_Reader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """`spark.readStream`: the log as it grows.

    Offsets are {sequencer: next position, "log_id:" + sequencer: its log's id}; the log at
    the path itself is "default".
    """

    def __init__(
        self, options: SourceOptions, spark_schema: StructType, parallelism: int | None = None
    ) -> None:
        super().__init__(options, spark_schema, parallelism)
        why = "is for spark.read; a stream has no end"
        refuse(options, why, "endingPosition", "endingTimestamp")
        refuse(options, "is for spark.read; a stream is given a consumer's name instead", "lease")
        self._publisher = publisher(options)
        refuse(options, "is for spark.read; a stream keeps it in its checkpoint", "logId")
        self._targets: dict[str, int] | None = None
        # Which log comes first changes: a busy one must not use up every limit.
        self._turn = 0

    def initialOffset(self) -> Offset:
        with readable_errors():
            logs = [log for log in self._look() if self._counts(log)]
            return self._offset({log.name: self._start(log) for log in logs})

    def _start(self, log: LogRange) -> int:
        start = log.start()
        return log.start() if self._join(log, start) else start

    def _join(self, log: LogRange, start: int) -> bool:
        """Register as a consumer before anything is read from `start`. Returns whether the floor
        passed it before that was seen."""
        told = self._publisher
        if told is None or log.log_id is None or told.has_joined(log.log):
            return False
        passed = told.join(log.log, log.log_id, start) > start
        if passed:
            log.floor.look()
        return passed

    def commit(self, end: Offset) -> None:
        if self._publisher is not None:
            with readable_errors():
                for name, position in self._positions(end).items():
                    self._publisher.committed(self._log(name).log, position)

    def stop(self) -> None:
        # After an error. Of a query that is stopped Spark ends this process without asking it.
        if self._publisher is not None:
            self._publisher.stop()

    def _counts(self, log: LogRange) -> bool:
        # A stream waits for a single log; among several, one without a record does not count yet.
        return not self.options.sequencers or log.spark_schema is not None

    def prepareForTriggerAvailableNow(self) -> None:
        with readable_errors():
            self._targets = {log.name: log.gap for log in self._look()}

    def getDefaultReadLimit(self) -> ReadLimit:
        # Spark passes one limit back; latestOffset applies all that are set.
        if self.options.max_rows is not None:
            return ReadMaxRows(self.options.max_rows)
        if self.options.max_bytes is not None:
            return ReadMaxBytes(self.options.max_bytes)
        if self.options.max_commits is not None:
            return ReadMaxFiles(self.options.max_commits)
        return ReadAllAvailable()

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        with readable_errors():
            begins = self._positions(start)
            if self._targets is None:
                targets = {log.name: log.gap for log in self._look()}
            else:
                targets = self._targets
            self._check(start)
            logs = [log for name, log in sorted(self._logs.items()) if name in targets]
            budget = None if isinstance(limit, ReadAllAvailable) else Budget(self.options)
            ends = dict(begins)
            entries: dict[str, int] = {}
            turn = self._turn % max(len(logs), 1)
            for log in logs[turn:] + logs[:turn]:
                if self._counts(log):
                    # A new sequencer is read from its beginning, whatever the start was.
                    begin = begins[log.name] if log.name in begins else log.entry()
                    self._join(log, begin)
                    end = log.advance(begin, targets[log.name], budget)
                    if log.name in begins or end > begin:
                        ends[log.name] = end
                    if log.name not in begins and end > begin:
                        entries[log.name] = log.first(begin)
            self._turn += 1
            return self._offset(ends, entries) if ends != begins else start

    def reportLatestOffset(self) -> dict[str, int] | None:
        logs = [log for _, log in sorted(self._logs.items()) if log.head is not None]
        return {log.name: log.gap for log in logs if self._counts(log)} or None

    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        with readable_errors():
            firsts, lasts = self._positions(start), self._positions(end)
            tasks: list[ReadTask] = []
            moved = {name: last for name, last in lasts.items() if firsts.get(name, -1) < last}
            if any(self._log(name).spark_schema is None for name in moved):
                # After a restart Spark plans the last microbatch again, then asks for a new one.
                self._look()
            self._check(end)
            for name, last in moved.items():
                log = self._log(name)
                begin = firsts.get(name, int(end.get(_FROM + name, 0)))
                self._join(log, begin)
                first = log.first(begin)
                tasks += self._tasks(log, first, last, len(moved))
                log.forget(last)
            return [InputPartition(task) for task in tasks]

    def _offset(
        self, positions: Mapping[str, int], entries: Mapping[str, int] = MappingProxyType({})
    ) -> Offset:
        offset: Offset = {_FROM + name: str(entry) for name, entry in entries.items() if entry}
        offset.update(positions)
        for name in positions:
            if (log_id := self._log(name).log_id) is not None:
                offset[LOG_ID + name] = log_id
        # Spark compares offsets as texts.
        return dict(sorted(offset.items()))

    def _check(self, offset: Offset) -> None:
        """Raises InvalidLogError where an offset speaks of other logs than there are now."""
        for name, position in self._positions(offset).items():
            if name in self._logs:
                log_id = offset.get(LOG_ID + name)
                self._logs[name].check_offset(position, None if log_id is None else str(log_id))

    def _positions(self, offset: Offset) -> dict[str, int]:
        """An offset as Spark kept it, checked: it comes from the checkpoint's files."""
        found = {name: place for name, place in offset.items() if isinstance(place, int)}
        known = (*found, *(name for name in offset if name.startswith((LOG_ID, _FROM))))
        others = [name for name in offset if name not in known]
        several, single = self.options.sequencers, self.options.sequencer
        if others or not (several or single in found):
            raise InvalidLogError(
                f"the checkpoint holds the offset {json.dumps(offset)}, which is none of this "
                "source; use a new checkpoint"
            )
        return found if several else {single: found[single]}
