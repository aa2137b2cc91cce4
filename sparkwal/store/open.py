"""Opens the store that a path names."""

from functools import partial

from sparkwal import events
from sparkwal.store.config import RetryPolicy, S3Config, is_unencrypted
from sparkwal.store.hedge import pace_of
from sparkwal.store.path import bucket_and_prefix, folder, is_local
from sparkwal.store.retry import RetryingStore
from sparkwal.store.s3 import S3Store

# The endpoints for which an event PlainHttp was emitted.
_reported: set[str] = set()
# `RetryingStore.served` for each bucket and configuration of this process.
_served: dict[tuple[str, S3Config], set[tuple[str, str]]] = {}


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
    config = s3 or S3Config()
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
        served=_served.setdefault((bucket, bare.config), set()),
    )
    return store, prefix
