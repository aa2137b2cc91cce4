"""An S3 proxy for tests and benchmarks: counts requests, adds latency, injects faults.

    with S3Proxy("http://127.0.0.1:4566") as proxy:
        proxy.faults = [Fault("lost_reply", kind="PUT", times=1)]
        ...  # a client with endpoint_url=proxy.url, path-style addressing
        assert proxy.counts()["PUT"] == 2

`python -m sparkwal.testing.proxy --upstream URL --port N --latency-ms 20` runs it for
other processes: GET /__counts, /__requests; POST /__reset.
"""

import argparse
import json
import math
import random
import re
import signal
import socket
import struct
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from http.server import BaseHTTPRequestHandler
from socketserver import ThreadingTCPServer
from typing import Any, NamedTuple, Self
from urllib.parse import parse_qs, unquote, urlsplit

from urllib3 import HTTPConnectionPool, HTTPHeaderDict
from urllib3.exceptions import HTTPError

from sparkwal.testing.faults import Draws, Fault

__all__ = ["Fault", "Request", "S3Proxy", "Sent", "kind_of"]

_LIST_KEYS = {
    "list-type",
    "prefix",
    "delimiter",
    "max-keys",
    "marker",
    "start-after",
    "continuation-token",
    "encoding-type",
    "fetch-owner",
}
# The parameter "comp" of Azure's requests that are not those of one object.
_AZURE = {"list": "LIST", "block": "UPLOAD_PART", "blocklist": "COMPLETE_MULTIPART"}
_OBJECT_KEYS = {"versionId", "partNumber", "x-id"}
# Headers of one connection, which a proxy does not forward.
_HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding", "expect"}


class Sent(NamedTuple):
    """A request that the proxy forwarded to the store."""

    method: str
    target: str
    headers: HTTPHeaderDict
    body: bytes


class _Answer(NamedTuple):
    status: int
    headers: Iterable[tuple[str, str]]
    body: bytes


@dataclass(frozen=True)
class Request:
    """One request, from the client's view.

    Attributes:
        kind: the kind of S3 request, e.g. "LIST".
        status: the status that the client got, or 0 without an answer.
        conditional: whether it had If-Match or If-None-Match.
        bytes_in: the size of the request's body.
        bytes_out: the size of the answer's body.
        started: the time of its arrival, in seconds since 1970.
        seconds: the time until the answer was ready.
        upstream: the status that the store answered, or 0 if it got no request.
        fault: the action of the injected fault, if any.
    """

    kind: str
    method: str
    key: str
    status: int
    conditional: bool
    bytes_in: int
    bytes_out: int
    started: float
    seconds: float
    upstream: int = 0
    fault: str | None = None


# The path of a request to Google's JSON API, before the key of an object.
_GOOGLE = re.compile(r"/(upload/)?storage/v1/b/[^/]+/o(?:/(.+))?")


def kind_of(method: str, target: str) -> tuple[str, str]:
    """The S3 kind of a path-style request, and its key; for a LIST its prefix.

    On Azure the key begins with the container.
    """
    url = urlsplit(target)
    if match := _GOOGLE.fullmatch(url.path):
        named = parse_qs(url.query)
        if match[1]:
            return "PUT", named.get("name", [""])[0]
        key = unquote(match[2] or "")
        return (method, key) if key else ("LIST", named.get("prefix", [""])[0])
    bucket, _, key = unquote(url.path.lstrip("/")).partition("/")
    query = parse_qs(url.query, keep_blank_values=True)
    if method == "HEAD":
        return "HEAD", key
    if kind := _AZURE.get(query.get("comp", [""])[0]):
        return kind, query.get("prefix", [""])[0] if kind == "LIST" else key
    if not key:
        if method == "GET" and bucket and query.keys() <= _LIST_KEYS:
            return "LIST", query.get("prefix", [""])[0]
        if method == "GET" and bucket and "uploads" in query:
            return "LIST_MULTIPART", query.get("prefix", [""])[0]
        return ("DELETE" if method == "POST" and "delete" in query else "OTHER"), ""
    if "uploadId" in query:
        kinds = {"POST": "COMPLETE_MULTIPART", "DELETE": "ABORT_MULTIPART", "PUT": "UPLOAD_PART"}
        return kinds.get(method, "OTHER"), key
    if method == "POST" and "uploads" in query:
        return "CREATE_MULTIPART", key
    plain = all(x in _OBJECT_KEYS or x.startswith(("response-", "X-Amz-")) for x in query)
    return (method if plain and method in ("PUT", "GET", "DELETE") else "OTHER"), key


