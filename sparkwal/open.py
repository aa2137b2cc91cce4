"""From checked options to the log they name. Makes no request and creates nothing."""

from __future__ import annotations

from sparkwal.options.store import StoreOptions
from sparkwal.protocol.log_store import LogStore
from sparkwal.store.open import open_store


def open_log(options: StoreOptions, *, fail_fast: bool = False) -> LogStore:
    """The log that `path` and `sequencer` name.

    Args:
        fail_fast: nothing answering at all is an error at once, without retries.

    Raises OptionError for a path that names no supported store.
    """
    store, root = open_store(options.path, options.s3, options.retry, fail_fast=fail_fast)
    return LogStore(store, root).sequencer(options.sequencer)
