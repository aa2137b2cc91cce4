"""Numbers of the streams of a Spark session: its progress, and the records of the log."""

from __future__ import annotations

import json
import logging
import queue
import threading
import time
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any

from pyspark import SparkContext
from pyspark.sql.streaming.listener import (
    JStreamingQueryListener,
    QueryProgressEvent,
    StreamingQueryListener,
)

from sparkwal.errors import OptionError
from sparkwal.metrics import table
from sparkwal.metrics.following import Following
from sparkwal.metrics.prometheus import Prometheus, once

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_logger = logging.getLogger("sparkwal")
_MOST_WAITING = 1000
# Of a query its id, how long Spark ran a microbatch (ms), and the error that it ended with.
_Happened = tuple[str, float | None, str | None]


def watch_stream(
    spark: SparkSession, path: str, meter: Prometheus, *, interval: float = 30.0, **options: Any
) -> Callable[[], None]:
    """Report to `meter` the log at `path`, and of the queries of `spark` that write to it.

    A query waits for nothing of this. Reads the log after each progress of a query and every
    `interval` seconds, in a thread of its own that ends with Spark; counts from now on. Twice for
    one log is once. With sequencers="*" it reports all logs under the path.

    Returns what ends it. Raises OptionError; also where `meter` counts an appender of this log, or
    one of its sequencers and all of them.
    """
    if not 0 < interval < 1e6:
        raise OptionError(f"the interval is {interval} seconds; more than 0 is expected")
    following = Following(path, meter, **options)
    key = ("follower", following.counted, 0)
    return once(
        meter, key, lambda: _Watch(following, meter, interval, spark).end, lambda: _is_over(spark)
    )


def _is_over(spark: SparkSession) -> bool:
    """Whether Spark has stopped; it notifies nobody."""
    if getattr(spark, "_jsparkSession", None) is None:  # Spark Connect
        return bool(getattr(spark, "is_stopped", False))
    return spark.sparkContext._jsc is None


class _Watch(StreamingQueryListener):
    """The thread that reads the log and counts. Spark's threads call the listener, and a query's
    start waits for one of them: it only hands over."""

    def __init__(
        self, following: Following, meter: Prometheus, interval: float, spark: SparkSession
    ) -> None:
        self._following, self._meter = following, meter
        self._interval, self._spark = interval, spark
        self._waiting: queue.Queue[_Happened] = queue.Queue(_MOST_WAITING)
        self._ending = threading.Event()
        # Before the query commits anything.
        following.try_look()
        for metric in (table.FENCED, table.DROPPED):
            meter.add(metric, 0, *following.labels)
        spark.streams.addListener(self)
        threading.Thread(target=self._run, name="sparkwal-metrics", daemon=True).start()

    @cached_property
    def _jlistener(self) -> Any:
        assert SparkContext._jvm is not None
        return SparkContext._jvm.PythonStreamingQueryListenerWrapper(_ByJson(self))

    def onQueryStarted(self, event: Any) -> None:
        pass

    def onQueryProgress(self, event: Any) -> None:
        self._hand_over(
            lambda: (str(event.progress.id), event.progress.durationMs.get("addBatch"), None)
        )

    def onQueryTerminated(self, event: Any) -> None:
        self._hand_over(lambda: (str(event.id), None, event.exception))

    def _hand_over(self, happened: Callable[[], _Happened]) -> None:
        """Never waits: what finds no room is counted."""
        try:
            self._waiting.put_nowait(happened())
        except queue.Full:
            self._meter.add(table.DROPPED, 1, *self._following.labels)
        except Exception:
            _logger.exception("what a query reported was not understood")

    def end(self) -> None:
        """No more looks after the one that runs."""
        self._ending.set()
        if not _is_over(self._spark):
            self._spark.streams.removeListener(self)

    def _run(self) -> None:
        due = time.monotonic() + self._interval
        while not self._ending.is_set():
            # Once a second it asks whether Spark has stopped.
            taken = self._take(min(1.0, max(due - time.monotonic(), 0.001)))
            if _is_over(self._spark):
                return
            if time.monotonic() >= due:
                self._following.try_look()
                due = time.monotonic() + self._interval
            elif taken:
                self._following.try_look(around=False)
            try:
                for each in taken:
                    self._count(*each)
            except Exception:
                _logger.exception("a meter failed")

    def _take(self, seconds: float) -> list[_Happened]:
        """All that waits: one look is enough for it."""
        try:
            first = self._waiting.get(timeout=seconds)
        except queue.Empty:
            return []
        return [first, *(self._waiting.get_nowait() for _ in range(self._waiting.qsize()))]

    def _count(self, query_id: str, took_ms: float | None, error: str | None) -> None:
        for log in self._following.wrote(query_id):
            if took_ms is not None:
                self._meter.observe(table.ADD_BATCH, took_ms / 1000, *log.labels)
            if error is not None and "FencedError" in error:
                self._meter.add(table.FENCED, 1, *log.labels)


class _ByJson(JStreamingQueryListener):
    """Takes a progress in one call of the JVM (1 ms). PySpark takes 457 (100 ms or more)."""

    def onQueryProgress(self, jevent: Any) -> None:
        event = QueryProgressEvent.fromJson(json.loads(jevent.json()))
        self.pylistener.onQueryProgress(event)
