"""The numbers for Prometheus, by prometheus_client, and who sends some already."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from sparkwal.errors import OptionError, need
from sparkwal.metrics.table import ALL, METRICS, Labels, Metric

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

# Object stores answer within some ten milliseconds, and a stream may wait for minutes.
BUCKETS = (
    0.005,
    0.01,
    0.02,
    0.03,
    0.05,
    0.075,
    0.1,
    0.15,
    0.2,
    0.3,
    0.5,
    0.75,
    1.0,
    2.0,
    5.0,
    10.0,
    30.0,
    60.0,
)


class Prometheus:
    """Metrics in a registry of prometheus_client, each from its first value on; labels are the
    values of `metric.labels`. Any thread may call it, and waits for no request or reader."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self._lock = threading.Lock()
        self._made: dict[str, Any] = {}

    def add(self, metric: Metric, amount: float, *labels: str) -> None:
        """Count. With 0 the series is there before anything happens."""
        self._series(metric, labels).inc(amount)

    def observe(self, metric: Metric, value: float, *labels: str) -> None:
        """One more value of a histogram."""
        self._series(metric, labels).observe(value)

    def set(self, metric: Metric, value: float | Callable[[], float] | None, *labels: str) -> None:
        """A gauge's value, or a function that returns it whenever it is read; None: `forget`."""
        if value is None:
            return self.forget(metric, *labels)
        series = self._series(metric, labels)
        (series.set_function if callable(value) else series.set)(value)

    def forget(self, metric: Metric, *labels: str) -> None:
        """The series vanishes; one that is not there is no error. Counts begin at 0 again."""
        made = self._made.get(metric.name)
        if made is not None:
            made.remove(*labels)

    def text(self) -> str:
        """What a scrape gets."""
        from prometheus_client import generate_latest

        return generate_latest(self._registry).decode()

    def serve(self, host: str, port: int) -> tuple[int, Callable[[], None]]:
        """Answer scrapes in threads of their own; port 0 takes a free one. Returns the port, and
        what ends it. Raises OSError where it cannot listen."""
        from prometheus_client import start_http_server

        server, _ = start_http_server(port, host, self._registry)

        def stop() -> None:
            server.shutdown()
            server.server_close()

        return server.server_port, stop

    def _series(self, metric: Metric, labels: tuple[str, ...]) -> Any:
        import prometheus_client

        with self._lock:
            made = self._made.get(metric.name)
            if made is None:
                kind = getattr(prometheus_client, metric.kind.capitalize())
                more = {"buckets": BUCKETS} if metric.kind == "histogram" else {}
                made = self._made[metric.name] = kind(
                    metric.full_name, metric.help, metric.labels, registry=self._registry, **more
                )
        return made.labels(*labels)


_meters: dict[CollectorRegistry, Prometheus] = {}


def prometheus(registry: CollectorRegistry | None = None) -> Prometheus:
    """The meter of a registry of prometheus_client, by default its own. Raises OptionError where
    prometheus_client is not installed."""
    need("prometheus_client", "sparkwal[metrics]")
    from prometheus_client import REGISTRY

    registry = REGISTRY if registry is None else registry
    return _meters.setdefault(registry, Prometheus(registry))


def separate() -> Prometheus:
    """A meter with a registry of its own. Raises as `prometheus`."""
    need("prometheus_client", "sparkwal[metrics]")
    from prometheus_client import CollectorRegistry

    return Prometheus(CollectorRegistry())


def begin(meter: Prometheus, labels: Labels, source: str) -> None:
    """All that this source counts is there, at 0."""
    for metric in METRICS:
        if metric.kind == "counter" and source in metric.sources and not metric.more:
            meter.add(metric, 0, *labels)


# What reports: of which source, which log, and which of several.
Key = tuple[str, Labels, int]
# What ends each that was started, and whether it has ended by itself.
_running: dict[tuple[Prometheus, Key], tuple[Callable[[], None], Callable[[], bool]]] = {}
# Reentrant: what starts may start something itself.
_lock = threading.RLock()


def _forked() -> None:
    # A thread that is not here may have held it, and what ran does not run here.
    global _lock
    _lock = threading.RLock()
    _running.clear()


os.register_at_fork(after_in_child=_forked)


def once(
    meter: Prometheus,
    key: Key,
    start: Callable[[], Callable[[], None]],
    is_over: Callable[[], bool] = lambda: False,
) -> Callable[[], None]:
    """Start what reports to this meter under this key, unless it runs. Returns what ends it, by
    what `start` returned; then, and as soon as it `is_over`, it may be started again. Raises
    OptionError where a follower and something else would count the commits of one log."""
    place, mine = (meter, key), key[1]

    def stop() -> None:
        with _lock:
            if _running.get(place) is not started:
                return
            del _running[place]
        end()

    with _lock:
        for ended in [each for each, (_, has_ended) in _running.items() if has_ended()]:
            del _running[ended]
        if place in _running:
            return _running[place][0]
        for known, (source, (log, sequencer), _) in _running:
            same = log == mine.log and len({sequencer, mine.sequencer} - {ALL}) < 2
            if known is meter and same and "follower" in (source, key[0]):
                raise OptionError(
                    f"the commits of {log} are counted here already, by its {source}: leave one of "
                    "the two out"
                )
        end, started = start(), (stop, is_over)
        _running[place] = started
        return stop
