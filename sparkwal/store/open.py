"""Opens the store that a path names."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from sparkwal import events
from sparkwal.errors import OptionError
from sparkwal.store.base import LogStore, Store
from sparkwal.store.config import RetryPolicy, S3Config, is_unencrypted
from sparkwal.store.hedge import pace_of
from sparkwal.store.path import bucket_and_prefix, folder, is_local, kind_of_store
from sparkwal.store.retry import RetryingStore
from sparkwal.store.s3 import S3Store

if TYPE_CHECKING:
    from sparkwal.store.azure import AzureStore
    from sparkwal.store.google import GoogleStore

# The endpoints for which an event PlainHttp was emitted.
_reported: set[str] = set()
# `RetryingStore.served` for each store and configuration of this process.
_served: dict[tuple[str, S3Config], set[tuple[str, str]]] = {}
# Stores of programs' tests by the name in their paths, for as long as the tests hold them.
_in_memory: WeakValueDictionary[str, Store] = WeakValueDictionary()


def path_of(log: LogStore) -> str:
    """A path by which this process, and no other, opens the log with this store."""
    name = f"{id(log.store):x}"
    _in_memory[name] = log.store
    return f"memory://{name}/{log.prefix}"


def _open_in_memory(name: str, policy: RetryPolicy) -> RetryingStore:
    store = _in_memory.get(name)
    if store is None:
        raise OptionError(
            f"memory://{name} is no store of this process: only the process that made a store in "
            "memory can open it, and Spark's Python workers are others. Use a folder, or a server "
            "of sparkwal.testing.servers"
        )
    return store if isinstance(store, RetryingStore) else RetryingStore(store, policy)


def open_store(
    path: str, s3: S3Config | None, policy: RetryPolicy, *, fail_fast: bool = False
) -> tuple[RetryingStore, str]:
    """Open the store that `path` names, without a request.

    Returns:
        The store, and the prefix of the log's keys in it.

    Raises:
        OptionError: the path names no supported store.
    """
    if is_local(path):
        from sparkwal.store.local import LocalStore

        return RetryingStore(LocalStore(folder(path)), policy), ""
    bucket, prefix = bucket_and_prefix(path)
    kind = kind_of_store(path)
    if kind == "memory":
        return _open_in_memory(bucket, policy), prefix
    config = s3 or S3Config()
    bare: S3Store | AzureStore | GoogleStore
    if kind == "azure":
        from sparkwal.store.azure import AzureStore

        bare = AzureStore(bucket, config)
    elif kind == "google":
        from sparkwal.store.google import GoogleStore

        bare = GoogleStore(bucket, config)
    else:
        bare = S3Store(bucket, config)
    # Warn in the process of the user, not in each worker of Spark.
    if fail_fast and bare.endpoint and bare.endpoint not in _reported:
        _reported.add(bare.endpoint)
        if is_unencrypted(bare.endpoint):
            events.emit(events.PlainHttp(endpoint=bare.endpoint))
    store = RetryingStore(
        bare,
        policy,
        fail_fast=fail_fast,
        parts_in_flight=config.max_in_flight_parts,
        pace=partial(pace_of, bare.identity) if config.hedge else None,
        served=_served.setdefault((bare.identity, bare.config), set()),
    )
    return store, prefix
