"""Compacts a log into a table, and deletes rows that the log no longer needs."""

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
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console

from sparkwal.cli.exit_codes import Failed, Refused, Stopped
from sparkwal.cli.flags import (
    key_values,
    options,
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
from sparkwal.cli.open_logs import no_log
from sparkwal.cli.output import size
from sparkwal.cli.output import table as print_table
from sparkwal.errors import (
    CompactionError,
    OptionError,
    PlanError,
    SparkWalError,
    StoreUnavailableError,
)
from sparkwal.format.lifecycle_record import Target
from sparkwal.lifecycle.cycle import Run
from sparkwal.lifecycle.known_log import Again
from sparkwal.lifecycle.opening import (
    check_again,
    check_apart,
    check_change,
    check_same_target,
    needs_spark,
)
from sparkwal.lifecycle.policy import LifecycleOptions
from sparkwal.lifecycle.table import with_tombstones
from sparkwal.options.open import open_log
from sparkwal.protocol.chain import newest_record
from sparkwal.spark import jvm
from sparkwal.spark.delta_lifecycle import Lifecycle, arguments_of, target_of
from sparkwal.spark.sessions import packages, store_settings
from support.follow import Meter, Signals, attended
from support.session import (
    exit_for,
    need_delta,
    need_spark,
    start_session,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# After a failure --continuous doubles its pause, up to this time or --interval.
_LONGEST_PAUSE = 600.0

console = Console(stderr=True)


@dataclass(frozen=True)
class RunOptions:
    """How the job runs.

    Attributes:
        now: compact all rows, also those that are not due.
        collects: delete objects.
        segments: make segments. With None the job makes them if rows stay in the log.
        accept_table: accept the present table first.
        give_up_range: give the open range up, and do nothing else.
        change_target: change how the table takes rows, and do nothing else.
        refused_again: write refused rows again, and do nothing else.
        continuous: repeat until a signal.
        interval: the seconds between two rounds.
        drain_timeout: the seconds for which a signal waits for the running range.
    """

    now: bool = False
    collects: bool = True
    segments: bool | None = None
    accept_table: bool = False
    give_up_range: bool = False
    change_target: bool = False
    refused_again: bool = False
    continuous: bool = False
    interval: float = 60.0
    drain_timeout: float = 60.0


@dataclass
class Compaction:
    """The logs to compact, and the state of the job.

    Attributes:
        settings: the options, parsed.
        log_options: the same options as texts.
        all_sequencers: compact all logs under the path.
        target: the table, or None.
        run: how the job runs.
        accept: the next round accepts the present table.
        spark: the session.
        lifecycle: compacts the log, or all logs under the path.
    """

    settings: LifecycleOptions
    log_options: dict[str, str]
    all_sequencers: bool
    target: Target | None
    run: RunOptions
    accept: bool = False
    spark: SparkSession | None = None
    lifecycle: Lifecycle | None = None

    def round(self) -> dict[str, Run | SparkWalError]:
        """Run all logs once, together. An error of one log does not stop the others."""
        name = self.settings.sequencer
        try:
            if self.lifecycle is None:
                if not existing_logs(self.settings, all_sequencers=self.all_sequencers):
                    return {}
                self.lifecycle = self._lifecycle()
            if self.accept:
                self.lifecycle.accept_table()
                self.accept = False
            if self.all_sequencers:
                return self.lifecycle.run_all(whole=self.run.now)
            return {name: self.lifecycle.run_once(whole=self.run.now)}
        except SparkWalError as error:
            self.accept = False
            return {self.settings.path if self.all_sequencers else name: error}

    def give_up_range(self) -> str:
        """Give the open range up. The result is for people.

        Raises:
            SparkWalError: the range is still open.
        """
        if (closed := self._lifecycle().give_up_range()) is None:
            return "no range is open"
        parts = ", ".join(f"{part.sequencer} {part.cut}…{part.to - 1}" for part in closed.parts)
        name = f"range {closed.k} of {closed.table} ({parts})"
        if closed.is_written:
            return f"{name} is in version {closed.table_version}: it is done, and was not given up"
        return f"{name} was given up; the log keeps its rows, and the next run promises them again"

    def change_target(self) -> str:
        """Change how the table takes rows. The result is for people.

        Raises:
            SparkWalError: the target is as before.
        """
        record = self._lifecycle().change_target()
        assert self.target is not None
        return (
            f"record {record.number} of the lifecycle has the target of this run: later rows reach "
            f"{self.target.table} so. Its present rows stay as they are"
        )

    def refused_again(self) -> dict[str, Again | SparkWalError]:
        """Write the refused rows of the log again, or of all logs under the path, one by one.

        Returns:
            The result of each log by name.
        """
        names = [self.settings.sequencer]
        if self.all_sequencers:
            names = [*existing_logs(self.settings, all_sequencers=True)]
        results: dict[str, Again | SparkWalError] = {}
        for name in names:
            try:
                results[name] = self._lifecycle(name).refused_again()
            except SparkWalError as error:
                results[name] = error
        return results

    def _lifecycle(self, sequencer: str = "") -> Lifecycle:
        name = sequencer or self.settings.sequencer
        arguments: dict[str, Any] = with_flags(self.log_options, sequencer=name)
        arguments["collects"] = self.run.collects
        if self.run.segments is not None:
            arguments = {k: v for k, v in arguments.items() if k.lower() != "makesegments"}
            arguments["makeSegments"] = self.run.segments
        if self.target is not None:
            arguments = {k: v for k, v in arguments.items() if k.lower() != "tombstonehorizon"}
            arguments |= {**arguments_of(self.target), "spark": self.spark}
        return Lifecycle(self.settings.path, **arguments)

    def check(self) -> None:
        """Check the logs and their tables before Spark starts.

        Raises:
            Refused: there is no log, and the job does not wait for one.
            OptionError: a log is compacted into another table.
        """
        logs = existing_logs(self.settings, all_sequencers=self.all_sequencers)
        if not logs and not self.run.continuous:
            raise no_log(open_log(self.settings))
        chain = newest_record(next(iter(logs.values()))) if logs else None
        for log in logs.values():
            target = chain.target_of(log.name) if chain else None
            if target is None:
                continue
            if self.target is None:
                raise OptionError(
                    f"{log.url} is compacted into {target.table}: give that table, so that "
                    "no row leaves the log which the table does not hold"
                )
            own = replace(self.target, table=target.table) if self.accept else self.target
            try:
                check = check_change if self.run.change_target else check_same_target
                check(own, target)
                if self.run.refused_again:
                    check_again(target)
            except PlanError as error:
                raise OptionError(str(error)) from None


def _row(name: str, run: Run) -> dict[str, str]:
    """One line of the table that the job prints."""
    ranges = [range_ for range_ in (run.finished, run.compacted) if range_ is not None]
    idle = "" if (done := run.collection) and done.objects + done.erased else "none was due"
    if run.found == "no log":
        idle = run.found
    return {
        "log": name,
        "range": ", ".join(str(range_.k) for range_ in ranges) or idle,
        "positions": ", ".join(
            "refused rows" if range_.is_again else f"{range_.start}…{range_.end - 1}"
            for range_ in ranges
        ),
        "rows": ", ".join("?" if range_.rows is None else f"{range_.rows:,}" for range_ in ranges),
        "bytes": ", ".join(size(range_.bytes) for range_ in ranges),
        "version": str(ranges[-1].table_version) if ranges else "",
        "floor": str(run.floor),
        "collected": f"{done.objects:,} objects, {size(done.bytes)}" if done else "",
        "erased": f"rows of {done.erased:,} records" if done and done.erased else "",
        "segments": str(run.segments or ""),
    }


def _print(text: str) -> None:
    console.print(text, highlight=False, markup=False, soft_wrap=True)


def _once(work: Compaction, meter: Meter, signals: Signals, printer: EventPrinter) -> None:
    """Run one round.

    Raises:
        Failures: a log failed.
    """
    seconds = work.run.drain_timeout
    results = attended(work.round, meter, signals, work.spark, seconds, lambda: printer.note)
    runs = {name: run for name, run in results.items() if isinstance(run, Run)}
    failures = {name: error for name, error in results.items() if isinstance(error, SparkWalError)}
    if runs:
        target = f" → {work.target.table}" if work.target else ""
        print_table([_row(*item) for item in runs.items()], f"{work.settings.path}{target}")
    # A signal to all processes of the job also ends Spark, and then the round fails.
    if failures and signals.received is None:
        raise Failures(failures, several=work.all_sequencers)


def _again(work: Compaction) -> None:
    """Write refused rows again.

    Raises:
        Failures: a log failed.
    """
    results = work.refused_again()
    for name, again in results.items():
        if isinstance(again, Again):
            written = "unknown" if again.written is None else f"{again.written:,}"
            _print(f"{name}: rows written again: {written}, still refused: {again.refused:,}")
    if failures := {
        name: result for name, result in results.items() if isinstance(result, SparkWalError)
    }:
        raise Failures(failures, several=work.all_sequencers)


def _continuously(work: Compaction, meter: Meter, signals: Signals, printer: EventPrinter) -> None:
    """Run rounds until a signal. After a failure, double the pause.

    Raises:
        Failures: a log failed, and repeating would not help.
        Failed: Spark has ended.
    """
    interval = work.run.interval
    failures = 0
    vanished = set[str]()
    while signals.received is None:
        seconds = work.run.drain_timeout
        results = attended(work.round, meter, signals, work.spark, seconds, lambda: printer.note)
        if signals.received is not None and not all(
            isinstance(run, Run) for run in results.values()
        ):
            return
        errors = {name: run for name, run in results.items() if isinstance(run, SparkWalError)}
        runs = {name: run for name, run in results.items() if isinstance(run, Run)}
        # An error of one log neither stops nor slows the others.
        is_stopped = bool(errors) and all(run.found == "no log" for run in runs.values())
        may_pass = (CompactionError, StoreUnavailableError)
        if is_stopped and not any(isinstance(error, may_pass) for error in errors.values()):
            raise Failures(errors, several=work.all_sequencers)
        for name, run in runs.items():
            if run.finished or run.compacted or run.collection or run.segments:
                cells = [f"{column} {text}" for column, text in _row(name, run).items() if text]
                _print(f"{time.strftime('%H:%M:%S')} {name}: {', '.join(cells[1:])}")
            elif run.found == "no log" and name not in vanished:
                _print(f"{name}: there is no log; its cut was {run.cut}, its floor {run.floor}")
        vanished = {name for name, run in runs.items() if run.found == "no log"}
        for name, error in errors.items():
            _print(f"{name}: {one_line(error)}")
        if errors and work.spark is not None and not jvm.is_running():
            raise Failed("Spark's JVM has ended; start the job again")
        failures = failures + 1 if is_stopped else 0
        longer = min(_LONGEST_PAUSE, interval * 2 ** min(failures, 10))
        pause = interval if not failures else max(interval, longer)
        if failures:
            _print(f"suspended; tried again in {pause:g} s")
        printer.note = "waiting" if not failures else "suspended"
        until = time.monotonic() + pause
        while signals.received is None and time.monotonic() < until:
            time.sleep(min(0.1, max(0.0, until - time.monotonic())))
            meter.show(0, printer.note)
        printer.note = "looking"


def _target(
    path: str,
    table: str | None,
    keys: tuple[str, ...],
    sequence_by: str,
    delete_when: str,
    layout: dict[str, tuple[str, ...]],
    properties: tuple[str, ...],
) -> Target | None:
    try:
        target = target_of(
            table,
            keys,
            sequence_by,
            delete_when,
            layout["partition_by"],
            layout["cluster_by"],
            key_values(properties, "--property"),
        )
        if target is not None:
            check_apart(path, target)
        return target
    except SparkWalError as error:
        raise exit_for(error) from None


# Adds the flags of the table. The command receives `target`.
_takes_target = options(
    lambda path, partition_by, cluster_by, **flags: {
        "path": path,
        "target": _target(
            path, layout={"partition_by": partition_by, "cluster_by": cluster_by}, **flags
        ),
    },
    click.argument("table", required=False),
    click.option(
        "--key",
        "keys",
        multiple=True,
        metavar="COLUMN",
        help="MERGE by this column: a new row replaces the row with the same key; repeatable. "
        "Without keys, rows are appended.",
    ),
    click.option(
        "--sequence-by",
        default="",
        metavar="COLUMN",
        help="Among rows with one key, the one with the greatest value wins.  "
        "[default: the last written row]",
    ),
    click.option(
        "--delete-when",
        default="",
        metavar="SQL",
        help="A row for which this is true deletes its key: \"op = 'D'\".",
    ),
    click.option(
        "--partition-by", multiple=True, metavar="COLUMN", help="Partition a new table; repeatable."
    ),
    click.option(
        "--cluster-by", multiple=True, metavar="COLUMN", help="Cluster a new table; repeatable."
    ),
    click.option(
        "--property",
        "properties",
        multiple=True,
        metavar="NAME=VALUE",
        help="A property of a new table; repeatable.",
    ),
    names=(
        "path",
        "table",
        "keys",
        "sequence_by",
        "delete_when",
        "partition_by",
        "cluster_by",
        "properties",
    ),
)
# Adds the flags of `RunOptions`. The command receives `run`.
_takes_run_options = options(
    lambda interval, **flags: {"run": RunOptions(interval=interval / 1000, **flags)},
    click.option("--now", is_flag=True, help="Compact all rows, also those that are not due."),
    click.option(
        "--collect/--no-collect",
        "collects",
        default=True,
        show_default=True,
        help="Delete objects that the floor passed longer ago than gcGrace.",
    ),
    click.option(
        "--segments/--no-segments",
        default=None,
        help="Also copy each thousand old records into a segment, for readers of long ranges.  "
        "[default: without TABLE, or with --retain or --retain-bytes]",
    ),
    click.option(
        "--accept-table",
        is_flag=True,
        help="Accept the table at TABLE as one that holds all rows of the log's lifecycle, after "
        "you restored it, compared the two, or moved or copied it there.",
    ),
    click.option(
        "--give-up-range",
        is_flag=True,
        help="Only give the open range up, which the table refuses for ever. The log keeps its "
        "rows, and the next run promises them again.",
    ),
    click.option(
        "--change-target",
        is_flag=True,
        help="Only change --delete-when, --sequence-by, --cluster-by or --tombstone-horizon to "
        "those given here, for all later rows. An open range is given up.",
    ),
    click.option(
        "--refused-again",
        is_flag=True,
        help="Only write the rows of the log that the table refused again, after you changed it: "
        "those in TABLE_refused. A row that it still refuses stays there.",
    ),
    click.option("--continuous", is_flag=True, help="Repeat until stopped."),
    takes_interval("1min", "The time between two rounds of --continuous."),
    click.option(
        "--drain-timeout",
        type=click.FloatRange(0),
        default=60.0,
        show_default=True,
        help="Seconds for which a signal waits for the running range.",
    ),
    names=(
        "now",
        "collects",
        "segments",
        "accept_table",
        "give_up_range",
        "change_target",
        "refused_again",
        "continuous",
        "interval",
        "drain_timeout",
    ),
)


@click.command(epilog=EXIT_CODES)
@takes_log
@_takes_target
@takes_lifecycle_options(policy=True)
@takes_all
@_takes_run_options
@click.option(
    "--conf",
    multiple=True,
    metavar="NAME=VALUE",
    help="A setting of Spark, as for spark-submit; repeatable.",
)
def main(
    path: str,
    log_options: dict[str, str],
    target: Target | None,
    run: RunOptions,
    conf: tuple[str, ...],
    *,
    all_sequencers: bool,
) -> None:
    """Write the rows of the log at PATH that are due into the table at TABLE, exactly once.

    TABLE is the URL or folder of a Delta table, which Spark writes, or, without a JVM,
    iceberg://CATALOG/NAMESPACE.TABLE with a catalog that is configured for pyiceberg.

    Then the job moves the log's floor, and deletes objects that the floor passed longer ago than
    the grace. Without TABLE, and so without Spark, only --retain and --retain-bytes decide what
    leaves the log.

    Run it again and it continues where it stopped, also after kill -9. Any number of these jobs may
    run at once. After Ctrl-C or SIGTERM it finishes the running range; a second signal stops it at
    once.

    \b
    python jobs/compact.py s3://bucket/wal s3a://lake/orders --key id --continuous
    python jobs/compact.py s3://bucket/wal --retain 7d
    """
    try:
        settings = parse_options(path, log_options, all_sequencers=all_sequencers)
        if target is not None:
            target = with_tombstones(target, settings.tombstone_horizon_ms)
            check_apart(path, target, sets_aside=settings.sets_aside)
            reached = store_settings(target.table, settings)
        configured = key_values(conf, "--conf")
        _check_flags(settings, target, run, configured)
        work = Compaction(settings, log_options, all_sequencers, target, run, run.accept_table)
        work.check()
    except SparkWalError as error:
        raise exit_for(error) from None
    if target is not None and needs_spark(target):
        need_spark()
        need_delta("a table")
        work.spark = start_session(
            "sparkwal compact",
            delta=True,
            packages=packages(target.table),
            settings={**reached, **configured},
        )
    try:
        with (
            Signals() as signals,
            Meter(console, "compact") as meter,
            printing_events(console) as printer,
        ):
            try:
                _work(work, meter, signals, printer)
            except SparkWalError as error:
                raise exit_for(error) from None
    finally:
        if work.spark is not None:
            jvm.end(work.spark)
    if signals.received is not None:
        raise Stopped(signals.received)


def _work(work: Compaction, meter: Meter, signals: Signals, printer: EventPrinter) -> None:
    """Do what the flags of the run say.

    Raises:
        SparkWalError: it failed.
    """
    if work.run.give_up_range:
        _print(work.give_up_range())
    elif work.run.change_target:
        _print(work.change_target())
    elif work.run.refused_again:
        _again(work)
    elif work.run.continuous:
        _continuously(work, meter, signals, printer)
    else:
        _once(work, meter, signals, printer)


def _check_flags(
    settings: LifecycleOptions, target: Target | None, run: RunOptions, conf: Mapping[str, str]
) -> None:
    """Check the flags of a run.

    Raises:
        Refused: two flags contradict each other, or one is missing.
    """
    if target is None and settings.retain_seconds is None and settings.retain_bytes is None:
        raise Refused("give TABLE, or --retain or --retain-bytes for a log without a table")
    only = {
        "--give-up-range": run.give_up_range,
        "--change-target": run.change_target,
        "--refused-again": run.refused_again,
    }
    if target is None and any((run.now, run.accept_table, conf, *only.values())):
        raise Refused(f"--now, --accept-table, {', '.join(only)}, --conf are for a log with TABLE")
    if run.accept_table and run.continuous:
        raise Refused("--accept-table is for one run; start --continuous after it")
    chosen = [name for name, is_given in only.items() if is_given]
    if chosen and (run.accept_table or run.continuous or len(chosen) > 1):
        raise Refused(f"{chosen[0]} does nothing else: give it without the others")
    if conf and target is not None and not needs_spark(target):
        raise Refused(f"--conf is for Spark, and {target.table} is written without it")
    if conf and jvm.started_by_spark_submit():
        raise Refused("--conf here is too late: give it to spark-submit")


if __name__ == "__main__":
    main()
