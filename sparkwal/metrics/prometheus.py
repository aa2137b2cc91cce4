"""Metrics in a registry of prometheus_client, and the reporters that fill them."""

from __future__ import annotations

import os
import socket
import sys
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from socketserver import ThreadingMixIn
from typing import TYPE_CHECKING, Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from sparkwal.errors import OptionError, install_extra, require_library
from sparkwal.metrics.hosts import allows_host, is_loopback, own_names
from sparkwal.metrics.table import ALL, METRICS, Labels, Metric

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

    from prometheus_client import CollectorRegistry

# Histogram buckets, in seconds: an object store answers in some ten milliseconds, and a stream may
# wait for minutes.
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


# A stranger's connections must not take the file descriptors of the process, nor keep others out.
MOST_CONNECTIONS = 32
MOST_SECONDS = 10.0


class _Handler(WSGIRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """A line for each scrape would fill the log."""


class _Server(ThreadingMixIn, WSGIServer):
    """Answers each connection in a thread, and closes at once those above MOST_CONNECTIONS.

    A timer ends a connection whose client sends nothing, sends slowly, or does not read. A timeout
    of the handler would limit only the time between two bytes.
    """

    daemon_threads = True

    def __init__(self, *args: Any, **keywords: Any) -> None:
        self._free = threading.Semaphore(MOST_CONNECTIONS)
        super().__init__(*args, **keywords)

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._free.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except RuntimeError:
            # No thread could start.
            self._free.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        end = threading.Timer(MOST_SECONDS, _end, (request,))
        end.daemon = True
        end.start()
        try:
            super().process_request_thread(request, client_address)
        finally:
            end.cancel()
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that left, or sent nothing, is no error of this process."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)


def for_own_names(app: WSGIApplication, host: str) -> WSGIApplication:
    """What answers on `host`: on loopback only requests for a name of this machine.

    Other machines may call a server of the network by names that it does not know.
    """
    if not is_loopback(host):
        return app
    names = own_names(host)

    def answer(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        called = environ.get("HTTP_HOST", "")
        if allows_host(called, names):
            return app(environ, start_response)
        start_response("421 Misdirected Request", [("Content-Type", "text/plain; charset=utf-8")])
        refusal = (
            f"this server is not called {called[:100]!r}: it listens on {host}, for this machine "
            "alone. Scrape that address, or serve on one that other machines reach\n"
        )
        return [refusal.encode()]

    return answer


def _end(connection: socket.socket) -> None:
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


class Prometheus:
    """Sets metrics in a registry of prometheus_client. A metric appears with its first value.

    The arguments `labels` are the values of `metric.labels`. Any thread may call the methods; no
    call waits for a request or for a scrape.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self._lock = threading.Lock()
        # The objects of prometheus_client by the metric's name.
        self._collectors: dict[str, Any] = {}

    def add(self, metric: Metric, amount: float, *labels: str) -> None:
        """Add to a counter. An amount of 0 creates the series."""
        self._series(metric, labels).inc(amount)

    def observe(self, metric: Metric, value: float, *labels: str) -> None:
        """Add a value to a histogram."""
        self._series(metric, labels).observe(value)

    def set(self, metric: Metric, value: float | Callable[[], float] | None, *labels: str) -> None:
        """Set a gauge.

        Args:
            value: the value, or a function that each scrape calls for it. With None the series is
                removed.
        """
        if value is None:
            return self.forget(metric, *labels)
        series = self._series(metric, labels)
        (series.set_function if callable(value) else series.set)(value)

    def forget(self, metric: Metric, *labels: str) -> None:
        """Remove a series, if it exists. A counter that returns starts at 0."""
        collector = self._collectors.get(metric.name)
        if collector is not None:
            collector.remove(*labels)

    def text(self) -> str:
        """The answer to a scrape."""
        from prometheus_client import generate_latest

        return generate_latest(self._registry).decode()

    def serve(self, host: str, port: int) -> tuple[int, Callable[[], None]]:
        """Start a thread that answers scrapes.

        Args:
            port: the port to listen on; 0 takes a free one.

        Returns:
            The port, and a function that stops the thread.

        Raises:
            OSError: the address or the port is not available.
        """
        from prometheus_client import make_wsgi_app

        family, *_ = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM)[0]
        of_family = type(_Server.__name__, (_Server,), {"address_family": family})
        app = for_own_names(make_wsgi_app(self._registry), host)
        server: WSGIServer = make_server(host, port, app, of_family, handler_class=_Handler)
        threading.Thread(target=server.serve_forever, name="sparkwal-scrapes", daemon=True).start()

        def stop() -> None:
            server.shutdown()
            server.server_close()

        return server.server_port, stop

    def _series(self, metric: Metric, labels: tuple[str, ...]) -> Any:
        import prometheus_client

        with self._lock:
            collector = self._collectors.get(metric.name)
            if collector is None:
                kind = getattr(prometheus_client, metric.kind.capitalize())
                more = {"buckets": BUCKETS} if metric.kind == "histogram" else {}
                collector = self._collectors[metric.name] = kind(
                    metric.full_name, metric.help, metric.labels, registry=self._registry, **more
                )
        return collector.labels(*labels)


_meters: dict[CollectorRegistry, Prometheus] = {}


def prometheus(registry: CollectorRegistry | None = None) -> Prometheus:
    """The meter of a registry, by default of prometheus_client's default registry.

    Raises:
        OptionError: prometheus_client is not installed.
    """
    require_library("prometheus_client", install_extra("metrics"))
    from prometheus_client import REGISTRY

    registry = REGISTRY if registry is None else registry
    return _meters.setdefault(registry, Prometheus(registry))


def new_meter() -> Prometheus:
    """A meter with a new registry.

    Raises:
        OptionError: prometheus_client is not installed.
    """
    require_library("prometheus_client", install_extra("metrics"))
    from prometheus_client import CollectorRegistry

    return Prometheus(CollectorRegistry())


def zero_counters(meter: Prometheus, labels: Labels, source: str) -> None:
    """Create the counters of a source, at 0."""
    for metric in METRICS:
        if metric.kind == "counter" and source in metric.sources and not metric.more:
            meter.add(metric, 0, *labels)


@dataclass(frozen=True)
class Reporter:
    """Identifies a part of this process that reports to a meter.

    Attributes:
        source: `follower`, `appender` or `lifecycle`.
        labels: the log that it reports; the sequencer `ALL` stands for each sequencer of the path.
        instance: distinguishes the appenders of one log; 0 for other sources.
    """

    source: str
    labels: Labels
    instance: int = 0


@dataclass(frozen=True, eq=False)
class _Running:
    stop: Callable[[], None]
    is_over: Callable[[], bool]


_running: dict[tuple[Prometheus, Reporter], _Running] = {}
# Reentrant: the start of a reporter may start another one.
_lock = threading.RLock()


def _forget_parent() -> None:
    """Begin without reporters after a fork.

    The parent's threads do not run in the child, and one of them may have held the lock.
    """
    global _lock
    _lock = threading.RLock()
    _running.clear()


os.register_at_fork(after_in_child=_forget_parent)


def start_once(
    meter: Prometheus,
    reporter: Reporter,
    start: Callable[[], Callable[[], None]],
    is_over: Callable[[], bool] = lambda: False,
) -> Callable[[], None]:
    """Start a reporter, unless it runs already.

    Args:
        start: starts the reporter and returns a function that ends it.
        is_over: whether the reporter has ended by itself. Then it may be started again.

    Returns:
        A function that ends the reporter.

    Raises:
        OptionError: a follower and another reporter would both count the commits of one log.
    """
    key = meter, reporter

    def stop() -> None:
        with _lock:
            if _running.get(key) is not running:
                return
            del _running[key]
        end()

    with _lock:
        for ended in [other for other, entry in _running.items() if entry.is_over()]:
            del _running[ended]
        if key in _running:
            return _running[key].stop
        for other_meter, other in _running:
            if other_meter is meter:
                _refuse_double_count(reporter, other)
        end = start()
        running = _Running(stop, is_over)
        _running[key] = running
        return stop


def _refuse_double_count(reporter: Reporter, other: Reporter) -> None:
    log, sequencer = reporter.labels
    sequencers = {sequencer, other.labels.sequencer} - {ALL}
    is_same_log = log == other.labels.log and len(sequencers) < 2
    if is_same_log and "follower" in (reporter.source, other.source):
        raise OptionError(
            f"the {other.source} of this process counts the commits of {log} already: use either "
            f"this {other.source} or the new {reporter.source}"
        )
