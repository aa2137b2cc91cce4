"""Long work under signals: its progress, and stopping a query between two microbatches."""

from __future__ import annotations

import re
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING, Any, Self, TypeVar

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from sparkwal.cli.exit_codes import Stopped
from support import jvm
from support.session import as_exit

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

T = TypeVar("T")
# Seconds that Spark may take to end cancelled jobs.
_TO_CANCEL = 10.0


class Signals:
    """Turns SIGINT and SIGTERM into a flag. Enter it after Spark has started, because Spark
    installs its own SIGINT handler at its start."""

    def __init__(self) -> None:
        self.received: int | None = None
        self.times = 0

    def _note(self, signum: int, _: FrameType | None) -> None:
        self.received = signum
        self.times += 1

    def __enter__(self) -> Self:
        self._former = {s: signal.signal(s, self._note) for s in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *_: object) -> None:
        for signum, handler in self._former.items():
            signal.signal(signum, handler)


_INTERVAL = re.compile(r"\s*\d+\s+(millisecond|second|minute|hour|day)s?\s*")


def trigger(context: click.Context, parameter: click.Parameter, value: str) -> dict[str, Any]:
    """The callback of --trigger; the job gets the keywords of Spark's."""
    if value == "available-now":
        return {"availableNow": True}
    if not _INTERVAL.fullmatch(value.lower()):
        raise click.BadParameter(f'{value!r} is neither available-now nor as "5 seconds"')
    return {"processingTime": value}


@dataclass
class Totals:
    """What queries have done so far. Counts each of their progress reports once."""

    rows: int = 0
    microbatches: int = 0
    _seen: str = ""

    def update(self, query: StreamingQuery) -> Self:
        last = query.lastProgress
        if last is not None and last.timestamp > self._seen:
            # Several microbatches may have ended since the last look.
            for progress in query.recentProgress:
                if progress.timestamp > self._seen and progress.numInputRows > 0:
                    self.rows += progress.numInputRows
                    self.microbatches += 1
            self._seen = last.timestamp
        return self


class Meter:
    """Shows rows, microbatches and rates: a live bar on a terminal, else a line now and then."""

    _SECONDS_BETWEEN_LINES = 10.0

    def __init__(self, console: Console, what: str, total: int | None = None) -> None:
        self._console = console
        self._what = what
        self._began = self._said = time.monotonic()
        self._bar = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=30),
            TextColumn("{task.fields[note]}"),
            TimeElapsedColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task(what, total=total, note="starting")

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def show(self, completed: int, note: str, total: int | None = None) -> None:
        """Update the display."""
        self._bar.update(self._task, completed=completed, note=note, total=total)
        now = time.monotonic()
        if self._bar.disable and now - self._said >= self._SECONDS_BETWEEN_LINES:
            self._said = now
            self._console.print(f"{self._what}: {note}", highlight=False)

    def totals(self, totals: Totals) -> None:
        """As `show`, for a query."""
        rows, count = totals.rows, totals.microbatches
        rate = rows / max(time.monotonic() - self._began, 0.001)
        self.show(rows, f"{rows:,} rows, {count:,} microbatches, {rate:,.0f} rows/s")


def run_query(
    query: StreamingQuery, meter: Meter, signals: Signals, drain_seconds: float
) -> Totals:
    """Follow a query to its end; after a signal drain it. Raises Refused or Failed when the query
    fails, Stopped after a signal."""
    totals = Totals()
    try:
        while query.isActive and signals.received is None:
            time.sleep(0.1)
            meter.totals(totals.update(query))
        if signals.received is not None and query.isActive:
            meter.show(0, "finishing the microbatch under way")
            drain(query, lambda: signals.times > 1, drain_seconds)
        meter.totals(totals.update(query))
        if (failed := query.exception()) is not None:
            raise failed
    except Exception as error:
        if signals.received is not None and not jvm.at_work():
            # A service manager signals the whole process group: Java ends at once.
            raise Stopped(signals.received) from None
        raise as_exit(error) from None
    return totals.update(query)


def drain(query: StreamingQuery, hurry: Callable[[], bool], seconds: float) -> None:
    """Stop a query when the microbatch under way is committed.

    query.stop() cancels what runs. So wait until Spark reports the end of the current trigger,
    which it does after writing its commit log. The next trigger may have just begun: it is
    cancelled before it commits, and the next start runs it again.
    """
    deadline = time.monotonic() + seconds
    before = query.lastProgress
    mark = before.timestamp if before is not None else ""
    ended = False
    while not ended and query.isActive and time.monotonic() < deadline and not hurry():
        last = query.lastProgress
        ended = not query.status["isTriggerActive"] or (last is not None and last.timestamp > mark)
        if not ended:
            time.sleep(0.01)
    query.stop()


def _tasks(spark: SparkSession) -> tuple[int, int]:
    """Finished and total tasks of Spark's active stages."""
    tracker = spark.sparkContext.statusTracker()
    found = [info for each in tracker.getActiveStageIds() if (info := tracker.getStageInfo(each))]
    return sum(info.numCompletedTasks for info in found), sum(info.numTasks for info in found)


def attended(
    work: Callable[[], T],
    meter: Meter,
    signals: Signals,
    spark: SparkSession | None,
    drain_seconds: float,
    note: Callable[[], str],
) -> T:
    """Return or raise what `work` does; `note` says what that is at the moment. After a signal it
    may take `drain_seconds` to end; then, or at a second signal, cancel it. Raises Stopped if a
    signal ended the work."""
    results: list[T] = []
    failures: list[Exception] = []

    def run() -> None:
        try:
            results.append(work())
        except Exception as error:
            failures.append(error)

    start: type[threading.Thread] = threading.Thread
    if spark is not None:
        from pyspark import InheritableThread as start
    thread = start(target=run)
    # Work that is cut off does no harm: the next run continues it.
    thread.daemon = True
    thread.start()
    signalled = cancelled = None
    while thread.is_alive():
        thread.join(0.1)
        now = time.monotonic()
        if signals.received is not None:
            signalled = signalled or now
            if signals.times > 1 or now - signalled > drain_seconds:
                if spark is None or not jvm.at_work() or (cancelled and now > cancelled):
                    raise Stopped(signals.received)
                spark.sparkContext.cancelAllJobs()
                cancelled = cancelled or now + _TO_CANCEL
        done, total = _tasks(spark) if spark is not None and jvm.at_work() else (0, 0)
        text = f"{note()}, {done} of {total} tasks" if total else note()
        meter.show(done, text if signals.received is None else f"{text}; stopping", total or None)
    if not failures:
        return results[0]
    if signals.received is not None:
        raise Stopped(signals.received)
    raise failures[0]
