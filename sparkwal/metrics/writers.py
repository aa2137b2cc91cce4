"""Metrics from the events of this process: appenders, compactions and collections."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from sparkwal import events
from sparkwal.errors import FencedError
from sparkwal.metrics import table
from sparkwal.metrics.prometheus import Prometheus, Reporter, start_once, zero_counters
from sparkwal.metrics.table import Labels, Metric, labels_of

if TYPE_CHECKING:
    from sparkwal.appender.appender import Appender

_Gauges = dict[Metric, Callable[[], float]]
# The gauges of a log's open appenders, the newest one last. Only the newest one's are reported.
_watched: dict[tuple[Prometheus, Labels], list[_Gauges]] = {}


def watch_appender(wal: Appender, meter: Prometheus) -> Callable[[], None]:
    """Report an appender to `meter`. A second call for the same appender changes nothing.

    Appends do not wait for the metrics: the thread of the appender's events counts.

    Returns:
        A function to call when the appender is closed. It removes the gauges and keeps the
        counters.

    Raises:
        OptionError: a follower reports this log to the same meter.
    """
    labels = labels_of(wal.url)
    reporter = Reporter("appender", labels, id(wal))
    return start_once(meter, reporter, lambda: _start(wal, meter, labels))


def _start(wal: Appender, meter: Prometheus, labels: Labels) -> Callable[[], None]:
    zero_counters(meter, labels, "appender")
    gauges = _gauges(wal)
    watched = _watched.setdefault((meter, labels), [])

    def count(event: events.Event) -> None:
        meter.add(table.EVENTS, 1, *labels, event.name)
        _count(event, meter, labels)

    def measure(gauges: _Gauges) -> None:
        for metric, value in gauges.items():
            meter.set(metric, value, *labels)

    def stop() -> None:
        unsubscribe()
        watched.remove(gauges)
        for metric in gauges:
            meter.forget(metric, *labels)
        for newest in watched[-1:]:
            measure(newest)

    watched.append(gauges)
    measure(gauges)
    unsubscribe = wal.subscribe(count)
    return stop


def _gauges(wal: Appender) -> _Gauges:
    gauges: _Gauges = {
        table.UP: lambda: float(wal.is_open),
        table.IN_FLIGHT: lambda: wal.in_flight,
        table.BUFFERED: lambda: wal.buffered_bytes,
        table.BUFFER_LIMIT: lambda: wal.options.max_buffered,
        table.WAITING: lambda: wal.unacknowledged,
        table.SEQUENCE: lambda: wal.last_sequence,
    }
    if wal.has_journal:
        gauges |= {
            table.JOURNAL_BYTES: lambda: wal.journal_bytes,
            # The journal keeps one file free.
            table.JOURNAL_LIMIT: lambda: wal.options.journal_max - wal.options.journal_segment,
            table.JOURNAL_WAITING: lambda: wal.unacknowledged,
            table.JOURNAL_LOST: lambda: len(wal.lost),
            table.STORE_AWAY: lambda: float(wal.is_store_away),
        }
    return gauges


def watch_lifecycle(meter: Prometheus) -> Callable[[], None]:
    """Report the compactions and collections of this process. A second call changes nothing.

    Returns:
        A function that ends the reports.
    """

    def count(event: events.Event) -> None:
        if isinstance(event, _LIFECYCLE):
            labels = labels_of(event.path)
            zero_counters(meter, labels, "lifecycle")
            _count(event, meter, labels)

    every_log = Labels("", "")
    return start_once(meter, Reporter("lifecycle", every_log), lambda: events.subscribe(count))


_LIFECYCLE = (
    events.CompactionPlanned,
    events.CompactionDone,
    events.CompactionRetried,
    events.CompactionSuspended,
    events.FloorMoved,
    events.Collected,
)
_COUNTED: dict[type[events.Event], Metric] = {
    events.Durable: table.COMMITS,
    events.Retried: table.RETRIES,
    events.Hedged: table.HEDGED,
    events.Rejected: table.REJECTED,
    events.JournalFull: table.BACK_PRESSURE,
    events.SizeLimit: table.BACK_PRESSURE,
    events.CompactionDone: table.COMPACTIONS,
    events.CompactionRetried: table.COMPACTION_RETRIES,
    events.CompactionSuspended: table.COMPACTION_SUSPENDED,
}


def _count(event: events.Event, meter: Prometheus, labels: Labels) -> None:
    if (counter := _COUNTED.get(type(event))) is not None:
        meter.add(counter, 1, *labels)
    match event:
        case events.Durable():
            meter.add(table.ROWS, event.rows, *labels)
            meter.add(table.WRITTEN, event.bytes, *labels)
            meter.observe(table.PUT, event.put_ms / 1000, *labels)
            meter.set(table.POSITION, event.position, *labels)
        case events.Stopped():
            # An event `fenced` comes for each record in flight, but the appender stops once.
            meter.add(table.FENCED, event.error == FencedError.__name__, *labels)
        case events.CompactionDone():
            meter.set(table.COMPACTED, event.cut, *labels)
            meter.set(table.RANGE_VERSIONS, event.versions, *labels)
            meter.set(table.RANGE_FILES, event.files, *labels)
            meter.set(table.RANGE_BYTES, event.bytes, *labels)
        case events.FloorMoved():
            meter.set(table.FLOOR, event.floor, *labels)
        case events.Collected():
            meter.add(table.COLLECTED_OBJECTS, event.objects, *labels)
            meter.add(table.COLLECTED_BYTES, event.bytes, *labels)
