"""Proves that a store enforces If-None-Match. Every guarantee of the log depends on this."""

import os
from collections.abc import Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue

from sparkwal import events
from sparkwal.errors import OptionError, SparkWalError
from sparkwal.store.base import Store
from sparkwal.store.conformance import objects, races
from sparkwal.store.conformance.suite import StoreUnderTest, Trial, Wrong, content
from sparkwal.store.parallel import run_parallel
from sparkwal.store.threads import run_in_daemon

# One round may miss a store that checks the key first and writes later.
_TRIAL = Trial(rounds=3, threads=8)
# Seconds to wait for the removal of the test objects.
_PATIENCE = 1.0
_proven: set[tuple[int, str]] = set()


def prove_put_if_absent(store: Store, prefix: str) -> None:
    """Check that the store refuses puts at taken keys, one after another and in races.

    Only the first call for a store in a process makes requests: the server enforces the condition
    for the bucket, not for a prefix. It stores a few tiny objects under `{prefix}/proof/` and
    removes them. Their names are new in each call, so several processes may prove at once. Objects
    that a killed process leaves have no effect.

    Raises:
        OptionError: the store does not enforce If-None-Match.
        StoreUnavailableError: the store did not answer.
    """
    proof = (os.getpid(), store.identity)
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
        remove(tested)
    _proven.add(proof)


def remove(tested: StoreUnderTest) -> None:
    """Remove the objects of a proof."""
    # The keys are known, so no LIST is made: a writer may lack the permission for it.
    _remove(tested.store, tested.keys)
    if tested.root is not None:
        with suppress(OSError):
            (tested.root / tested.folder).rmdir()


def _remove(store: Store, keys: Sequence[str]) -> None:
    """Remove the objects. After `_PATIENCE` seconds the removal continues in the background."""

    def remove(key: str) -> None:
        try:
            store.delete(key)
        except SparkWalError as error:
            # A writer may have permission to put and not to delete.
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
