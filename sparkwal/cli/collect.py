"""`sparkwal collect`: what logs do not need any more, counted or deleted."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import click
from rich.console import Console

from sparkwal.cli.asking import as_json, takes_logs
from sparkwal.cli.exits import Refused
from sparkwal.cli.lifecycles import (
    EXIT_CODES,
    Failures,
    checked,
    logs,
    takes_delete,
    takes_lifecycle_options,
    told_by,
)
from sparkwal.cli.telling import print_json, shown, size
from sparkwal.errors import SparkWalError
from sparkwal.format.lifecycle import LifecycleRecord, Target
from sparkwal.lifecycle.collection import Collection
from sparkwal.lifecycle.coordinator import Lifecycle
from sparkwal.lifecycle.lake import NewestLake
from sparkwal.lifecycle.options import LifecycleOptions
from sparkwal.lifecycle.table import Table
from sparkwal.protocol.chain import look
from sparkwal.store.log_store import LogStore

# What became of each log: None where no lifecycle was begun.
Results = dict[str, Collection | None | SparkWalError]

_COLUMNS = ["log", "floor", "below", "objects", "bytes", "uploads", "held back by"]


@dataclass
class Collecting:
    """The logs that are collected.

    Attributes:
        deletes: False: only count what would go.
        table_of: how a log's table is looked at; None: without Spark.
    """

    settings: LifecycleOptions
    every: bool
    deletes: bool
    table_of: Callable[[Target], Table] | None = None
    states: dict[str, tuple[LogStore, LifecycleRecord | None]] = field(default_factory=dict)

    def look(self) -> None:
        """Which logs there are, and how far the lives of them have come. Raises Refused."""
        found = logs(self.settings, self.every)
        if not found:
            raise Refused(f"there is no log at {self.settings.log_path}; check the path")
        self.states = {name: (log, look(log)) for name, log in found.items()}

    def targets(self) -> list[Target]:
        """The tables of the logs."""
        return [state.target for _, state in self.states.values() if state and state.target]

    def run(self) -> Results:
        """What was, or would be, deleted of each log, or why nothing can be."""
        found: Results = {}
        for name, (log, state) in self.states.items():
            try:
                life = Lifecycle(
                    log, self.settings, sequencer=name, table=self._table(state),
                    gc_grace_ms=self.settings.gc_grace_ms,
                    consumer_expiry_ms=self.settings.consumer_expiry_ms,
                )  # fmt: skip
                found[name] = life.collect(dry_run=not self.deletes)
            except SparkWalError as error:
                found[name] = error
        return found

    def _table(self, state: LifecycleRecord | None) -> Table | None:
        if state is None or state.target is None:
            return None
        if self.table_of is not None:
            return self.table_of(state.target)
        return NewestLake(state.target.table, self.settings)

    def show(self, results: Results) -> None:
        """A table of what became of the logs without an error."""
        rows = [self._row(name, found) for name, found in results.items()
                if not isinstance(found, SparkWalError)]  # fmt: skip
        if rows:
            what = "deleted" if self.deletes else "this would be deleted"
            shown(f"{self.settings.path}: {what}", _COLUMNS, rows)

    def _row(self, name: str, found: Collection | None) -> list[str]:
        if found is None:
            return [name, "–", "–", "0", "0 B", "0", "no lifecycle: nothing was let go"]
        told = [f"{found.objects:,}", size(found.bytes), f"{found.uploads:,}", found.held_by or "–"]
        return [name, str(self._floor(name)), str(found.bound), *told]

    def _floor(self, name: str) -> int:
        state = self.states[name][1]
        return state.floor if state else 0

    def documents(self, results: Results) -> list[dict[str, Any]]:
        """The same for programs."""
        return [
            {"sequencer": name, "floor": self._floor(name), "deleted": self.deletes, **_told(found)}
            for name, found in results.items()
        ]


def _told(found: Collection | None | SparkWalError) -> dict[str, Any]:
    if found is None:
        return {"lifecycle": False}
    if isinstance(found, SparkWalError):
        return {"lifecycle": True, "error": str(found)}
    return {
        "lifecycle": True, "below": found.bound, "objects": found.objects, "bytes": found.bytes,
        "uploads": found.uploads, "held_by": found.held_by or None,
    }  # fmt: skip


def failures_of(
    results: Mapping[str, Collection | None | SparkWalError],
) -> dict[str, SparkWalError]:
    """What went wrong, by log."""
    return {name: each for name, each in results.items() if isinstance(each, SparkWalError)}


@click.command(epilog=EXIT_CODES)
@takes_logs
@takes_lifecycle_options(policy=False)
@takes_delete
@as_json
def command(path: str, given: dict[str, str], deletes: bool, as_json: bool) -> None:
    """What the log at PATH does not need any more; with --delete it is deleted.

    That is what its floor has passed for longer than the grace, no live consumer waits for, and
    its table holds. Stop it at any moment and run it again: it goes on. A Delta table that is not
    on a disk or on S3 is looked at by delta-rs: pip install 'sparkwal[lake]'.

    \b
    sparkwal collect s3://bucket/wal
    sparkwal collect s3://bucket/wal --delete

    Requests: 4 LIST and 3 GET; as many age checks as halving the lifecycle's records takes; 2 for
    each consumer; 1 LIST for a thousand objects below the floor, with --delete 1 DELETE too.
    """
    sequencers = given.pop("sequencers", None)
    settings = checked(path, given, None, bool(sequencers))
    work = Collecting(settings, bool(sequencers), deletes)
    work.look()
    with told_by(Console(stderr=True)):
        found = work.run()
    if as_json:
        for document in work.documents(found):
            print_json(document)
    else:
        work.show(found)
    if failures := failures_of(found):
        raise Failures(failures, bool(sequencers))
