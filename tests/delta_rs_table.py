"""A Delta table that delta-rs writes, for processes of tests that need no JVM."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

import sparkwal
from sparkwal.errors import InvalidLogError, ReadError, TableReadError, WriteError
from sparkwal.format.lifecycle_record import NO_TABLE_VERSION, Promise, Target
from sparkwal.lifecycle.delta.files import delta_log
from sparkwal.lifecycle.table import TableState, Tombstones, named_range
from sparkwal.options.parsing import from_keywords
from sparkwal.options.reading import SourceOptions
from sparkwal.store.base import LogStore


class DeltaRsTable:
    """A Delta table of one column `v`, as `sparkwal.lifecycle.table.Table`.

    It imports delta-rs when it is used: a process that forks must not have imported it.

    Attributes:
        last_read: the range of a log that was read last: its bounds, positions and values.
    """

    tombstones: Tombstones | None = None

    def __init__(self, table: str, path: str, options: dict[str, Any]) -> None:
        self.target = Target(table)
        self._table = table
        self._path = path
        self._options = options
        self._files = delta_log(table, from_keywords(SourceOptions, path, options))
        self.last_read: dict[str, object] = {}

    def check_rows(self, promise: Promise, spark_schema: str) -> None:
        """It takes any row."""

    def prepare(self, log: LogStore, spark_schema: str, *, first: bool = False) -> None:
        from deltalake import DeltaTable

        with _write_errors():
            DeltaTable.create(self._table, pa.schema([("v", pa.int64())]), mode="ignore")

    def snapshot(self, log_id: str, since: int, k: int | None = None) -> TableState | None:
        try:
            self._files.update()
            return self._files.snapshot(log_id, since, k)
        except TableReadError as error:
            raise WriteError(str(error)) from error

    def write(self, promise: Promise, tombstones_version: int = NO_TABLE_VERSION) -> None:
        parts = []
        for part in promise.ranges:
            log = sparkwal.Log(self._path, **{**self._options, "sequencer": part.sequencer})
            columns = ["_wal_position", "v"]
            try:
                rows = log.scan(part.cut, part.to - 1, columns=columns).read_all()
            except InvalidLogError as error:
                raise ReadError(str(error)) from error
            pairs = [list(row.values()) for row in rows.to_pylist()]
            self.last_read = {"start": part.cut, "to": part.to, "rows": pairs}
            parts.append(rows.select(["v"]))
        self._commit(promise, pa.concat_tables(parts), {})

    def burn(self, promise: Promise) -> None:
        nothing = pa.schema([("v", pa.int64())]).empty_table()
        self._commit(promise, nothing, {"is_burned": True})

    def _commit(self, promise: Promise, rows: pa.Table, more: dict[str, Any]) -> None:
        from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

        with _write_errors():
            # If another writer commits after this snapshot, the transaction makes delta-rs refuse.
            table = DeltaTable(self._table)
            if (table.transaction_version(promise.table.app_id) or 0) >= promise.table.k:
                return
            commit = CommitProperties(
                app_transactions=[Transaction(promise.table.app_id, promise.table.k)],
                custom_metadata={"userMetadata": json.dumps({**named_range(promise), **more})},
            )
            write_deltalake(table, rows, mode="append", commit_properties=commit)


@contextmanager
def _write_errors() -> Iterator[None]:
    from deltalake.exceptions import DeltaError

    try:
        yield
    except DeltaError as error:
        raise WriteError(f"the table was not written: {error}") from error
