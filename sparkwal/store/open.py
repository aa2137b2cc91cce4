"""From a path to a store and the key prefix of the log in it."""

from functools import partial

from sparkwal import events
from sparkwal.store.config import RetryPolicy, S3Config, is_readable_on_the_way
from sparkwal.store.hedge import pace_of
from sparkwal.store.path import bucket_and_prefix, folder, is_local
from sparkwal.store.retry import RetryingStore
from sparkwal.store.s3 import S3Store

# Endpoints whose plain HTTP was reported.
_reported: set[str] = set()
# What each store has served this process: bucket and configuration → `RetryingStore.served`.
_served: dict[tuple[str, S3Config], set[tuple[str, str]]] = {}


def open_store(
    path: str, s3: S3Config | None, policy: RetryPolicy, *, fail_fast: bool = False
) -> tuple[RetryingStore, str]:
    """The retrying store that `path` names, and the prefix of the log's keys in it. Makes no
    request, creates nothing. Raises OptionError for a path that names no supported store."""
    if is_local(path):
        from sparkwal.store.local import LocalStore

        return RetryingStore(LocalStore(folder(path)), policy), ""
    bucket, prefix = bucket_and_prefix(path)
    config = s3 or S3Config()
    bare = S3Store(bucket, config)
    # Where a user opens it, not in each of Spark's workers.
    if fail_fast and bare.endpoint and bare.endpoint not in _reported:
        _reported.add(bare.endpoint)
        if is_readable_on_the_way(bare.endpoint):
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