class S3Proxy(ThreadingTCPServer):
    """A reverse proxy for plain HTTP on 127.0.0.1, with one thread for each client connection.

    The seed, the request (kind, key, part) and the number of equal requests before it decide
    whether a rule with a probability fires. The order of concurrent requests does not matter. The
    proxy changes no header, so a signed Host stays valid, and never repeats a request.

    Args:
        latency_ms: the delay of each request; with `p99_ms`, the median of a lognormal delay.
        p99_ms: the 99th percentile of the delay.

    Attributes:
        faults: the rules. They may change at any time.
        watch: called with each request that the store answered, and with the answer's status, in
            any thread. The request has its signature.
    """

    allow_reuse_address = daemon_threads = True
    request_queue_size = 512

    def __init__(
        self,
        upstream_url: str,
        *,
        seed: int = 0,
        port: int = 0,
        latency_ms: float = 0.0,
        p99_ms: float = 0.0,
    ) -> None:
        url = urlsplit(upstream_url)
        if url.scheme != "http" or url.hostname is None:
            raise ValueError(f"the upstream must be http://host:port, not {upstream_url!r}")
        self.seed = seed
        self.latency_ms = latency_ms
        self.p99_ms = p99_ms
        self.faults: list[Fault] = []
        self.watch: Callable[[Sent, int], None] | None = None
        self.upstream = HTTPConnectionPool(url.hostname, url.port or 80, maxsize=512, retries=False)
        self._rng = random.Random(seed)
        self._lock = threading.Lock()
        self._clients: set[socket.socket] = set()
        self.reset()
        super().__init__(("127.0.0.1", port), _Client)
        self.url = f"http://127.0.0.1:{self.server_address[1]}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, name="s3-proxy", daemon=True).start()
        return self

    def close(self) -> None:
        with suppress(OSError):
            # close() alone does not wake a thread in accept().
            self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()
        self.upstream.close()
        with self._lock:
            for client in self._clients:
                with suppress(OSError):
                    client.shutdown(socket.SHUT_RDWR)

    server_close = close

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                self.process_request(*self.get_request())

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            self._clients.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._clients.discard(request)
        request.close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        # These errors mean that the client closed the connection or sends no HTTP.
        if not isinstance(sys.exc_info()[1], (OSError, ValueError)):
            super().handle_error(request, client_address)

    def reset(self) -> None:
        """Forget the requests and the injected faults. The rules stay."""
        self.answered: list[Request] = []
        self._draws = Draws(self.seed)

    @property
    def requests(self) -> list[Request]:
        """The requests since the last reset, in the order of the answers."""
        return list(self.answered)

    @property
    def injected(self) -> Counter[str]:
        return self._draws.injected.copy()

    def counts(self) -> Counter[str]:
        return Counter(x.kind for x in self.requests)

    def draw(self, kind: str, key: str, part: str) -> tuple[Fault | None, float]:
        """The rule that fires for a request, and the seconds to wait before it is forwarded."""
        with self._lock:
            fault = self._draws.pick(self.faults, kind, key, part)
            wait = self.latency_ms / 1000
            if self.p99_ms > self.latency_ms:
                # The 99th percentile lies 2.326 standard deviations above the median.
                sigma = math.log(self.p99_ms / self.latency_ms) / 2.326
                wait *= self._rng.lognormvariate(0, sigma)
        return fault, wait + (fault.seconds if fault and fault.action != "stall" else 0)


