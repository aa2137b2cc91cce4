"""Proves that a store enforces If-Match on PUT, which an erasure of rows depends on."""

import os
from threading import Lock

from sparkwal.errors import OptionError
from sparkwal.store.base import Store
from sparkwal.store.conditional_put import remove
from sparkwal.store.conformance import objects
from sparkwal.store.conformance.suite import StoreUnderTest, Trial, Wrong

_TRIAL = Trial(rounds=1, threads=1)
# The result of the proof for each process, store and prefix.
_faults: dict[tuple[int, str, str], str] = {}
# A collection erases many records at once, and one proof is enough for all of them.
_proving = Lock()


def replace_fault(store: Store, prefix: str) -> str:
    """Find out whether the store replaces only an object with the given ETag.

    Only the first call for a store and prefix in a process makes requests: 8 PUT, 6 GET and 2
    DELETE of one tiny object under `{prefix}/proof/`.

    Returns:
        "" if it does, otherwise the fault.

    Raises:
        StoreUnavailableError: the store did not answer.
    """
    proof = (os.getpid(), store.identity, prefix)
    with _proving:
        if proof not in _faults:
            _faults[proof] = _prove(store, prefix)
        return _faults[proof]


def _prove(store: Store, prefix: str) -> str:
    tested = StoreUnderTest((store,), prefix, _TRIAL, repeats=True)
    try:
        objects.replace_tagged(tested)
    except Wrong as wrong:
        return f"{store.url} does not enforce If-Match: {wrong}"
    except OptionError as error:
        # The store refuses the condition, or the caller.
        return str(error)
    finally:
        remove(tested)
    return ""
