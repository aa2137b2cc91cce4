"""The rows of a log as a compaction brings them into a table; who reads both makes the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructField

from sparkwal.format.lifecycle import Target
from sparkwal.format.schema import columns, normalize
from sparkwal.format.widening import widened
from sparkwal.lifecycle.table import NULL_PARTITIONS
from sparkwal.reading.metadata import check_reserved
from sparkwal.spark.registering import register_once

# Columns of the rows that win; none of the log or the table.
_ORDER, _ROW, DELETES = "_wal_order", "_wal_row", "_wal_deletes"


def own_session(spark: SparkSession) -> SparkSession:
    """Its settings reach no other session, and those of a reader change no row that wins."""
    session = spark.newSession()
    # On these the meaning of a condition depends.
    session.conf.set("spark.sql.session.timeZone", "UTC")
    session.conf.set("spark.sql.ansi.enabled", "true")
    session.conf.set("spark.sql.caseSensitive", "false")
    register_once(session)
    return session


def as_stored(rows: DataFrame, table: Mapping[str, Any], partitioned: Sequence[str]) -> DataFrame:
    """Rows of the log as a table with columns of these types keeps them: of its types where those
    are wider, and null for texts that no partition can have."""
    own = normalize(rows.schema.jsonValue())
    parts = {name.lower() for name in partitioned}
    stored = []
    for name, kind in columns(widened(own, table)).items():
        column = F.col(quoted(name))
        if kind != columns(own)[name]:
            wide = {"name": name, "type": kind, "nullable": True, "metadata": {}}
            column = column.cast(StructField.fromJson(wide).dataType)
        if kind in ("string", "binary") and name.lower() in parts:
            column = F.when(~column.cast("string").isin(*NULL_PARTITIONS), column)
        stored.append(column.alias(name))
    return rows.select(*stored)


def last_of_each(rows: DataFrame, target: Target) -> DataFrame:
    """Of the rows of each key the one that wins, and whether it deletes the key."""
    check_reserved(rows.columns)
    # Read tasks come in the log's order, and the number counts first by task, then by row: safe
    # only over the scan itself, and what looks at one row after the other.
    numbered = rows.withColumn(_ORDER, F.monotonically_increasing_id())
    order = [quoted(target.sequence_by)] if target.sequence_by else []
    whole = F.struct(*(F.col(quoted(name)) for name in rows.columns))
    last = F.max_by(whole, F.struct(*order, _ORDER)).alias(_ROW)
    keys = (F.col(quoted(key)).alias(f"_wal_key_{n}") for n, key in enumerate(target.keys))
    latest = numbered.groupBy(*keys).agg(last).select(f"{_ROW}.*")
    if target.delete_when:
        deletes = F.expr(target.delete_when).cast("boolean")
        latest = latest.withColumn(DELETES, F.coalesce(deletes, F.lit(False)))
    return latest


def quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
