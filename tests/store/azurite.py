"""Azurite, Microsoft's own server of Azure Blob Storage for tests. npm downloads it once.

It is kept in ~/.cache/sparkwal, or below XDG_CACHE_HOME.
"""

from __future__ import annotations

import base64
import fcntl
import os
import uuid
from collections.abc import Callable
from pathlib import Path

from sparkwal.store import rest
from sparkwal.store.azure import AzureStore
from sparkwal.store.azure_account import account_of
from sparkwal.store.base import Transient
from sparkwal.store.config import S3Config
from sparkwal.store.rest import Request
from sparkwal.testing.servers import Server, ServerError, start_server
from tests.jars import run

VERSION = "3.35.0"
ACCOUNT = "walaccount"
_ATTEMPTS = 3
KEY = base64.b64encode(b"a key that Azurite is started with").decode()


def start_azurite() -> Server:
    """Start it on a free port. Raises ServerError, also where npm or node is missing."""
    main = installed(f"azurite-{VERSION}", _install) / "node_modules/azurite/dist/src/blob/main.js"
    flags = ["--inMemoryPersistence", "--disableTelemetry", "--silent"]
    command = ["node", str(main), "--blobHost", "127.0.0.1", "--blobPort", "{port}", *flags]
    return start_server(command, {}, settings={"AZURITE_ACCOUNTS": f"{ACCOUNT}:{KEY}"})


def installed(name: str, install: Callable[[str], None]) -> Path:
    """The folder of a server, which is installed there if it is not yet."""
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = caches / "sparkwal" / name
    done = folder / "done"
    folder.mkdir(parents=True, exist_ok=True)
    # One process at a time.
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists():
            install(str(folder))
            done.touch()
    return folder


def _install(folder: str) -> None:
    flags = ["--no-audit", "--no-fund", "--ignore-scripts"]
    run(["npm", "install", "--prefix", folder, *flags, f"azurite@{VERSION}"])


def is_missing(error: ServerError) -> bool:
    """Whether this machine lacks node, npm or the network."""
    return "cannot be started" in str(error) or "npm error" in str(error)


def options(url: str) -> dict[str, str]:
    """The options of a log in Azurite, or behind a proxy of it, without its path."""
    return {
        "endpoint": f"{url}/{ACCOUNT}",
        "accessKeyId": ACCOUNT,
        "secretAccessKey": KEY,
        "hedge": "false",
    }


def config(url: str) -> S3Config:
    return S3Config(endpoint=f"{url}/{ACCOUNT}", access_key_id=ACCOUNT, secret_access_key=KEY)


def new_container(url: str) -> str:
    name = f"wal-{uuid.uuid4().hex}"
    account, _ = account_of(name, config(url))
    create = Request("PUT", f"{account.blobs}/{name}", {"restype": "container"}, {})
    for _ in range(_ATTEMPTS):
        try:
            status = rest.send(create, config(url), account.sign).status
        except Transient:
            # On a busy machine Azurite was seen not to answer for a minute.
            continue
        # 409: a request without a reply made it.
        assert status in (201, 409)
        return name
    raise AssertionError(f"Azurite did not answer {_ATTEMPTS} times")


def new_store(url: str) -> AzureStore:
    """An own, empty container."""
    return AzureStore(new_container(url), config(url))
