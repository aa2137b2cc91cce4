"""An HTTP server in front of an appender, with limits for the cost of requests."""

from __future__ import annotations

import asyncio
import logging
import signal
import ssl
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import uvicorn
from prometheus_client import CONTENT_TYPE_LATEST
from rich.console import Console
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route, Router

from sparkwal import Appender, Ticket
from sparkwal.appender.aio import durable
from sparkwal.errors import (
    BackPressureError,
    JournalError,
    OptionError,
    OutcomeUnknownError,
    SparkWalError,
)
from sparkwal.metrics import table
from sparkwal.metrics.prometheus import new_meter, zero_counters
from sparkwal.metrics.table import labels_of
from sparkwal.metrics.writers import watch_appender
from support.bodies import Bodies, Rows, TooLarge
from support.http_access import Access
from support.http_protocol import ACCEPTED_AT_ONCE, Listener, TimedProtocol, without_traceback

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.datastructures import Headers
    from starlette.types import Receive, Scope, Send

ARROW = "application/vnd.apache.arrow.stream"
JSON = ("application/x-ndjson", "application/jsonl", "application/json")
# The number of threads that parse bodies. One parses while the other waits for Python's lock.
_PARSERS = 2
# Bodies up to this size have a separate parser, so they do not wait for larger bodies.
_SMALL = 64 * 2**10
# The characters of a message in a response. A message may quote what the client sent.
_MESSAGE = 1000
_HEALTH = "/healthz"


@dataclass(frozen=True)
class Limits:
    """Limits for the cost of requests.

    Attributes:
        body: bytes of one body as it is sent.
        rows: bytes of the rows of one body as Arrow, without compression.
        pending: bytes of all bodies that are being received or wait to be parsed.
        body_seconds: the time in which a body must arrive.
        connections: how many there are at once.
    """

    body: int
    rows: int
    pending: int
    body_seconds: float
    connections: int


