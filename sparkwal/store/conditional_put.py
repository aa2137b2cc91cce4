"""Proof that a store refuses to overwrite: everything the log promises rests on it."""

from __future__ import annotations

import os
import threading
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from sparkwal import events
from sparkwal.errors import OptionError, SparkWalError, StoreUnavailableError
from sparkwal.format.keys import proof_key
from sparkwal.store.base import NotFound, Store, Transient
from sparkwal.store.parallel import run_parallel

_RACERS = 8
_ROUNDS = 3
_proven: set[tuple[int, str, str]] = set()


def prove_put_if_absent(store: Store, prefix: str) -> None:
    """Put at taken keys, one after another and racing; every second put must be refused.

    Once per process, store and prefix. Stores a few tiny objects under
    `{prefix}/proof/` and removes them again. Their names are new for each call, so any
    number of processes may prove at once. What a killed one leaves there is never read by
    anything; it may be deleted.

    Raises:
        OptionError: the store does not enforce If-None-Match; use another one.
        StoreUnavailableError, Transient: it could not be found out.
    """
    proof = (os.getpid(), store.identity, prefix)
    if proof in _proven:
        return
    run = uuid.uuid4().hex
    keys = [proof_key(prefix, run, number) for number in range(1 + _ROUNDS)]
    used: list[str] = []
    try:
        _one_after_another(store, keys[0], used)
        if store.concurrency > 1:
            # One round may miss a store that looks first and writes later.
            for key in keys[1:]:
                used.append(key)
                _race(store, key)
    finally:
        _remove(store, used)
    _proven.add(proof)


def _one_after_another(store: Store, key: str, used: list[str]) -> None:
    first, second = b"first", b"second"
    try:
        created = store.put_if_absent(key, first)
    except (StoreUnavailableError, OptionError) as error:
        # Where nothing was stored nothing is left: removing it would fail once more.
        if getattr(error, "maybe_applied", False):
            used.append(key)
        raise
    used.append(key)
    # A False whose content is ours is our own put after a lost reply.
    if not created and _content(store, key) != first:
        raise _refused(store, "it refused to create an object at a free key")
    if store.put_if_absent(key, second):
        raise _refused(store, "it accepted a second put at a taken key")
    if _content(store, key) != first:
        raise _refused(store, "a refused put changed the object all the same")


def _race(store: Store, key: str) -> None:
    start = threading.Barrier(_RACERS)
    bodies = [f"racer {number}".encode() for number in range(_RACERS)]

    def put(body: bytes) -> bool:
        # The timeout only matters where the machine refuses to start all the threads.
        start.wait(timeout=60)
        return store.put_if_absent(key, body)

    with ThreadPoolExecutor(_RACERS, thread_name_prefix="sparkwal-proof") as pool:
        created = list(pool.map(_keeping(put), bodies))
    for outcome in created:
        if isinstance(outcome, Exception):
            raise outcome
    content = _content(store, key)
    told = {body for body, won in zip(bodies, created, strict=True) if won is True}
    if content not in bodies or told - {content}:
        raise _refused(
            store,
            f"when {_RACERS} puts raced for one key, one was told that it had created the "
            "object and then another's content was there",
        )


def _keeping(put: Callable[[bytes], bool]) -> Callable[[bytes], bool | Exception]:
    # All racers must end before the objects are removed: a straggler's put would
    # otherwise leave its object in the store.
    def attempt(body: bytes) -> bool | Exception:
        try:
            return put(body)
        except Exception as error:
            return error

    return attempt


def _content(store: Store, key: str) -> bytes | None:
    try:
        return store.get(key)
    except NotFound:
        return None


def _refused(store: Store, failed: str) -> OptionError:
    return OptionError(
        f"{store.url} does not enforce If-None-Match: {failed}. Two writers would overwrite "
        "each other's commits there. Use S3, MinIO, R2 or another store with conditional "
        "writes, or a newer version of this one"
    )


def _remove(store: Store, keys: list[str]) -> None:
    def remove(key: str) -> None:
        try:
            store.delete(key)
        except (SparkWalError, Transient) as error:
            # A writer may well be allowed to put but not to delete.
            with suppress(SparkWalError, Transient):
                if _content(store, key) is None:
                    return
            events.emit(events.ProofLeftBehind(key=key, url=store.url, reason=str(error)))

    for _ in run_parallel(store, remove, keys):
        pass
