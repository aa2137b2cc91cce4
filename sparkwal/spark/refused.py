"""The rows that a Delta table refuses, in a table beside it: see `sparkwal.lifecycle.table`."""

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from sparkwal.errors import PlanError, WriteError
from sparkwal.format.lifecycle_record import Promise, Target
from sparkwal.format.schema import from_arrow, quoted
from sparkwal.lifecycle.delta.transaction_log import DeltaLog
from sparkwal.lifecycle.range_rows import REASON, REFUSED_COLUMNS
from sparkwal.lifecycle.table import REFUSED_BY
from sparkwal.reading.metadata import COMMIT_TIME, PARTITION, POSITION, ROW
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
from sparkwal.spark.json_rows import JSON_OPTIONS
from sparkwal.spark.readable import one_line

# The place of a row in its log.
PLACE = (POSITION, PARTITION, ROW)
# Finds the refused rows of a range: its rows with their PLACE, COMMIT_TIME and REASON.
Find = Callable[[Promise], DataFrame]


class SparkRefused(WrittenHistory):
    """A `sparkwal.lifecycle.table.Refused`. Its columns take any row of any log.

    Args:
        spark: a session with Delta Lake.
        target: the table that refuses rows.
        table: the log of that table.
        find: finds the rows that it refuses.
    """

    def __init__(self, spark: SparkSession, target: Target, table: DeltaLog, find: Find) -> None:
        self._spark = spark
        self._session = isolated_session(spark)
        self._target = target
        self._table = table
        self._find = find
        self._path = spark_path(target.refused)
        super().__init__(delta_log(self._session, target.refused))

    def prepare(self) -> None:
        """Make the table if there is none. See `Refused.prepare`."""
        url = self._target.refused
        try:
            if not self._log.update():
                session: Any = self._session._jsparkSession
                making = delta_tables(self._session).createIfNotExists(session)
                making = making.location(self._path).property(REFUSED_BY, self._table.table_id)
                making = making.property(VECTORS, "false")
                making = making.addColumns(session.parseDataType(from_arrow(REFUSED_COLUMNS)))
                create_table(making, self._log)
                self._log.update()
        except Exception as error:
            raise PlanError(f"{url} is unusable: {one_line(error)}") from error
        keeps = f"the rows that {self._target.table} refused"
        check_beside(self._log, url, keeps, REFUSED_BY, self._table.table_id)

    def write(self, promise: Promise) -> None:
        """Find the refused rows of the open range, and write them. See `Refused.write`."""
        # §10: the rows that step aside from a range carry its transaction
        with explained(self._target.table, promise):
            rows = self._find(promise)
        session = range_session(self._spark, promise)
        with explained(self._target.refused, promise), table_lock(self._path):
            if promise.is_again:
                self._mark(session, promise, rows)
            else:
                self._merge(session, promise, self._rows(rows, promise))
        rows.unpersist()

    def remove_taken(self, promise: Promise) -> None:
        """Remove rows that were written again. See `Refused.remove_taken`."""
        session = isolated_session(self._spark)
        is_taken = [
            (F.col("log_id") == log.log_id) & (F.col("range") < log.taken)
            for log in promise.logs.values()
            if log.taken
        ]
        try:
            with table_lock(self._path):
                table = delta_tables(session).forPath(session._jsparkSession, self._path)
                table.delete(reduce(Column.__or__, is_taken, F.lit(False))._jc)
        except Exception as error:
            text = f"{self._target.refused} keeps rows that were written again: {one_line(error)}"
            raise WriteError(text) from error

    def waiting(self, session: SparkSession, promise: Promise) -> DataFrame:
        """The rows that the open range writes again, in the version that the promise names.

        Returns:
            Their PLACE, COMMIT_TIME and `values`.
        """
        assert promise.table.refused is not None
        reader = session.read.format("delta").option("versionAsOf", promise.table.refused.version)
        (part,) = promise.ranges
        # What is there from the cut on is in the log.
        own = (F.col("log_id") == part.log_id) & (F.col("position") < part.cut)
        taken = promise.logs[part.sequencer].taken
        is_waiting = (F.col("range") >= taken) & (F.col("range") < promise.table.k)
        return (
            reader.load(self._path)
            .where(own & is_waiting)
            .select(
                F.col("position").alias(POSITION),
                F.col("partition").alias(PARTITION),
                F.col("row").alias(ROW),
                F.col("commit_time").alias(COMMIT_TIME),
                "values",
            )
        )

    def places(self, session: SparkSession, promise: Promise) -> DataFrame:
        """The places of the rows that stepped aside from the open range, in the version that the
        promise names."""
        assert promise.table.refused is not None
        reader = session.read.format("delta").option("versionAsOf", promise.table.refused.version)
        rows = reader.load(self._path).where(F.col("range") == promise.table.k)
        return rows.select(
            F.col("position").alias(POSITION),
            F.col("partition").alias(PARTITION),
            F.col("row").alias(ROW),
        )

    def _rows(self, rows: DataFrame, promise: Promise) -> DataFrame:
        (part,) = promise.ranges
        hidden = (*PLACE, COMMIT_TIME, REASON)
        values = F.struct(*(F.col(quoted(x)) for x in rows.columns if x not in hidden))
        by = self._target.sequence_by
        sequence = F.col(quoted(by)).cast("string") if by else F.lit(None).cast("string")
        return rows.select(
            F.lit(part.sequencer).alias("sequencer"),
            F.lit(part.log_id).alias("log_id"),
            F.col(POSITION).alias("position"),
            F.col(PARTITION).alias("partition"),
            F.col(ROW).alias("row"),
            F.col(COMMIT_TIME).alias("commit_time"),
            sequence.alias("sequence"),
            F.lit(promise.table.k).cast("bigint").alias("range"),
            F.col(REASON).alias("reason"),
            F.to_json(values, JSON_OPTIONS).alias("values"),
        )

    def _merge(self, session: SparkSession, promise: Promise, rows: DataFrame) -> None:
        """Add the rows, and remove those of the log that are left of ranges that were given up, or
        that were written again."""
        (part,) = promise.ranges
        taken = promise.logs[part.sequencer].taken
        table = delta_tables(session).forPath(session._jsparkSession, self._path).alias("t")
        same = same_values(("range", "log_id", "position", "partition", "row"))
        merge = table.merge(rows.alias("s")._jdf, same._jc)
        is_left = (F.col("t.position") >= part.cut) | (F.col("t.range") < taken)
        left = (F.col("t.log_id") == F.lit(part.log_id)) & is_left
        merge = merge.whenNotMatched().insertAll()
        merge.whenNotMatchedBySource(left._jc).delete().execute()

    def _mark(self, session: SparkSession, promise: Promise, rows: DataFrame) -> None:
        """Give rows that the table still refuses the number of the range, and their reasons."""
        (part,) = promise.ranges
        names = {POSITION: "position", PARTITION: "partition", ROW: "row", REASON: "reason"}
        still = rows.select(*(F.col(old).alias(new) for old, new in names.items()))
        table = delta_tables(session).forPath(session._jsparkSession, self._path).alias("t")
        same = same_values(("position", "partition", "row"))
        same &= F.col("t.log_id") == F.lit(part.log_id)
        same &= F.col("t.range") >= promise.logs[part.sequencer].taken
        same &= F.col("t.position") < part.cut
        marks: dict[str, Any] = {
            "range": F.lit(promise.table.k).cast("bigint")._jc,
            "reason": F.col("s.reason")._jc,
        }
        merge = table.merge(still.alias("s")._jdf, same._jc)
        merge.whenMatched().update(marks).execute()


def same_values(names: Sequence[str]) -> Column:
    """Whether a row `s` and a row `t` have the same values, of which none is null."""
    pairs = [F.col(f"t.{name}") == F.col(f"s.{name}") for name in names]
    return reduce(Column.__and__, pairs)
