"""A PostgreSQL server of this machine in a folder of its own, and what loses its replies.

with start_postgresql() as server, Relay(server.port) as relay:
    settings = {"type": "sql", "uri": server.url(relay.port)}
"""

from __future__ import annotations

import os
import pwd
import secrets
import select
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path

_START_SECONDS = 60
_USER = "sparkwal"
# It is in the URL, and in no message.
PASSWORD = secrets.token_hex(16)


class NoServer(Exception):
    """This machine has no PostgreSQL, or no user that may run it."""


@dataclass(frozen=True)
class Postgresql(AbstractContextManager["Postgresql"]):
    """A running server. As a context manager it stops the process at the end."""

    port: int
    process: subprocess.Popen[bytes]
    folder: tempfile.TemporaryDirectory[str]

    def url(self, port: int) -> str:
        """The URL of the catalog's database, by this port."""
        options = "sslmode=disable&gssencmode=disable"
        address = f"{_USER}:{PASSWORD}@127.0.0.1:{port}"
        return f"postgresql+psycopg2://{address}/postgres?{options}"

    def __exit__(self, *_: object) -> None:
        # It does not wait for its clients.
        self.process.send_signal(signal.SIGINT)
        self.process.wait()
        self.folder.cleanup()


def start_postgresql() -> Postgresql:
    """Start it on a free port of loopback.

    Raises:
        NoServer: it is not installed, or this process is root's and no other user runs it.
    """
    programs = _programs()
    user = _user()
    folder = tempfile.TemporaryDirectory(prefix="sparkwal-postgresql-")
    root = Path(folder.name)
    try:
        (root / "password").write_text(PASSWORD)
        if user is not None:
            for path in (root, root / "password"):
                os.chown(path, user, -1)
        made = subprocess.run(
            [
                programs / "initdb",
                "-D",
                root / "data",
                "-U",
                _USER,
                "-N",
                "-E",
                "UTF8",
                "--no-locale",
            ]
            + ["--auth=scram-sha-256", f"--pwfile={root}/password"],
            user=user,
            cwd=root,
            capture_output=True,
            text=True,
            check=False,
        )
        if made.returncode:
            raise NoServer(f"initdb failed: {made.stderr[-300:]}")
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        settings = {
            "listen_addresses": "127.0.0.1",
            "port": port,
            "unix_socket_directories": "",
            "fsync": "off",
        }
        arguments = [text for pair in settings.items() for text in ("-c", "{}={}".format(*pair))]
        process = subprocess.Popen(
            [programs / "postgres", "-D", root / "data", *arguments],
            user=user,
            cwd=root,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
    except BaseException:
        folder.cleanup()
        raise
    server = Postgresql(port, process, folder)
    try:
        _wait(server)
    except BaseException:
        server.__exit__()
        raise
    return server


def _programs() -> Path:
    """The folder of the newest version's programs."""
    found = shutil.which("postgres")
    versions = Path("/usr/lib/postgresql").glob("*/bin/postgres")
    newest = sorted(versions, key=lambda path: int(path.parts[-3]))
    places = [Path(found)] if found else newest[-1:]
    if not places:
        raise NoServer("there is no program postgres")
    return places[0].parent


def _user() -> int | None:
    """Who runs the server, which root may not; None for the user of this process."""
    if os.geteuid():
        return None
    for name in ("postgres", "nobody"):
        with suppress(KeyError):
            return pwd.getpwnam(name).pw_uid
    raise NoServer("root may not run it, and there is neither a user postgres nor nobody")


def _wait(server: Postgresql) -> None:
    import psycopg2

    end = time.monotonic() + _START_SECONDS
    while True:
        try:
            psycopg2.connect(server.url(server.port).replace("+psycopg2", "")).close()
            return
        except psycopg2.OperationalError as error:
            if server.process.poll() is not None or time.monotonic() > end:
                raise NoServer(f"it did not start: {error}") from None
        time.sleep(0.05)


class Relay(AbstractContextManager["Relay"]):
    """Passes statements on to a server. One of them may fail, and its connection breaks.

    Args:
        port: that of the server.

    Attributes:
        port: its own.
        requests: the number of what clients sent.
        fails_at: the number of the one that fails, or None.
        after: whether the server gets it, and only its reply is lost.
        is_away: every connection breaks.
        watch: is called with each number, before the server gets it.
    """

    def __init__(self, port: int) -> None:
        self._server = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.requests = 0
        self.fails_at: int | None = None
        self.after = False
        self.is_away = False
        self.watch: Callable[[int], None] = lambda nth: None
        threading.Thread(target=self._accept, daemon=True).start()

    def __exit__(self, *_: object) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with (
            suppress(OSError),
            client,
            socket.create_connection(("127.0.0.1", self._server)) as server,
        ):
            is_lost = False
            while True:
                ready, _, _ = select.select([client, server], [], [])
                if client in ready:
                    if not (sent := client.recv(2**16)):
                        return
                    nth, self.requests = self.requests, self.requests + 1
                    self.watch(nth)
                    if self.is_away or (nth == self.fails_at and not self.after):
                        return
                    is_lost = nth == self.fails_at
                    server.sendall(sent)
                if server in ready:
                    reply = server.recv(2**16)
                    if not reply or is_lost:
                        return
                    client.sendall(reply)
