"""Reads table and log as one DataFrame, at one position."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import reduce
from typing import Any, Literal, overload

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructField, StructType

from sparkwal.errors import OptionError
from sparkwal.format import schema
from sparkwal.format.lifecycle_record import MERGE, Target
from sparkwal.lifecycle.current import (
    CurrentPlan,
    Tail,
    check_complete,
    plan_current,
    refuse_parts,
    schema_of,
    with_table,
)
from sparkwal.lifecycle.delta_log import DeltaLog
from sparkwal.lifecycle.keyed import resolve
from sparkwal.options.open import open_log
from sparkwal.options.parsing import from_keywords
from sparkwal.options.reading import SourceOptions
from sparkwal.protocol.replay import about_bytes
from sparkwal.reading.log_range import LogRange
from sparkwal.reading.metadata import check_reserved
from sparkwal.reading.sequencers import all_logs
from sparkwal.spark.conditions import quoted
from sparkwal.spark.datasource import PINNED
from sparkwal.spark.delta import DELETES, as_stored, last_of_each, own_session
from sparkwal.spark.delta_files import delta_log, spark_path
from sparkwal.spark.interfaces import to_struct
from sparkwal.spark.registering import register_once
from sparkwal.store.path import absolute

# Keys of a log's part up to this size, as stored, go to every task: the table is not shuffled.
BROADCAST_BYTES = 32 * 2**20
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
    pinned: list[DeltaLog] = []

    def open_table(target: Target) -> DeltaLog:
        if getattr(spark, "_jsparkSession", None) is None:
            raise OptionError(
                "a session of Spark Connect cannot see what a Delta table holds: use a session of "
                "Spark's own, or sparkwal.Log(path).current()"
            )
        pinned.append(delta_log(spark, target.table))
        pinned[-1].update()
        return pinned[-1]

    plan = plan_current([*logs.values()], open_table)
    given = {n: value for n, value in options.items() if n.lower() not in ("sequencers", "path")}
    reading = {**given, "path": settings.path}
    in_logs = to_struct(plan.spark_schema)
    # Its settings are those of a compaction, so the same rows win and delete.
    session = own_session(spark) if plan.target else spark
    parts = (_tail(session, reading, tail) for tail in plan.tails if tail.end > tail.start)
    tails = [_with_columns(part, in_logs) for part in parts]
    if plan.target is not None:
        _check_condition(plan.target, delete_when)
        rows = _with_table(
            spark, plan, pinned[-1], tails, logs, has_condition=delete_when is not None
        )
    else:
        rows = reduce(DataFrame.union, tails or [spark.createDataFrame([], in_logs)])
    return (rows, plan) if include_position else rows


def _tail(session: SparkSession, options: Mapping[str, Any], tail: Tail) -> DataFrame:
    # Always these columns: the log may have gained others since.
    columns = StructType.fromJson(json.loads(tail.spark_schema))
    reader = session.read.format("weaselwal").options(**options).schema(columns)
    reader = reader.option("sequencer", tail.name).option(PINNED, json.dumps(vars(tail.pinned)))
    return reader.options(startingPosition=tail.start, endingPosition=tail.end - 1).load()


def _check_condition(target: Target, own: str | None) -> None:
    """Raises OptionError for a condition of the caller that is not the log's."""
    if own is not None and own != target.delete_when:
        raise OptionError(
            f"delete_when is {own!r}, and the compaction of this log has {target.delete_when!r}: "
            "give the same, or none"
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
    target, partitioned = plan.target, delta.partitioned
    # By the files, and before Spark: a DataFrame loads the classes that a user-defined type names.
    check_complete(plan, delta)
    in_table = schema_of(delta)
    reader = spark.read.format("delta").option("versionAsOf", plan.table_version)
    table = reader.load(spark_path(target.table))
    whole = StructType.fromJson(json.loads(with_table(plan.spark_schema, in_table)))
    if not tails:
        return _with_columns(table, whole)
    types = schema.columns(in_table)
    tails = [as_stored(tail, types, partitioned) for tail in tails]
    # The table comes first: the rows are of its session, the user's.
    if target.mode != MERGE:
        return reduce(DataFrame.union, (_with_columns(part, whole) for part in (table, *tails)))
    tail = reduce(DataFrame.union, tails)
    check_reserved(table.columns)
    keys = resolve(target.keys, [*tail.columns])
    by = resolve([target.sequence_by], [*tail.columns])[0] if target.sequence_by else ""
    target = replace(target, keys=tuple(keys), sequence_by=by)
    last = last_of_each(tail, target, is_own=has_condition)
    deletes = F.col(DELETES) if target.delete_when else F.lit(False)
    known = {name.lower() for name in tail.columns}
    only_table = any(name.lower() not in known for name in table.columns)
    parts = ((logs[each.name], each) for each in plan.tails)
    sizes = (about_bytes(x.log, x.window, t.start, t.end, _SAMPLES) for x, t in parts)
    if by or only_table or sum(sizes) > BROADCAST_BYTES:
        return _replaced(table, last.withColumn(DELETES, deletes), keys, by, whole)
    # The table's rows stay where they are. Whichever row of a key wins, the table's is gone.
    key = [quoted(each) for each in keys]
    keyed = F.broadcast(tail.select(*key).distinct()).alias("s")
    stays = table.alias("t").join(keyed, _same(keys), "left_anti")
    gone = table.select(*key).alias("t").join(keyed, _same(keys), "left_semi").alias("t")
    # Each row as often as its key is in the table, and once where it is not: as a MERGE does.
    won = gone.join(last.where(~deletes).alias("s"), _same(keys), "right").select("s.*")
    return _with_columns(stays, whole).union(_with_columns(won, whole))


def _replaced(
    table: DataFrame, last: DataFrame, keys: Sequence[str], by: str, whole: StructType
) -> DataFrame:
    """As MERGE does it: each row of both is looked at once, and the table is shuffled."""
    both = _with_columns(table, whole).alias("t").join(last.alias("s"), _same(keys), "full_outer")
    deletes = F.col(f"s.{DELETES}")  # null where the log has no row of this key
    taken = deletes.isNotNull()
    if by:
        old, new = F.col(f"t.{quoted(by)}"), F.col(f"s.{quoted(by)}")
        taken &= old.isNull() | F.coalesce(new >= old, F.lit(False))
    both = both.where(~taken | ~deletes)
    in_log = {name.lower() for name in last.columns}
    columns = []
    for name in whole.names:
        old, new = F.col(f"t.{quoted(name)}"), F.col(f"s.{quoted(name)}")
        value = F.when(taken, new).otherwise(old) if name.lower() in in_log else old
        columns.append(value.alias(name))
    return both.select(*columns)


def _same(keys: Sequence[str]) -> Column:
    """Null-safe: a key may be null."""
    pairs = [F.col(f"t.{quoted(key)}").eqNullSafe(F.col(f"s.{quoted(key)}")) for key in keys]
    return reduce(Column.__and__, pairs)


def _with_columns(rows: DataFrame, whole: StructType) -> DataFrame:
    """The rows with all of these columns, null where they have none."""
    there = {name.lower() for name in rows.columns}

    def column(field: StructField) -> Column:
        is_there = field.name.lower() in there
        return F.col(quoted(field.name)) if is_there else F.lit(None).cast(field.dataType)

    return rows.select(*(column(field).alias(field.name) for field in whole.fields))
