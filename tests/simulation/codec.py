"""Caches the results of encoding and decoding, and switches logging off.

Both are pure functions, and a search calls them often with the same bytes. Their results are never
garbage: with the usual collections the garbage collector would take a third of the time.
"""

from __future__ import annotations

import gc
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from types import SimpleNamespace

from sparkwal.format import arrowfile
from sparkwal.format.header import CommitHeader, Header
from sparkwal.format.lifecycle_record import ChainRecord
from sparkwal.format.lifecycle_record import encode as encode_state
from sparkwal.lifecycle.consumers import leases
from sparkwal.protocol import chain, commit_record
from sparkwal.protocol.commit_record import Inlined
from tests.simulation.machine import Machine
from tests.simulation.threads import simulated

_states: dict[str, bytes] = {}


def _remembering_state(record: ChainRecord) -> bytes:
    key = repr(record)
    if key not in _states:
        _states[key] = encode_state(record)
    return _states[key]


def drawn() -> SimpleNamespace:
    """A name as random as it must be: a run repeats."""
    machine = Machine.current
    machine.drawn += 1
    return SimpleNamespace(hex=f"{machine.name}-{machine.drawn}")


@contextmanager
def searching() -> Iterator[None]:
    """Simulated threads, a codec that remembers what it has decoded and encoded, no log."""
    open_front, encode = arrowfile.open_front, arrowfile.encode
    encode_record = commit_record.encode_record
    known: dict[tuple[str, str, bytes], bytes] = {}
    records: dict[tuple[str, str, bytes], tuple[CommitHeader, bytes]] = {}

    def remembering(header: Header, spark_schema: str, block: bytes = b"") -> bytes:
        key = (repr(header), spark_schema, block)
        if key not in known:
            known[key] = encode(header, spark_schema, block)
        return known[key]

    def remembering_record(
        header: CommitHeader,
        inlined: Inlined,
        spark_schema: str,
        codec: str | None,
        block: bytes = b"",
    ) -> tuple[CommitHeader, bytes]:
        rows = [(p, [batch.to_pydict() for batch in batches]) for p, batches in inlined]
        key = (repr(header), repr(rows), block)
        if key not in records:
            records[key] = encode_record(header, inlined, spark_schema, codec, block)
        return records[key]

    uuids = chain.uuid, leases.uuid
    lifecycle = chain.encode, chain.decode
    chain.encode = _remembering_state
    chain.decode = lru_cache(maxsize=10_000)(lifecycle[1])
    chain.uuid = leases.uuid = SimpleNamespace(uuid4=drawn)  # type: ignore[assignment]
    arrowfile.open_front = lru_cache(maxsize=100_000)(open_front)
    arrowfile.encode = remembering
    commit_record.encode_record = remembering_record
    logger = logging.getLogger("sparkwal")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    thresholds = gc.get_threshold()
    gc.set_threshold(1_000_000)
    try:
        with simulated():
            yield
    finally:
        gc.set_threshold(*thresholds)
        logger.setLevel(level)
        arrowfile.open_front, arrowfile.encode = open_front, encode
        commit_record.encode_record = encode_record
        chain.uuid, leases.uuid = uuids
        chain.encode, chain.decode = lifecycle
