"""A log's rows into a Delta table, and out of the log."""

from __future__ import annotations

try:
    import support.installed  # noqa: F401
except ModuleNotFoundError:
    raise SystemExit(
        "jobs/support cannot be imported: keep that folder beside this file, run Python without "
        "-P, or give it to spark-submit --py-files (sparkwal/docs/deploying.md)"
    ) from None

# isort: split
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console

from sparkwal.cli.exit_codes import Failed, Refused, Stopped
from sparkwal.cli.flags import (
    key_values,
    takes_all,
    takes_interval,
    takes_log,
    with_flags,
)
from sparkwal.cli.lifecycle_flags import (
    EXIT_CODES,
    EventPrinter,
    Failures,
    existing_logs,
    one_line,
    parse_options,
    printing_events,
    takes_lifecycle_options,
)
from sparkwal.cli.output import size, table
from sparkwal.errors import (
    CompactionError,
    OptionError,
    PlanError,
    SparkWalError,
    StoreUnavailableError,
)
from sparkwal.format.lifecycle_record import Target
from sparkwal.lifecycle.coordinator import Run
from sparkwal.lifecycle.policy import LifecycleOptions
from sparkwal.lifecycle.table import check_apart, check_same_target
from sparkwal.protocol.chain import look
from sparkwal.spark.delta_lifecycle import Lifecycle, target_of
from support import jvm
from support.follow import Meter, Signals, attended
from support.session import as_exit, need_delta, need_spark, packages, s3a_settings, start_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# After a failure --continuous doubles its pause, up to this or --interval.
_LONGEST_PAUSE = 600.0

console = Console(stderr=True)


@dataclass
class Compaction:
    """The logs to compact, all under the path if `every`, and how; `given` are the options as they
    were log_options. `accept`: the next round accepts the table as it is."""

    settings: LifecycleOptions
    log_options: dict[str, str]
    every: bool
    target: Target | None
    collects: bool
    whole: bool
    accept: bool
    spark: SparkSession | None = None
    lives: dict[str, Lifecycle] = field(default_factory=dict)

    def round(self) -> dict[str, Run | SparkWalError]:
        """Run each log once. An error of one log does not stop the others."""
        found: dict[str, Run | SparkWalError] = {}
        try:
            # A single log that was found stays; under a path more logs may appear.
            names: Iterable[str] = self.lives
            if not self.lives or self.every:
                names = existing_logs(self.settings, all_sequencers=self.every)
        except StoreUnavailableError as error:
            return {self.settings.path: error}
        for name in [*names]:
            try:
                found[name] = self._run(name)
            except SparkWalError as error:
                found[name] = error
        self.accept = False
        return found

    def _run(self, name: str) -> Run:
        if name not in self.lives:
            self.lives[name] = self._life(name)
        life = self.lives[name]
        if self.accept:
            life.accept_table()
        return life.run_once(whole=self.whole)

    def _life(self, name: str) -> Lifecycle:
        arguments: dict[str, Any] = with_flags(self.log_options, sequencer=name)
        arguments["collects"] = self.collects
        if self.target is not None:
            arguments |= {**vars(self.target), "spark": self.spark}
            arguments["properties"] = dict(self.target.properties)
            del arguments["mode"]  # keys imply it
        return Lifecycle(self.settings.path, **arguments)

    def check(self, waits: bool) -> None:
        """Check what can be checked before Spark starts. Raises Refused, OptionError."""
        found = existing_logs(self.settings, all_sequencers=self.every)
        if not found and not waits:
            raise Refused(f"there is no log at {self.settings.log_path}; check the path")
        for log in found.values():
            state = look(log)
            if state is None or state.target is None:
                continue
            if self.target is None:
                raise OptionError(
                    f"{log.url} is compacted into {state.target.table}: give that table, so that "
                    "nothing leaves the log which the table does not hold"
                )
            try:
                check_same_target(self.target, state.target)
            except PlanError as error:
                raise OptionError(str(error)) from None


