"""The log without Spark: opens read-only, and works while others write."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from sparkwal.errors import OptionError, need
from sparkwal.format import schema
from sparkwal.format.header import SlotHeader
from sparkwal.format.keys import ROOT
from sparkwal.lifecycle.consumers import leased, release
from sparkwal.options.connection import refuse
from sparkwal.options.open import open_log
from sparkwal.options.parsing import from_keywords
from sparkwal.options.readers import CONSUMERS, RANGE, TRIGGERS, SourceOptions
from sparkwal.reading.log_range import LogRange
from sparkwal.reading.metadata import selected, with_metadata_columns
from sparkwal.reading.replaying import Replay
from sparkwal.reading.sequencers import all_logs
from sparkwal.store.base import LogStore
from sparkwal.store.parallel import run_parallel

if TYPE_CHECKING:
    import pandas as pd

    from sparkwal.lifecycle.snapshot import Current


@dataclass(frozen=True)
class HeadInfo:
    """The end of a log: `position` is the last one taken. A log that is recreated at the same path
    has another `log_id`."""

    position: int
    log_id: str
    term: int
    leader_id: str
    timestamp_ms: int
    window: int
    schema: pa.Schema


class Log:
    """A log to look at.

    >>> log = Log("s3://bucket/wal", endpoint="http://127.0.0.1:9000")
    >>> log.head().position, log.to_pandas()

    Args:
        path: s3://bucket/prefix, file:///folder or a folder.
        options: of reading, by their names in docs/options.md.

    Raises OptionError for options that are wrong.
    """

    def __init__(self, path: str, **options: object) -> None:
        self._options = from_keywords(SourceOptions, path, options)
        for_spark = (*TRIGGERS, "minPartitions", "sequencers")
        refuse(self._options, "is for spark.read and readStream", *for_spark)
        refuse(self._options, "is for spark.readStream", *CONSUMERS)
        self._log = open_log(self._options, fail_fast=True)

    def __repr__(self) -> str:
        return f"Log({self._log.url!r})"

    def _look(self, *, floor: bool = True) -> LogRange:
        found = LogRange(self._options, self._options.sequencer, self._log)
        found.look(floor=floor)
        return found

    def head(self) -> HeadInfo | None:
        """The end of the log, or None when there is none yet: 1 LIST + 1 GET, and m − 1 GETs more
        where its last writer may have m requests in flight. Raises InvalidLogError,
        StoreUnavailableError, OptionError."""
        log = self._look(floor=False)
        if log.live is None:
            return None
        header = log.live.header
        columns = schema.to_arrow(log.live.spark_schema)
        about = header.log_id, header.term, header.leader_id, header.timestamp_ms, log.window
        return HeadInfo(log.gap - 1, *about, columns)

    def _bounds(self, log: LogRange, start: int | None, end: int | None) -> tuple[int, int]:
        first = self._first(log, start)
        after = log.end() if end is None else log.until(end, "end")
        return first, log.intact_end(first, after)

    def _first(self, log: LogRange, start: int | None) -> int:
        return log.start() if start is None else log.checked(start, "start")

    def records(self, start: int | None = None, end: int | None = None) -> Iterator[SlotHeader]:
        """The headers of the live records, commits and leaders, at positions start … end
        (inclusive), in order.

        Args:
            start, end: instead of the log's options that say where to begin and to end. A start
                is at most the head's position + 1; without one it is the log's floor.

        Raises OptionError for a start beyond that, CollectedError for a position below the
        floor, and where the floor overtakes the read; InvalidLogError.
        """
        log = self._look()
        for record in log.records(*self._bounds(log, start, end)):
            yield record.header

    def scan(
        self,
        start: int | None = None,
        end: int | None = None,
        *,
        columns: Sequence[str] | None = None,
        include_metadata: bool | None = None,
    ) -> pa.RecordBatchReader:
        """The rows of positions start … end (inclusive) in the log's order, as they are needed.

        Args:
            start, end: as for `records`.
            columns: only these, in this order; `_wal_…` columns may be among them.
            include_metadata: add the `_wal_…` columns; None: as the option includeMetadata says.

        Raises OptionError when there is no log, no such column or no such start; CollectedError
        as `records`; InvalidLogError.
        """
        log = self._look()
        if log.spark_schema is None:
            raise OptionError(f"there is no log at {self._log.url}; check the path")
        if include_metadata is None:
            include_metadata = self._options.include_metadata
        more = columns is not None or include_metadata
        shown = with_metadata_columns(log.spark_schema) if more else log.spark_schema
        target = selected(schema.to_arrow(shown), columns)
        with leased(log, lambda: self._first(log, start)) as (begin, lease):
            first, after = self._bounds(log, begin, end)

        def batches() -> Iterator[pa.RecordBatch]:
            try:
                yield from log.scan(first, after, target)
            finally:
                release(log.log, lease)

        return pa.RecordBatchReader.from_batches(target, batches())

    def replay(
        self, cursor: str | None = None, *, sequencers: str | Sequence[str] | None = None
    ) -> Replay:
        """The commits from a cursor on, in the order of their times over all sequencers.

        Stops at the first invalid entry and reports it in `stopped`. Ends where the logs ended when
        it began; `cursor` is then where the next replay goes on.

        >>> replay = log.replay(kept)
        >>> for entry in replay:
        ...     apply(entry.rows)

        Args:
            cursor: `Replay.cursor` of an earlier replay; None: from the log's floor.
            sequencers: their names, or "*" for all logs under the path; None: this one.

        Raises OptionError for a damaged cursor and for a name without a log; CollectedError where
        the floor is above the cursor, or overtakes the replay; InvalidLogError for a cursor that is
        ahead of its log or of another log, and where not one record can be read.
        """
        why = "does not go with a replay, which"
        refuse(self._options, f"{why} begins at its cursor", *RANGE)
        stops = f"{why} stops at the first record that is missing or damaged"
        refuse(self._options, stops, "failOnDataLoss", "onCorruption")
        return Replay(self._named(sequencers), cursor, listed=sequencers == "*")

    def _named(self, sequencers: str | Sequence[str] | None) -> dict[str, LogStore]:
        if sequencers is None:
            return {self._options.sequencer: self._log}
        root = open_log(replace(self._options, sequencer=ROOT), fail_fast=True)
        if sequencers == "*":
            sequencers = all_logs(root)
        names = [sequencers] if isinstance(sequencers, str) else sequencers
        return {name: root.sequencer(name) for name in names}

    def current(
        self,
        *,
        sequencers: str | Sequence[str] | None = None,
        table_options: Mapping[str, str] | None = None,
    ) -> Current:
        """The log's table and the log after it as one: what it holds now, each row once.

        Pins a version of the table and the log's end; needs `sparkwal[lake]` where there is a
        table. Of a MERGE table the last row of each key is there, and no other.

        >>> current = log.current()
        >>> current.position, current.table_version, current.to_pandas()

        Args:
            sequencers: as for `replay`; all that one table is made from.
            table_options: delta-rs' storage options, where the table is on another store.

        Raises ConfirmError (a CompactionError) where the table was restored or recreated,
        TableReadError, CollectedError, OptionError, InvalidLogError.
        """
        from sparkwal.lifecycle.snapshot import Current

        return Current(self._named(sequencers), self._options, table_options)

    def sql(
        self,
        query: str,
        *,
        sequencers: str | Sequence[str] | None = None,
        table_options: Mapping[str, str] | None = None,
    ) -> pa.RecordBatchReader:
        """The answer to one SELECT in DuckDB's SQL, as it is needed; needs `sparkwal[cli]`.

        >>> log.sql("SELECT count(*) FROM log WHERE _wal_position >= 100").read_pandas()

        Its relations are `log` (the rows that the log's options say, with all `_wal_…` columns),
        `current` (as `current()`), `records` (one row for each) and `consumers`; docs/sql.md has
        their columns. Only what the query needs is read: no objects of rows where it names none of
        their columns, and no records outside of its ranges of `_wal_position` and `_wal_timestamp`.
        It reaches nothing else: no file, no network, no variable.

        Args:
            sequencers: as for `replay`; the relations then hold all of them.
            table_options: as for `current`.

        Raises OptionError for a query that is wrong, and where there is no log; while it is read
        InvalidLogError, CollectedError, StoreUnavailableError.
        """
        need("duckdb", "sparkwal[cli]")
        from sparkwal.lifecycle.consumers import consumer_infos
        from sparkwal.sql.database import answer
        from sparkwal.sql.relations import relations

        logs = self._named(sequencers)
        ranges = [LogRange(self._options, name, log) for name, log in logs.items()]
        list(run_parallel(self._log.store, LogRange.look, ranges))
        ranges = [each for each in ranges if each.log_id is not None]
        if not ranges:
            raise OptionError(f"there is no log at {self._log.url}; check the path")
        now = partial(self.current, sequencers=sequencers, table_options=table_options)
        return answer(relations(ranges, consumer_infos, now), query)

    def to_pandas(self, start: int | None = None, end: int | None = None) -> pd.DataFrame:
        """The rows of `scan` as one pandas frame.

        A column of integers with nulls holds Python's integers: floats are exact up to 2^53 only.
        """
        need("pandas", "pandas>=2.2,<3")
        return self.scan(start, end).read_all().to_pandas(integer_object_nulls=True)
