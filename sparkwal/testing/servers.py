"""Local S3 servers for tests and benchmarks. Each runs in another process.

with start_ministack() as server:
    make_bucket(server.url, "wal")
"""

import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import urllib3
from urllib3.exceptions import HTTPError

from sparkwal.store.s3_client import descriptions

REGION = "us-east-1"
ACCESS_KEY = "test"
SECRET_KEY = "test"

_START_SECONDS = 60.0
_STOP_SECONDS = 5.0
_ATTEMPTS = 3


class ServerError(RuntimeError):
    """A server did not start. The message ends with the server's output."""


@dataclass(frozen=True)
class Server(AbstractContextManager["Server"]):
    """A running server. As a context manager it stops the process at the end."""

    url: str
    process: subprocess.Popen[bytes]
    folder: tempfile.TemporaryDirectory[str]

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """End the process and remove its files. The call may be repeated."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self.folder.cleanup()

    def output(self) -> str:
        return (Path(self.folder.name) / "output").read_text(errors="replace")


def start_ministack(*, enforces: bool = False) -> Server:
    """Start ministack with S3, in memory.

    Args:
        enforces: also start IAM and STS, and check signatures and policies. ACCESS_KEY has all
            permissions; `s3_client(url, "iam")` can create other users.
    """
    settings = {
        "BIND_HOST": "127.0.0.1",
        "GATEWAY_PORT": "{port}",
        "SERVICES": "s3,iam,sts" if enforces else "s3",
        "LOG_LEVEL": "WARNING",
        # SERVICES does not stop these two, which listen on other ports.
        "SFTP_ENABLED": "0",
        "IOT_MTLS_ENABLED": "0",
        "S3_PERSIST": "0",
        "PERSIST_STATE": "0",
        "AUTH": str(enforces).lower(),
        "USE_SSL": "0",
        # ministack removes leftover containers at its start. It must not find Docker.
        "DOCKER_HOST": "unix:///nonexistent",
    }
    command = [sys.executable, "-m", "ministack"]
    return start_server(command, {}, "/_ministack/health", settings)


def start_moto() -> Server:
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", "{port}"]
    return start_server(command, {}, "/moto-api/data.json", {"MOTO_PORT": "{port}"})


def start_server(
    command: Sequence[str],
    files: Mapping[str, str],
    health: str = "/",
    settings: Mapping[str, str] | None = None,
) -> Server:
    """Start an S3 server as a process, on a free port.

    {port} in the command, the files and the settings is replaced by the port.

    Args:
        files: the texts of files in the server's folder, by name.
        health: a path that the server answers once it has started.
        settings: environment variables.

    Raises:
        ServerError: the server did not start.
    """
    foreign = ("MINISTACK_", "MOTO_", "LOCALSTACK_", "AWS_")
    environment = {k: v for k, v in os.environ.items() if not k.startswith(foreign)}
    for attempts_left in reversed(range(_ATTEMPTS)):
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = probe.getsockname()[1]
        folder = tempfile.TemporaryDirectory(prefix="sparkwal-server-")
        for name, text in files.items():
            (Path(folder.name) / name).write_text(text.format(port=port))
        variables = {key: value.format(port=port) for key, value in (settings or {}).items()}
        with (Path(folder.name) / "output").open("wb") as output:
            process = subprocess.Popen(
                [word.format(port=port) for word in command],
                # TMPDIR: temporary files are removed with the folder.
                env={**environment, **variables, "TMPDIR": folder.name},
                cwd=folder.name,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                # In a new session: Ctrl-C in a terminal must reach only the tests, which then stop
                # the server.
                start_new_session=True,
            )
        server = Server(f"http://127.0.0.1:{port}", process, folder)
        try:
            _wait(server, health)
            break
        except BaseException as error:
            server.stop()
            # Another process may have taken the port in the meantime.
            if not attempts_left or not isinstance(error, ServerError):
                raise
    return server


def s3_client(url: str, service: str = "s3", **config: Any) -> Any:
    """A client with dummy credentials for a local server or a proxy.

    Args:
        config: parameters of botocore's Config. By default the client does not retry.
    """
    from botocore.config import Config
    from botocore.session import Session

    settings: dict[str, Any] = {
        "retries": {"total_max_attempts": 1},
        "s3": {"addressing_style": "path"},
        # The server is on this machine, so a proxy of the environment does not apply.
        "proxies": {},
    }
    session = Session()
    session.register_component("data_loader", descriptions())
    return session.create_client(
        service,
        endpoint_url=url,
        region_name=REGION,
        aws_access_key_id=ACCESS_KEY,
        aws_secret_access_key=SECRET_KEY,
        config=Config(**(settings | config)),
    )


def log_options(url: str, *, hedge: bool = False) -> dict[str, str]:
    """The options of a log on a local server or behind a proxy, without its path.

    Args:
        hedge: whether to hedge late requests. A test that counts requests must not: on a busy
            machine requests are late.
    """
    return {
        "endpoint": url,
        "region": REGION,
        "accessKeyId": ACCESS_KEY,
        "secretAccessKey": SECRET_KEY,
        "hedge": str(hedge).lower(),
    }


def make_bucket(url: str, name: str) -> None:
    client = s3_client(url)
    client.create_bucket(Bucket=name)
    client.close()


def _wait(server: Server, health: str) -> None:
    deadline = time.monotonic() + _START_SECONDS
    answered = False
    while not answered and server.process.poll() is None and time.monotonic() < deadline:
        try:
            answered = bool(urllib3.request("GET", server.url + health, retries=False, timeout=2))
        except HTTPError:
            time.sleep(0.05)
    # If another process took the port, that process answered, and this server has ended.
    code = server.process.poll()
    if code is not None or not answered:
        ended = "did not answer in time" if code is None else f"ended with code {code}"
        raise ServerError(f"the server at {server.url} {ended}:\n{server.output()[-4000:]}")
