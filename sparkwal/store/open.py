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
    match = _SCHEME.match(path)
    scheme = (match[1] or match[2]).lower() if match else "file"
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
    if scheme != "file":
        raise OptionError(f"{path}: {scheme} is no supported store; {_SUPPORTED}")
    from sparkwal.store.local import LocalStore

    return RetryingStore(LocalStore(_folder(path, bool(match))), policy), ""


def _split_s3(path: str) -> tuple[str, str]:
    _, separator, rest = path.partition("://")
    bucket, _, prefix = rest.partition("/")
    if not separator or not bucket:
        raise OptionError(f"{path} names no bucket; paths look like s3://bucket/folder")
    prefix = prefix.rstrip("/")
    return bucket, join_key(prefix) if prefix else ""


def _folder(path: str, has_scheme: bool) -> Path:
    if has_scheme:
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
