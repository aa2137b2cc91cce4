"""Reads a Delta table with Spark."""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession

from sparkwal.errors import OptionError
from sparkwal.format.schema import columns
from sparkwal.lifecycle.delta.reader import LoggedTable
from sparkwal.spark.delta import as_stored
from sparkwal.spark.delta_files import delta_log, spark_path


class SparkDeltaReader(LoggedTable):
    """As `sparkwal.lifecycle.table.ReadTable`, with Spark's rows.

    Args:
        spark: a session with Delta Lake.
        table: the table's URL.

    Raises:
        OptionError: the session is one of Spark Connect, or has no Delta Lake.
    """

    def __init__(self, spark: SparkSession, table: str) -> None:
        if getattr(spark, "_jsparkSession", None) is None:
            raise OptionError(
                "a session of Spark Connect has no access to a table's transaction log: use a "
                "classic session, or sparkwal.Log(path).current()"
            )
        super().__init__(delta_log(spark, table))
        self._path = spark_path(table)

    def as_stored(self, rows: DataFrame) -> DataFrame:
        """Convert rows of the log. See `ReadTable.as_stored`."""
        return as_stored(rows, columns(self.spark_schema), self._log.partitioned)

    def rows_at(self, session: SparkSession, version: int) -> DataFrame:
        """The rows of a version, as a DataFrame of this session."""
        return session.read.format("delta").option("versionAsOf", version).load(self._path)
