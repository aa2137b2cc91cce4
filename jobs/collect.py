"""What a log does not need any more: show it, or delete it."""

from __future__ import annotations

import support.installed  # noqa: F401

# isort: split
import importlib.util
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import click
from rich.console import Console

from sparkwal.cli.asking import key_values, takes_log_options
from sparkwal.cli.exits import Refused, Stopped
from sparkwal.cli.telling import shown, size
from sparkwal.errors import SparkWalError
from sparkwal.format.lifecycle import LifecycleRecord, Target
from sparkwal.lifecycle.collection import Collection
from sparkwal.lifecycle.coordinator import Lifecycle
from sparkwal.lifecycle.lake import NewestLake, storage_options
from sparkwal.lifecycle.options import LifecycleOptions
from sparkwal.lifecycle.table import Table
from sparkwal.protocol.chain import look
from sparkwal.protocol.log_store import LogStore
from support import jvm
from support.attended import attended
from support.follow import Meter, Signals
from support.lifecycles import (
    EXIT_CODES,
    Failures,
    checked,
    logs,
    takes_lifecycle_options,
    takes_sequencers,
    told_by,
)
from support.session import as_exit, need_delta, need_spark, start_session
from support.tables import jars, packages, s3a_settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

console = Console(stderr=True)
_COLUMNS = ["log", "floor", "below", "objects", "bytes", "uploads", "held back by"]


@dataclass
class Collecting:
    """The logs that are collected.

    Attributes:
        deletes: False: only show what would go.
        with_spark: tables are looked at by Spark, else by delta-rs.
    """

    settings: LifecycleOptions
    every: bool
    deletes: bool
    with_spark: bool
    spark: SparkSession | None = None
    states: dict[str, tuple[LogStore, LifecycleRecord | None]] = field(default_factory=dict)

    def look(self) -> None:
        """Which logs there are, and how far the lives of them have come. Raises Refused."""
        found = logs(self.settings, self.every)
        if not found:
            raise Refused(f"there is no log at {self.settings.log_path}; check the path")
        self.states = {name: (log, look(log)) for name, log in found.items()}

    def targets(self) -> list[Target]:
        return [state.target for _, state in self.states.values() if state and state.target]

    def run(self) -> dict[str, Collection | None | SparkWalError]:
        """What was, or would be, deleted of each log; None where no lifecycle was begun."""
        found: dict[str, Collection | None | SparkWalError] = {}
        for name, (log, state) in self.states.items():
            try:
                life = Lifecycle(
                    log, self.settings, sequencer=name, table=self._table(name, state),
                    gc_grace_ms=self.settings.gc_grace_ms,
                    consumer_expiry_ms=self.settings.consumer_expiry_ms,
                )  # fmt: skip
                found[name] = life.collect(dry_run=not self.deletes)
            except SparkWalError as error:
                found[name] = error
        return found

    def _table(self, name: str, state: LifecycleRecord | None) -> Table | None:
        if state is None or state.target is None:
            return None
        if self.spark is None:
            return NewestLake(state.target.table, storage_options(self.settings.s3, None))
        from sparkwal.spark.delta import SparkDeltaTable

        return SparkDeltaTable(self.spark, state.target, {"path": self.settings.path})


def _row(name: str, floor: int, found: Collection | None) -> list[str]:
    if found is None:
        return [name, "–", "–", "0", "0 B", "0", "no lifecycle: run jobs/compact.py"]
    told = [f"{found.objects:,}", size(found.bytes), f"{found.uploads:,}", found.held_by or "–"]
    return [name, str(floor), str(found.bound), *told]


@click.command(epilog=EXIT_CODES)
@click.argument("path")
@takes_log_options()
@takes_lifecycle_options(policy=False)
@takes_sequencers
@click.option(
    "--dry-run/--delete", default=True,
    help="Show what would go, or delete it.  [default: --dry-run]",
)  # fmt: skip
@click.option(
    "--spark", "with_spark", is_flag=True,
    help="Look at the log's table by Spark also where delta-rs is installed.",
)  # fmt: skip
@click.option(
    "--conf", multiple=True, metavar="NAME=VALUE",
    help="A setting of Spark, as spark-submit takes it; repeatable.",
)  # fmt: skip
@click.option(
    "--drain-timeout", type=click.FloatRange(0), default=60.0, show_default=True,
    help="Seconds a signal waits for the end.",
)  # fmt: skip
def main(
    path: str, given: dict[str, str], sequencer: str | None, sequencers: str | None,
    dry_run: bool, with_spark: bool, conf: tuple[str, ...], drain_timeout: float,
) -> None:  # fmt: skip
    """Show, or with --delete delete, what the log at PATH does not need any more.

    That is what its floor has passed for longer than the grace, no live consumer waits for, and
    its table holds. jobs/compact.py does the same after each run. Stop it at any moment and run
    it again: it goes on.

    \b
    python jobs/collect.py s3://bucket/wal
    python jobs/collect.py s3://bucket/wal --delete
    """
    try:
        settings = checked(path, given, sequencer, sequencers)
        configured = key_values(conf, "--conf")
        if configured and jvm.started_by_spark_submit():
            raise Refused("--conf here is too late: give it to spark-submit")
        work = Collecting(settings, bool(sequencers), not dry_run, with_spark)
        work.look()
    except SparkWalError as error:
        raise as_exit(error) from None
    targets = work.targets()
    if targets and (with_spark or importlib.util.find_spec("deltalake") is None):
        need_spark()
        need_delta("a table")
        first = targets[0].table
        work.spark = start_session(
            "sparkwal collect", delta=True, packages=packages(first),
            jars=jars(first),
            settings={**s3a_settings(first, settings), **configured},
        )  # fmt: skip
    doing = "counting" if dry_run else "deleting"
    try:
        with Signals() as signals, Meter(console, "collect") as meter, told_by(console):
            found = attended(work.run, meter, signals, work.spark, drain_timeout, lambda: doing)
    except SparkWalError as error:
        raise as_exit(error) from None
    finally:
        if work.spark is not None:
            jvm.end(work.spark)
    failures = {name: error for name, error in found.items() if isinstance(error, SparkWalError)}
    rows = []
    for name, result in found.items():
        if not isinstance(result, SparkWalError):
            state = work.states[name][1]
            rows.append(_row(name, state.floor if state else 0, result))
    if rows:
        shown(f"{path}: {'this would be deleted' if dry_run else 'deleted'}", _COLUMNS, rows)
    if failures:
        raise Failures(failures, bool(sequencers))
    if signals.received is not None:
        raise Stopped(signals.received)


if __name__ == "__main__":
    main()
