"""A small S3 server over a sorted map, as S3 itself keeps its index.

A LIST costs the same however many keys there are. The servers that tests use otherwise
sort all keys of a bucket for every LIST, which hides what a long log costs.

    with serve(SortedDict({"bucket/key": b"body"})) as url: ...

It counts as the proxy does: GET /__counts, POST /__reset.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from email.utils import formatdate
from hashlib import md5
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import islice, takewhile
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from xml.etree import ElementTree
from xml.sax.saxutils import escape

from sparkwal.testing.proxy import kind_of


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # One packet for each answer: Nagle's algorithm would hold the second back.
    wbufsize = -1
    disable_nagle_algorithm = True
    objects: Any
    # Only of what was written here; all else is as old as the server.
    modified: dict[str, float]
    started: float
    lock: threading.Lock
    latency: float
    counts: Counter[str]

    def parse_request(self) -> bool:
        is_sound = super().parse_request()
        if is_sound and not self.path.startswith("/__"):
            with self.lock:
                self.counts[kind_of(self.command, self.path)[0]] += 1
            if self.latency:
                time.sleep(self.latency)
        return is_sound

    def log_message(self, format: str, *args: object) -> None: ...

    def answer(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _error(self, status: int, code: str) -> None:
        self.answer(status, f"<Error><Code>{code}</Code></Error>".encode())

    def _key(self) -> str:
        return unquote(urlsplit(self.path).path.lstrip("/"))

    def do_PUT(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        with self.lock:
            if self.headers.get("If-None-Match") == "*" and self._key() in self.objects:
                self._error(412, "PreconditionFailed")
                return
            self.objects[self._key()] = body
            self.modified[self._key()] = time.time()
        self.answer(200, ETag=f'"{md5(body).hexdigest()}"')

    def do_GET(self) -> None:
        if self.path == "/__counts":
            self.answer(200, json.dumps(self.counts).encode())
            return
        query = parse_qs(urlsplit(self.path).query, keep_blank_values=True)
        if query.get("list-type") == ["2"]:
            self._list(query)
            return
        if "uploads" in query:
            # No upload can begin on this server.
            xml = b"<ListMultipartUploadsResult><IsTruncated>false</IsTruncated>"
            self.answer(200, xml + b"</ListMultipartUploadsResult>")
            return
        body = self.objects.get(self._key())
        if body is None:
            self._error(404, "NoSuchKey")
        elif span := self.headers.get("Range"):
            first, last = (int(x) for x in span.removeprefix("bytes=").split("-"))
            part = body[first : last + 1]
            content = f"bytes {first}-{first + len(part) - 1}/{len(body)}"
            self.answer(206, part, Content_Range=content, Last_Modified=self._modified())
        else:
            self.answer(200, body, Last_Modified=self._modified())

    do_HEAD = do_GET

    def do_DELETE(self) -> None:
        with self.lock:
            self._remove(self._key())
        self.answer(204)

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.path == "/__reset":
            self.counts.clear()
            self.answer(200)
            return
        if "delete" not in parse_qs(urlsplit(self.path).query, keep_blank_values=True):
            self._error(501, "NotImplemented")
            return
        bucket = self._key().rstrip("/")
        deleted = [x.text for x in ElementTree.fromstring(body).iterfind("{*}Object/{*}Key")]
        with self.lock:
            for key in deleted:
                self._remove(f"{bucket}/{key}")
        names = "".join(f"<Deleted><Key>{escape(key or '')}</Key></Deleted>" for key in deleted)
        xml = f"<DeleteResult>{names}</DeleteResult>"
        self.answer(200, xml.encode(), Content_Type="application/xml")

    def _remove(self, key: str) -> None:
        self.objects.pop(key, None)
        self.modified.pop(key, None)

    def _modified(self) -> str:
        return formatdate(self.modified.get(self._key(), self.started), usegmt=True)

    def _list(self, query: dict[str, list[str]]) -> None:
        bucket = self._key().rstrip("/")
        prefix = f"{bucket}/{query.get('prefix', [''])[0]}"
        after = query.get("start-after", [""])[0]
        limit = int(query.get("max-keys", ["1000"])[0])
        with self.lock:
            start = max(prefix, f"{bucket}/{after}")
            keys = self.objects.irange(start, inclusive=(not after or start == prefix, True))
            found = list(islice(takewhile(lambda key: key.startswith(prefix), keys), limit + 1))
            more, found = len(found) > limit, found[:limit]
            sizes = [len(self.objects[key]) for key in found]
        entries = "".join(
            f"<Contents><Key>{escape(key.removeprefix(bucket + '/'))}</Key>"
            "<LastModified>2026-01-01T00:00:00.000Z</LastModified>"
            "<ETag>&quot;9b2cf535f27731c974343645a3985328&quot;</ETag>"
            f"<Size>{size}</Size><StorageClass>STANDARD</StorageClass></Contents>"
            for key, size in zip(found, sizes, strict=True)
        )
        more_text = f"<IsTruncated>{str(more).lower()}</IsTruncated>"
        of = f"<Name>{bucket}</Name><Prefix>{escape(prefix.removeprefix(bucket + '/'))}</Prefix>"
        xml = f"<ListBucketResult>{of}{more_text}{entries}</ListBucketResult>"
        self.answer(200, xml.encode(), Content_Type="application/xml")


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 512

    def handle_error(self, request: Any, client_address: Any) -> None:
        # A client that no longer needs an answer closes its connection.
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)


@contextmanager
def serve(objects: Any, latency_ms: float = 0) -> Iterator[str]:
    """The URL of a server on 127.0.0.1, as long as the context lasts.

    Args:
        objects: a sortedcontainers.SortedDict of "bucket/key" → bytes. The
            server answers only the protocol's requests, without authentication.
        latency_ms: added to each request.
    """
    own = {
        "objects": objects,
        "modified": {},
        "started": time.time(),
        "lock": threading.Lock(),
        "latency": latency_ms / 1000,
        "counts": Counter(),
    }
    handler = type("Handler", (Handler,), own)
    with _Server(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
