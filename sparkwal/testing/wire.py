"""HTTP/1.1 messages as they travel: read whole, passed on byte for byte."""

import select
import socket
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from io import BufferedReader

_BUFFER = 1 << 16


@dataclass(frozen=True)
class Head:
    """The head of a request or an answer: the first line's words, the rest as it came."""

    first: tuple[str, str, str]
    lines: Sequence[bytes]
    headers: dict[str, str]

    def raw(self, drop: Collection[str] = ()) -> bytes:
        kept = [x for x in self.lines if x.split(b":", 1)[0].strip().lower().decode() not in drop]
        return " ".join(self.first).encode("latin-1") + b"\r\n" + b"".join(kept)


@dataclass(frozen=True)
class Answer:
    status: int
    head: bytes  # without the empty line that ends it
    body: bytes

    @property
    def raw(self) -> bytes:
        return self.head + b"\r\n" + self.body


class Upstream:
    """One thread's connection to the store, kept alive."""

    def __init__(self, target: tuple[str, int]) -> None:
        self._target = target
        self._socket: socket.socket | None = None
        self._reader: BufferedReader

    def close(self) -> None:
        if self._socket is not None:
            self._reader.close()
            self._socket.close()
            self._socket = None

    def _connect(self) -> socket.socket:
        if self._socket is not None:
            # Idle and readable: the other side closed it. So nothing is sent a second time.
            poll = select.poll()
            poll.register(self._socket, select.POLLIN)
            if poll.poll(0):
                self.close()
        if self._socket is None:
            self._socket = socket.create_connection(self._target)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._reader = self._socket.makefile("rb")
        return self._socket

    def exchange(self, method: str, head: bytes, body: bytes) -> Answer:
        """Send one request and read its answer; OSError when there is none."""
        try:
            self._connect().sendall(head + b"\r\n" + body)
            while (answer := read_head(self._reader)) and answer.first[1].startswith("1"):
                pass
            if answer is None:
                raise ConnectionError("the store closed the connection")
            status = int(answer.first[1])
            empty = method == "HEAD" or status in (204, 304)
            framed = empty or not answer.headers.keys().isdisjoint(
                ("content-length", "transfer-encoding")
            )
            content = b"" if empty else read_body(self._reader, answer.headers, not framed)
        except BaseException:
            self.close()
            raise
        version, _, reason = answer.first
        last = not framed or version == "HTTP/1.0"
        if last or answer.headers.get("connection", "").lower() == "close":
            self.close()
        # The connection to the client goes on even if the one to the store was closed.
        words = Head(("HTTP/1.1", str(status), reason), answer.lines, answer.headers)
        raw = words.raw(drop=("connection", "keep-alive"))
        if not framed:
            raw += b"Content-Length: %d\r\n" % len(content)
        return Answer(status, raw, content)


def read_head(reader: BufferedReader) -> Head | None:
    """The next message's head, None at the connection's orderly end."""
    first = reader.readline(_BUFFER)
    if not first:
        return None
    method, target, version, *_ = (*first.decode("latin-1").strip().split(None, 2), "", "", "")
    lines = _read_lines(reader)
    pairs = (line.decode("latin-1").partition(":") for line in lines)
    headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
    return Head((method, target, version), lines, headers)


def _read_lines(reader: BufferedReader) -> list[bytes]:
    """Header or trailer lines up to the empty line, which is consumed."""
    lines = []
    while (line := reader.readline(_BUFFER)) not in (b"\r\n", b"\n"):
        if not line.endswith(b"\n"):
            raise ConnectionError("the connection ended within a header")
        lines.append(line)
    return lines


def _read_exactly(reader: BufferedReader, size: int) -> bytes:
    body = reader.read(size)
    if len(body) != size:
        raise ConnectionError("the connection ended within a body")
    return body


def read_body(reader: BufferedReader, headers: dict[str, str], until_close: bool = False) -> bytes:
    """The body as it travels: a chunked one keeps its framing and its trailers."""
    if "chunked" not in headers.get("transfer-encoding", "").lower():
        if until_close:
            return reader.read()
        return _read_exactly(reader, int(headers.get("content-length", 0)))
    parts = []
    while True:
        line = reader.readline(_BUFFER)
        parts.append(line)
        size = int(line.split(b";")[0], 16)
        if size == 0:
            return b"".join([*parts, *_read_lines(reader), b"\r\n"])
        parts.append(_read_exactly(reader, size + 2))
