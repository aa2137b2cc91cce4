"""The tombstones of a Delta table, by Spark: see `sparkwal.lifecycle.table`."""

from collections.abc import Callable
from functools import reduce
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DateType, TimestampNTZType, TimestampType

from sparkwal.errors import PlanError
from sparkwal.format.lifecycle_record import Promise, Target
from sparkwal.format.schema import columns, quoted, type_name
from sparkwal.format.widening import holds, wider_parts
from sparkwal.lifecycle.delta.fitting import type_problems
from sparkwal.lifecycle.delta.transaction_log import DeltaLog
from sparkwal.lifecycle.merging.tombstones import tombstone_columns
from sparkwal.lifecycle.table import DELETED_AT, OWNER, SEQUENCE
from sparkwal.spark.delta_files import delta_log, spark_path, table_lock
from sparkwal.spark.delta_writing import (
    VECTORS,
    WrittenHistory,
    check_beside,
    create_table,
    delta_tables,
    explained,
    isolated_session,
    range_session,
)
from sparkwal.spark.readable import one_line

# Earlier than every timestamp of Spark.
_EARLIEST_US = -(2**62)
# Whether a row of the winners deletes its key.
DELETES = "_wal_deletes"
_MAPPING = "delta.columnMapping.mode"
_STATISTICS = "delta.dataSkippingNumIndexedCols"
_WIDENS = "delta.enableTypeWidening"
# Finds the winners of a range: one row for each key, with the column DELETES.
Winners = Callable[[SparkSession, Promise], DataFrame]


def without_late(winners: DataFrame, tombstones: DataFrame, target: Target) -> DataFrame:
    """The rows that win, without those that are older than the tombstone of their key.

    A delete is kept: the table may hold an older row of its key.

    Args:
        winners: one row for each key, with the column DELETES.
        tombstones: those of a version, in the session of these rows.
        target: how the rows go into the table.
    """
    by = F.col(f"s.{quoted(target.sequence_by)}")
    # In Spark NaN is greater than any other value.
    is_late = by.isNull() | (F.col(f"d.{SEQUENCE}") > by)
    same = (F.col(f"s.{quoted(key)}").eqNullSafe(F.col(f"d.{quoted(key)}")) for key in target.keys)
    # §10: a row that is older than the tombstone of its key is dropped
    dropped = reduce(Column.__and__, same, ~F.col(f"s.{DELETES}") & is_late)
    return winners.alias("s").join(tombstones.alias("d"), dropped, "left_anti")


