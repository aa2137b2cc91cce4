"""The tombstones of a Delta table, by Spark: see `sparkwal.lifecycle.table`.

A range appends the keys that it deletes, so a key may have several tombstones. The one with the
greatest sequence counts.
"""

from collections.abc import Callable
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from sparkwal.errors import PlanError
from sparkwal.format.lifecycle_record import Promise, Target
from sparkwal.format.schema import columns, quoted, type_name
from sparkwal.format.widening import holds, wider_parts
from sparkwal.lifecycle.delta.data_files import listed_files
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
    no_rows,
    range_session,
    read_of_log,
    rows_of_files,
)
from sparkwal.spark.keyed_rows import DELETES, Winners
from sparkwal.spark.readable import one_line

# Earlier than every timestamp of Spark.
_EARLIEST_US = -(2**62)
# How often, in a horizon, tombstones beyond it are looked for.
_LOOKS = 64
# Each range with deletes adds a file, and each range reads them. So many become one.
_MOST_FILES = 64
_MAPPING = "delta.columnMapping.mode"
_STATISTICS = "delta.dataSkippingNumIndexedCols"
_WIDENS = "delta.enableTypeWidening"
# Finds the winners of a range. Its rows may belong to another session.
Find = Callable[[SparkSession, Promise], Winners]


class SparkTombstones(WrittenHistory):
    """A `sparkwal.lifecycle.table.Tombstones`.

    Args:
        spark: a session with Delta Lake.
        target: how rows go into the table.
        table: the log of that table.
        find: finds the rows that win.
    """

    def __init__(self, spark: SparkSession, target: Target, table: DeltaLog, find: Find) -> None:
        self._spark = spark
        self._session = isolated_session(spark)
        self._target = target
        self._table = table
        self._find = find
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
        columns_here, url = columns(self._log.spark_schema), quoted(self._path)
        changes = [
            change
            for name, wide in columns(self._schema()).items()
            if name in columns_here and holds(wide, columns_here[name])
            for change in wider_parts(wide, columns_here[name], quoted(name))
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
            winners = self._find(session, promise)
            expired = self._expired(promise, winners)
            by = F.col(quoted(self._target.sequence_by))
            deleted = winners.rows.where(F.col(DELETES) & by.isNotNull()).select(
                *(F.col(quoted(key)).alias(key) for key in self._target.keys),
                by.alias(SEQUENCE),
                F.expr(f"timestamp_millis({promise.timestamp_ms}L)").alias(DELETED_AT),
            )
            if winners.is_timed:
                deleted = deleted.where(f"NOT {expired}")
            # It comes first: the result of a union belongs to its session, which has the number.
            rows = no_rows(session, deleted.schema.json())
            if winners.has_deletes:
                rows = rows.union(deleted.coalesce(1))
            with table_lock(self._path):
                self._tidy(promise, expired)
                rows.write.format("delta").mode("append").save(self._path)

    def rows(self, session: SparkSession, version: int) -> DataFrame | None:
        """The tombstones of a version; None without any.

        Delta would find out by four jobs of Spark which files the version has.

        Raises:
            WriteError: the transaction log is unreadable.
        """
        with read_of_log():
            listed = listed_files(self._log.files, self._target.tombstones, version)
        return rows_of_files(session, self._path, listed.files) if listed.files else None

    def _expired(self, promise: Promise, winners: Winners) -> str:
        """The condition for a tombstone beyond the horizon."""
        limit_us = promise.timestamp_ms * 1000
        if winners.is_timed:
            # The horizon ends at the newest sequence, or now if that is earlier. So a log of old
            # rows keeps its tombstones, and a sequence in the future drops none early.
            newest_us = _EARLIEST_US if winners.newest_us is None else winners.newest_us
            limit_us = min(limit_us, newest_us)
        time = f"CAST({SEQUENCE} AS TIMESTAMP)" if winners.is_timed else DELETED_AT
        return f"unix_micros({time}) < {limit_us - self._target.tombstone_horizon_ms * 1000}L"

    def _tidy(self, promise: Promise, expired: str) -> None:
        """Drop tombstones beyond the horizon, and gather many files, some times in a horizon."""
        step_ms = max(self._target.tombstone_horizon_ms // _LOOKS, 1)
        if self._log.committed_ms // step_ms == promise.timestamp_ms // step_ms:
            return
        # §10: the version that drops tombstones carries no transaction: the range would be skipped
        table = delta_tables(self._session).forPath(self._session._jsparkSession, self._path)
        table.delete(expired)
        files = DataFrame(table.detail(), self._session).select("numFiles").first()
        if files is not None and files[0] > _MOST_FILES:
            table.optimize().executeCompaction()