class Server:
    """The handlers of requests, for one appender."""

    def __init__(
        self,
        wal: Appender,
        arrow_schema: pa.Schema,
        limits: Limits,
        access: Access,
        listener: Listener,
    ) -> None:
        self._wal = wal
        self._listener = listener
        self._limits = limits
        self._access = access
        self._bodies = Bodies(arrow_schema, limits.rows)
        self._pending = 0
        # Threads parse and convert rows, so that the event loop can handle other requests.
        self._parsers = ThreadPoolExecutor(_PARSERS, "parser")
        self._small_parser = ThreadPoolExecutor(1, "small-parser")
        # One thread: while it syncs the journal, later requests wait for one common sync.
        self._syncs = ThreadPoolExecutor(1, "sync")
        self._meter, self._labels = new_meter(), labels_of(wal.url)
        watch_appender(wal, self._meter)
        zero_counters(self._meter, self._labels, "http")
        self._router = Router(
            [
                Route("/append", self._append_counted, methods=["POST"]),
                Route("/metrics", self.metrics),
                Route(_HEALTH, self.health),
            ],
            # A redirect would name the host that the client sent.
            redirect_slashes=False,
        )
        self._meter.set(table.PENDING_BODIES, lambda: self._pending, *self._labels)

    async def app(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The ASGI application: refuse a request, or answer it."""
        request = Request(scope)
        # A scheduler has no token.
        refused = self._refused(request, needs_token=scope["path"] != _HEALTH)
        if refused is None:
            await self._router(scope, receive, send)
            return
        if scope["path"] == "/append":
            self._count(refused)
        await refused(scope, receive, send)

    def close(self) -> None:
        """End the threads."""
        self._parsers.shutdown()
        self._small_parser.shutdown()
        self._syncs.shutdown()

    def _count(self, response: Response) -> None:
        self._meter.add(table.REQUESTS, 1, *self._labels, str(response.status_code))

    async def _append_counted(self, request: Request) -> Response:
        response = await self.append(request)
        self._count(response)
        return response

    def _refused(self, request: Request, *, needs_token: bool) -> Response | None:
        refusal = self._access.refusal(request.headers, needs_token=needs_token)
        if refusal is None:
            if needs_token:
                self._listener.trust(request.state.descriptor)
            return None
        headers = {"WWW-Authenticate": "Bearer"} if refusal.status == 401 else {}
        # The body was not read, so the connection cannot be used for another request.
        return _error(refusal.status, refusal.reason, {**headers, "Connection": "close"})

    async def append(self, request: Request) -> Response:
        """Handle POST /append: 200 once durable, 202 once in the journal, otherwise an error."""
        started = time.monotonic()
        if self._wal.error is not None:
            # The writer has stopped before it got the rows of this request.
            return _stopped(self._wal.error, "not written")
        if (wrong := _unsupported(request.headers)) is not None:
            return _error(415, wrong)
        try:
            ticket, rows, size = await self._accept(request)
            answer = {"sequence": ticket.sequence, "rows": rows}
            if self._wal.has_journal:
                loop = asyncio.get_running_loop()
                await loop.run_in_executor(self._syncs, self._wal.wait_accepted, ticket)
            else:
                answer = {"position": await durable(ticket), **answer}
        except TooLarge as error:
            return _error(413, str(error))
        except BackPressureError as error:
            return _later(error)
        except OptionError as error:
            if self._wal.error is None:
                return _error(400, str(error))
            return _stopped(error)
        except JournalError as error:
            # A retryable error wrote no row, and the journal continues.
            return _later(error) if error.retryable else _stopped(error)
        except SparkWalError as error:
            return _stopped(error)
        except TimeoutError:
            seconds = f"{self._limits.body_seconds:g}"
            return _error(
                408, f"the body did not arrive within {seconds} s", {"Connection": "close"}
            )
        except ClientDisconnect:
            return _error(400, "the client disconnected before the end of the body")
        self._meter.add(table.ANSWERED_ROWS, rows, *self._labels)
        self._meter.add(table.BODY_BYTES, size, *self._labels)
        self._meter.observe(table.APPEND, time.monotonic() - started, *self._labels)
        return JSONResponse(answer, 202 if self._wal.has_journal else 200)

    async def _accept(self, request: Request) -> tuple[Ticket, int, int]:
        """Receive and parse a body, and append its rows.

        The body counts as pending from its first byte until the appender has its rows. Then the
        appender counts them.

        Returns:
            The ticket, the number of rows, and the body's size.
        """
        announced = int(request.headers.get("content-length", 0))
        self._check_limits(announced, self._pending + announced)
        chunks: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(self._limits.body_seconds):
                async for chunk in request.stream():
                    size += len(chunk)
                    self._pending += len(chunk)
                    self._check_limits(size, self._pending)
                    chunks.append(chunk)
            body = b"".join(chunks)
            chunks.clear()
            is_arrow = _media_type(request.headers)[0] == ARROW
            parse = self._bodies.arrow if is_arrow else self._bodies.json
            loop = asyncio.get_running_loop()
            parsers = self._small_parser if size <= _SMALL else self._parsers
            ticket, rows = await loop.run_in_executor(parsers, self._append, body, parse)
            return ticket, rows, size
        finally:
            self._pending -= size

    def _check_limits(self, body: int, pending: int) -> None:
        if body > self._limits.body:
            raise TooLarge(f"a body may have {self._limits.body} bytes; send several")
        if pending > self._limits.pending:
            raise BackPressureError(
                f"bodies of {self._limits.pending} bytes are being received: try again later"
            )

    def _append(self, body: bytes, parse: Callable[[bytes], Rows]) -> tuple[Ticket, int]:
        try:
            rows = parse(body)
        except MemoryError:
            raise BackPressureError("there is no memory for these rows: try again later") from None
        return self._wal.admit_unsynced(self._wal.check(rows)), rows.num_rows

    async def metrics(self, request: Request) -> Response:
        """Handle GET /metrics, in the format of Prometheus."""
        return Response(self._meter.text(), media_type=CONTENT_TYPE_LATEST)

    async def health(self, request: Request) -> Response:
        """Handle GET /healthz: 200 while the appender accepts rows.

        With a journal, that includes times without a store. Without a token the response has only
        the status.
        """
        wal = self._wal
        may_see_all = self._refused(request, needs_token=True) is None
        if wal.error is not None:
            if may_see_all:
                return _stopped(wal.error)
            return JSONResponse({"status": "stopped"}, 503)
        state: dict[str, Any] = {"status": "ok"}
        if not may_see_all:
            return JSONResponse(state)
        state["last_sequence"] = wal.last_sequence
        if wal.has_journal:
            state["store"] = "away" if wal.is_store_away else "there"
            state["waiting"] = wal.unacknowledged
            state["lost"] = [wal.lost[0], wal.lost[-1]] if wal.lost else None
        return JSONResponse(state)


def _media_type(headers: Headers) -> tuple[str, str]:
    """The type and the charset of a body. The type is "" without a Content-Type."""
    kind, *parameters = headers.get("content-type", "").lower().split(";")
    pairs = (parameter.partition("=") for parameter in parameters)
    charsets = [value.strip(' "') for name, _, value in pairs if name.strip() == "charset"]
    return kind.strip(), charsets[0] if charsets else "utf-8"


def _unsupported(headers: Headers) -> str | None:
    """Why this server cannot read a body with these headers, or None."""
    encoding = headers.get("content-encoding", "identity").lower()
    if encoding != "identity":
        return f"Content-Encoding {encoding!r} is not supported; send the body as it is"
    kind, charset = _media_type(headers)
    if kind not in (*JSON, ARROW):
        problem = f"Content-Type {kind!r} is not supported" if kind else "Content-Type is missing"
        return f"{problem}; send {JSON[0]} (JSON lines) or {ARROW}"
    if charset not in ("utf-8", "utf8", "us-ascii"):
        return f"the charset {charset!r} is not supported; send UTF-8"
    return None


def _stopped(error: SparkWalError, outcome: str = "") -> Response:
    unknown = isinstance(error, (OutcomeUnknownError, JournalError))
    outcome = outcome or ("unknown" if unknown else "not written")
    return _error(503, str(error), kind=type(error).__name__, outcome=outcome)


def _later(error: SparkWalError) -> Response:
    return _error(429, str(error), {"Retry-After": "1"})


def _error(
    status: int, message: str, headers: dict[str, str] | None = None, **more: str
) -> Response:
    if len(message) > _MESSAGE:
        message = f"{message[:_MESSAGE]}…"
    return JSONResponse({"error": message, **more}, status, headers)


@dataclass(frozen=True)
class Tls:
    """Files in PEM format: a certificate with its chain, and its private key."""

    certificate: Path
    key: Path

    def check(self) -> None:
        """Load both files.

        Raises:
            OptionError: one of them is missing or invalid.
        """
        try:
            ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(
                self.certificate, self.key
            )
        except OSError as error:  # also ssl.SSLError
            raise OptionError(f"the TLS certificate or its key cannot be used: {error}") from None


def serve(
    server: Server,
    listener: Listener,
    drain_timeout: float,
    console: Console,
    tls: Tls | None = None,
) -> None:
    """Serve until SIGTERM or SIGINT; then finish the running requests and accept no more."""
    host, port = listener.getsockname()[:2]
    config = uvicorn.Config(
        server.app,
        # uvloop would accept connections past the listener's limit.
        loop="asyncio",
        interface="asgi3",
        backlog=ACCEPTED_AT_ONCE,
        # A warning a request would let strangers fill the log.
        log_level="error",
        ws="none",
        access_log=False,
        lifespan="off",
        timeout_graceful_shutdown=max(1, round(drain_timeout)),
        http=TimedProtocol,
        ssl_certfile=tls.certificate if tls else None,
        ssl_keyfile=tls.key if tls else None,
    )
    http_server = uvicorn.Server(config)
    logging.getLogger("asyncio").addFilter(without_traceback)

    def stop(number: int, frame: FrameType | None) -> None:
        http_server.should_exit = True

    # Handle signals here. uvicorn installs its handlers only after the line "listening", and after
    # its work it raises the signal again: that would end the process before the appender is closed.
    signums = (signal.SIGTERM, signal.SIGINT)
    former = {signum: signal.signal(signum, stop) for signum in signums}
    try:
        scheme = "http" if tls is None else "https"
        console.print(f"listening on {scheme}://{host}:{port}", highlight=False)
        http_server.run([listener])
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)
        server.close()
