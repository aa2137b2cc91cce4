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
import signal
import socket
import struct
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from io import BufferedReader
from typing import Self
from urllib.parse import parse_qs, unquote, urlsplit

from sparkwal.testing.faults import Draws, Fault
from sparkwal.testing.wire import Answer, Head, Upstream, read_body, read_head

__all__ = ["Fault", "Request", "S3Proxy", "kind_of"]

_LIST_KEYS = {
    "list-type", "prefix", "delimiter", "max-keys", "marker", "start-after",
    "continuation-token", "encoding-type", "fetch-owner",
}  # fmt: skip
_OBJECT_KEYS = {"versionId", "partNumber", "x-id"}


@dataclass(frozen=True)
class Request:
    """One request as the client saw it; `status` is 0 where it got no answer, `upstream` that of
    the store, 0 where it was not asked. The bytes are those of the bodies on the wire; `seconds`
    lasts until the answer is about to be sent."""

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


def kind_of(method: str, target: str) -> tuple[str, str]:
    """The S3 kind and the key of a path-style request (of a LIST: its prefix)."""
    url = urlsplit(target)
    bucket, _, key = unquote(url.path.lstrip("/")).partition("/")
    query = parse_qs(url.query, keep_blank_values=True)
    if method == "HEAD":
        return "HEAD", key
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


