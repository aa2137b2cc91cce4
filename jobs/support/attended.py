"""Runs long work in a thread, while this one draws its progress and listens to signals."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from sparkwal.console.exit_codes import Stopped
from support import jvm
from support.follow import Meter, Signals

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")
# Seconds that Spark may take to end cancelled jobs.
_TO_CANCEL = 10.0


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
    """Return or raise what `work` does.

    After a signal the work may take `drain_seconds` to end; then, or at a second signal, cancel it.

    Args:
        note: says what the work does at the moment.

    Raises Stopped if a signal ended the work.
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
