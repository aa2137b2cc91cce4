"""What the log must look like, told from the objects alone and without the protocol's code."""

from __future__ import annotations

import ast
import json
import zlib
from functools import lru_cache
from typing import Any

import pyarrow as pa

from .processes import PREFIX, rows_of
from .world import State

_MAX = 2**64 - 1
_WINDOW = 1000

# (position, query_id, batch_id)
Verdict = tuple[tuple[int, str, int], ...]


class Violation(AssertionError):
    """A promise of the log is broken."""


@lru_cache(maxsize=100_000)
def header(body: bytes) -> dict[str, Any]:
    """The header of an object."""
    metadata = pa.ipc.open_file(body).schema.metadata
    document: dict[str, Any] = json.loads(metadata[b"weaselwal"])
    return document


@lru_cache(maxsize=100_000)
def _values(body: bytes) -> tuple[int, ...]:
    return tuple(pa.ipc.open_file(body).read_all().column("v").to_pylist())


@lru_cache(maxsize=100_000)
def slot_key(position: int) -> str:
    """The key of the record at a position."""
    return f"{PREFIX}/batches/{_MAX - _WINDOW * position:020d}"


def live(state: State) -> list[dict[str, Any]]:
    """The live records of the dense run, in order."""
    found: list[dict[str, Any]] = []
    term = 0
    position = 0
    # A collected record still counts, and nothing that takes its place later does.
    records = {**state.objects, **dict(state.collected)} if state.collected else state.objects
    while (body := records.get(slot_key(position))) is not None:
        record = header(body)
        if record["term"] >= term:
            term = record["term"]
            found.append(record)
        position += 1
    return found


def check(before: Verdict, state: State) -> Verdict:
    """The verdict now: the commits that every reader must see, in order.

    Raises Violation unless every promise holds.
    """
    records = live(state)
    now = tuple(
        (record["position"], record["query_id"], record["batch_id"])
        for record in records
        if record["kind"] == "commit"
    )
    if now[: len(before)] != before:
        raise Violation(f"what readers saw has changed: {before} became {now}")
    seen: dict[str, int] = {}
    for position, query, batch in now:
        if batch <= seen.get(query, -1):
            raise Violation(f"{query}/{batch} at position {position} is doubled or out of order")
        seen[query] = batch
    for query, batch, position in state.acknowledged:
        if (position, query, batch) not in now:
            raise Violation(f"{query}/{batch} was acknowledged at {position} and is not there")
    # Earlier records were checked when they were the last.
    if records and records[-1]["kind"] == "commit":
        _check_rows(records[-1], state)
    return now


def _check_rows(record: dict[str, Any], state: State) -> None:
    for batch in record["batches"]:
        body = state.objects.get(f"{PREFIX}/batches/{batch['number']}")
        if body is None or zlib.crc32(body) != batch["crc32"]:
            raise Violation(f"position {record['position']} names an object that is not there")
        expected = rows_of(record["query_id"], record["batch_id"], batch["partition"])
        if list(_values(body)) != expected:
            raise Violation(f"position {record['position']} holds other rows than were written")


def check_reading(before: Verdict, outcome: str, after: Verdict) -> None:
    """A reader that ran from the verdict `before` to `after` must have seen something between."""
    start, seen = ast.literal_eval(outcome.removeprefix("read "))
    before, after = (
        tuple(entry for entry in verdict if entry[0] >= start) for verdict in (before, after)
    )
    if tuple(seen) != after[: len(seen)] or len(seen) < len(before):
        raise Violation(f"a reader saw {seen}; the log held {before} before and {after} after")
