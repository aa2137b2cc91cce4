"""Rows over HTTP into a log: an answer means durable."""

from __future__ import annotations

import asyncio
import signal
import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import pyarrow as pa
from rich.console import Console

from sparkwal import Appender
from sparkwal.appender.aio import durable
from sparkwal.errors import BackPressureError, OptionError, OutcomeUnknownError, SparkWalError
from sparkwal.events import Durable, Event
from support.json_rows import JsonRows, parse_schema
from support.session import Failed, Refused, as_exit, log_head, takes_log_options

try:
    import uvicorn
    from prometheus_client import (
        CONTENT_TYPE_LATEST,
        CollectorRegistry,
        Counter,
        Gauge,
        Histogram,
        generate_latest,
    )
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import JSONResponse, Response
    from starlette.routing import Route
except ImportError:
    raise SystemExit(
        "this job needs the extra `http`: pip install 'sparkwal[http]', or in a clone: "
        "pip install '.[http,jobs]'"
    ) from None

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

ARROW = "application/vnd.apache.arrow.stream"

# Parsing more than this would keep other requests waiting.
_LARGE_BODY = 2**16

console = Console(stderr=True)


class Metrics:
    """What GET /metrics tells."""

    def __init__(self, wal: Appender) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "sparkwal_requests", "Appends by HTTP status.", ["status"], registry=self.registry
        )
        self.rows = Counter("sparkwal_rows", "Rows made durable.", registry=self.registry)
        self.bytes = Counter(
            "sparkwal_body_bytes", "Bytes of bodies made durable.", registry=self.registry
        )
        self.seconds = Histogram(
            "sparkwal_append_seconds", "From the request to its durability.",
            buckets=(0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10), registry=self.registry,
        )  # fmt: skip
        self._events = Counter(
            "sparkwal_events", "Events of the appender.", ["name"], registry=self.registry
        )
        self._position = Gauge(
            "sparkwal_durable_position", "The newest durable position.", registry=self.registry
        )
        for name, meaning, value in (
            ("in_flight", "Records sent and not acknowledged.", lambda: wal.in_flight),
            ("buffered_bytes", "Accepted rows not sent yet.", lambda: wal.buffered_bytes),
            ("last_sequence", "The newest durable sequence.", lambda: wal.last_sequence),
            ("up", "1 while the appender accepts rows.", lambda: float(wal.error is None)),
        ):
            gauge = Gauge(f"sparkwal_{name}", meaning, registry=self.registry)
            gauge.set_function(value)
        wal.subscribe(self._told)

    def _told(self, event: Event) -> None:
        self._events.labels(event.name).inc()
        if isinstance(event, Durable):
            self._position.set(event.position)


class Server:
    """The handlers over one appender."""

    def __init__(self, wal: Appender, arrow_schema: pa.Schema, max_body: int) -> None:
        self._wal, self._max_body = wal, max_body
        self._json = JsonRows(arrow_schema)
        self.metrics = Metrics(wal)
        self.draining = False

    def app(self) -> Starlette:
        """The ASGI application."""
        return Starlette(
            routes=[
                Route("/append", self._counted(self.append), methods=["POST"]),
                Route("/metrics", self.tell_metrics),
                Route("/healthz", self.tell_health),
            ]
        )

    def _counted(
        self, handle: Callable[[Request], Awaitable[Response]]
    ) -> Callable[[Request], Awaitable[Response]]:
        async def counted(request: Request) -> Response:
            response = await handle(request)
            self.metrics.requests.labels(str(response.status_code)).inc()
            return response

        return counted

    async def append(self, request: Request) -> Response:
        """POST /append: 200 once durable, 400, 413, 429 or 503."""
        started = time.monotonic()
        body = await self._body(request)
        if body is None:
            return _error(413, f"a body may have {self._max_body} bytes; send several")
        is_arrow = request.headers.get("content-type", "").startswith(ARROW)
        parse = _arrow_rows if is_arrow else self._json.parse
        try:
            large = len(body) > _LARGE_BODY
            rows = await asyncio.to_thread(parse, body) if large else parse(body)
            if not len(rows):
                raise OptionError("there are no rows in the body")
            ticket = self._wal.append(rows, block=False)
            position = await durable(ticket)
        except BackPressureError as error:
            return _error(429, str(error), {"Retry-After": "1"})
        except OptionError as error:
            if self._wal.error is None:
                return _error(400, str(error))
            return self._stopped(error)
        except SparkWalError as error:
            return self._stopped(error)
        self.metrics.rows.inc(len(rows))
        self.metrics.bytes.inc(len(body))
        self.metrics.seconds.observe(time.monotonic() - started)
        return JSONResponse({"position": position, "sequence": ticket.sequence, "rows": len(rows)})

    async def _body(self, request: Request) -> bytes | None:
        chunks, size = [], 0
        async for chunk in request.stream():
            size += len(chunk)
            if size > self._max_body:
                return None
            chunks.append(chunk)
        return b"".join(chunks)

    def _stopped(self, error: SparkWalError) -> Response:
        outcome = "unknown" if isinstance(error, OutcomeUnknownError) else "not written"
        return _error(503, str(error), kind=type(error).__name__, outcome=outcome)

    async def tell_metrics(self, request: Request) -> Response:
        """GET /metrics, as Prometheus reads it."""
        return Response(generate_latest(self.metrics.registry), media_type=CONTENT_TYPE_LATEST)

    async def tell_health(self, request: Request) -> Response:
        """GET /healthz: 200 while rows are accepted."""
        if self._wal.error is not None:
            return self._stopped(self._wal.error)
        return JSONResponse({"status": "ok", "last_sequence": self._wal.last_sequence})


