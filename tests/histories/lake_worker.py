"""The roles of a history with a Delta table: compaction, and reads of table and log as one.

delta-rs writes the table, so that a seed needs no JVM. All other parts are those of the library:
the coordinator, its records, its snapshot of the table's transaction log, and collection.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from delta_rs_table import DeltaRsTable
from deltalake import DeltaTable

import sparkwal
from sparkwal.errors import SparkWalError
from sparkwal.format.lifecycle_record import Target
from sparkwal.lifecycle.coordinator import Coordinator
from sparkwal.lifecycle.cycle import Run
from sparkwal.lifecycle.policy import Policy
from sparkwal.lifecycle.table import Table
from sparkwal.options.open import open_log
from sparkwal.options.parsing import from_keywords
from sparkwal.options.reading import SourceOptions
from tests.chains import newest

if TYPE_CHECKING:
    from .recording import Recorder
    from .worker import Worker

# Longer than a process stays stopped.
_GRACE_MS = 9_000


def coordinator(path: str, options: dict[str, Any], table: Table) -> Coordinator:
    """The lifecycle of a history's log, which keeps no row longer than a run needs."""
    log = open_log(from_keywords(SourceOptions, path, options))
    policy = Policy(late_window_seconds=0)
    return Coordinator(log, policy, table=table, gc_grace_ms=_GRACE_MS)


def compact(worker: Worker, options: dict[str, str]) -> None:
    """Compact the log into a table, move the floor and collect, until an error or the end."""
    while not worker.ended.is_set():
        table = DeltaRsTable(Target(options["table"]), worker.path, worker.options)
        lifecycle = coordinator(worker.path, worker.options, table)
        run_lifecycle(worker, lifecycle, table)


def compact_once(table: str, path: str, options: dict[str, Any], notes: Recorder) -> None:
    """Compact all rows, and move the floor."""
    filled = DeltaRsTable(Target(table), path, options)
    number = notes.begin("compact")
    run = coordinator(path, options, filled).run_once(whole=True)
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
    state = newest(open_log(from_keywords(SourceOptions, path, options)))
    if state is None or not Path(table).exists():
        return {"cut": 0, "values": []}
    return {"cut": state.cut, "values": DeltaTable(table).to_pyarrow_table()["v"].to_pylist()}