def _row(name: str, run: Run) -> dict[str, str]:
    ranges = [each for each in (run.finished, run.compacted) if each is not None]
    collected = run.collection
    idle = "" if collected and collected.objects else "none was due"
    return {
        "log": name,
        "range": ", ".join(str(each.k) for each in ranges) or idle,
        "positions": ", ".join(f"{each.start}…{each.end - 1}" for each in ranges),
        "rows": ", ".join("?" if each.rows is None else f"{each.rows:,}" for each in ranges),
        "bytes": ", ".join(size(each.bytes) for each in ranges),
        "version": str(ranges[-1].table_version) if ranges else "",
        "floor": str(run.floor),
        "collected": f"{collected.objects:,} objects, {size(collected.bytes)}" if collected else "",
    }


def _say(text: str) -> None:
    console.print(text, highlight=False, markup=False, soft_wrap=True)


def _once(
    work: Compaction, meter: Meter, signals: Signals, printer: EventPrinter, drain: float
) -> None:
    found = attended(work.round, meter, signals, work.spark, drain, lambda: printer.note)
    runs = {name: run for name, run in found.items() if isinstance(run, Run)}
    failures = {name: error for name, error in found.items() if isinstance(error, SparkWalError)}
    if runs:
        target = f" → {work.target.table}" if work.target else ""
        table([_row(*item) for item in runs.items()], f"{work.settings.path}{target}")
    # A signal to all processes of the job also ends Spark, and so its work fails.
    if failures and signals.received is None:
        raise Failures(failures, several=work.every)


def _continuously(
    work: Compaction,
    meter: Meter,
    signals: Signals,
    printer: EventPrinter,
    drain: float,
    interval: float,
) -> None:
    failed = 0
    while signals.received is None:
        found = attended(work.round, meter, signals, work.spark, drain, lambda: printer.note)
        if signals.received is not None and not all(isinstance(r, Run) for r in found.values()):
            return
        failed += 1
        for name, run in found.items():
            if isinstance(run, Run):
                if run.finished or run.compacted or run.collection:
                    figures = [f"{what} {each}" for what, each in _row(name, run).items() if each]
                    _say(f"{time.strftime('%H:%M:%S')} {name}: {', '.join(figures[1:])}")
            elif isinstance(run, CompactionError | StoreUnavailableError):
                _say(f"{name}: {one_line(run)}")
            else:
                raise Failures({name: run}, several=work.every)
        if all(isinstance(run, Run) for run in found.values()):
            failed = 0
        elif work.spark is not None and not jvm.at_work():
            raise Failed("Spark's JVM is gone; start the job again")
        longer = min(_LONGEST_PAUSE, interval * 2 ** min(failed, 10))
        pause = interval if not failed else max(interval, longer)
        if failed:
            _say(f"suspended; tried again in {pause:g} s")
        printer.note = "waiting" if not failed else "suspended"
        until = time.monotonic() + pause
        while signals.received is None and time.monotonic() < until:
            time.sleep(min(0.1, max(0.0, until - time.monotonic())))
            meter.show(0, printer.note)
        printer.note = "looking"


