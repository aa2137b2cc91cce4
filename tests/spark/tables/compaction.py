"""A log, a Delta table, and ranges of the one that go to the other."""

from __future__ import annotations

import json
from functools import reduce
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

import sparkwal
from sparkwal.format.lifecycle_record import (
    APPEND,
    MERGE,
    LogInChain,
    Promise,
    TableInChain,
    Target,
)
from sparkwal.lifecycle.table import TableState, check_history
from sparkwal.spark.delta import SparkDeltaTable
from sparkwal.spark.delta_files import spark_path
from sparkwal.store.base import LogStore
from sparkwal.testing.memory import MemoryStore

Rows = list[dict[str, Any]]


class Compaction:
    """A log and its table: `append` rows, `carry` them to the table, look at both."""

    def __init__(
        self,
        spark: SparkSession,
        folder: Path,
        schema: pa.Schema,
        *keys: str,
        table: str = "",
        **target: Any,
    ) -> None:
        self.spark = spark
        self.schema = schema
        self.path = str(folder / "log")
        mode = MERGE if keys else APPEND
        self.target = Target(table or str(folder / "table"), mode=mode, keys=keys, **target)
        self.table = SparkDeltaTable(spark, self.target, {"path": self.path})
        self.k, self.cut = 0, 0
        self.log_id = ""

    def append(self, *commits: Rows, **options: object) -> None:
        """One commit for each list of rows, after a leader record."""
        with sparkwal.Appender(
            self.path, self.schema, producer_id="test", mergeSchema=True, **options
        ) as wal:
            for rows in commits:
                wal.append(pa.Table.from_pylist(rows, self.schema)).result()

    def prepare(self) -> None:
        spark_schema = from_arrow_schema(self.schema, prefer_timestamp_ntz=True).json()
        self.table.prepare(LogStore(MemoryStore(), "unused"), spark_schema)

    def intent(self, to: int | None = None) -> Promise:
        """The next range, up to the head or `to`."""
        head = sparkwal.Log(self.path).head()
        assert head is not None
        self.log_id = head.log_id
        found = self.table.snapshot(head.log_id, -1)
        assert found is not None
        log = LogInChain(
            head.log_id,
            cut=self.cut,
            to=head.position + 1 if to is None else to,
            table=self.target.table,
        )
        table = TableInChain(
            self.target,
            head.log_id,
            self.k + 1,
            table_id=found.table_id,
            table_version=found.version,
        )
        return Promise(table, {"default": log}, 0)

    def carry(self, state: Promise | None = None) -> TableState:
        """The next range, or one that was promised before, confirmed as rule 4 asks for."""
        state = state or self.intent()
        self.table.write(state)
        found = self.table.snapshot(state.table.app_id, state.table.table_version)
        check_history(state, found)
        assert found is not None and found.k == state.table.k
        self.k, self.cut = state.table.k, state.ranges[0].to
        return found

    def rows(self) -> Rows:
        """The rows of the newest version."""
        found = self.spark.read.format("delta").load(spark_path(self.target.table)).collect()
        return [row.asDict(recursive=True) for row in found]

    def rows_of(self, *versions: int) -> list[Rows]:
        """The rows of each of these versions, by one Spark job."""
        found: list[Rows] = [[] for _ in versions]
        path = spark_path(self.target.table)
        each = [
            self.spark.read.format("delta")
            .option("versionAsOf", version)
            .load(path)
            .withColumn("_n", F.lit(n))
            for n, version in enumerate(versions)
        ]
        for row in reduce(DataFrame.union, each).collect():
            values = row.asDict(recursive=True)
            found[values.pop("_n")].append(values)
        return found

    def sql(self, text: str) -> None:
        """A statement of a user; {t} is the table."""
        self.spark.sql(text.format(t=f"delta.`{self.target.table}`")).collect()

    def history(self) -> list[dict[str, Any]]:
        """The history of the table, oldest first."""
        shown = self.spark.sql(f"DESCRIBE HISTORY delta.`{self.target.table}`").collect()
        return sorted((row.asDict() for row in shown), key=lambda row: row["version"])

    def ranges(self) -> list[int]:
        """The ranges that the table's history names."""
        reported = [json.loads(row["userMetadata"] or "{}") for row in self.history()]
        return [each["k"] for each in reported if each]


def as_set(rows: Rows) -> list[str]:
    """Rows in an order that does not matter, to be compared."""
    return sorted(repr(sorted(row.items())) for row in rows)
