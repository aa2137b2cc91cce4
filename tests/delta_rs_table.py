"""A Delta table that delta-rs writes, for tests and for processes of tests that need no JVM."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

import sparkwal
from sparkwal.errors import InvalidLogError, ReadError, TableReadError, WriteError
from sparkwal.format import schema
from sparkwal.format.lifecycle_record import MERGE, NO_TABLE_VERSION, Promise, Target
from sparkwal.lifecycle.delta.files import delta_log, storage_options
from sparkwal.lifecycle.table import (
    DELETED_AT,
    SEQUENCE,
    Held,
    TableConflict,
    TableState,
    named_range,
)
from sparkwal.options.parsing import from_keywords
from sparkwal.options.reading import SourceOptions
from sparkwal.store.base import LogStore

if TYPE_CHECKING:
    from deltalake import CommitProperties, DeltaTable


def rank(value: Any) -> tuple[Any, ...]:
    """Of a sequence: null is less than any value, and NaN greater."""
    if value is None:
        return (0,)
    return (2,) if value != value else (1, value)


class _DeltaRs:
    """A table at a URL, and its history.

    It imports delta-rs when it is used: a process that forks must not have imported it.
    """

    def __init__(self, target: Target, path: str, options: dict[str, Any]) -> None:
        self.target = target
        self.path = path
        self.options = options
        settings = from_keywords(SourceOptions, path, options)
        self._files = delta_log(target.table, settings)
        self.storage = storage_options(settings.s3, None)

    def delta(self) -> DeltaTable:
        from deltalake import DeltaTable

        return DeltaTable(self.target.table, storage_options=self.storage)

    def snapshot(self, log_id: str, since: int | None, k: int | None = None) -> TableState | None:
        with self._updated():
            return self._files.snapshot(log_id, since, k)

    def held(self, log_id: str, since: int, k: int | None = None) -> Held | None:
        with self._updated():
            return self._files.held(log_id, since, k)

    @contextmanager
    def _updated(self) -> Iterator[None]:
        try:
            self._files.update()
            yield
        except TableReadError as error:
            raise WriteError(str(error)) from error

    def _create(self, columns: pa.Schema) -> None:
        from deltalake import DeltaTable

        with _write_errors():
            DeltaTable.create(
                self.target.table, columns, mode="ignore", storage_options=self.storage
            )

    def _has(self, promise: Promise) -> bool:
        """Whether the table took the number of the open range."""
        app_id, k = promise.range_id
        return (self.delta().transaction_version(app_id) or 0) >= k

    def _append(self, rows: pa.Table, commit: CommitProperties) -> None:
        from deltalake import write_deltalake

        # If another writer commits after this snapshot, the transaction makes delta-rs refuse.
        write_deltalake(
            self.delta(), rows, mode="append", schema_mode="merge", commit_properties=commit
        )


class DeltaRsTable(_DeltaRs):
    """A Delta table, as `sparkwal.lifecycle.table.Table`.

    Attributes:
        tombstones: as `sparkwal.lifecycle.table.Tombstones`.
        last_read: the range of a log that was read last: its bounds, positions and values.
    """

    # Only Spark finds the rows that a table refuses.
    refused = None

    def __init__(self, target: Target, path: str, options: dict[str, Any]) -> None:
        super().__init__(target, path, options)
        self.tombstones = DeltaRsTombstones(self) if target.keeps_tombstones else None
        self.last_read: dict[str, object] = {}

    def prepare(self, log: LogStore, spark_schema: str, *, first: bool = False) -> None:
        self._create(schema.to_arrow(spark_schema))
        if self.tombstones is not None:
            self.tombstones.prepare()

    def write(self, promise: Promise, tombstones_version: int = NO_TABLE_VERSION) -> None:
        rows = self.rows(promise)
        with _write_errors():
            if self._has(promise):
                return
            # Delta finds columns in any case.
            own = {field.name.lower(): field.name for field in self.delta().schema().fields}
            rows = rows.rename_columns([own.get(name.lower(), name) for name in rows.column_names])
            if self.target.mode == MERGE:
                self._merge(promise, rows)
            # delta-rs makes no version of a merge that changes nothing; Spark does.
            if not self._has(promise):
                left = rows.schema.empty_table() if self.target.mode == MERGE else rows
                self._append(left, _commit(promise))

    def burn(self, promise: Promise) -> None:
        with _write_errors():
            if not self._has(promise):
                nothing = pa.schema(self.delta().schema().to_arrow()).empty_table()
                self._append(nothing, _commit(promise, is_burned=True))

    def rows(self, promise: Promise) -> pa.Table:
        """The rows of the open range."""
        parts = []
        for part in promise.ranges:
            log = sparkwal.Log(self.path, **{**self.options, "sequencer": part.sequencer})
            try:
                head = log.head()
                assert head is not None
                columns = ["_wal_position", *head.schema.names]
                rows = log.scan(part.cut, part.to - 1, columns=columns).read_all()
            except InvalidLogError as error:
                raise ReadError(str(error)) from error
            pairs = [list(row.values()) for row in rows.to_pylist()]
            self.last_read = {"start": part.cut, "to": part.to, "rows": pairs}
            parts.append(rows.drop_columns(["_wal_position"]))
        return pa.concat_tables(parts, promote_options="default")

    def winners(self, rows: pa.Table) -> dict[Any, dict[str, Any]]:
        """By key the row that wins."""
        keys, by = self.target.keys, self.target.sequence_by
        last: dict[Any, dict[str, Any]] = {}
        for row in rows.to_pylist():
            key = tuple(row[name] for name in keys)
            if key not in last or not by or rank(row[by]) >= rank(last[key][by]):
                last[key] = row
        return last

    def _merge(self, promise: Promise, rows: pa.Table) -> None:
        keys, by = self.target.keys, self.target.sequence_by
        last = self.winners(rows)
        if self.tombstones is not None:
            kept, gone = self.tombstones.sequences(), self.target.delete_when
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
            source, same, "s", "t", merge_schema=True, commit_properties=_commit(promise)
        )
        if self.target.delete_when:
            merge = merge.when_matched_delete(f"{delete} and {newer}")
        merge = merge.when_matched_update_all(newer)
        inserts = f"not {delete}" if self.target.delete_when else None
        merge.when_not_matched_insert_all(inserts).execute()


class DeltaRsTombstones(_DeltaRs):
    """The deleted keys of that table."""

    def __init__(self, table: DeltaRsTable) -> None:
        target = table.target
        super().__init__(replace(target, table=target.tombstones), table.path, table.options)
        self._of = table

    def prepare(self) -> None:
        in_table = pa.schema(self._of.delta().schema().to_arrow())
        columns = [in_table.field(name) for name in self.target.keys]
        columns.append(in_table.field(self.target.sequence_by).with_name(SEQUENCE))
        columns.append(pa.field(DELETED_AT, pa.timestamp("us", "UTC")))
        self._create(pa.schema(columns))

    def write(self, promise: Promise, *, is_repeated: bool = False) -> None:
        if self._has(promise) and not is_repeated:
            return
        by, gone = self.target.sequence_by, self.target.delete_when
        deleted = [
            {**dict(zip(self.target.keys, key, strict=True)), SEQUENCE: row[by]}
            for key, row in self._of.winners(self._of.rows(promise)).items()
            if row[gone] and row[by] is not None
        ]
        columns = pa.schema(self.delta().schema().to_arrow())
        commit = _commit(promise, has_transaction=not is_repeated)
        with _write_errors():
            self._append(pa.Table.from_pylist(deleted, columns), commit)

    def sequences(self) -> dict[Any, Any]:
        """The greatest sequence of each deleted key."""
        found: dict[Any, Any] = {}
        for row in pa.table(self.delta().scan()).to_pylist():
            key = tuple(row[name] for name in self.target.keys)
            found[key] = max(found.get(key, row[SEQUENCE]), row[SEQUENCE], key=rank)
        return found


def _commit(
    promise: Promise, *, is_burned: bool = False, has_transaction: bool = True
) -> CommitProperties:
    """The name of the open range in a commit, and its transaction."""
    from deltalake import CommitProperties, Transaction

    named = named_range(promise) | ({"is_burned": True} if is_burned else {})
    transactions = [Transaction(*promise.range_id)] if has_transaction else []
    return CommitProperties(
        app_transactions=transactions, custom_metadata={"userMetadata": json.dumps(named)}
    )


@contextmanager
def _write_errors() -> Iterator[None]:
    from deltalake.exceptions import CommitFailedError, DeltaError

    try:
        yield
    except CommitFailedError as error:
        raise TableConflict(str(error)) from error
    except DeltaError as error:
        raise WriteError(f"the table was not written: {error}") from error
