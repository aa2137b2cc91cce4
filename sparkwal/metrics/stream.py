"""Numbers of the streams of a Spark session: its progress, and the records of the log."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any

from pyspark.sql.streaming.listener import StreamingQueryListener

from sparkwal.errors import OptionError
from sparkwal.metrics import table
from sparkwal.metrics.following import Following
from sparkwal.metrics.prometheus import Prometheus, ended, once, refuse_twice, running

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_logger = logging.getLogger("sparkwal")
_MOST_WAITING = 1000
# Spark notifies nobody when it has stopped.
_ASK_SECONDS = 1.0
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
    key = ("follower", following.counted)
    former = running(meter, key)
    if former is not None and former.is_over():
        # Spark was started again before its thread saw the end.
        former.end()
    refuse_twice(meter, following.counted, "appender")
    refuse_twice(meter, following.counted, "follower", but=key)
    return once(meter, key, lambda: _Watch(following, meter, interval, key, spark)).stop


class _Listener(StreamingQueryListener):
    """Spark's threads call it, and a query's start waits for one of them: it only hands over."""

    def __init__(self, watch: _Watch) -> None:
        self._watch = watch

    def onQueryStarted(self, event: Any) -> None:
        pass

    def onQueryProgress(self, event: Any) -> None:
        try:
            took_ms = event.progress.durationMs.get("addBatch")
            self._watch.hand_over(str(event.progress.id), took_ms, None)
        except Exception:
            _logger.exception("the progress of a query was not understood")

    def onQueryTerminated(self, event: Any) -> None:
        try:
            self._watch.hand_over(str(event.id), None, event.exception)
        except Exception:
            _logger.exception("the end of a query was not understood")


class _Watch:
    """The thread that reads the log and counts."""

    def __init__(
        self,
        following: Following,
        meter: Prometheus,
        interval: float,
        key: Hashable,
        spark: SparkSession,
    ) -> None:
        self._following, self._meter, self._interval = following, meter, interval
        self._key, self._spark = key, spark
        self._waiting: queue.Queue[_Happened] = queue.Queue(_MOST_WAITING)
        self._ending = threading.Event()
        # Before the query commits anything.
        following.try_look()
        for metric in (table.FENCED, table.DROPPED):
            meter.add(metric, 0, *following.labels)
        threading.Thread(target=self._run, name="sparkwal-metrics", daemon=True).start()
        self._listener = _Listener(self)
        spark.streams.addListener(self._listener)

    def hand_over(self, query_id: str, took_ms: float | None, error: str | None) -> None:
        """Never waits: what finds no room is counted."""
        try:
            self._waiting.put_nowait((query_id, took_ms, error))
        except queue.Full:
            self._meter.add(table.DROPPED, 1, *self._following.labels)

    def is_over(self) -> bool:
        """Whether Spark has stopped."""
        if getattr(self._spark, "_jsparkSession", None) is None:  # Spark Connect
            return bool(getattr(self._spark, "is_stopped", False))
        return self._spark.sparkContext._jsc is None

    def stop(self) -> None:
        if self.end() and not self.is_over():
            self._spark.streams.removeListener(self._listener)

    def end(self) -> bool:
        """No more looks after the one that runs. Whether it had not ended before."""
        is_first = not self._ending.is_set()
        self._ending.set()
        ended(self._meter, self._key, self)
        return is_first

    def _run(self) -> None:
        due = time.monotonic() + self._interval
        while not self._ending.is_set():
            taken = self._take(min(_ASK_SECONDS, max(due - time.monotonic(), 0.001)))
            if self.is_over():
                self.end()
            elif time.monotonic() >= due:
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
        taken: list[_Happened] = []
        try:
            taken.append(self._waiting.get(timeout=seconds))
            while len(taken) < _MOST_WAITING:
                taken.append(self._waiting.get_nowait())
        except queue.Empty:
            pass
        return taken

    def _count(self, query_id: str, took_ms: float | None, error: str | None) -> None:
        for log in self._following.wrote(query_id):
            if took_ms is not None:
                self._meter.observe(table.ADD_BATCH, took_ms / 1000, *log.labels)
            if error is not None and "FencedError" in error:
                self._meter.add(table.FENCED, 1, *log.labels)