class _Client(BaseHTTPRequestHandler):
    """A client's connection."""

    protocol_version, disable_nagle_algorithm = "HTTP/1.1", True
    server: S3Proxy

    def do_GET(self) -> None:
        started, begin = time.time(), time.perf_counter()
        method, sent = self.command, self.headers
        if self.path.startswith("/__"):
            self._read_body()
            return self._control()
        kind, key = kind_of(method, self.path)
        part = parse_qs(urlsplit(self.path).query).get("partNumber", [""])[0]
        fault, wait = self.server.draw(kind, key, part)
        action = fault.action if fault else None
        half = int(sent.get("Content-Length", 0)) // 2
        body = self.rfile.read(half) if action == "reset" else self._read_body()
        if wait:
            time.sleep(wait)
        answer = None if action in ("error", "reset") else self._forward(body)
        upstream = answer.status if answer else 0
        if fault and action == "stall":
            time.sleep(fault.seconds)
        if fault and (action == "error" or (action == "error_after" and answer)):
            answer = _Answer(fault.status, *fault.answer())
        if action == "lost_reply":
            answer = None
        out = answer.body if answer and method != "HEAD" else b""
        if action == "truncate":
            out = out[: len(out) // 2]
        # Count the request before the answer is sent, so that the client finds it counted.
        self.server.answered.append(
            Request(
                kind,
                method,
                key,
                answer.status if answer else 0,
                "if-none-match" in sent or "if-match" in sent,
                len(body),
                len(out),
                started,
                time.perf_counter() - begin,
                upstream,
                action,
            )
        )
        if answer:
            self._send(answer, out)
        if answer is None or action == "truncate":
            self.close_connection = True
        if action == "reset":
            # With a linger time of 0 close() sends RST instead of FIN.
            linger = struct.pack("ii", 1, 0)
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)

    do_DELETE = do_HEAD = do_POST = do_PUT = do_GET

    def _read_body(self) -> bytes:
        if "chunked" not in self.headers.get("Transfer-Encoding", "").lower():
            return self._read(int(self.headers.get("Content-Length", 0)))
        parts = []
        while size := int(self.rfile.readline().split(b";")[0], 16):
            parts.append(self._read(size + 2)[:-2])
        while self.rfile.readline().strip():
            pass  # Skip a trailer.
        return b"".join(parts)

    def _read(self, size: int) -> bytes:
        body = self.rfile.read(size)
        if len(body) != size:
            raise ConnectionError("the connection ended within a body")
        return body

    def _forward(self, body: bytes) -> _Answer | None:
        proxy = self.server
        method = self.command
        target = self.path
        headers = HTTPHeaderDict(_end_to_end(self.headers.items()))
        try:
            answer = proxy.upstream.urlopen(
                method, target, body or None, headers, redirect=False, decode_content=False
            )
        except HTTPError:
            return None
        if proxy.watch is not None:
            proxy.watch(Sent(method, target, headers, body), answer.status)
        return _Answer(answer.status, answer.headers.items(), answer.data)

    def _send(self, answer: _Answer, body: bytes) -> None:
        lines = [f"HTTP/1.1 {answer.status} -"]
        lines += [f"{name}: {value}" for name, value in _end_to_end(answer.headers)]
        if not any(line.lower().startswith("content-length:") for line in lines):
            lines.append(f"Content-Length: {len(answer.body)}")
        self.wfile.write("\r\n".join([*lines, "", ""]).encode("latin-1") + body)

    def _control(self) -> None:
        status = 200
        value: Any = {}
        match self.command, self.path:
            case "GET", "/__counts":
                value = self.server.counts()
            case "GET", "/__requests":
                value = [asdict(x) for x in self.server.requests]
            case "POST", "/__reset":
                self.server.reset()
            case _:
                status, value = 404, {"error": f"no {self.command} {self.path} here"}
        body = json.dumps(value).encode()
        self._send(_Answer(status, [("Content-Type", "application/json")], body), body)

    def log_message(self, *_: object) -> None:
        """The proxy's `requests` are its log."""


def _end_to_end(headers: Iterable[tuple[str, str]]) -> Iterable[tuple[str, str]]:
    return [(name, value) for name, value in headers if name.lower() not in _HOP_BY_HOP]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run until SIGTERM or SIGINT, then print the counts as JSON."""
    parser = argparse.ArgumentParser(prog="python -m sparkwal.testing.proxy")
    parser.add_argument("--upstream", required=True)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--latency-ms", type=float, default=0.0)
    parser.add_argument("--p99-ms", type=float, default=0.0)
    parser.add_argument("--stalls", type=float, default=0.0, help="share of requests held for 10 s")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    latency = {"latency_ms": options.latency_ms, "p99_ms": options.p99_ms}
    with S3Proxy(options.upstream, seed=options.seed, port=options.port, **latency) as proxy:
        if options.stalls:
            # Hold half of them before they are forwarded, and half afterwards.
            proxy.faults = [
                Fault(action, probability=options.stalls / 2, seconds=10)
                for action in ("delay", "stall")
            ]
        print(proxy.url, file=sys.stderr, flush=True)
        stop.wait()
    print(json.dumps(proxy.counts()), flush=True)


if __name__ == "__main__":
    main()
