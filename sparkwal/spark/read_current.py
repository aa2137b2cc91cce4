"""Reads the table and the newer rows of the log as one DataFrame."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias, Unpack, overload

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructField, StructType

from sparkwal.errors import OptionError
from sparkwal.format import schema
from sparkwal.format.lifecycle_record import MERGE, NO_TABLE_VERSION, OpenRange, Target
from sparkwal.format.schema import quoted
from sparkwal.lifecycle.consumers.leases import leased
from sparkwal.lifecycle.current import (
    CurrentPlan,
    OnLogError,
    check_complete,
    plan_current,
    refuse_parts,
    with_table,
)
from sparkwal.lifecycle.merging.keyed import resolve
from sparkwal.lifecycle.merging.merged_rows import partial_columns
from sparkwal.lifecycle.opening import check_place, needs_spark, open_table
from sparkwal.options.keywords import SourceKeywords
from sparkwal.options.open import open_log
from sparkwal.options.parsing import from_keywords
from sparkwal.options.reading import SourceOptions
from sparkwal.options.types import ALL
from sparkwal.reading.log_range import LogRange
from sparkwal.reading.metadata import COLUMNS, COMMIT_TIME, check_reserved, with_hidden
from sparkwal.reading.planning import PlannedRead, plan_ranges
from sparkwal.reading.sequencers import logs_of
from sparkwal.spark.datasource import PLANNED
from sparkwal.spark.delta_reader import SparkDeltaReader
from sparkwal.spark.delta_writing import isolated_session
from sparkwal.spark.interfaces import to_struct
from sparkwal.spark.keyed_rows import (
    DELETES,
    InTable,
    after_merge,
    merged_partial_rows,
    same_keys,
    winning_rows,
    without_late,
)
from sparkwal.spark.registering import register_once
from sparkwal.spark.source import packed
from sparkwal.spark.table_files import SparkTableFiles
from sparkwal.store.path import absolute

SparkTable: TypeAlias = SparkDeltaReader | SparkTableFiles
# If the log's part is smaller, as stored, broadcast its keys, so that the table is not shuffled.
BROADCAST_BYTES = 32 * 2**20


@overload
def read_current(
    spark: SparkSession,
    path: str,
    *,
    delete_when: str | None = ...,
    on_log_error: OnLogError = ...,
    include_position: Literal[False] = ...,
    **options: Unpack[SourceKeywords],
) -> DataFrame: ...


@overload
def read_current(
    spark: SparkSession,
    path: str,
    *,
    delete_when: str | None = ...,
    on_log_error: OnLogError = ...,
    include_position: Literal[True],
    **options: Unpack[SourceKeywords],
) -> tuple[DataFrame, CurrentPlan]: ...


def read_current(
    spark: SparkSession,
    path: str,
    *,
    delete_when: str | None = None,
    on_log_error: OnLogError = "fail",
    include_position: bool = False,
    **options: Unpack[SourceKeywords],
) -> DataFrame | tuple[DataFrame, CurrentPlan]:
    """Read the log's table and the newer rows of the log as one DataFrame, each row once.

    The DataFrame keeps one version of the table and one end of the log, so each action on it, and
    each query of a view of it, gives the same rows. With a MERGE table it holds the last row of
    each key. An action on rows that were collected since raises CollectedError.

    Examples:
        >>> sparkwal.read_current(spark, "s3://bucket/wal").createOrReplaceTempView("orders")

    Args:
        spark: a session, not of Spark Connect. If the log has a Delta table, it needs Delta
            Lake.
        path: s3://bucket/prefix, file:///folder or a folder.
        delete_when: the condition of the log's compaction, if it is more than a reader takes from
            a log (docs/lifecycle.md): Spark evaluates it.
        on_log_error: as for `Log.current`. `left_out` of the plan has the errors. "leave out" reads
            the newer rows of all logs once more, on the driver.
        include_position: return the plan too.
        **options: the options of reading (docs/options.md) as keywords; sequencers="*" for all
            logs that compaction writes into one table, or sequencers="a,b" for some.

    Returns:
        The DataFrame. With `include_position` also its plan, whose `positions` and
            `table_version` are what the DataFrame keeps.

    Raises:
        ConfirmError: the table was restored or recreated.
        TableReadError: the table is unreadable.
        OptionError: there is no log, the session cannot read its table, or an option is wrong.
        InvalidLogError: a record is damaged or missing.
        PlanError: a log was recreated, or is a copy of another.
        StoreUnavailableError: the store did not answer.
    """
    settings = from_keywords(SourceOptions, path, options)
    refuse_parts(settings)
    settings = replace(settings, path=absolute(settings.path))
    register_once(spark)
    root = open_log(settings, fail_fast=True)
    logs = {name: LogRange(settings, name, root) for name in logs_of(root, settings)}
    of_log = {**options, "path": settings.path}
    opened: dict[str, SparkTable] = {}

    def opening(target: Target) -> SparkTable:
        opened[target.table] = _open(spark, target, settings, of_log)
        return opened[target.table]

    is_listed = settings.sequencers == ALL
    plan = plan_current([*logs.values()], opening, listed=is_listed, on_log_error=on_log_error)
    if plan.target is not None:
        _check_condition(plan.target, delete_when)
    # With the settings of a compaction, the same rows win and delete as there.
    session = isolated_session(spark) if plan.target else spark
    newer = _planned(session, plan, logs, of_log)
    if plan.target is not None:
        rows = _with_table(spark, plan, opened, newer, has_condition=delete_when is not None)
    elif newer is not None:
        rows = newer.rows
    else:
        rows = spark.createDataFrame([], to_struct(plan.spark_schema))
    return (rows, plan) if include_position else rows


def _open(
    spark: SparkSession, target: Target, settings: SourceOptions, of_log: Mapping[str, Any]
) -> SparkTable:
    """Open a table, with the rights of this process, and the options with which Spark reads."""
    if needs_spark(target):
        check_place(target.table, settings)
        return SparkDeltaReader(spark, target.table)
    return SparkTableFiles(spark, target.table, open_table(target, settings), of_log)


@dataclass(frozen=True)
class _Newer:
    """The newer rows of all logs.

    Attributes:
        rows: the rows in the order of logs and positions. For a MERGE table they have COLUMNS.
        time: the name of their column with the commit times; "" without one.
        read: the plan of their read.
    """

    rows: DataFrame
    time: str
    read: PlannedRead


def _planned(
    session: SparkSession,
    plan: CurrentPlan,
    logs: Mapping[str, LogRange],
    options: Mapping[str, Any],
) -> _Newer | None:
    """Plan one read of all logs: Spark would plan each by itself. None without newer rows."""
    if not plan.newer:
        return None
    hidden: list[str] = []
    if plan.target is not None and plan.target.mode == MERGE:
        hidden = [*([COMMIT_TIME] if len(plan.newer) > 1 else []), COLUMNS]
    starts = {tail.name: tail.start for tail in plan.newer}
    own = [logs[name] for name in starts]
    ranges = [
        OpenRange(log.log.name, log.log_id or "", tail.start, tail.end)
        for log, tail in zip(own, plan.newer, strict=True)
    ]
    is_classic = getattr(session, "_jsparkSession", None) is not None
    # The lease ends by itself: a DataFrame may be read again and again.
    with leased(own, lambda log: starts[log.name]):
        read = plan_ranges(
            own[0].log.root,
            ranges,
            parallelism=session.sparkContext.defaultParallelism if is_classic else None,
            looked={log.log.name: tail.pinned for log, tail in zip(own, plan.newer, strict=True)},
        )
    # The columns of the plan: a writer may have added others since.
    columns = to_struct(with_hidden(plan.spark_schema, *hidden))
    reader = session.read.format("weaselwal").options(**options).schema(columns)
    rows = reader.option(PLANNED, packed(read.tasks)).load()
    return _Newer(rows, COMMIT_TIME if COMMIT_TIME in hidden else "", read)


def _check_condition(target: Target, delete_when: str | None) -> None:
    """Check the condition of the caller.

    Raises:
        OptionError: it differs from that of the log's compaction.
    """
    if delete_when is not None and delete_when != target.delete_when:
        raise OptionError(
            f"delete_when is {delete_when!r}, and the compaction of this log has "
            f"{target.delete_when!r}: give the same, or none"
        )


def _with_table(
    spark: SparkSession,
    plan: CurrentPlan,
    opened: Mapping[str, SparkTable],
    newer: _Newer | None,
    *,
    has_condition: bool,
) -> DataFrame:
    assert plan.target is not None
    target = plan.target
    reader = opened[target.table]
    check_complete(plan, reader.computed)
    # Read the schema before Spark opens the table, and so refuse user-defined types: a DataFrame
    # would load the classes that they name.
    in_table = reader.spark_schema
    table = reader.rows_at(spark, plan.table_version)
    all_columns = StructType.fromJson(json.loads(with_table(plan.spark_schema, in_table)))
    if newer is None:
        return _with_columns(table, all_columns)
    rows = reader.as_stored(newer.rows)
    # The table comes first: the result of a union belongs to its session, which is the user's.
    if target.mode != MERGE:
        return _with_columns(table, all_columns).union(_with_columns(rows, all_columns))
    check_reserved(table.columns)
    keys = resolve(target.keys, rows.columns)
    by = resolve([target.sequence_by], rows.columns)[0] if target.sequence_by else ""
    target = replace(target, keys=tuple(keys), sequence_by=by)
    of_table = schema.columns(in_table)
    partial = partial_columns(target, newer.read.common, plan.spark_schema, of_table)
    tombstones: DataFrame | None = None
    if plan.tombstones_version != NO_TABLE_VERSION:
        of_keys = opened[target.tombstones]
        tombstones = of_keys.rows_at(rows.sparkSession, plan.tombstones_version)
    if partial:
        last = merged_partial_rows(
            rows,
            target,
            InTable(table, tombstones),
            partial,
            is_own=has_condition,
            time=newer.time,
        )
    else:
        last = winning_rows(rows, target, is_own=has_condition, time=newer.time)
        if tombstones is not None:
            last = without_late(last, tombstones, target)
    deletes = F.col(DELETES) if target.delete_when else F.lit(False)
    # The broadcast below is right only if each row of the log replaces the table's row.
    if by or newer.read.bytes > BROADCAST_BYTES:
        return joined(table, last.withColumn(DELETES, deletes), keys, by, all_columns)
    key_columns = [quoted(key) for key in keys]
    log_keys = F.broadcast(rows.select(*key_columns).distinct()).alias("s")
    unchanged = table.alias("t").join(log_keys, same_keys(keys), "left_anti")
    replaced = table.alias("t").join(log_keys, same_keys(keys), "left_semi")
    replaced = _with_columns(replaced, all_columns).alias("t")
    # As in a MERGE, a new row replaces each row of its key; without such a row it appears once.
    new_rows = last.where(~deletes).alias("s")
    inserted = replaced.join(new_rows, same_keys(keys), "right")
    after = after_merge(all_columns.names, keys, last.columns, all_columns.names)
    values = (value.alias(name) for name, value in after.items())
    return _with_columns(unchanged, all_columns).union(inserted.select(*values))


def joined(
    table: DataFrame, last: DataFrame, keys: Sequence[str], by: str, all_columns: StructType
) -> DataFrame:
    """The result of a MERGE, by a full outer join, which shuffles the table."""
    table_rows = _with_columns(table, all_columns).alias("t")
    both = table_rows.join(last.alias("s"), same_keys(keys), "full_outer")
    deletes = F.col(f"s.{DELETES}")  # null if the log has no row of this key
    log_wins = deletes.isNotNull()
    if by:
        old, new = F.col(f"t.{quoted(by)}"), F.col(f"s.{quoted(by)}")
        log_wins &= old.isNull() | F.coalesce(new >= old, F.lit(False))
    both = both.where(~log_wins | ~deletes)
    after = after_merge(all_columns.names, keys, last.columns, all_columns.names)
    return both.select(
        *(
            F.when(log_wins, value).otherwise(F.col(f"t.{quoted(name)}")).alias(name)
            for name, value in after.items()
        )
    )


def _with_columns(rows: DataFrame, all_columns: StructType) -> DataFrame:
    """The rows with all of these columns. A missing column is null."""
    names = {name.lower() for name in rows.columns}

    def column(field: StructField) -> Column:
        if field.name.lower() in names:
            return F.col(quoted(field.name))
        return F.lit(None).cast(field.dataType)

    return rows.select(*(column(field).alias(field.name) for field in all_columns.fields))
