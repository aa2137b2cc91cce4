"""A log without Spark: opens it read-only, also while others write."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Literal, Unpack, overload

import pyarrow as pa

from sparkwal.errors import OptionError, install_extra, require_library
from sparkwal.format import schema
from sparkwal.format.arrow_types import pandas_frame
from sparkwal.format.header import SlotHeader
from sparkwal.format.keys import ROOT
from sparkwal.lifecycle.consumers.leases import leased
from sparkwal.options.keywords import SourceKeywords
from sparkwal.options.open import open_log
from sparkwal.options.parsing import from_keywords
from sparkwal.options.reading import CONSUMERS, RANGE, TRIGGERS, SourceOptions
from sparkwal.options.store import refuse
from sparkwal.options.types import ALL, TABLE
from sparkwal.reading.log_range import LogRange
from sparkwal.reading.metadata import selected, with_metadata_columns
from sparkwal.reading.replaying import Replay
from sparkwal.reading.sequencers import all_logs, no_log_at
from sparkwal.reading.several import existing, refresh_all
from sparkwal.store.base import LogStore

if TYPE_CHECKING:
    import pandas as pd

    from sparkwal.checkpoints.queries import QueryInfo
    from sparkwal.lifecycle.current import OnLogError
    from sparkwal.lifecycle.current_rows import Current
    from sparkwal.lifecycle.table_replay import TableReplay


@dataclass(frozen=True)
class HeadInfo:
    """The end of a log.

    Attributes:
        position: the last position that holds a record.
        log_id: the id of this log. A log that is recreated at the same path has another one.
        term: the term of the leader that wrote the last live record.
        leader_id: the id of that leader, which begins with its host.
        timestamp_ms: the time of the last live record, in milliseconds since 1970.
        window: the number of object names of each position (option `windowSize`).
        schema: the columns of the log.
    """

    position: int
    log_id: str
    term: int
    leader_id: str
    timestamp_ms: int
    window: int
    schema: pa.Schema


class Log:
    """Reads a log without Spark, also while others write it.

    Examples:
        >>> log = Log("s3://bucket/wal", endpoint="http://127.0.0.1:9000")
        >>> log.head().position, log.to_pandas()

    Args:
        path: s3://bucket/prefix, file:///folder or a folder.
        **options: the options of reading (docs/options.md) as keywords.

    Raises:
        OptionError: an option or the path is wrong.
    """

    def __init__(self, path: str, **options: Unpack[SourceKeywords]) -> None:
        self._options = from_keywords(SourceOptions, path, options)
        for_spark = (*TRIGGERS, "minPartitions", "sequencers")
        refuse(self._options, "is for spark.read and readStream", *for_spark)
        refuse(self._options, "is for spark.readStream", *CONSUMERS)
        self._log = open_log(self._options, fail_fast=True)

    def __repr__(self) -> str:
        # A debugger shows one whose constructor has failed, too.
        log: LogStore | None = getattr(self, "_log", None)
        return f"Log({log.url!r})" if log else "Log(never opened)"

    def _refreshed(self, *, floor: bool = True) -> LogRange:
        log = LogRange(self._options, self._options.sequencer, self._log)
        log.refresh(floor=floor)
        return log

    def head(self) -> HeadInfo | None:
        """Find the end of the log.

        It costs 1 LIST and 1 GET, and m − 1 GETs more if the last writer may have m requests in
        flight.

        Returns:
            The end of the log, or None if there is no log.

        Raises:
            InvalidLogError: one of the last records is damaged or missing.
            StoreUnavailableError: the store did not answer.
            OptionError: the store refused the request, or the bucket does not exist.
        """
        log = self._refreshed(floor=False)
        if log.live is None:
            return None
        header = log.live.header
        columns = schema.to_arrow(log.live.spark_schema)
        return HeadInfo(
            position=log.gap - 1,
            log_id=header.log_id,
            term=header.term,
            leader_id=header.leader_id,
            timestamp_ms=header.timestamp_ms,
            window=log.window,
            schema=columns,
        )

    def _bounds(self, log: LogRange, start: int | None, end: int | None) -> tuple[int, int]:
        first = self._first(log, start)
        after = log.end() if end is None else log.until(end, "end")
        return first, log.intact_end(first, after)

    def _first(self, log: LogRange, start: int | None) -> int:
        return log.start() if start is None else log.checked(start, "start")

    def queries(self, at: int | str | datetime | None = None) -> list[QueryInfo]:
        """Read the streaming queries of the log: how far each is, and where its sources stand.

        It costs 2 LIST and 2 GETs, and for each query 1 GET and log₂ n GETs.

        Examples:
            >>> [(query.name, query.position, query.sources) for query in log.queries()]

        Args:
            at: a position, or a moment as for `startingTimestamp`: the queries as they were then.
                The default is the log's end.

        Returns:
            One entry for each query that has carried a checkpoint, the last writer last.

        Raises:
            OptionError: there is no log, no such position, or `at` is wrong.
            InvalidLogError: a record is damaged or missing.
            StoreUnavailableError: the store did not answer.
        """
        from sparkwal.checkpoints.fork import parse_at
        from sparkwal.checkpoints.queries import read_queries

        position, moment_ms = (None, None) if at is None else parse_at(at)
        return read_queries(self._log, position, moment_ms)

    def records(self, start: int | None = None, end: int | None = None) -> Iterator[SlotHeader]:
        """Read the headers of the live records, in the order of their positions.

        Args:
            start: the first position, at most the head's plus 1. The default is that of the log's
                options: the floor.
            end: the last position, inclusive. The default is that of the log's options: the head.

        Yields:
            The header of each commit (`kind` is "commit") and leader record ("leader").

        Raises:
            OptionError: `start` lies beyond the log's end.
            CollectedError: a position lies below the floor, or the floor passes it during the read.
            InvalidLogError: a record is damaged or missing.
            StoreUnavailableError: the store did not answer.
        """
        log = self._refreshed()
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
        """Read rows in the log's order. The reader fetches them as you consume it.

        Args:
            start: the first position, as for `records`.
            end: the last position, as for `records`.
            columns: only these columns, in this order; `_wal_…` columns may be among them.
            include_metadata: add the `_wal_…` columns. The default is the option `includeMetadata`.

        Returns:
            A reader of Arrow record batches. While you consume it, it raises the same errors.

        Raises:
            OptionError: there is no log, no such column or no such start.
            CollectedError: a position lies below the floor, or the floor passes it during the read.
            InvalidLogError: a record or an object is damaged or missing.
            StoreUnavailableError: the store did not answer.
        """
        log = self._refreshed()
        if log.spark_schema is None:
            raise OptionError(no_log_at(self._log))
        if include_metadata is None:
            include_metadata = self._options.include_metadata
        spark_schema = log.spark_schema
        if columns is not None or include_metadata:
            spark_schema = with_metadata_columns(spark_schema)
        target = selected(schema.to_arrow(spark_schema), columns)
        with leased([log], lambda log: self._first(log, start)) as ((begin,), lease):
            first, after = self._bounds(log, begin, end)

        def batches() -> Iterator[pa.RecordBatch]:
            try:
                yield from log.scan(first, after, target)
            finally:
                if lease is not None:
                    lease.release()

        return pa.RecordBatchReader.from_batches(target, batches())

    @overload
    def replay(
        self,
        cursor: str | None = ...,
        *,
        sequencers: str | Sequence[str] | None = ...,
        start: None = ...,
    ) -> Replay: ...

    @overload
    def replay(
        self,
        cursor: str | None = ...,
        *,
        sequencers: str | Sequence[str] | None = ...,
        start: Literal["table"],
        table_options: Mapping[str, str] | None = ...,
    ) -> TableReplay: ...

    def replay(
        self,
        cursor: str | None = None,
        *,
        sequencers: str | Sequence[str] | None = None,
        start: Literal["table"] | None = None,
        table_options: Mapping[str, str] | None = None,
    ) -> Replay | TableReplay:
        """Replay the commits after a cursor, in the order of their times over all sequencers.

        A replay ends where the logs ended when it began, or at the first damaged entry, which it
        reports in `stopped`. Its `cursor` is the beginning of the next replay.

        Examples:
            >>> replay = log.replay(saved_cursor)
            >>> for entry in replay:
            ...     apply(entry.rows)

        Args:
            cursor: the `cursor` of an earlier replay. The default is the log's floor. A log that
                the cursor does not name is replayed from position 0, or with the option
                `startingPosition=earliest` from its floor.
            sequencers: their names, as a list or with commas, or "*" for all logs under the path.
                The default is this log.
            start: "table": without a cursor begin with the rows of the log's table, a `TableRows`
                for each file, and continue with the log. It needs `sparkwal[lake]`. With the option
                `lease` the log keeps for that time what the table lacks.
            table_options: as for `current`.

        Returns:
            An iterator of entries, one for each commit.

        Raises:
            OptionError: the cursor is damaged, or a named log does not exist.
            CollectedError: the floor is above the cursor, or passes it during the replay, or rows
                of a log that the cursor does not name were collected.
            InvalidLogError: the cursor is ahead of its log or belongs to another log, or no record
                is readable.
            StoreUnavailableError: the store did not answer.
            ConfirmError, TableReadError: the table was restored or recreated, or is unreadable.
        """
        why = "does not go with a replay, which"
        new_at_floor = self._options.starting_position == "earliest"
        refused = [name for name in RANGE if not (new_at_floor and name == "startingPosition")]
        refuse(self._options, f"{why} begins at its cursor", *refused)
        stops = f"{why} stops at the first record that is missing or damaged"
        refuse(self._options, stops, "failOnDataLoss", "onCorruption")
        if start is not None:
            if start != TABLE:
                raise OptionError(f"start is {start!r}; None or {TABLE!r} is expected")
            from sparkwal.lifecycle.table_replay import TableReplay

            find = partial(self._named, sequencers)
            return TableReplay(find, cursor, self._options, table_options, sequencers)
        logs = self._named(sequencers)
        return Replay(logs, cursor, listed=sequencers == ALL, new_at_floor=new_at_floor)

    def _named(self, sequencers: str | Sequence[str] | None) -> dict[str, LogStore]:
        if sequencers is None:
            return {self._options.sequencer: self._log}
        root = open_log(replace(self._options, sequencer=ROOT), fail_fast=True)
        if sequencers == ALL:
            sequencers = all_logs(root)
        names = sequencers.split(",") if isinstance(sequencers, str) else sequencers
        return {name: root.sequencer(name) for name in names}

    def current(
        self,
        *,
        sequencers: str | Sequence[str] | None = None,
        table_options: Mapping[str, str] | None = None,
        on_log_error: OnLogError = "fail",
    ) -> Current:
        """Open the log's table and the newer rows of the log as one, each row once.

        The result keeps one version of the table and one end of the log. If the log has a table,
        this needs `sparkwal[lake]`. With a MERGE table it holds the last row of each key.

        Examples:
            >>> current = log.current()
            >>> current.position, current.table_version, current.to_pandas()

        Args:
            sequencers: as for `replay`: all logs that compaction writes into one table.
            table_options: the options of the table's store, if it is on another store.
            on_log_error: what to do if one of several logs is damaged, was recreated, or has other
                types than the table: "fail", or "leave out": its rows in the table are there, its
                newer rows are not, and `left_out` of the result has its error. "leave out" reads
                the newer rows of all logs once more.

        Returns:
            The rows, as pandas, polars, DuckDB and pyarrow take them.

        Raises:
            ConfirmError: the table was restored or recreated.
            TableReadError: the table is unreadable.
            CollectedError: collection removed rows that the table does not have.
            OptionError: there is no log, the logs have different tables, or deltalake is not
                installed.
            InvalidLogError: a record is damaged or missing.
            PlanError: a log was recreated, or is a copy of another.
            StoreUnavailableError: the store did not answer.
        """
        from sparkwal.lifecycle.current_rows import Current

        return Current(
            self._named(sequencers),
            self._options,
            table_options,
            listed=sequencers == ALL,
            on_log_error=on_log_error,
        )

    def sql(
        self,
        query: str,
        *,
        sequencers: str | Sequence[str] | None = None,
        table_options: Mapping[str, str] | None = None,
    ) -> pa.RecordBatchReader:
        """Answer one SELECT in DuckDB's SQL. It needs `sparkwal[cli]`.

        The relations are `log` (the rows, with all `_wal_…` columns), `records` (one row for each
        record), `consumers` and `current`, the same as `current()`. docs/sql.md lists their
        columns. The query reads only what it needs: no rows if it names no column of theirs, and
        no records outside of its ranges of `_wal_position` and `_wal_timestamp`. It has no access
        to files, the network or variables.

        Examples:
            >>> log.sql("SELECT count(*) FROM log WHERE _wal_position >= 100").read_pandas()

        Args:
            query: one SELECT.
            sequencers: as for `replay`; the relations then hold all of these logs.
            table_options: as for `current`.

        Returns:
            A reader of Arrow record batches. While you consume it, it raises the same errors.

        Raises:
            OptionError: the query is wrong, there is no log, or DuckDB is not installed.
            InvalidLogError: a record or an object is damaged or missing.
            CollectedError: the floor passes a position during the read.
            StoreUnavailableError: the store did not answer.
        """
        require_library("duckdb", install_extra("cli"))
        from sparkwal.lifecycle.consumers.consumer_list import consumer_infos
        from sparkwal.sql.database import run_query
        from sparkwal.sql.relations import relations

        logs = self._named(sequencers)
        ranges = [LogRange(self._options, name, log) for name, log in logs.items()]
        refresh_all(ranges)
        ranges = existing(self._log, ranges, listed=sequencers == ALL)
        current = partial(self.current, sequencers=sequencers, table_options=table_options)
        return run_query(relations(ranges, consumer_infos, current), query)

    def to_pandas(
        self,
        start: int | None = None,
        end: int | None = None,
        *,
        columns: Sequence[str] | None = None,
    ) -> pd.DataFrame:
        """Read the rows of `scan` into one pandas frame.

        A column of integers with nulls holds Python's integers: floats are exact up to 2^53 only.
        A column of dates with one beyond the year 9999 is datetime64[s]: Python's dates end there.

        Args:
            start: the first position, as for `records`.
            end: the last position, as for `records`.
            columns: only these columns, as for `scan`.

        Returns:
            A frame with the log's columns.

        Raises:
            OptionError: there is no log, no such start or column, pandas cannot hold a value (the
                message names column and row; leave it out with `columns`), or pandas is not
                installed.
            CollectedError: a position lies below the floor, or the floor passes it during the read.
            InvalidLogError: a record or an object is damaged or missing.
            StoreUnavailableError: the store did not answer.
        """
        require_library("pandas", "pip install 'pandas>=2.2,<3'")
        return pandas_frame(self.scan(start, end, columns=columns).read_all())