@click.command(epilog=EXIT_CODES)
@takes_log
@click.argument("table", required=False)
@takes_lifecycle_options(policy=True)
@takes_all
@click.option("--now", is_flag=True, help="Bring everything that is there, whatever is due.")
@click.option(
    "--key",
    "keys",
    multiple=True,
    metavar="COLUMN",
    help="MERGE by it: a row takes the place of the row with the same key; repeatable. Without, "
    "rows are appended.",
)
@click.option(
    "--sequence-by",
    default="",
    metavar="COLUMN",
    help="Of rows with one key the one with the greatest value wins.  [default: the last written]",
)
@click.option(
    "--delete-when",
    default="",
    metavar="SQL",
    help="A row for which this holds deletes its key: \"op = 'D'\".",
)
@click.option("--partition-by", multiple=True, metavar="COLUMN", help="Of a new table; repeatable.")
@click.option("--cluster-by", multiple=True, metavar="COLUMN", help="Of a new table; repeatable.")
@click.option(
    "--property",
    "properties",
    multiple=True,
    metavar="NAME=VALUE",
    help="Of a new table; repeatable.",
)
@click.option(
    "--collect/--no-collect",
    default=True,
    show_default=True,
    help="Delete what the floor has passed and gcGrace is over for.",
)
@click.option(
    "--accept-table",
    is_flag=True,
    help="Take the table as it is for one that holds all that the log's lifecycle knows: you "
    "restored it, or compared the two.",
)
@click.option("--continuous", is_flag=True, help="Go on until stopped.")
@takes_interval("1min", "Between two looks of --continuous.")
@click.option(
    "--conf",
    multiple=True,
    metavar="NAME=VALUE",
    help="A setting of Spark, as spark-submit takes it; repeatable.",
)
@click.option(
    "--drain-timeout",
    type=click.FloatRange(0),
    default=60.0,
    show_default=True,
    help="Seconds a signal waits for the range under way.",
)
def main(
    path: str,
    table: str | None,
    log_options: dict[str, str],
    every: bool,
    now: bool,
    keys: tuple[str, ...],
    sequence_by: str,
    delete_when: str,
    partition_by: tuple[str, ...],
    cluster_by: tuple[str, ...],
    properties: tuple[str, ...],
    collect: bool,
    accept_table: bool,
    continuous: bool,
    interval: int,
    conf: tuple[str, ...],
    drain_timeout: float,
) -> None:
    """Bring what is due of the log at PATH into the Delta table at TABLE, exactly once.

    Then the log's floor moves, and what it passed is deleted when the grace is over. Without
    TABLE, and so without Spark, --retain and --retain-bytes alone decide what leaves the log.

    Run it again and it goes on where it stopped, after kill -9 too. Any number may run at once.
    Ctrl-C and SIGTERM let the range under way finish; a second one stops at once.

    \b
    python jobs/compact.py s3://bucket/wal s3a://lake/orders --key id --continuous
    python jobs/compact.py s3://bucket/wal --retain 7d
    """
    try:
        settings = parse_options(path, log_options, all_sequencers=every)
        described = key_values(properties, "--property")
        target = target_of(
            table, keys, sequence_by, delete_when, partition_by, cluster_by, described
        )
        if target is not None:
            check_apart(path, target)
        if target is None and settings.retain_seconds is None and settings.retain_bytes is None:
            raise Refused("give TABLE, or --retain or --retain-bytes for a log without a table")
        if target is None and (now or accept_table or conf):
            raise Refused("--now, --accept-table and --conf are for a log with a TABLE")
        if accept_table and continuous:
            raise Refused("--accept-table is for one run; start --continuous after it")
        configured = key_values(conf, "--conf")
        if configured and jvm.started_by_spark_submit():
            raise Refused("--conf here is too late: give it to spark-submit")
        work = Compaction(settings, log_options, every, target, collect, now, accept_table)
        work.check(waits=continuous)
    except SparkWalError as error:
        raise as_exit(error) from None
    if target is not None:
        need_spark()
        need_delta("a table")
        work.spark = start_session(
            "sparkwal compact",
            delta=True,
            packages=packages(target.table),
            settings={**s3a_settings(target.table, settings), **configured},
        )
    try:
        with (
            Signals() as signals,
            Meter(console, "compact") as meter,
            printing_events(console) as printer,
        ):
            try:
                if continuous:
                    _continuously(work, meter, signals, printer, drain_timeout, interval / 1000)
                else:
                    _once(work, meter, signals, printer, drain_timeout)
            except SparkWalError as error:
                raise as_exit(error) from None
    finally:
        if work.spark is not None:
            jvm.end(work.spark)
    if signals.received is not None:
        raise Stopped(signals.received)


if __name__ == "__main__":
    main()
