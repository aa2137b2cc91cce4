"""From a path to a store and the key prefix of the log in it."""

from __future__ import annotations

import os
import re
from pathlib import Path

from sparkwal.errors import OptionError
from sparkwal.format.keys import join_key
from sparkwal.store.base import Store
from sparkwal.store.config import RetryPolicy, S3Config
from sparkwal.store.retry import RetryingStore
from sparkwal.store.s3 import S3Store

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):(?=/)|(file|s3[an]?):", re.IGNORECASE)
_SUPPORTED = "supported are s3://bucket/folder, file:///folder and a plain folder path"


def open_store(
    path: str, s3: S3Config | None, policy: RetryPolicy, *, fail_fast: bool = False
) -> tuple[Store, str]:
    """The retrying store that `path` names, and the prefix of the log's keys in it.

    No request is made and nothing is created. Raises OptionError for a path that
    names no supported store.
    """
    path = path.strip()
    if not path:
        raise OptionError(f"the path is empty; {_SUPPORTED}")
    scheme = _scheme(path)
    if scheme in ("s3", "s3a"):
        bucket, prefix = _split_s3(path)
        config = s3 or S3Config()
        store = RetryingStore(
            S3Store(bucket, config),
            policy,
            fail_fast=fail_fast,
            parts_in_flight=config.max_in_flight_parts,
        )
        return store, prefix
    if not is_local(path):
        raise OptionError(f"{path}: {scheme} is no supported store; {_SUPPORTED}")
    from sparkwal.store.local import LocalStore

    return RetryingStore(LocalStore(_folder(path)), policy), ""


def is_local(path: str) -> bool:
    """Whether `path` is on a disk that other machines may not see."""
    return _scheme(path) == "file"


def absolute(path: str) -> str:
    """`path` so that a process with another working directory takes it for the same."""
    return str(_folder(path.strip())) if is_local(path) else path


def _scheme(path: str) -> str:
    match = _SCHEME.match(path.strip())
    return (match[1] or match[2]).lower() if match else "file"


def _split_s3(path: str) -> tuple[str, str]:
    _, separator, rest = path.partition("://")
    bucket, _, prefix = rest.partition("/")
    if not separator or not bucket:
        raise OptionError(f"{path} names no bucket; paths look like s3://bucket/folder")
    prefix = prefix.rstrip("/")
    return bucket, join_key(prefix) if prefix else ""


def _folder(path: str) -> Path:
    if _SCHEME.match(path):
        # file:/x and file:///x are the same; file://x/y names another machine.
        rest = path.partition(":")[2]
        if rest.startswith("//"):
            host, slash, tail = rest[2:].partition("/")
            if host not in ("", "localhost") or not slash:
                raise OptionError(f"{path} names the host {host!r}; use file:///folder")
            rest = "/" + tail
        path = rest
    if "\0" in path:
        raise OptionError("the path has a zero byte in it; correct it")
    return Path(os.path.abspath(path))
