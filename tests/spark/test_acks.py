"""Spark's socket to a worker must acknowledge at once."""

import os
import socket
from collections.abc import Iterator

import pytest

from sparkwal.spark.unpickling import acknowledge_at_once

QUICK = getattr(socket, "TCP_QUICKACK", None)
pytestmark = pytest.mark.skipif(QUICK is None, reason="only Linux can be asked")


@pytest.fixture
def worker_end() -> Iterator[socket.socket]:
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as spark,
        server.accept()[0] as worker,
    ):
        yield worker
        # Still a connection like any other.
        spark.sendall(b"rows")
        assert worker.recv(4) == b"rows"


def test_a_socket_that_delays_acknowledgements_stops_to(worker_end: socket.socket) -> None:
    worker_end.setsockopt(socket.IPPROTO_TCP, QUICK, 0)
    assert not worker_end.getsockopt(socket.IPPROTO_TCP, QUICK)
    acknowledge_at_once()
    assert worker_end.getsockopt(socket.IPPROTO_TCP, QUICK)


def test_other_sockets_are_not_changed(worker_end: socket.socket) -> None:
    ours, theirs = socket.socketpair()
    reading, writing = os.pipe()
    before = sorted(os.listdir("/proc/self/fd"))
    acknowledge_at_once()
    assert sorted(os.listdir("/proc/self/fd")) == before
    with ours, theirs:
        ours.sendall(b"x")
        assert theirs.recv(1) == b"x"
    os.write(writing, b"y")
    assert os.read(reading, 1) == b"y"
    os.close(reading)
    os.close(writing)
