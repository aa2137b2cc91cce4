"""A log with a table of Spark's, and a compaction that can stop after any step."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

import sparkwal
from sparkwal.format.lifecycle_record import (
    DONE,
    INTENT,
    NO_TABLE_VERSION,
    Target,
)
from sparkwal.lifecycle.compaction import confirm_table
from sparkwal.lifecycle.table import NEWEST, TableState
from sparkwal.protocol.chain import Chain, newest_record
from sparkwal.protocol.clock import Clock
from sparkwal.spark.delta import SparkDeltaTable
from sparkwal.store.base import LogStore
from sparkwal.store.config import RetryPolicy, S3Config
from sparkwal.store.open import open_store
from tests.chains import Seen, beginning, newest, put_next, with_target

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.string())])
STAGES = ("none", "intent", "written", "done")


def value(number: int) -> dict[str, Any]:
    return {"id": number, "v": f"v{number}"}


def _versions(found: TableState) -> dict[str, Any]:
    """The fields of a table in the chain that a confirmed snapshot gives."""
    fields: dict[str, Any] = {"table_version": found.version}
    if (tombstones := found.tombstones) is not None:
        fields["tombstones_id"] = tombstones.table_id
        fields["tombstones_version"] = tombstones.version
    return fields


class Lake:
    """Its rows, its table, the head of its chain."""

    def __init__(
        self, spark: SparkSession, folder: Path, *keys: str, sequencer: str = "default", **how: Any
    ) -> None:
        self.spark = spark
        self.path = str(folder / "log")
        self.name = sequencer
        mode = "merge" if keys else "append"
        self.target = Target(str(folder / "table"), mode, tuple(keys), **how)
        options = {"path": self.path, "sequencer": sequencer}
        self.table = SparkDeltaTable(spark, self.target, options)
        store, root = open_store(self.path, S3Config(), RetryPolicy())
        self.log = LogStore(store, root).sequencer(sequencer)

    def append(self, *rows: dict[str, Any], schema: pa.Schema = SCHEMA) -> None:
        with sparkwal.Appender(
            self.path, schema, producer_id="p", mergeSchema=True, sequencer=self.name
        ) as wal:
            wal.append(pa.Table.from_pylist([*rows], schema)).result()

    def head(self) -> Seen:
        info = sparkwal.Log(self.path, sequencer=self.name).head()
        assert info is not None
        begun = beginning(info.log_id, self.name, 3_600_000, newest_record(self.log))
        return newest(self.log) or with_target(begun, self.target)

    def put(self, kind: str, **changes: Any) -> None:
        assert put_next(self.log, self.head(), kind, Clock(), "here", **changes)

    def intent(self) -> None:
        from pyspark.sql.pandas.types import from_arrow_schema

        head, info = self.head(), sparkwal.Log(self.path, sequencer=self.name).head()
        assert info is not None
        changes: dict[str, Any] = {}
        if head.target is None:
            self.table.prepare(
                self.log, from_arrow_schema(info.schema, prefer_timestamp_ntz=True).json()
            )
            found = self.table.snapshot(head.txn_id, -1)
            assert found is not None
            if self.table.tombstones is not None:
                kept = self.table.tombstones.snapshot(head.txn_id, NEWEST)
                found = replace(found, tombstones=kept)
            changes = {
                "target": self.target,
                "table_id": found.table_id,
                **_versions(found),
            }
        self.put(INTENT, k=head.k + 1, to=info.position + 1, **changes)

    def keep(self) -> int:
        """Write the keys that the open range deletes into the tombstones, once."""
        head, tombstones = self.head(), self.table.tombstones
        if tombstones is None:
            return NO_TABLE_VERSION
        self.table.snapshot(head.txn_id, head.table_version)
        tombstones.write(head.promise)
        found = tombstones.snapshot(head.txn_id, head.tombstones_version)
        assert found is not None and [each.k for each in found.changes if each.k] == [head.k]
        return found.version

    def write(self) -> None:
        head = self.head()
        version = self.keep()
        self.table.snapshot(head.txn_id, head.table_version)
        self.table.write(head.promise, version)

    def done(self) -> None:
        head = self.head()
        found = confirm_table(Chain(self.log, Clock(), "here"), head.record, self.table)
        assert found.k == head.k
        self.put(DONE, cut=head.to, **_versions(found))

    def compact(self, stage: str = "done") -> None:
        steps = {"intent": self.intent, "written": self.write, "done": self.done}
        for name in STAGES[1 : STAGES.index(stage) + 1]:
            steps[name]()

    def current(self, **options: Any) -> DataFrame:
        return sparkwal.read_current(self.spark, self.path, **options)
