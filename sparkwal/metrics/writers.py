"""Numbers from the events of this process: its appenders, and what it compacts or collects."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from sparkwal import events
from sparkwal.errors import FencedError
from sparkwal.metrics import table
from sparkwal.metrics.prometheus import Prometheus, begin, once
from sparkwal.metrics.table import Labels, Metric, labels_of

if TYPE_CHECKING:
    from sparkwal.appender.appender import Appender

_Gauges = dict[Metric, Callable[[], float]]
# Those of a log's appenders at the moment; the newest one's, the last, are reported.
_watched: dict[tuple[Prometheus, Labels], list[_Gauges]] = {}


def watch_appender(wal: Appender, meter: Prometheus) -> Callable[[], None]:
    """Report to `meter` what an appender does; twice is once.

    Its appends wait for nothing of this: a thread of its own counts. Call what it returns once the
    appender is closed: what it is at a moment vanishes, and what it counted stays. Raises
    OptionError where a follower reports this log to the same meter.
    """
    labels = labels_of(wal.url)
    return once(meter, ("appender", labels, id(wal)), lambda: _start(wal, meter, labels))


def _start(wal: Appender, meter: Prometheus, labels: Labels) -> Callable[[], None]:
    begin(meter, labels, "appender")
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
    found: _Gauges = {
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

    def count(event: events.Event) -> None:
        if isinstance(event, _LIFECYCLE):
            labels = labels_of(event.path)
            begin(meter, labels, "lifecycle")
            _count(event, meter, labels)

    return once(meter, ("lifecycle", Labels("", ""), 0), lambda: events.subscribe(count))


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
    if (counted := _COUNTED.get(type(event))) is not None:
        meter.add(counted, 1, *labels)
    match event:
        case events.Durable():
            meter.add(table.ROWS, event.rows, *labels)
            meter.add(table.WRITTEN, event.bytes, *labels)
            meter.observe(table.PUT, event.put_ms / 1000, *labels)
            meter.set(table.POSITION, event.position, *labels)
        case events.Stopped():
            # Of the event `fenced` there is one for each record in flight.
            meter.add(table.FENCED, event.error == FencedError.__name__, *labels)
        case events.CompactionDone():
            meter.set(table.COMPACTED, event.cut, *labels)
        case events.FloorMoved():
            meter.set(table.FLOOR, event.floor, *labels)
        case events.Collected():
            meter.add(table.COLLECTED_OBJECTS, event.objects, *labels)
            meter.add(table.COLLECTED_BYTES, event.bytes, *labels)