class SparkTombstones(WrittenHistory):
    """A `sparkwal.lifecycle.table.Tombstones`.

    Args:
        spark: a session with Delta Lake.
        target: how rows go into the table.
        table: the log of that table.
        winners: finds the rows that win.
    """

    def __init__(
        self, spark: SparkSession, target: Target, table: DeltaLog, winners: Winners
    ) -> None:
        self._spark = spark
        self._session = isolated_session(spark)
        self._target = target
        self._table = table
        self._winners = winners
        self._path = spark_path(target.tombstones)
        super().__init__(delta_log(self._session, target.tombstones))

    def prepare(self) -> None:
        """Make the table if there is none. See `Tombstones.prepare`."""
        url = self._target.tombstones
        try:
            if not self._log.update():
                self._create()
                self._log.update()
        except Exception as error:
            raise PlanError(f"{url} is unusable: {one_line(error)}") from error
        keeps = f"the deleted keys of {self._target.table}"
        check_beside(self._log, url, keeps, OWNER, self._table.table_id)
        self._widen()
        for problem in type_problems(self._schema(), self._log.spark_schema, url):
            raise PlanError(problem)

    def _widen(self) -> None:
        """Give the columns the types of the table, which a user widened."""
        kept, url = columns(self._log.spark_schema), quoted(self._path)
        changes = [
            change
            for name, wide in columns(self._schema()).items()
            if name in kept and holds(wide, kept[name])
            for change in wider_parts(wide, kept[name], quoted(name))
        ]
        if not changes:
            return
        alter = f"ALTER TABLE delta.{url}"
        try:
            with table_lock(self._path):
                if self._log.properties.get(_WIDENS, "").lower() != "true":
                    self._session.sql(f"{alter} SET TBLPROPERTIES ('{_WIDENS}' = 'true')")
                for path, kind in changes:
                    self._session.sql(f"{alter} ALTER COLUMN {path} TYPE {type_name(kind)}")
        except Exception as error:
            # Another compaction may have widened them at the same time.
            self._log.update()
            if [*type_problems(self._schema(), self._log.spark_schema, self._target.tombstones)]:
                text = f"{self._target.tombstones} does not take the table's wider columns"
                raise PlanError(f"{text}: {one_line(error)}") from error
        self._log.update()

    def _schema(self) -> str:
        return tombstone_columns(self._target, self._table.spark_schema)

    def _create(self) -> None:
        session: Any = self._session._jsparkSession
        making = delta_tables(self._session).createIfNotExists(session).location(self._path)
        making = making.addColumns(session.parseDataType(self._schema()))
        making = making.property(OWNER, self._table.table_id).property(VECTORS, "false")
        # The transaction log would keep the least and the greatest key after they are deleted.
        making = making.property(_STATISTICS, "0")
        if (mode := self._table.properties.get(_MAPPING)) is not None:
            # Delta allows some column names only with column mapping.
            making = making.property(_MAPPING, mode)
        create_table(making, self._log)

    def write(self, promise: Promise, *, is_repeated: bool = False) -> None:
        """Write the keys that the open range deletes. See `Tombstones.write`."""
        # §10: the tombstones of a range carry its transaction
        session = range_session(self._spark, promise, is_repeated=is_repeated)
        with explained(self._target.tombstones, promise):
            winners = self._winners(session, promise)
            by = F.col(quoted(self._target.sequence_by))
            is_time = isinstance(
                winners.select(by).schema[0].dataType,
                DateType | TimestampType | TimestampNTZType,
            )
            is_deleted = F.col(DELETES) & by.isNotNull()
            newest = F.max(F.unix_micros(by.cast("timestamp"))) if is_time else F.lit(None)
            row = winners.agg(F.max(is_deleted), newest).first()
            has_deleted, newest_us = row or (None, None)
            limit_us = promise.timestamp_ms * 1000
            if is_time:
                # The horizon ends at the newest sequence, or now if that is earlier. So a log of
                # old rows keeps its tombstones, and a sequence in the future drops none early.
                limit_us = min(limit_us, _EARLIEST_US if newest_us is None else newest_us)
            limit_us -= self._target.tombstone_horizon_ms * 1000
            deleted = winners.where(is_deleted).select(
                *(F.col(quoted(key)).alias(key) for key in self._target.keys),
                by.alias(SEQUENCE),
                F.expr(f"timestamp_millis({promise.timestamp_ms}L)").alias(DELETED_AT),
            )
            expired = f"unix_micros(t.{DELETED_AT}) < {limit_us}L"
            if is_time:
                expired = f"unix_micros(CAST(t.{SEQUENCE} AS TIMESTAMP)) < {limit_us}L"
                deleted = deleted.alias("t").where(f"NOT {expired}")
            earlier = session.read.format("delta").load(self._path).alias("t")
            with table_lock(self._path):
                if has_deleted or earlier.where(expired).head(1):
                    self._merge(session, deleted.repartition(1), expired)
                else:
                    # The transaction alone.
                    empty = session.createDataFrame([], deleted.schema)
                    empty.write.format("delta").mode("append").save(self._path)

    def _merge(self, session: SparkSession, deleted: DataFrame, expired: str) -> None:
        names = [*map(quoted, self._target.keys), SEQUENCE, DELETED_AT]
        values = {name: f"s.{name}" for name in names}
        same = " AND ".join(f"t.{quoted(key)} <=> s.{quoted(key)}" for key in self._target.keys)
        table = delta_tables(session).forPath(session._jsparkSession, self._path).alias("t")
        merge = table.merge(deleted.alias("s")._jdf, same).withSchemaEvolution()
        merge = merge.whenMatched(f"s.{SEQUENCE} > t.{SEQUENCE}").updateExpr(values)
        merge = merge.whenNotMatched().insertExpr(values)
        merge.whenNotMatchedBySource(expired).delete().execute()
