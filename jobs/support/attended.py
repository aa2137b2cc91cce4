"""Long work in a thread, while this one draws its progress and listens to signals."""

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
# How long Spark may take to give up what was cancelled.
_TO_CANCEL = 10.0


class Tasks:
    """Spark's tasks, done and in all, of the stages that were seen at work."""

    def __init__(self, spark: SparkSession) -> None:
        self._tracker = spark.sparkContext.statusTracker()
        self._stages: dict[int, tuple[int, int]] = {}

    def count(self) -> tuple[int, int]:
        for stage in self._tracker.getActiveStageIds():
            if (info := self._tracker.getStageInfo(stage)) is not None:
                self._stages[stage] = (info.numCompletedTasks, info.numTasks)
        done, total = (sum(column) for column in zip((0, 0), *self._stages.values(), strict=True))
        return done, total


def attended(
    work: Callable[[], T],
    meter: Meter,
    signals: Signals,
    spark: SparkSession | None,
    drain_seconds: float,
    note: Callable[[], str],
) -> T:
    """What `work` returns or raises.

    After a signal it may end for so long; a second signal, or the end of that time, cancels it.

    Args:
        note: what it does at the moment, for people.

    Raises Stopped where a signal ended the work.
    """
    results: list[T] = []
    failures: list[Exception] = []

    def run() -> None:
        try:
            results.append(work())
        except Exception as error:
            failures.append(error)

    thread = _thread(run, spark is not None)
    # Nothing that is under way harms when it is cut off: the next run goes on.
    thread.daemon = True
    thread.start()
    tasks = Tasks(spark) if spark is not None else None
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
        done, total = tasks.count() if tasks is not None and jvm.at_work() else (0, 0)
        text = f"{note()}, {done} of {total} tasks" if total else note()
        meter.show(done, text if signals.received is None else f"{text}; stopping", total or None)
    if not failures:
        return results[0]
    if signals.received is not None:
        raise Stopped(signals.received)
    raise failures[0]


def _thread(run: Callable[[], None], spark: bool) -> threading.Thread:
    if not spark:
        return threading.Thread(target=run)
    from pyspark import InheritableThread

    return InheritableThread(target=run)
