"""Merges the rows of a range by keys, before they are written or read beside the table."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import reduce

from pyspark.sql import Column, DataFrame, Window, WindowSpec
from pyspark.sql import functions as F
from pyspark.sql.types import DateType, StructType, TimestampNTZType, TimestampType

from sparkwal.format.lifecycle_record import Target
from sparkwal.format.schema import quoted
from sparkwal.lifecycle.table import SEQUENCE
from sparkwal.reading.metadata import COLUMNS, check_reserved, name_text
from sparkwal.reading.planning import folded_names
from sparkwal.spark.conditions import deletes

# Temporary columns, which neither the log nor the table has.
# Whether a row of the winners deletes its key.
DELETES = "_wal_deletes"
_ORDER = "_wal_order"
_ROW = "_wal_winner"
_SEQUENCE = "_wal_sequence"
_DELETED = "_wal_deleted"


@dataclass(frozen=True)
class Winners:
    """The rows that win in a range, and what one pass over them shows.

    Attributes:
        rows: one row for each key, as of `winning_rows`.
        null_keys: the key columns that have a null.
        has_deletes: a row with a sequence deletes its key.
        is_timed: sequences are dates or timestamps.
        newest_us: the newest of these, in microseconds since 1970; None if there is none.
    """

    rows: DataFrame
    null_keys: frozenset[str]
    has_deletes: bool
    is_timed: bool
    newest_us: int | None


def passed_once(rows: DataFrame, target: Target) -> Winners:
    """Go once over the rows that win.

    Args:
        rows: one row for each key, as of `winning_rows`.
        target: names the keys, the column that decides which row wins, and the condition.
    """
    by = F.col(quoted(target.sequence_by)) if target.sequence_by else F.lit(None)
    kind = rows.select(by).schema[0].dataType
    is_timed = isinstance(kind, DateType | TimestampType | TimestampNTZType)
    is_deleted = F.col(DELETES) & by.isNotNull() if target.delete_when else F.lit(False)
    newest = F.unix_micros(by.cast("timestamp")) if is_timed else F.lit(None)
    nulls = [F.col(quoted(key)).isNull() for key in target.keys]
    summary = rows.agg(*map(F.max, (is_deleted, newest, *nulls))).first()
    assert summary is not None
    has_deletes, newest_us, *has_null = summary
    null_keys = (key for key, is_null in zip(target.keys, has_null, strict=True) if is_null)
    return Winners(rows, frozenset(null_keys), bool(has_deletes), is_timed, newest_us)


def without_late(
    winners: DataFrame, tombstones: DataFrame, target: Target, *, only_newer: bool = False
) -> DataFrame:
    """The rows that win, without those that are older than a tombstone of their key.

    A delete is kept: the table may hold an older row of its key.

    Args:
        winners: one row for each key, with the column DELETES.
        tombstones: those of a version, in the session of these rows.
        target: how the rows go into the table.
        only_newer: a tombstone outlives a row with the same sequence.
    """
    by, deleted_by = F.col(f"s.{quoted(target.sequence_by)}"), F.col(f"d.{SEQUENCE}")
    # In Spark NaN is greater than any other value.
    is_late = by.isNull() | (deleted_by >= by if only_newer else deleted_by > by)
    same = (F.col(f"s.{quoted(key)}").eqNullSafe(F.col(f"d.{quoted(key)}")) for key in target.keys)
    # §10: a row that is older than a tombstone of its key is dropped
    dropped = reduce(Column.__and__, same, ~F.col(f"s.{DELETES}") & is_late)
    return winners.alias("s").join(tombstones.alias("d"), dropped, "left_anti")


def winning_rows(
    rows: DataFrame, target: Target, *, is_own: bool = False, time: str = ""
) -> DataFrame:
    """The winning row of each key, with COLUMNS, and with `DELETES` if the target has a condition.

    Args:
        rows: a scan of the log with COLUMNS. An operation that reorders rows, such as a shuffle,
            must not precede.
        target: names the keys, the column that decides which row wins, and the condition.
        is_own: the target's condition is an argument of the caller, as in `conditions.deletes`.
        time: the column with the commit times of rows of several logs. An older commit comes before
            a newer one; the result lacks the column.
    """
    names = [name for name in rows.columns if name != time]
    check_reserved(name for name in names if name != COLUMNS)
    # Read tasks are in the log's order, and this id counts by task, then by row.
    numbered = rows.withColumn(_ORDER, F.monotonically_increasing_id())
    order = [quoted(target.sequence_by)] if target.sequence_by else []
    order += [time] if time else []
    row = F.struct(*(F.col(quoted(name)) for name in names))
    last = F.max_by(row, F.struct(*order, _ORDER)).alias(_ROW)
    keys = (F.col(quoted(key)).alias(f"_wal_key_{n}") for n, key in enumerate(target.keys))
    latest = numbered.groupBy(*keys).agg(last).select(f"{_ROW}.*")
    if target.delete_when:
        latest = latest.withColumn(DELETES, _deletes(rows, target, time, is_own=is_own))
    return latest


def _deletes(rows: DataFrame, target: Target, time: str, *, is_own: bool) -> Column:
    hidden = (time, COLUMNS)
    in_log = StructType([field for field in rows.schema.fields if field.name not in hidden])
    return deletes(target.delete_when, in_log, is_own=is_own)


@dataclass(frozen=True)
class InTable:
    """What rows of the log are compared with by their sequences.

    Attributes:
        rows: the table's rows.
        tombstones: those of the table, as for `without_late`; None if all rows of the log count.
        only_newer: a row of the log replaces no row of the table with the same sequence, and a
            tombstone outlives such a row.
    """

    rows: DataFrame
    tombstones: DataFrame | None = None
    only_newer: bool = False


def merged_partial_rows(
    rows: DataFrame,
    target: Target,
    table: InTable,
    partial: Collection[str],
    *,
    is_own: bool = False,
    time: str = "",
) -> DataFrame:
    """Merge the rows of each key in their order, as one range for each row would.

    See `sparkwal.lifecycle.merging.merged_rows`, which does the same without Spark.

    Args:
        rows: as for `winning_rows`.
        target: names the keys, the column that decides which row wins, and the condition.
        table: what the table has.
        partial: the columns that not all records have, in lower case. Those of the table are
            added.
        is_own: as for `winning_rows`.
        time: as for `winning_rows`.

    Returns:
        One row for each key, as of `winning_rows`. COLUMNS names the columns whose values in the
            table it replaces.
    """
    condition = F.lit(False)
    if target.delete_when:
        condition = _deletes(rows, target, time, is_own=is_own)
    numbered = rows.withColumn(_ORDER, F.monotonically_increasing_id())
    numbered = numbered.withColumn(DELETES, condition)
    own = {name.lower() for name in rows.columns}
    for field in table.rows.schema.fields:
        if field.name.lower() in partial and field.name.lower() not in own:
            numbered = numbered.withColumn(field.name, F.lit(None).cast(field.dataType))
    names = [x for x in numbered.columns if x not in (time, COLUMNS, _ORDER, DELETES)]
    order = [*([quoted(time)] if time else []), _ORDER]
    keys = [F.col(quoted(key)) for key in target.keys]
    by_key = Window.partitionBy(*keys).orderBy(*order)
    so_far = by_key.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    if target.sequence_by:
        if table.tombstones is not None:
            numbered = without_late(numbered, table.tombstones, target, only_newer=table.only_newer)
        numbered = _without_older(numbered, table, target)
        # In a struct a null is less than any value.
        sequence = F.struct(F.col(quoted(target.sequence_by)))
        numbered = numbered.withColumn(_SEQUENCE, F.max(sequence).over(so_far))
        numbered = numbered.where(sequence.eqNullSafe(F.col(_SEQUENCE))).drop(_SEQUENCE)
    # How often the key was deleted so far.
    deleted = F.sum(F.when(F.col(DELETES), 1).otherwise(0)).over(so_far)
    numbered = numbered.withColumn(_DELETED, deleted)
    since_delete = Window.partitionBy(*keys, _DELETED).orderBy(*order)
    since_delete = since_delete.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    values = _newest_values(names, partial, since_delete)
    merged = numbered.select(*values, DELETES, *order)
    row = F.struct(*(F.col(quoted(name)) for name in (*names, COLUMNS, DELETES)))
    last = F.max_by(row, F.struct(*order)).alias(_ROW)
    by = (F.col(quoted(key)).alias(f"_wal_key_{n}") for n, key in enumerate(target.keys))
    result = merged.groupBy(*by).agg(last).select(f"{_ROW}.*")
    return result if target.delete_when else result.drop(DELETES)


def _newest_values(
    names: Iterable[str], partial: Collection[str], since_delete: WindowSpec
) -> list[Column]:
    """The values of columns after a row, and COLUMNS, which names those of them that replace the
    table's.

    Args:
        names: the columns.
        partial: the columns that not all records have, in lower case.
        since_delete: the rows of the key since it was last deleted, which is _DELETED times, up to
            this row.
    """
    values = []
    has = []
    for name in names:
        column = F.col(quoted(name))
        if name.lower() in partial:
            # In a struct, because a value may be null.
            is_in_record = F.col(COLUMNS).contains(name_text(name)) & ~F.col(DELETES)
            value = F.when(is_in_record, F.struct(column.alias("value")))
            newest = F.last(value, ignorenulls=True).over(since_delete)
            is_replaced = (F.col(_DELETED) > 0) | newest.isNotNull()
            has.append(F.when(is_replaced, F.lit(name_text(name))))
            column = newest["value"]
        else:
            has.append(F.lit(name_text(name)))
        values.append(column.alias(name))
    return [*values, F.concat_ws(" ", *has).alias(COLUMNS)]


def after_merge(
    names: Iterable[str], keys: Iterable[str], in_log: Iterable[str], in_table: Iterable[str]
) -> dict[str, Column]:
    """The values of columns after a row `s` of the log replaced a row `t` of the table.

    The table's value stays if the record of `s` lacks the column. See
    `sparkwal.lifecycle.merging.merged_rows`, which does the same without Spark.

    Args:
        names: the columns.
        keys: the key columns.
        in_log: the columns of `s`, which has COLUMNS.
        in_table: the columns of `t`.
    """
    always_new = folded_names(keys)
    may_be_new, may_be_old = folded_names(in_log), folded_names(in_table)

    def value(name: str) -> Column:
        new, old = (F.col(f"{side}.{quoted(name)}") for side in "st")
        if name.lower() in always_new or name.lower() not in may_be_old:
            return new
        if name.lower() not in may_be_new:
            return old
        return F.when(F.col(f"s.{COLUMNS}").contains(name_text(name)), new).otherwise(old)

    return {name: value(name) for name in names}


def _without_older(rows: DataFrame, table: InTable, target: Target) -> DataFrame:
    """The rows that are not older than the table's row of their key, or that are newer.

    If the table has several rows of a key, a row must be older than each of them.
    """
    by = quoted(target.sequence_by)
    least = F.min(F.struct(F.col(by).alias("value"))).alias(_SEQUENCE)
    oldest = table.rows.groupBy(*(F.col(quoted(key)).alias(key) for key in target.keys)).agg(least)
    old, new = F.col(f"t.{_SEQUENCE}.value"), F.col(f"s.{by}")
    is_older = old.isNotNull() & ~F.coalesce(new >= old, F.lit(False))
    if table.only_newer:
        is_older = new.isNull() | F.coalesce(new <= old, F.lit(False))
    pairs = same_keys(target.keys)
    return rows.alias("s").join(oldest.alias("t"), pairs & is_older, "left_anti")


def same_keys(keys: Sequence[str]) -> Column:
    """Whether a row `s` of the log and a row `t` of the table have the same keys.

    Null equals null.
    """
    pairs = [F.col(f"t.{quoted(key)}").eqNullSafe(F.col(f"s.{quoted(key)}")) for key in keys]
    return reduce(Column.__and__, pairs)
