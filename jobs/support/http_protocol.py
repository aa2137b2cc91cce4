"""The connections of the HTTP job: how many there are, and how long a request's head may take."""

from __future__ import annotations

import asyncio
import os
import resource
import socket
import time
from contextlib import suppress
from errno import EMFILE, ENFILE, ENOBUFS, ENOMEM
from typing import TYPE_CHECKING, Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

if TYPE_CHECKING:
    import logging

# Seconds from the first byte of a request, or from the connection, to the end of its head. uvicorn
# limits only the time between two requests.
HEAD_SECONDS = 20.0
# Connections that asyncio accepts before it serves the accepted ones.
ACCEPTED_AT_ONCE = 16
# Connections that wait in the kernel.
_QUEUED = 512
_EXHAUSTED = (EMFILE, ENFILE, ENOBUFS, ENOMEM)
# asyncio pauses for a second, but only after it has tried ACCEPTED_AT_ONCE times.
_PAUSE_SECONDS = 0.5


def places(most: int) -> int:
    """The number of connections for which there are file descriptors, at most `most`.

    The appender keeps as many for its files and its connections to the store.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        return most
    free = limit - len(os.listdir("/dev/fd"))
    return max(1, min(most, free // 2))


class Listener(socket.socket):
    """A listening socket that holds at most `most` connections.

    uvicorn's `limit_concurrency` closes no idle connection, and answers 503 to all clients while
    there are too many. Here the oldest connection without an accepted request ends instead.
    """

    def __init__(self, listening: socket.socket, most: int) -> None:
        super().__init__(fileno=listening.detach())
        self._most = most
        self._open: list[socket.socket] = []
        self._trusted: set[int] = set()
        self._paused_until = 0.0

    def listen(self, backlog: int = 0) -> None:
        """Begin to listen. asyncio's `backlog` limits only how many it accepts at once."""
        super().listen(_QUEUED)

    def accept(self) -> tuple[socket.socket, Any]:
        """Accept a connection, and end another one if there are too many.

        Raises:
            BlockingIOError: the machine is exhausted, and asyncio pauses.
            ConnectionAbortedError: all connections are in use by clients that had a request
                accepted.
        """
        if time.monotonic() < self._paused_until:
            raise BlockingIOError
        try:
            connection, address = super().accept()
        except OSError as error:
            if error.errno in _EXHAUSTED:
                self._paused_until = time.monotonic() + _PAUSE_SECONDS
            raise
        # The number belonged to a connection that is closed.
        self._trusted.discard(connection.fileno())
        if len(self._open) >= self._most:
            self._open = [other for other in self._open if other.fileno() >= 0]
        if len(self._open) >= self._most and not self._end_oldest():
            connection.close()
            raise ConnectionAbortedError
        self._open.append(connection)
        return connection, address

    def trust(self, descriptor: int) -> None:
        """Keep this connection: a request on it was accepted."""
        self._trusted.add(descriptor)

    def _end_oldest(self) -> bool:
        for index, connection in enumerate(self._open):
            if connection.fileno() not in self._trusted:
                # Its transport reads the end of the stream, and closes it. This also ends a TLS
                # handshake, for which there is no protocol yet.
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
                del self._open[index]
                return True
        return False


def without_traceback(record: logging.LogRecord) -> bool:
    """Make one line of an exhausted machine's error: asyncio accepts again after a second."""
    error = record.exc_info[1] if record.exc_info else None
    if isinstance(error, OSError) and error.errno in _EXHAUSTED:
        record.msg, record.args = "cannot accept a connection now: %s", (error.strerror,)
        record.exc_info = None
    return True


class TimedProtocol(H11Protocol):
    """uvicorn's protocol with a time limit for the head of each request.

    The state of each request has its connection's file descriptor.
    """

    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        descriptor = transport.get_extra_info("socket").fileno()
        self.app_state = {**self.app_state, "descriptor": descriptor}
        self._watch_head()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def _watch_head(self) -> None:
        if self.conn.their_state is not h11.IDLE:
            self._stop_timer()
        elif self._timer is None:
            self._timer = self.loop.call_later(HEAD_SECONDS, self._end)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _end(self) -> None:
        self._timer = None
        if self.conn.their_state is h11.IDLE and not self.transport.is_closing():
            self.transport.close()