class S3Proxy:
    """A reverse proxy for plain HTTP on 127.0.0.1, one thread for each client connection.

    Which requests a rule with a probability hits depends on `seed`, on the request (kind, key,
    part) and on how often it came before, not on the order of concurrent ones. `faults` may change
    at any time. Headers pass as they are: a signed Host stays valid. Nothing is sent twice.

    `latency_ms` is added to each request; with `p99_ms` it is the median of a lognormal delay. Any
    thread calls `watch` with the head and the body of each request that the store answered, and the
    answer; it sees all that was sent, the signature too.
    """

    def __init__(
        self, upstream_url: str, *, seed: int = 0, port: int = 0, latency_ms: float = 0.0,
        p99_ms: float = 0.0,
    ) -> None:  # fmt: skip
        url = urlsplit(upstream_url)
        if url.scheme != "http" or url.hostname is None:
            raise ValueError(f"the upstream must be http://host:port, not {upstream_url!r}")
        self.seed = seed
        self.latency_ms = latency_ms
        self.p99_ms = p99_ms
        self._rng = random.Random(seed)
        self.faults: list[Fault] = []
        self.watch: Callable[[Head, bytes, Answer], None] | None = None
        self._target = (url.hostname, url.port or 80)
        self._lock = threading.Lock()
        self._sockets: set[socket.socket] = set()
        self._listener = socket.create_server(("127.0.0.1", port), backlog=512)
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.reset()

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, name="s3-proxy", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # close() alone does not wake accept()
        self._listener.close()
        with self._lock:
            for sock in self._sockets:
                with suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)

    def reset(self) -> None:
        """The rules stay."""
        with self._lock:
            self._requests: list[Request] = []
            self._draws = Draws(self.seed)

    @property
    def requests(self) -> list[Request]:
        """What came since the last reset, in the order of the answers."""
        with self._lock:
            return list(self._requests)

    @property
    def injected(self) -> Counter[str]:
        with self._lock:
            return self._draws.injected.copy()

    def counts(self) -> Counter[str]:
        return Counter(x.kind for x in self.requests)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        upstream = Upstream(self._target)
        with self._lock:
            self._sockets.add(client)
        try:
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with client.makefile("rb") as reader:
                going = True
                while going and (head := read_head(reader)):
                    going = self._exchange(client, reader, head, upstream)
        except (OSError, ValueError):
            pass  # the client went away or does not speak HTTP: nothing to answer
        finally:
            upstream.close()
            with self._lock:
                self._sockets.discard(client)
            client.close()

    def _exchange(
        self, client: socket.socket, reader: BufferedReader, head: Head, upstream: Upstream
    ) -> bool:
        """Serve one request; False when the connection is to be closed."""
        started, begin = time.time(), time.perf_counter()
        method, target, version = head.first
        if head.headers.get("expect", "").lower() == "100-continue":
            client.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
        if target.startswith("/__"):
            read_body(reader, head.headers)
            client.sendall(self._control(method, target).raw)
            return True
        kind, key = kind_of(method, target)
        conditional = not head.headers.keys().isdisjoint(("if-none-match", "if-match"))
        with self._lock:
            part = parse_qs(urlsplit(target).query).get("partNumber", [""])[0]
            fault = self._draws.pick(self.faults, kind, key, part)
            wait = self.latency_ms / 1000
            if self.p99_ms > self.latency_ms:
                # 2.326 standard deviations above the median lies the 99th percentile.
                sigma = math.log(self.p99_ms / self.latency_ms) / 2.326
                wait *= self._rng.lognormvariate(0, sigma)
        action = fault.action if fault else None
        if fault and action != "stall":
            wait += fault.seconds

        def record(answer: Answer | None, body: bytes, upstream_status: int) -> None:
            status, out = (answer.status, len(answer.body)) if answer else (0, 0)
            request = Request(
                kind, method, key, status, conditional, len(body), out, started,
                time.perf_counter() - begin, upstream_status, action,
            )  # fmt: skip
            with self._lock:
                self._requests.append(request)

        if action == "reset":
            body = reader.read(int(head.headers.get("content-length", 0)) // 2)
            time.sleep(wait)
            record(None, body, 0)
            # Lingering for no time makes close() send RST instead of FIN.
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            return False
        body = read_body(reader, head.headers)
        if wait > 0:
            time.sleep(wait)
        answer, upstream_status = None, 0
        if action != "error":
            try:
                answer = upstream.exchange(method, head.raw(drop=("expect",)), body)
            except (OSError, ValueError):
                record(None, body, 0)
                return False
            upstream_status = answer.status
            if self.watch is not None:
                self.watch(head, body, answer)
        if fault and action == "stall":
            time.sleep(fault.seconds)
        if fault and action in ("error", "error_after"):
            retry = "" if fault.retry_after is None else f"Retry-After: {fault.retry_after}\r\n"
            said = b"" if method == "HEAD" else fault.body()
            answer = _answer(fault.status, "application/xml", said, retry)
        if action == "lost_reply":
            answer = None
        if answer and action == "truncate":
            answer = Answer(answer.status, answer.head, answer.body[: len(answer.body) // 2])
        # Before the answer: a client that has the answer finds the request counted.
        record(answer, body, upstream_status)
        if answer is None:
            return False
        client.sendall(answer.raw)
        last = version == "HTTP/1.0" or head.headers.get("connection", "").lower() == "close"
        return not last and action != "truncate"

    def _control(self, method: str, target: str) -> Answer:
        match method, target:
            case "GET", "/__counts":
                return _json(200, self.counts())
            case "GET", "/__requests":
                return _json(200, [asdict(x) for x in self.requests])
            case "POST", "/__reset":
                self.reset()
                return _json(200, {})
        return _json(404, {"error": f"no {method} {target} here"})


def _answer(status: int, kind: str, body: bytes, extra: str = "") -> Answer:
    head = f"HTTP/1.1 {status} -\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n{extra}"
    return Answer(status, head.encode(), body)


def _json(status: int, value: object) -> Answer:
    return _answer(status, "application/json", json.dumps(value).encode())


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
            # Half of them before the request takes effect, half after.
            proxy.faults = [
                Fault(action, probability=options.stalls / 2, seconds=10)
                for action in ("delay", "stall")
            ]
        print(proxy.url, file=sys.stderr, flush=True)
        stop.wait()
    print(json.dumps(proxy.counts()), flush=True)


if __name__ == "__main__":
    main()
