"""Records of a generated log, as input of the fold."""

from __future__ import annotations

from dataclasses import replace

from sparkwal.format import keys
from sparkwal.format.header import Batch, CommitHeader, LeaderHeader
from tests.headers import COMMIT, LEADER

EMPTY = ()


def commit(
    position: int,
    timestamp_ms: int,
    rows: int = 1,
    size: int = 100,
    *,
    term: int = 1,
    put_ms: float | None = None,
    objects: tuple[int, ...] = EMPTY,
    metrics: dict[str, float] | None = None,
) -> CommitHeader:
    """A commit of `size` bytes, some of them in data objects of these sizes."""
    batches = tuple(
        Batch(keys.data(position, 1000, place), place, 1, each, 0, ())
        for place, each in enumerate(objects)
    )
    if metrics is None:
        metrics = {} if put_ms is None else {"put_ms": put_ms, "tasks": len(objects)}
    return replace(
        COMMIT,
        number=keys.slot(position, 1000),
        position=position,
        timestamp_ms=timestamp_ms,
        rows=rows,
        bytes=size,
        batches=batches,
        term=term,
        metrics=metrics,
    )


def leader(
    position: int,
    timestamp_ms: int,
    term: int = 1,
    reason: str = "cold start",
    host: str = "host",
    limit: int = 1,
    archive: str = "",
) -> LeaderHeader:
    """A leader record that saw the position before it as the head."""
    return replace(
        LEADER,
        number=keys.slot(position, 1000),
        position=position,
        timestamp_ms=timestamp_ms,
        term=term,
        reason=reason,
        host=host,
        prev_position=position - 1,
        in_flight_limit=limit,
        txns_archive=archive,
    )
