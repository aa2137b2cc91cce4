"""Shows the progress of long work, and stops it after a signal between two microbatches."""

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
from sparkwal.spark import jvm
from support.session import exit_for

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

T = TypeVar("T")
# Seconds for which to wait until Spark has ended cancelled jobs.
_CANCEL_SECONDS = 10.0


class Signals:
    """Counts SIGINT and SIGTERM. Enter it after Spark has started: Spark replaces SIGINT's handler.

    Attributes:
        received: the number of the last signal, or None.
        times: how many signals came.
    """

    def __init__(self) -> None:
        self.received: int | None = None
        self.times = 0

    def _handle(self, signum: int, _: FrameType | None) -> None:
        self.received = signum
        self.times += 1

    def __enter__(self) -> Self:
        signums = (signal.SIGINT, signal.SIGTERM)
        self._former = {signum: signal.signal(signum, self._handle) for signum in signums}
        return self

    def __exit__(self, *_: object) -> None:
        for signum, handler in self._former.items():
            signal.signal(signum, handler)


_INTERVAL = re.compile(r"\s*\d+\s+(millisecond|second|minute|hour|day)s?\s*")


def trigger(context: click.Context, parameter: click.Parameter, value: str) -> dict[str, Any]:
    """The click callback of --trigger. It returns keywords for DataStreamWriter.trigger."""
    if value == "available-now":
        return {"availableNow": True}
    if not _INTERVAL.fullmatch(value.lower()):
        raise click.BadParameter(f'{value!r} is neither available-now nor an interval: "5 seconds"')
    return {"processingTime": value}


@dataclass
class Totals:
    """The rows and microbatches of queries. It counts each progress report once."""

    rows: int = 0
    microbatches: int = 0
    _seen: str = ""

    def update(self, query: StreamingQuery) -> Self:
        """Add the progress reports that are new."""
        last = query.lastProgress
        if last is not None and last.timestamp > self._seen:
            # Several microbatches may have ended since the last call.
            for progress in query.recentProgress:
                if progress.timestamp > self._seen and progress.numInputRows > 0:
                    self.rows += progress.numInputRows
                    self.microbatches += 1
            self._seen = last.timestamp
        return self


class Meter:
    """Shows progress: a live bar on a terminal, otherwise a line every ten seconds."""

    _SECONDS_BETWEEN_LINES = 10.0

    def __init__(self, console: Console, what: str, total: int | None = None) -> None:
        self._console = console
        self._what = what
        self._began = self._printed = time.monotonic()
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
        if self._bar.disable and now - self._printed >= self._SECONDS_BETWEEN_LINES:
            self._printed = now
            self._console.print(f"{self._what}: {note}", highlight=False)

    def totals(self, totals: Totals) -> None:
        """Update the display with the totals of a query."""
        rows = totals.rows
        count = totals.microbatches
        rate = rows / max(time.monotonic() - self._began, 0.001)
        self.show(rows, f"{rows:,} rows, {count:,} microbatches, {rate:,.0f} rows/s")


def run_query(
    query: StreamingQuery, meter: Meter, signals: Signals, drain_seconds: float
) -> Totals:
    """Wait for the end of a query. After a signal, drain it.

    Raises:
        Refused: the query failed because of a wrong option.
        Failed: the query failed.
        Stopped: a signal ended Spark too.
    """
    totals = Totals()
    try:
        while query.isActive and signals.received is None:
            time.sleep(0.1)
            meter.totals(totals.update(query))
        if signals.received is not None and query.isActive:
            meter.show(0, "finishing the running microbatch")
            drain(query, lambda: signals.times > 1, drain_seconds)
        meter.totals(totals.update(query))
        if (failed := query.exception()) is not None:
            raise failed
    except Exception as error:
        if signals.received is not None and not jvm.is_running():
            # A service manager signals the whole process group, and Java ends at once.
            raise Stopped(signals.received) from None
        raise exit_for(error) from None
    return totals.update(query)


def drain(query: StreamingQuery, hurry: Callable[[], bool], seconds: float) -> None:
    """Stop a query when the running microbatch is committed.

    query.stop() cancels a running microbatch. So wait until Spark reports the end of the current
    trigger, which it does after it wrote its commit log. The next trigger may have just begun: then
    it is cancelled before it commits, and the next start runs it again.

    Args:
        query: the query.
        hurry: whether to stop at once.
        seconds: the longest wait.
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
    """The numbers of finished tasks and of all tasks of Spark's active stages."""
    tracker = spark.sparkContext.statusTracker()
    stages = [info for id in tracker.getActiveStageIds() if (info := tracker.getStageInfo(id))]
    return sum(info.numCompletedTasks for info in stages), sum(info.numTasks for info in stages)


def attended(
    work: Callable[[], T],
    meter: Meter,
    signals: Signals,
    spark: SparkSession | None,
    drain_seconds: float,
    note: Callable[[], str],
) -> T:
    """Run work in a thread, show its progress, and let signals stop it.

    Args:
        work: the work.
        meter: shows the progress.
        signals: the signals.
        spark: a session whose jobs the work runs, or None.
        drain_seconds: after a signal the work may run for this time. After that, or at a second
            signal, its jobs are cancelled.
        note: returns what the work does at the moment, for the display.

    Returns:
        The result of the work.

    Raises:
        Stopped: a signal ended the work.
        Exception: the work raised it.
    """
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
    # The process may end before the thread: the next run continues the work.
    thread.daemon = True
    thread.start()
    signalled = None
    # The time until which Spark may end the cancelled jobs.
    deadline = None
    while thread.is_alive():
        thread.join(0.1)
        now = time.monotonic()
        if signals.received is not None:
            signalled = signalled or now
            if signals.times > 1 or now - signalled > drain_seconds:
                if spark is None or not jvm.is_running() or (deadline and now > deadline):
                    raise Stopped(signals.received)
                spark.sparkContext.cancelAllJobs()
                deadline = deadline or now + _CANCEL_SECONDS
        done, total = _tasks(spark) if spark is not None and jvm.is_running() else (0, 0)
        text = f"{note()}, {done} of {total} tasks" if total else note()
        meter.show(done, text if signals.received is None else f"{text}; stopping", total or None)
    if not failures:
        return results[0]
    if signals.received is not None:
        raise Stopped(signals.received)
    raise failures[0]
