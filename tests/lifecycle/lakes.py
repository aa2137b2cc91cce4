"""A log on a disk, and a compaction of it into a Delta table that can stop after any step."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

import sparkwal
from sparkwal.format.lifecycle_record import (
    APPEND,
    DONE,
    FLOOR,
    INTENT,
    MERGE,
    Target,
)
from sparkwal.lifecycle.delta.files import storage_options
from sparkwal.lifecycle.table import named_range
from sparkwal.lifecycle.tombstones import DELETED_AT, SEQUENCE
from sparkwal.options.parsing import from_keywords
from sparkwal.options.reading import SourceOptions
from sparkwal.protocol.chain import newest_record
from sparkwal.protocol.clock import Clock
from sparkwal.store.base import LogStore
from sparkwal.store.open import open_store
from tests.chains import Seen, beginning, newest, put_next, with_target

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.string())])
STAGES = ("none", "intent", "written", "done")


def rank(value: Any) -> tuple[Any, ...]:
    """Of a sequence: null is less than any value, and NaN greater."""
    if value is None:
        return (0,)
    return (2,) if value != value else (1, value)


class Lake:
    """A log with a table.

    Args:
        folder: the folder of log and table, on a disk or on S3.
        sequencer: the name of one of several logs under `folder` that share the table.
        options: the options of the log's store.
    """

    def __init__(
        self,
        folder: Path | str,
        mode: str = APPEND,
        keys: Sequence[str] = (),
        *,
        sequencer: str | None = None,
        options: dict[str, str] | None = None,
        **target: Any,
    ) -> None:
        self.path, self.table = f"{folder}/log", f"{folder}/table"
        self.target = Target(self.table, mode, tuple(keys), **target)
        self.options = {**(options or {}), **({"sequencer": sequencer} if sequencer else {})}
        settings = from_keywords(SourceOptions, self.path, self.options)
        self.storage = storage_options(settings.s3, None)
        store, root = open_store(self.path, settings.s3, settings.retry)
        self.log = LogStore(store, root)
        if sequencer:
            self.log = self.log.sequencer(sequencer)
        self.name = sequencer or "default"
        self._batch = 0

    def append(self, rows: pa.Table | list[dict[str, Any]], schema: pa.Schema = SCHEMA) -> None:
        """One commit: one position, besides those of leader records."""
        if isinstance(rows, list):
            rows = pa.Table.from_pylist(rows, schema)
        with sparkwal.Appender(
            self.path, rows.schema, producer_id="p", mergeSchema=True, **self.options
        ) as wal:
            wal.append(rows)

    def reader(self, **options: Any) -> sparkwal.Log:
        return sparkwal.Log(self.path, **self.options, **options)

    @property
    def end(self) -> int:
        head = self.reader().head()
        assert head is not None
        return head.position + 1

    def head(self) -> Seen:
        info = self.reader().head()
        assert info is not None
        begun = beginning(info.log_id, self.name, 3_600_000, newest_record(self.log))
        return newest(self.log) or with_target(begun, self.target)

    def _put(self, kind: str, **changes: Any) -> None:
        assert put_next(self.log, self.head(), kind, Clock(), "here", **changes)

    def delta(self) -> DeltaTable:
        return DeltaTable(self.table, storage_options=self.storage)

    def intent(self, to: int | None = None) -> None:
        head, info = self.head(), self.reader().head()
        assert info is not None
        changes: dict[str, Any] = {}
        if head.target is None:
            if not DeltaTable.is_deltatable(self.table, self.storage):
                write_deltalake(self.table, info.schema.empty_table(), storage_options=self.storage)
            table = self.delta()
            changes = {
                "target": self.target,
                "table_id": str(table.metadata().id),
                "table_version": table.version(),
            }
            if self.target.keeps_tombstones:
                changes |= self._make_tombstones(info.schema)
        self._put(INTENT, k=head.k + 1, to=self.end if to is None else to, **changes)

    def _make_tombstones(self, schema: pa.Schema) -> dict[str, Any]:
        columns = [schema.field(name) for name in self.target.keys]
        columns.append(schema.field(self.target.sequence_by).with_name(SEQUENCE))
        columns.append(pa.field(DELETED_AT, pa.timestamp("us", "UTC")))
        write_deltalake(
            self.target.tombstones, pa.schema(columns).empty_table(), storage_options=self.storage
        )
        made = self.tombstones()
        return {"tombstones_id": str(made.metadata().id), "tombstones_version": made.version()}

    def tombstones(self) -> DeltaTable:
        return DeltaTable(self.target.tombstones, storage_options=self.storage)

    def _commit(self) -> CommitProperties:
        """Of the open range."""
        head = self.head()
        reported = named_range(head.promise)
        return CommitProperties(
            app_transactions=[Transaction(head.txn_id, head.k)],
            custom_metadata={"userMetadata": json.dumps(reported)},
        )

    def keep(self) -> None:
        """Write the keys that the open range deletes into the tombstones, once."""
        head = self.head()
        if self.tombstones().transaction_version(head.txn_id) == head.k:
            return
        by, gone = self.target.sequence_by, self.target.delete_when
        last = self._last(self.reader().scan(head.cut, head.to - 1).read_all())
        deleted = [
            {**dict(zip(self.target.keys, key, strict=True)), SEQUENCE: row[by]}
            for key, row in last.items()
            if row[gone] and row[by] is not None
        ]
        schema = pa.schema(self.tombstones().schema().to_arrow())
        write_deltalake(
            self.target.tombstones,
            pa.Table.from_pylist(deleted, schema),
            mode="append",
            commit_properties=self._commit(),
            storage_options=self.storage,
        )

    def _sequences(self) -> dict[Any, Any]:
        """The greatest sequence of the tombstones of each key."""
        found: dict[Any, Any] = {}
        for row in pa.table(self.tombstones().scan()).to_pylist():
            key = tuple(row[name] for name in self.target.keys)
            found[key] = max(found.get(key, row[SEQUENCE]), row[SEQUENCE], key=rank)
        return found

    def _last(self, rows: pa.Table) -> dict[Any, dict[str, Any]]:
        """By key the row that wins."""
        keys, by = self.target.keys, self.target.sequence_by
        last: dict[Any, dict[str, Any]] = {}
        for row in rows.to_pylist():
            key = tuple(row[name] for name in keys)
            if key not in last or not by or rank(row[by]) >= rank(last[key][by]):
                last[key] = row
        return last

    def write(self, **given: Any) -> None:
        """Write the rows of the open range into the table, as one version."""
        head = self.head()
        if self.target.keeps_tombstones:
            self.keep()
        commit = self._commit()
        rows = self.reader().scan(head.cut, head.to - 1).read_all()
        # Delta finds columns in any case.
        own = {field.name.lower(): field.name for field in self.delta().schema().fields}
        rows = rows.rename_columns([own.get(name.lower(), name) for name in rows.column_names])
        if self.target.mode == MERGE:
            self._merge(rows, commit)
        else:
            write_deltalake(
                self.table,
                rows,
                mode="append",
                schema_mode="merge",
                commit_properties=commit,
                storage_options=self.storage,
            )

    def _merge(self, rows: pa.Table, commit: CommitProperties) -> None:
        keys, by = self.target.keys, self.target.sequence_by
        last = self._last(rows)
        if self.target.keeps_tombstones:
            kept, gone = self._sequences(), self.target.delete_when
            last = {
                key: row
                for key, row in last.items()
                if row[gone] or key not in kept or rank(row[by]) >= rank(kept[key])
            }
        source = pa.Table.from_pylist([*last.values()], rows.schema)
        same = " and ".join(f"(t.{k} = s.{k} or (t.{k} is null and s.{k} is null))" for k in keys)
        newer = f"(t.{by} is null or s.{by} >= t.{by})" if by else "true"
        delete = f"coalesce(s.{self.target.delete_when}, false)"
        merge = self.delta().merge(
            source, same, "s", "t", merge_schema=True, commit_properties=commit
        )
        if self.target.delete_when:
            merge = merge.when_matched_delete(f"{delete} and {newer}")
        merge = merge.when_matched_update_all(newer)
        merge.when_not_matched_insert_all(
            f"not {delete}" if self.target.delete_when else None
        ).execute()
        # delta-rs makes no version of a merge that changes nothing; Spark does.
        if self.delta().transaction_version(self.head().txn_id) != self.head().k:
            nothing = source.schema.empty_table()
            write_deltalake(
                self.table,
                nothing,
                mode="append",
                commit_properties=commit,
                storage_options=self.storage,
            )

    def done(self) -> None:
        changes = {"table_version": self.delta().version()}
        if self.target.keeps_tombstones:
            changes["tombstones_version"] = self.tombstones().version()
        self._put(DONE, cut=self.head().to, **changes)

    def floor(self, position: int) -> None:
        self._put(FLOOR, floor=position)

    def compact(self, stage: str = "done", to: int | None = None) -> None:
        """A compaction that stops after `stage`, or, with tombstones, after "kept".

        It does nothing without new positions.
        """
        if self.end == self.head().cut:
            return
        if stage == "kept":
            self.intent(to)
            self.keep()
            return
        for name in STAGES[1 : STAGES.index(stage) + 1]:
            {"intent": lambda: self.intent(to), "written": self.write, "done": self.done}[name]()
