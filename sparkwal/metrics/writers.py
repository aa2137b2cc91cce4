"""Numbers from the events of this process: its appenders, and what it compacts or collects."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING

from sparkwal import events
from sparkwal.errors import FencedError
from sparkwal.events import Event
from sparkwal.metrics import table
from sparkwal.metrics.prometheus import Prometheus, begin, ended, once, refuse_twice
from sparkwal.metrics.table import Labels, Metric, labels_of

if TYPE_CHECKING:
    from sparkwal.appender.appender import Appender


def watch_appender(wal: Appender, meter: Prometheus) -> Callable[[], None]:
    """Report to `meter` what an appender does; twice is once.

    Its appends wait for nothing of this: a thread of its own counts. Call what it returns once the
    appender is closed: what it is at a moment vanishes, and what it counted stays. Raises
    OptionError where a follower reports this log to the same meter.
    """
    labels = labels_of(wal.url)
    refuse_twice(meter, labels, "follower")
    key = ("appender", labels, id(wal))
    return once(meter, key, lambda: _start(wal, meter, labels, key))


def _start(wal: Appender, meter: Prometheus, labels: Labels, key: Hashable) -> Callable[[], None]:
    begin(meter, labels, "appender")

    def count(event: Event) -> None:
        meter.add(table.EVENTS, 1, *labels, event.name)
        if isinstance(event, events.Durable):
            meter.add(table.COMMITS, 1, *labels)
            meter.add(table.ROWS, event.rows, *labels)
            meter.add(table.WRITTEN, event.bytes, *labels)
            meter.observe(table.PUT, event.put_ms / 1000, *labels)
            meter.set(table.POSITION, event.position, *labels)
        elif isinstance(event, events.Stopped):
            # Of the event `fenced` there is one for each record in flight.
            meter.add(table.FENCED, event.error == FencedError.__name__, *labels)
        elif isinstance(event, (events.JournalFull, events.SizeLimit)):
            meter.add(table.BACK_PRESSURE, 1, *labels)
        elif (counted := _COUNTED.get(type(event))) is not None:
            meter.add(counted, 1, *labels)

    def measure() -> None:
        for metric, value in gauges.items():
            meter.set(metric, value, *labels)

    gauges = _gauges(wal)
    watched = _watched.setdefault((meter, labels), {})
    watched[key] = measure
    measure()
    unsubscribe = wal.subscribe(count)

    def stop() -> None:
        if watched.pop(key, None) is not measure:
            return
        unsubscribe()
        for metric in gauges:
            meter.forget(metric, *labels)
        # The next appender of this log may be watched already: the newest one reports.
        for last in list(watched.values())[-1:]:
            last()
        if not watched:
            _watched.pop((meter, labels), None)
        ended(meter, key, stop)

    return stop


# What reports a log's appenders at the moment, the newest last.
_watched: dict[tuple[Prometheus, Labels], dict[Hashable, Callable[[], None]]] = {}


_COUNTED: dict[type[Event], Metric] = {
    events.Retried: table.RETRIES,
    events.Hedged: table.HEDGED,
    events.Rejected: table.REJECTED,
}


def _gauges(wal: Appender) -> dict[Metric, Callable[[], float]]:
    found: dict[Metric, Callable[[], float]] = {
        table.UP: lambda: float(wal.is_open),
        table.IN_FLIGHT: lambda: wal.in_flight,
        table.BUFFERED: lambda: wal.buffered_bytes,
        table.BUFFER_LIMIT: lambda: wal.options.max_buffered,
        table.WAITING: lambda: wal.unacknowledged,
        table.SEQUENCE: lambda: wal.last_sequence,
    }
    if wal.has_journal:
        found |= {
            table.JOURNAL_BYTES: lambda: wal.journal_bytes,
            # It keeps one file free.
            table.JOURNAL_LIMIT: lambda: wal.options.journal_max - wal.options.journal_segment,
            table.JOURNAL_WAITING: lambda: wal.unacknowledged,
            table.JOURNAL_LOST: lambda: len(wal.lost),
            table.STORE_AWAY: lambda: float(wal.is_store_away),
        }
    return found


def watch_lifecycle(meter: Prometheus) -> Callable[[], None]:
    """Report what this process compacts and collects; twice is once. Returns what ends it."""
    return once(meter, "lifecycle", lambda: _start_lifecycle(meter))


def _start_lifecycle(meter: Prometheus) -> Callable[[], None]:
    begun: set[str] = set()

    def count(event: Event) -> None:
        if not isinstance(event, _LIFECYCLE):
            return
        labels = labels_of(event.path)
        if event.path not in begun:
            begun.add(event.path)
            begin(meter, labels, "lifecycle")
        if isinstance(event, events.CompactionDone):
            meter.add(table.COMPACTIONS, 1, *labels)
            meter.set(table.COMPACTED, event.cut, *labels)
        elif isinstance(event, events.CompactionRetried):
            meter.add(table.COMPACTION_RETRIES, 1, *labels)
        elif isinstance(event, events.CompactionSuspended):
            meter.add(table.COMPACTION_SUSPENDED, 1, *labels)
        elif isinstance(event, events.FloorMoved):
            meter.set(table.FLOOR, event.floor, *labels)
        elif isinstance(event, events.Collected):
            meter.add(table.COLLECTED_OBJECTS, event.objects, *labels)
            meter.add(table.COLLECTED_BYTES, event.bytes, *labels)

    unsubscribe = events.subscribe(count)

    def stop() -> None:
        unsubscribe()
        ended(meter, "lifecycle", stop)

    return stop


_LIFECYCLE = (
    events.CompactionPlanned,
    events.CompactionDone,
    events.CompactionRetried,
    events.CompactionSuspended,
    events.FloorMoved,
    events.Collected,
)
