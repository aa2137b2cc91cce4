"""Proof that a store refuses to overwrite: everything the log promises rests on it."""

import os
from collections.abc import Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue

from sparkwal import events
from sparkwal.errors import OptionError, SparkWalError
from sparkwal.store.base import Store
from sparkwal.store.conformance import objects, races
from sparkwal.store.conformance.suite import StoreUnderTest, Trial, Wrong, content
from sparkwal.store.hedge import run_in_daemon
from sparkwal.store.parallel import run_parallel

# One round may miss a store that looks first and writes later.
_TRIAL = Trial(rounds=3, threads=8)
# Seconds.
_PATIENCE = 1.0
_proven: set[tuple[int, str, str]] = set()


def prove_put_if_absent(store: Store, prefix: str) -> None:
    """Put at taken keys, one after another and racing; every second put must be refused. Once per
    process, store and prefix.

    Stores a few tiny objects under `{prefix}/proof/` and removes them. Their names are new for each
    call, so any number of processes may prove at once; nothing ever reads what a killed one leaves.
    Raises OptionError for a store that does not enforce If-None-Match, StoreUnavailableError.
    """
    proof = (os.getpid(), store.identity, prefix)
    if proof in _proven:
        return
    tested = StoreUnderTest((store,), prefix, _TRIAL, repeats=True)
    try:
        objects.keep_first(tested, b"first", b"second")
        if store.concurrency > 1:
            races.put_if_absent(tested, sizes=(16,))
    except Wrong as wrong:
        raise OptionError(
            f"{store.url} does not enforce If-None-Match: {wrong}. Two writers would overwrite "
            "each other's commits there. Use S3, MinIO, R2 or another store with conditional "
            "writes, or a newer version of this one"
        ) from None
    finally:
        # No LIST: a writer need not be allowed one here.
        _remove(tested.store, tested.keys)
        if tested.root is not None:
            with suppress(OSError):
                (tested.root / tested.folder).rmdir()
    _proven.add(proof)


def _remove(store: Store, keys: Sequence[str]) -> None:
    """Remove the objects. A DELETE that takes longer than `_PATIENCE` goes on in the background."""

    def remove(key: str) -> None:
        try:
            store.delete(key)
        except SparkWalError as error:
            # A writer may well be allowed to put but not to delete.
            with suppress(SparkWalError):
                if content(store, key) is None:
                    return
            events.emit(events.ProofLeftBehind(key=key, url=store.url, reason=str(error)))

    def remove_all() -> None:
        list(run_parallel(store, remove, keys))
        removed.put(None)

    removed: SimpleQueue[None] = SimpleQueue()
    run_in_daemon(remove_all)
    with suppress(Empty):
        removed.get(timeout=_PATIENCE)
