"""Real objects to begin fuzzing from."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from sparkwal.format import arrowfile
from sparkwal.format.header import to_json
from sparkwal.testing.memory import MemoryStore
from tests.protocol.query import LIMITS, Query, hints_in


def samples() -> Iterator[bytes]:
    """Inputs as the fuzzer takes them: "d" + object, "h" + header JSON, "r" + frames."""
    store = MemoryStore()
    with tempfile.TemporaryDirectory() as folder:
        query = Query(store, hints_in(Path(folder)), limits=replace(LIMITS, codec=None))
        query.microbatch(0, (1, 2, 3), (4,))
        query.limits = replace(query.limits, inline_threshold=1000)
        query.microbatch(1, (5, 6), (7,))
    for body in store.objects.values():
        opened = arrowfile.open_front(body, "sample")
        yield b"d" + body
        yield b"h" + to_json(opened.header)
        yield b"r" + body[opened.body :]
