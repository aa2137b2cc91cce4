"""Encoding and decoding are pure functions; a search calls them again and again with the
same bytes, so for its duration they remember. And it has no use for a million log lines."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache

from sparkwal.format import arrowfile
from sparkwal.format.header import Header


@contextmanager
def memoized() -> Iterator[None]:
    """Let the codec remember what it has decoded and encoded."""
    open_front, encode = arrowfile.open_front, arrowfile.encode
    known: dict[tuple[str, str], bytes] = {}

    def remembering(header: Header, spark_schema: str) -> bytes:
        key = (repr(header), spark_schema)
        if key not in known:
            known[key] = encode(header, spark_schema)
        return known[key]

    arrowfile.open_front = lru_cache(maxsize=100_000)(open_front)
    arrowfile.encode = remembering
    logger = logging.getLogger("sparkwal")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)
        arrowfile.open_front, arrowfile.encode = open_front, encode
