"""Metrics of the streams of a Spark session, from their progress and from the log's records."""

from __future__ import annotations

import json
import logging
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Unpack

from pyspark import SparkContext
from pyspark.sql.streaming.listener import (
    JStreamingQueryListener,
    QueryProgressEvent,
    StreamingQueryListener,
)

from sparkwal.errors import OptionError
from sparkwal.metrics import table
from sparkwal.metrics.following import Following
from sparkwal.metrics.prometheus import Prometheus, Reporter, start_once
from sparkwal.options.keywords import SourceKeywords
from sparkwal.store.threads import start_daemon

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_logger = logging.getLogger("sparkwal")
_MOST_WAITING = 1000


@dataclass(frozen=True)
class _QueryEvent:
    """A progress of a query, whose microbatch took `took_ms`, or its end, with its `error`."""

    query_id: str
    is_running: bool
    took_ms: float | None = None
    error: str | None = None


def watch_stream(
    spark: SparkSession,
    path: str,
    meter: Prometheus,
    *,
    interval: float = 30.0,
    **options: Unpack[SourceKeywords],
) -> Callable[[], None]:
    """Report the log at `path`, and the queries of `spark` that write to it, to `meter`.

    A thread, which ends with Spark, reads the log after each progress of a query and every
    `interval` seconds. No query waits for it. Commits before the call are not counted. A second
    call for the same log changes nothing.

    Args:
        interval: seconds between two measurements of consumers and compaction.
        options: as for `sparkwal.Log`. With sequencers="*" all logs under the path are reported.

    Returns:
        A function that ends the reports.

    Raises:
        OptionError: an option is invalid, or `meter` would count commits twice: it has an appender
            of this log, or both one of its sequencers and all of them.
    """
    if not 0 < interval < 1e6:
        raise OptionError(f"the interval is {interval} seconds; more than 0 is expected")
    following = Following(path, meter, **options)
    return start_once(
        meter,
        Reporter("follower", following.scope),
        lambda: _Watch(following, meter, interval, spark).end,
        lambda: _has_stopped(spark),
    )


def _has_stopped(spark: SparkSession) -> bool:
    """Whether Spark has stopped. Spark does not notify listeners of that."""
    if getattr(spark, "_jsparkSession", None) is None:  # Spark Connect
        return bool(getattr(spark, "is_stopped", False))
    return spark.sparkContext._jsc is None


class _Watch(StreamingQueryListener):
    """A listener of queries, and the thread that reads the log and counts.

    Spark's threads call the listener, and the start of a query waits for one of them. So the
    listener only puts events into a queue.
    """

    def __init__(
        self, following: Following, meter: Prometheus, interval: float, spark: SparkSession
    ) -> None:
        self._following, self._meter = following, meter
        self._interval, self._spark = interval, spark
        self._events: queue.Queue[_QueryEvent] = queue.Queue(_MOST_WAITING)
        self._ending = threading.Event()
        self._running: set[str] = set()
        # Commits from here on are counted, so this comes before the listener.
        following.try_update()
        for metric in (table.FENCED, table.DROPPED):
            meter.add(metric, 0, *following.labels)
        spark.streams.addListener(self)
        start_daemon(self._run, "metrics")

    @cached_property
    def _jlistener(self) -> Any:
        assert SparkContext._jvm is not None
        return SparkContext._jvm.PythonStreamingQueryListenerWrapper(_JsonListener(self))

    def onQueryStarted(self, event: Any) -> None:
        pass

    def onQueryProgress(self, event: Any) -> None:
        self._enqueue(
            lambda: _QueryEvent(
                str(event.progress.id),
                is_running=True,
                took_ms=event.progress.durationMs.get("addBatch"),
            )
        )

    def onQueryTerminated(self, event: Any) -> None:
        self._enqueue(lambda: _QueryEvent(str(event.id), is_running=False, error=event.exception))

    def _enqueue(self, parse: Callable[[], _QueryEvent]) -> None:
        """Put an event into the queue without waiting. If the queue is full, count a drop."""
        try:
            self._events.put_nowait(parse())
        except queue.Full:
            self._meter.add(table.DROPPED, 1, *self._following.labels)
        except Exception:
            _logger.exception("an event of a query has an unknown form")

    def end(self) -> None:
        """Remove the listener, and end the thread after the update that runs."""
        self._ending.set()
        if not _has_stopped(self._spark):
            self._spark.streams.removeListener(self)

    def _run(self) -> None:
        next_full_update = time.monotonic() + self._interval
        while not self._ending.is_set():
            # The wait ends at least once a second, to see whether Spark has stopped.
            events = self._take(min(1.0, max(next_full_update - time.monotonic(), 0.001)))
            if _has_stopped(self._spark):
                return
            if time.monotonic() >= next_full_update:
                self._following.try_update()
                next_full_update = time.monotonic() + self._interval
            elif events:
                self._following.try_update(full=False)
            try:
                for event in events:
                    self._count(event)
            except Exception:
                _logger.exception("a meter failed")

    def _take(self, seconds: float) -> list[_QueryEvent]:
        """Take all events from the queue, so that one update of the log serves all of them."""
        try:
            first = self._events.get(timeout=seconds)
        except queue.Empty:
            return []
        return [first, *(self._events.get_nowait() for _ in range(self._events.qsize()))]

    def _count(self, event: _QueryEvent) -> None:
        if event.is_running:
            self._running.add(event.query_id)
        else:
            self._running.discard(event.query_id)
        for log in self._following.logs_written_by(event.query_id):
            self._meter.set(table.UP, not self._running.isdisjoint(log.queries), *log.labels)
            if event.took_ms is not None:
                self._meter.observe(table.ADD_BATCH, event.took_ms / 1000, *log.labels)
            if event.error is not None and "FencedError" in event.error:
                self._meter.add(table.FENCED, 1, *log.labels)


class _JsonListener(JStreamingQueryListener):
    """Parses a progress from JSON, which is one call of the JVM and takes 1 ms.

    PySpark's own listener makes 457 calls, which take 100 ms or more.
    """

    def onQueryProgress(self, jevent: Any) -> None:
        event = QueryProgressEvent.fromJson(json.loads(jevent.json()))
        self.pylistener.onQueryProgress(event)
