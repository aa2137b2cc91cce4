"""fake-gcs-server, a server of Google's JSON API for tests, by others. Go builds it once.

It is kept in ~/.cache/sparkwal, or below XDG_CACHE_HOME. It differs from Google's documents: a
DELETE ignores its condition, and a 404 does not name the object.
"""

from __future__ import annotations

import json
import uuid

from sparkwal.store import rest
from sparkwal.store.config import S3Config
from sparkwal.store.google import GoogleStore
from sparkwal.store.rest import Request
from sparkwal.testing.servers import Server, start_server
from tests.jars import run
from tests.store.azurite import installed

VERSION = "v1.56.1"
MODULE = "github.com/fsouza/fake-gcs-server"


def start_fake_gcs() -> Server:
    """Start it on a free port. Raises ServerError, also where Go or its modules are missing."""

    def build(folder: str) -> None:
        run(["env", f"GOBIN={folder}", "go", "install", f"{MODULE}@{VERSION}"])

    program = installed(f"fake-gcs-server-{VERSION}", build) / "fake-gcs-server"
    flags = ["-scheme", "http", "-host", "127.0.0.1", "-port", "{port}", "-backend", "memory"]
    url = ["-external-url", "http://127.0.0.1:{port}"]
    return start_server([str(program), *flags, *url], {}, "/_internal/healthcheck")


def config(url: str) -> S3Config:
    return S3Config(endpoint=url)


def options(url: str) -> dict[str, str]:
    """The options of a log in it, without its path."""
    return {"endpoint": url, "hedge": "false"}


def new_bucket(url: str) -> str:
    name = f"wal-{uuid.uuid4().hex}"
    body = json.dumps({"name": name}).encode()
    headers = {"Content-Type": "application/json"}
    create = Request("POST", f"{url}/storage/v1/b", {"project": "p"}, headers, body)
    assert rest.send(create, config(url), lambda request: request).status == 200
    return name


def new_store(url: str) -> GoogleStore:
    """An own, empty bucket."""
    return GoogleStore(new_bucket(url), config(url))
