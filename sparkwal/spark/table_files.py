"""Reads a table that needs no Spark with Spark: each of its files is a task, which Arrow reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from sparkwal.errors import OptionError, TableReadError
from sparkwal.format.schema import columns
from sparkwal.lifecycle.from_table import TableTask
from sparkwal.lifecycle.table import ReadTable, TableState, VersionFiles
from sparkwal.spark.datasource import PLANNED
from sparkwal.spark.delta import as_stored
from sparkwal.spark.interfaces import to_struct
from sparkwal.spark.source import packed


class SparkTableFiles:
    """As `sparkwal.lifecycle.table.ReadTable`, with Spark's rows.

    Args:
        spark: a session.
        url: the table's URL.
        table: the table.
        options: the options with which Spark reads the log.

    Raises:
        OptionError: the session is one of Spark Connect.
    """

    def __init__(
        self, spark: SparkSession, url: str, table: ReadTable, options: Mapping[str, Any]
    ) -> None:
        if getattr(spark, "_jsparkSession", None) is None:
            raise OptionError(
                "a session of Spark Connect reads no table: use a classic session, or "
                "sparkwal.Log(path).current()"
            )
        self._url = url
        self._table = table
        self._options = options
        self._version: int | None = None
        # The files of the version that was listed last.
        self._listed: tuple[int, VersionFiles] | None = None

    def snapshot(self, log_id: str, since: int | None, k: int | None = None) -> TableState | None:
        """Read the newest snapshot. See `Snapshots.snapshot`."""
        state = self._table.snapshot(log_id, since, k)
        self._version = state.version if state else None
        return state

    @property
    def spark_schema(self) -> str:
        """The columns of that version. See `TableColumns.spark_schema`."""
        if self._version is None:
            raise TableReadError(f"{self._url} does not exist")
        return self._files(self._version).spark_schema

    @property
    def computed(self) -> Sequence[str]:
        """See `TableColumns.computed`."""
        return self._table.computed

    def as_stored(self, rows: DataFrame) -> DataFrame:
        """Convert rows of the log. See `ReadTable.as_stored`."""
        return as_stored(rows, columns(self.spark_schema), ())

    def rows_at(self, session: SparkSession, version: int) -> DataFrame:
        """The rows of a version, as a DataFrame of this session."""
        listed = self._files(version)
        names = tuple(columns(listed.spark_schema))
        tasks = [TableTask(self._url, listed.head, names, file) for file in listed.files]
        reader = session.read.format("weaselwal").options(**self._options)
        return (
            reader.schema(to_struct(listed.spark_schema)).option(PLANNED, packed([], tasks)).load()
        )

    def _files(self, version: int) -> VersionFiles:
        if self._listed is None or self._listed[0] != version:
            self._listed = version, self._table.files_at(version)
        return self._listed[1]
