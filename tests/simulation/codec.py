"""Encoding and decoding are pure functions; a search calls them again and again with the
same bytes, so for its duration they remember. And it has no use for a million log lines."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache

import pyarrow as pa

from sparkwal.format import arrowfile
from sparkwal.format.header import CommitHeader, Header
from sparkwal.protocol import pipeline

from .threads import simulated

Inlined = Sequence[tuple[int, int, Sequence[pa.RecordBatch]]]


@contextmanager
def searching() -> Iterator[None]:
    """Simulated threads, a codec that remembers what it has decoded and encoded, no log."""
    open_front, encode = arrowfile.open_front, arrowfile.encode
    encode_record = pipeline.encode_record
    known: dict[tuple[str, str, bytes], bytes] = {}
    records: dict[tuple[str, str], tuple[CommitHeader, bytes]] = {}

    def remembering(header: Header, spark_schema: str, block: bytes = b"") -> bytes:
        key = (repr(header), spark_schema, block)
        if key not in known:
            known[key] = encode(header, spark_schema, block)
        return known[key]

    def remembering_record(
        header: CommitHeader, inlined: Inlined, spark_schema: str, codec: str | None
    ) -> tuple[CommitHeader, bytes]:
        rows = [(p, n, [batch.to_pydict() for batch in batches]) for p, n, batches in inlined]
        key = (repr(header), repr(rows))
        if key not in records:
            records[key] = encode_record(header, inlined, spark_schema, codec)
        return records[key]

    arrowfile.open_front = lru_cache(maxsize=100_000)(open_front)
    arrowfile.encode = remembering
    pipeline.encode_record = remembering_record
    logger = logging.getLogger("sparkwal")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        with simulated():
            yield
    finally:
        logger.setLevel(level)
        arrowfile.open_front, arrowfile.encode = open_front, encode
        pipeline.encode_record = encode_record
