"""The roles of a history with a Delta table: compaction, and reads of table and log as one.

delta-rs writes the table, so that a seed needs no JVM. All other parts are those of the library:
the coordinator, its records, its snapshot of the table's transaction log, and collection.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import DeltaError

import sparkwal
from sparkwal.errors import SparkWalError, TableReadError, WriteError
from sparkwal.format.lifecycle_record import NO_TABLE_VERSION, LifecycleRecord, Target
from sparkwal.lifecycle.coordinator import Coordinator
from sparkwal.lifecycle.cycle import Run
from sparkwal.lifecycle.policy import Policy
from sparkwal.lifecycle.snapshot import delta_log
from sparkwal.lifecycle.table import Table, TableState, Tombstones
from sparkwal.options.open import open_log
from sparkwal.options.parsing import from_keywords
from sparkwal.options.reading import SourceOptions
from sparkwal.protocol.chain import newest_lifecycle
from sparkwal.store.base import LogStore

from .worker import SCHEMA

if TYPE_CHECKING:
    from .recording import Recorder
    from .worker import Worker

# Longer than a process stays stopped.
_GRACE_MS = 9_000


class DeltaRsTable:
    """A Delta table that delta-rs writes, as `sparkwal.lifecycle.table.Table`.

    Attributes:
        last_read: the range that was read last: its bounds, positions and values.
    """

    tombstones: Tombstones | None = None

    def __init__(self, table: str, path: str, options: dict[str, Any]) -> None:
        self._table = table
        self._log = sparkwal.Log(path, **options)
        self._files = delta_log(table, from_keywords(SourceOptions, path, options))
        self.last_read: dict[str, object] = {}

    def prepare(self, log: LogStore, spark_schema: str, *, first: bool = False) -> None:
        with _write_errors():
            DeltaTable.create(self._table, SCHEMA, mode="ignore")

    def snapshot(self, log_id: str, since: int, k: int | None = None) -> TableState | None:
        try:
            self._files.update()
            return self._files.snapshot(log_id, since, k)
        except TableReadError as error:
            raise WriteError(str(error)) from error

    def write(self, state: LifecycleRecord, tombstones_version: int = NO_TABLE_VERSION) -> None:
        rows = self._log.scan(state.cut, state.to - 1, columns=["_wal_position", "v"]).read_all()
        pairs = [list(row.values()) for row in rows.to_pylist()]
        self.last_read = {"start": state.cut, "to": state.to, "rows": pairs}
        with _write_errors():
            # If another writer commits after this snapshot, the transaction makes delta-rs refuse.
            table = DeltaTable(self._table)
            if (table.transaction_version(state.log_id) or 0) >= state.k:
                return
            reported = {name: getattr(state, name) for name in ("log_id", "k", "cut", "to")}
            commit = CommitProperties(
                app_transactions=[Transaction(state.log_id, state.k)],
                custom_metadata={"userMetadata": json.dumps(reported)},
            )
            write_deltalake(table, rows.select(["v"]), mode="append", commit_properties=commit)


@contextmanager
def _write_errors() -> Iterator[None]:
    try:
        yield
    except DeltaError as error:
        raise WriteError(f"the table was not written: {error}") from error


def coordinator(path: str, options: dict[str, Any], table: Table, target: Target) -> Coordinator:
    """The lifecycle of a history's log, which keeps no row longer than a run needs."""
    log = open_log(from_keywords(SourceOptions, path, options))
    policy = Policy(late_window_seconds=0)
    return Coordinator(log, policy, table=table, target=target, gc_grace_ms=_GRACE_MS)


def compact(worker: Worker, options: dict[str, str]) -> None:
    """Compact the log into a table, move the floor and collect, until an error or the end."""
    while not worker.ended.is_set():
        table = DeltaRsTable(options["table"], worker.path, worker.options)
        lifecycle = coordinator(worker.path, worker.options, table, Target(options["table"]))
        run_lifecycle(worker, lifecycle, table)


def compact_once(table: str, path: str, options: dict[str, Any], notes: Recorder) -> None:
    """Compact all rows, and move the floor."""
    filled = DeltaRsTable(table, path, options)
    number = notes.begin("compact")
    run = coordinator(path, options, filled, Target(table)).run_once(whole=True)
    notes.end(number, "ok", **_about(run, filled))


def run_lifecycle(worker: Worker, lifecycle: Coordinator, table: DeltaRsTable | None) -> None:
    """Run a lifecycle again and again, until an error or the end."""
    while not worker.ended.is_set():
        worker.pause(1.5)
        number = worker.notes.begin("compact")
        try:
            run = lifecycle.run_once(whole=worker.rng.random() < 0.8)
        except SparkWalError as error:
            print(error, flush=True)
            # The range may be in the table.
            worker.notes.end(number, "unknown", error=type(error).__name__)
            return
        worker.notes.end(number, "ok", **_about(run, table))


def _about(run: Run, table: DeltaRsTable | None) -> dict[str, object]:
    about: dict[str, object] = {"cut": run.cut, "new_floor": run.floor}
    if run.collection is not None:
        about["collected"] = run.collection.objects
    if table is not None:
        about |= table.last_read
        table.last_read = {}
    return about


def total(worker: Worker, log: sparkwal.Log) -> None:
    """Read table and log as one."""
    number = worker.notes.begin("total")
    try:
        values = log.current().to_arrow().column("v").to_pylist()
    except SparkWalError as error:
        worker.notes.end(number, "failed", error=type(error).__name__)
        raise
    worker.notes.end(number, "ok", values=values)


def table_alone(table: str, path: str, options: dict[str, Any]) -> dict[str, object]:
    """The rows of the table, past the library, and the position up to which it has all rows."""
    state = newest_lifecycle(open_log(from_keywords(SourceOptions, path, options)))
    if state is None or not Path(table).exists():
        return {"cut": 0, "values": []}
    return {"cut": state.cut, "values": DeltaTable(table).to_pyarrow_table()["v"].to_pylist()}