def _arrow_rows(body: bytes) -> pa.Table:
    try:
        return pa.ipc.open_stream(body).read_all()
    except (pa.ArrowException, OSError, ValueError) as error:
        raise OptionError(f"the body is no Arrow IPC stream: {error}") from None


def _error(
    status: int, message: str, headers: dict[str, str] | None = None, **more: str
) -> Response:
    return JSONResponse({"error": message, **more}, status, headers)


def serve(server: Server, host: str, port: int, drain_timeout: float) -> None:
    """Until SIGTERM or SIGINT: then answer what is under way, and accept nothing more."""
    listener = socket.create_server((host, port), backlog=512)
    host, port = listener.getsockname()[:2]
    config = uvicorn.Config(
        server.app(),
        log_level="warning",
        access_log=False,
        lifespan="off",
        timeout_graceful_shutdown=max(1, round(drain_timeout)),
    )
    # uvicorn raises the signal again after its own work: it must not kill the process
    # before the appender is closed.
    kept = {s: signal.signal(s, lambda *_: None) for s in (signal.SIGTERM, signal.SIGINT)}
    try:
        console.print(f"listening on http://{host}:{port}", highlight=False)
        uvicorn.Server(config).run([listener])
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)
        listener.close()


EPILOG = """
\b
POST /append   JSON lines, or an Arrow IPC stream (Content-Type: application/vnd.apache.arrow.stream)
  200  {"position": …, "sequence": …, "rows": …}: all of its rows are durable
  400  the rows do not fit the schema; nothing was written
  413  the body is too large
  429  more is waiting than --log-option maxBufferedBytes; see Retry-After
  503  the writer has stopped: another one leads, or the store is gone. "outcome" tells
       whether these rows may have been written; restart this process
GET /metrics   for Prometheus
GET /healthz   200 while rows are accepted

\b
Exit codes:
    0  stopped by SIGTERM or SIGINT, everything accepted is durable
    1  the writer has stopped; the message says why
    2  wrong usage: an option, a path, a schema. Nothing was written
"""  # noqa: E501


@click.command(epilog=EPILOG)
@click.option("--log", required=True, help="s3://bucket/prefix, file:///folder or a folder.")
@click.option(
    "--schema", "schema_text",
    help="`id long, name string, at timestamp`, Spark's schema JSON, or @FILE with one of them. "
    "Not needed where the log exists.",
)  # fmt: skip
@click.option(
    "--producer-id", default=socket.gethostname, show_default="the host's name",
    help="Names this writer over restarts.",
)  # fmt: skip
@takes_log_options("appender", "batchTimeoutMs=5")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", type=click.IntRange(0, 65535), default=8080, show_default=True,
              help="0 picks a free one and prints it.")  # fmt: skip
@click.option("--max-body", type=click.IntRange(1), default=16 * 2**20, show_default=True,
              help="Bytes of one request.")  # fmt: skip
@click.option(
    "--drain-timeout", type=click.FloatRange(1), default=60.0, show_default=True,
    help="Seconds that a signal waits for requests under way.",
)  # fmt: skip
def main(
    log: str,
    schema_text: str | None,
    producer_id: str,
    given: dict[str, Any],
    host: str,
    port: int,
    max_body: int,
    drain_timeout: float,
) -> None:
    """Take rows over HTTP and append them to a log.

    One process leads one log; several logs or sequencers take one process each. A client
    without an answer cannot know whether its rows are there: use an appender in the
    client where rows must be written exactly once.

    \b
    python jobs/http_ingest.py --log s3://bucket/wal --schema 'id long, name string'
    """
    try:
        arrow_schema = _schema(log, schema_text, given)
        wal = Appender(log, arrow_schema, producer_id=producer_id, **given)
    except (SparkWalError, OSError) as error:
        raise as_exit(error) from None
    try:
        serve(Server(wal, arrow_schema, max_body), host, port, drain_timeout)
    except OSError as error:
        raise Failed(f"cannot listen on {host}:{port}: {error}") from None
    finally:
        try:
            wal.close()
        except SparkWalError as error:
            raise as_exit(error) from None
    if wal.error is not None:
        raise Failed(str(wal.error))
    console.print(f"stopped; sequence {wal.last_sequence} is durable", highlight=False)


def _schema(log: str, text: str | None, options: dict[str, str]) -> pa.Schema:
    if text is not None:
        text = Path(text[1:]).read_text(encoding="utf-8") if text.startswith("@") else text
        return parse_schema(text)
    head = log_head(log, options)
    if head is None:
        raise Refused(f"there is no log at {log} yet: give its columns with --schema")
    return head.schema


if __name__ == "__main__":
    main()
