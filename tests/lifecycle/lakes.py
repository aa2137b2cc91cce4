"""A log, and a compaction of it into a Delta table that can stop after any step."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

import sparkwal
from sparkwal.format.keys import ROOT
from sparkwal.format.lifecycle_record import (
    APPEND,
    DONE,
    FLOOR,
    INTENT,
    MERGE,
    NO_TABLE_VERSION,
    Promise,
    Target,
)
from sparkwal.lifecycle.delta.files import storage_options
from sparkwal.lifecycle.table import Table, TableState, confirm
from sparkwal.options.parsing import from_keywords
from sparkwal.options.reading import SourceOptions
from sparkwal.protocol.chain import newest_record
from sparkwal.protocol.clock import Clock
from sparkwal.protocol.recovery import find_head
from sparkwal.store.base import LogStore
from sparkwal.store.open import open_store
from tests.chains import Seen, beginning, newest, put_next, with_target
from tests.delta_rs_table import DeltaRsTable

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from pyspark.sql import DataFrame, SparkSession

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.string())])
STAGES = ("none", "intent", "written", "done")
Rows = list[dict[str, Any]]


def value(number: int) -> dict[str, Any]:
    return {"id": number, "v": f"v{number}"}


def as_set(rows: Rows) -> list[str]:
    """Rows in an order that does not matter, to be compared."""
    return sorted(repr(sorted(row.items())) for row in rows)


class Lake:
    """A log with a table.

    Args:
        folder: the folder of log and table, on a disk or on S3.
        keys: the keys of a MERGE table.
        spark: a session that writes the table. Without one delta-rs writes it.
        table: the table's URL, if it is not in the folder.
        schema: the columns of rows.
        sequencer: the name of one of several logs under `folder` that share the table.
        options: the options of the log's store.
        target: more of the table's target.
    """

    def __init__(
        self,
        folder: Path | str,
        *keys: str,
        spark: SparkSession | None = None,
        table: str = "",
        schema: pa.Schema = SCHEMA,
        sequencer: str = ROOT,
        options: dict[str, str] | None = None,
        **target: Any,
    ) -> None:
        self.path = f"{folder}/log"
        mode = MERGE if keys else APPEND
        self.target = Target(table or f"{folder}/table", mode, keys, **target)
        self.schema = schema
        self.name = sequencer
        self.options = dict(options or {})
        if sequencer != ROOT:
            self.options["sequencer"] = sequencer
        settings = from_keywords(SourceOptions, self.path, self.options)
        store, root = open_store(self.path, settings.s3, settings.retry)
        self.log = LogStore(store, root).sequencer(sequencer)
        self.storage = storage_options(settings.s3, None)
        self.table = self._table(spark)

    def _table(self, spark: SparkSession | None) -> Table:
        if spark is None:
            return DeltaRsTable(self.target, self.path, self.options)
        from sparkwal.spark.delta import SparkDeltaTable

        self.spark = spark
        return SparkDeltaTable(spark, self.target, {"path": self.path, **self.options})

    def append(
        self, *commits: pa.Table | Sequence[Any], schema: pa.Schema | None = None, **options: Any
    ) -> None:
        """One commit for each of these: one position, besides those of leader records."""
        of_table = next((each.schema for each in commits if isinstance(each, pa.Table)), None)
        columns = schema or of_table or self.schema
        with sparkwal.Appender(
            self.path, columns, producer_id="p", mergeSchema=True, **{**self.options, **options}
        ) as wal:
            for rows in commits:
                if not isinstance(rows, pa.Table):
                    rows = pa.Table.from_pylist([*rows], columns)
                wal.append(rows).result()

    def reader(self, **options: Any) -> sparkwal.Log:
        return sparkwal.Log(self.path, **self.options, **options)

    @property
    def end(self) -> int:
        return find_head(self.log).gap

    def head(self) -> Seen:
        live = find_head(self.log).live
        assert live is not None
        record = newest_record(self.log)
        begun = beginning(live.header.log_id, self.name, 3_600_000, record)
        return newest(self.log) or with_target(begun, self.target)

    def put(self, kind: str, **changes: Any) -> None:
        assert put_next(self.log, self.head(), kind, Clock(), "here", **changes)

    @property
    def spark_schema(self) -> str:
        """The columns of the log."""
        live = find_head(self.log).live
        assert live is not None
        return live.spark_schema

    def prepare(self) -> None:
        """Make the table with the columns of the log."""
        self.table.prepare(self.log, self.spark_schema)

    def intent(self, to: int | None = None) -> Promise:
        """Promise the next range, up to the end of the log or `to`."""
        head = self.head()
        changes: dict[str, Any] = {}
        if head.target is None:
            self.prepare()
            found = self.table.snapshot(head.txn_id, None)
            assert found is not None
            if self.table.tombstones is not None:
                kept = self.table.tombstones.snapshot(head.txn_id, None)
                found = replace(found, tombstones=kept)
            changes = {"target": self.target, "table_id": found.table_id, **_versions(found)}
        self.put(INTENT, k=head.k + 1, to=self.end if to is None else to, **changes)
        return self.head().promise

    def keep(self) -> int:
        """Write the keys that the open range deletes into the tombstones, once."""
        head, tombstones = self.head(), self.table.tombstones
        if tombstones is None:
            return NO_TABLE_VERSION
        self.table.snapshot(head.txn_id, None)
        found = tombstones.snapshot(head.txn_id, head.tombstones_version)
        assert found is not None
        if head.k not in [change.k for change in found.changes]:
            tombstones.write(head.promise)
            found = tombstones.snapshot(head.txn_id, head.tombstones_version)
        assert found is not None and [each.k for each in found.changes if each.k] == [head.k]
        return found.version

    def write(self) -> None:
        """Write the rows of the open range into the table, as one version."""
        head, version = self.head(), self.keep()
        self.table.snapshot(head.txn_id, None)
        self.table.write(head.promise, version)

    def done(self) -> TableState:
        """Confirm the open range, and publish it."""
        head = self.head()
        found = confirm(head.promise, self.table)
        assert found.k == head.k
        self.put(DONE, cut=head.to, **_versions(found))
        return found

    def floor(self, position: int) -> None:
        self.put(FLOOR, floor=position)

    def compact(self, stage: str = "done", to: int | None = None) -> None:
        """A compaction that stops after `stage`, or, with tombstones, after "kept".

        It does nothing without new positions.
        """
        if self.end == self.head().cut or stage == "none":
            return
        if stage == "done":
            self.carry(to)
            return
        self.intent(to)
        if stage == "kept":
            self.keep()
        elif stage == "written":
            self.write()

    def carry(self, to: int | None = None) -> TableState:
        """The whole compaction of the next range.

        Returns:
            The confirmed snapshot.
        """
        self.intent(to)
        self.write()
        return self.done()

    def delta(self) -> DeltaTable:
        """The table, as delta-rs opens it."""
        assert isinstance(self.table, DeltaRsTable)
        return self.table.delta()

    def tombstones(self) -> DeltaTable:
        """Its tombstones, as delta-rs opens them."""
        assert isinstance(self.table, DeltaRsTable) and self.table.tombstones is not None
        return self.table.tombstones.delta()

    def found(self) -> Rows:
        """The rows of the newest version, without Spark."""
        rows: Rows = pa.table(self.delta().scan()).to_pylist()
        return rows

    def restore_tombstones(self) -> None:
        """The first version of the tombstones comes back."""
        self.tombstones().restore(0)

    def lose_tombstones(self) -> None:
        """The table with the tombstones is deleted."""
        shutil.rmtree(self.target.tombstones)

    def current(self, **options: Any) -> DataFrame:
        """Table and log as one, by Spark."""
        return sparkwal.read_current(self.spark, self.path, **options)

    def sql(self, text: str) -> Rows:
        """The rows of a statement of Spark's; {t} is the table."""
        statement = text.format(t=f"delta.`{self.target.table}`")
        return [row.asDict() for row in self.spark.sql(statement).collect()]

    def rows(self) -> Rows:
        """The rows of the newest version, by Spark."""
        from sparkwal.spark.delta_files import spark_path

        found = self.spark.read.format("delta").load(spark_path(self.target.table)).collect()
        return [row.asDict(recursive=True) for row in found]

    def rows_of(self, *versions: int) -> list[Rows]:
        """The rows of each of these versions, by one job of Spark."""
        from pyspark.sql import DataFrame
        from pyspark.sql import functions as F

        found: list[Rows] = [[] for _ in versions]
        each = [
            self.spark.read.format("delta")
            .option("versionAsOf", version)
            .load(self.target.table)
            .withColumn("_n", F.lit(n))
            for n, version in enumerate(versions)
        ]
        for row in reduce(DataFrame.union, each).collect():
            values = row.asDict(recursive=True)
            found[values.pop("_n")].append(values)
        return found

    def ranges(self) -> list[int]:
        """The ranges that the history of the table names."""
        found = self.table.snapshot(self.head().txn_id, NO_TABLE_VERSION)
        assert found is not None
        return [change.k for change in found.changes if change.k]


def _versions(found: TableState) -> dict[str, Any]:
    """The fields of a table in the chain that a confirmed snapshot gives."""
    fields: dict[str, Any] = {"table_version": found.version}
    if (tombstones := found.tombstones) is not None:
        fields["tombstones_id"] = tombstones.table_id
        fields["tombstones_version"] = tombstones.version
    return fields
