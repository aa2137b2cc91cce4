"""Reads the table and the newer rows of the log as one DataFrame."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import reduce
from operator import attrgetter
from typing import Any, Literal, overload

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructField, StructType

from sparkwal.errors import OptionError
from sparkwal.format import schema
from sparkwal.format.lifecycle_record import MERGE, NO_TABLE_VERSION, Target
from sparkwal.format.schema import quoted
from sparkwal.lifecycle.current import (
    CurrentPlan,
    Tail,
    check_complete,
    partial_columns,
    plan_current,
    refuse_parts,
    schema_of,
    with_table,
)
from sparkwal.lifecycle.delta_log import DeltaLog
from sparkwal.lifecycle.keyed import resolve
from sparkwal.lifecycle.table import check_scheme
from sparkwal.options.open import open_log
from sparkwal.options.parsing import from_keywords
from sparkwal.options.reading import SourceOptions
from sparkwal.protocol.records import about_bytes
from sparkwal.reading.log_range import LogRange
from sparkwal.reading.metadata import COLUMNS, COMMIT_TIME, check_reserved, with_hidden
from sparkwal.reading.sequencers import all_logs
from sparkwal.spark.datasource import PINNED
from sparkwal.spark.delta import as_stored
from sparkwal.spark.delta_files import delta_log, spark_path
from sparkwal.spark.delta_writing import isolated_session
from sparkwal.spark.interfaces import to_struct
from sparkwal.spark.keyed_rows import merged_partial_rows, same_keys, winning_rows
from sparkwal.spark.registering import register_once
from sparkwal.spark.row_checks import kept_or_new
from sparkwal.spark.tombstones import DELETES, without_late
from sparkwal.store.path import absolute

# If the log's part is smaller, as stored, broadcast its keys, so that the table is not shuffled.
BROADCAST_BYTES = 32 * 2**20
# The number of records that are read to estimate the size of the log's part.
_SAMPLES = 16


@overload
def read_current(
    spark: SparkSession,
    path: str,
    *,
    delete_when: str | None = ...,
    include_position: Literal[False] = ...,
    **options: object,
) -> DataFrame: ...


@overload
def read_current(
    spark: SparkSession,
    path: str,
    *,
    delete_when: str | None = ...,
    include_position: Literal[True],
    **options: object,
) -> tuple[DataFrame, CurrentPlan]: ...


def read_current(
    spark: SparkSession,
    path: str,
    *,
    delete_when: str | None = None,
    include_position: bool = False,
    **options: object,
) -> DataFrame | tuple[DataFrame, CurrentPlan]:
    """Read the log's table and the newer rows of the log as one DataFrame, each row once.

    The DataFrame keeps one version of the table and one end of the log, so each action on it, and
    each query of a view of it, gives the same rows. With a MERGE table it holds the last row of
    each key. An action on rows that were collected since raises CollectedError.

    Examples:
        >>> sparkwal.read_current(spark, "s3://bucket/wal").createOrReplaceTempView("orders")

    Args:
        spark: a session, not of Spark Connect. If the log has a table, it needs Delta Lake.
        path: s3://bucket/prefix, file:///folder or a folder.
        delete_when: the condition of the log's compaction, if it is more than a reader takes from
            a log (docs/lifecycle.md): Spark evaluates it.
        include_position: return the plan too.
        **options: the options of reading (docs/options.md) as keywords; sequencers="*" for all
            logs that compaction writes into one table.

    Returns:
        The DataFrame. With `include_position` also its plan, whose `positions` and
            `table_version` are what the DataFrame keeps.

    Raises:
        ConfirmError: the table was restored or recreated.
        TableReadError: the table is unreadable.
        OptionError: there is no log, the session cannot read its table, or an option is wrong.
        InvalidLogError: a record is damaged or missing.
        StoreUnavailableError: the store did not answer.
    """
    settings = from_keywords(SourceOptions, path, options)
    refuse_parts(settings)
    settings = replace(settings, path=absolute(settings.path))
    register_once(spark)
    root = open_log(settings, fail_fast=True)
    names = all_logs(root) if settings.sequencers else [settings.sequencer]
    logs = {name: LogRange(settings, name, root) for name in names}
    opened: dict[str, DeltaLog] = {}

    def open_table(target: Target) -> DeltaLog:
        if getattr(spark, "_jsparkSession", None) is None:
            raise OptionError(
                "a session of Spark Connect has no access to a table's transaction log: use a "
                "classic session, or sparkwal.Log(path).current()"
            )
        check_scheme(target.table)
        table = delta_log(spark, target.table)
        table.update()
        opened[target.table] = table
        return table

    plan = plan_current([*logs.values()], open_table)
    read_options = {
        name: value for name, value in options.items() if name.lower() not in ("sequencers", "path")
    }
    read_options["path"] = settings.path
    in_logs = to_struct(plan.spark_schema)
    # With the settings of a compaction, the same rows win and delete as there.
    session = isolated_session(spark) if plan.target else spark
    newer = sorted((part for part in plan.tails if part.end > part.start), key=attrgetter("name"))
    hidden: list[str] = []
    if plan.target is not None and plan.target.mode == MERGE:
        hidden = [*([COMMIT_TIME] if len(newer) > 1 else []), COLUMNS]
    in_logs = to_struct(with_hidden(plan.spark_schema, *hidden))
    parts = (_tail(session, read_options, tail, hidden) for tail in newer)
    tails = [_with_columns(part, in_logs) for part in parts]
    if plan.target is not None:
        _check_condition(plan.target, delete_when)
        table = opened[plan.target.table]
        rows = _with_table(spark, plan, table, tails, logs, has_condition=delete_when is not None)
    else:
        rows = reduce(DataFrame.union, tails or [spark.createDataFrame([], in_logs)])
    return (rows, plan) if include_position else rows


def _tail(
    session: SparkSession, options: Mapping[str, Any], tail: Tail, hidden: Sequence[str]
) -> DataFrame:
    # The columns of the plan: a writer may have added others since.
    text = with_hidden(tail.spark_schema, *hidden)
    columns = StructType.fromJson(json.loads(text))
    reader = session.read.format("weaselwal").options(**options).schema(columns)
    reader = reader.option("sequencer", tail.name).option(PINNED, json.dumps(vars(tail.pinned)))
    return reader.options(startingPosition=tail.start, endingPosition=tail.end - 1).load()


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
    delta: DeltaLog,
    tails: Sequence[DataFrame],
    logs: Mapping[str, LogRange],
    *,
    has_condition: bool,
) -> DataFrame:
    assert plan.target is not None
    target = plan.target
    check_complete(plan, delta)
    # Read the schema from the transaction log before Spark opens the table, and so refuse
    # user-defined types: a DataFrame would load the classes that they name.
    in_table = schema_of(delta)
    reader = spark.read.format("delta").option("versionAsOf", plan.table_version)
    table = reader.load(spark_path(target.table))
    all_columns = StructType.fromJson(json.loads(with_table(plan.spark_schema, in_table)))
    if not tails:
        return _with_columns(table, all_columns)
    types = schema.columns(in_table)
    tails = [as_stored(tail, types, delta.partitioned) for tail in tails]
    # The table comes first: the result of a union belongs to its session, which is the user's.
    if target.mode != MERGE:
        parts = (_with_columns(part, all_columns) for part in (table, *tails))
        return reduce(DataFrame.union, parts)
    timed = reduce(DataFrame.union, tails)
    # Of several logs the newest commit comes last, as in a compaction.
    time = COMMIT_TIME if COMMIT_TIME in timed.columns else ""
    tail = timed.drop(COMMIT_TIME, COLUMNS)
    check_reserved(table.columns)
    keys = resolve(target.keys, [*tail.columns])
    by = resolve([target.sequence_by], [*tail.columns])[0] if target.sequence_by else ""
    target = replace(target, keys=tuple(keys), sequence_by=by)
    partial = partial_columns(plan, logs, types)
    if partial:
        last = merged_partial_rows(
            timed,
            target,
            table,
            partial,
            tombstones_version=plan.tombstones_version,
            is_own=has_condition,
            time=time,
        )
    else:
        last = winning_rows(timed, target, is_own=has_condition, time=time)
        if plan.tombstones_version != NO_TABLE_VERSION:
            last = without_late(last, last.sparkSession, target, plan.tombstones_version)
    deletes = F.col(DELETES) if target.delete_when else F.lit(False)
    log_parts = ((logs[part.name], part) for part in plan.tails)
    sizes = (
        about_bytes(log.log, log.window, part.start, part.end, _SAMPLES) for log, part in log_parts
    )
    # The broadcast below is right only if each row of the log replaces the table's row.
    if by or sum(sizes) > BROADCAST_BYTES:
        return _merged(table, last.withColumn(DELETES, deletes), keys, by, all_columns)
    key_columns = [quoted(key) for key in keys]
    log_keys = F.broadcast(tail.select(*key_columns).distinct()).alias("s")
    unchanged = table.alias("t").join(log_keys, same_keys(keys), "left_anti")
    replaced = table.alias("t").join(log_keys, same_keys(keys), "left_semi")
    replaced = _with_columns(replaced, all_columns).alias("t")
    # As in a MERGE, a new row replaces each row of its key; without such a row it appears once.
    new_rows = last.where(~deletes).alias("s")
    inserted = replaced.join(new_rows, same_keys(keys), "right")
    values = (_after(name, last, keys) for name in all_columns.names)
    return _with_columns(unchanged, all_columns).union(inserted.select(*values))


def _merged(
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
    columns = []
    for name in all_columns.names:
        value = F.when(log_wins, _after(name, last, keys)).otherwise(F.col(f"t.{quoted(name)}"))
        columns.append(value.alias(name))
    return both.select(*columns)


def _after(name: str, last: DataFrame, keys: Sequence[str]) -> Column:
    """A column's value after the row `s` of the log replaced the row `t` of the table.

    It stays as it is in the table if the record of the row lacks the column.
    """
    if name in keys:
        return F.col(f"s.{quoted(name)}").alias(name)
    if name.lower() not in {column.lower() for column in last.columns}:
        return F.col(f"t.{quoted(name)}").alias(name)
    return kept_or_new(name)


def _with_columns(rows: DataFrame, all_columns: StructType) -> DataFrame:
    """The rows with all of these columns. A missing column is null."""
    names = {name.lower() for name in rows.columns}

    def column(field: StructField) -> Column:
        if field.name.lower() in names:
            return F.col(quoted(field.name))
        return F.lit(None).cast(field.dataType)

    return rows.select(*(column(field).alias(field.name) for field in all_columns.fields))
