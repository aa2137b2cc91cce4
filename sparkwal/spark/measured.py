"""What Spark's Python workers measure, for the records of the log.

Spark takes no metrics from a sink in Python, and its workers are no place to ask: each record
holds how long the PUT of the record before took, and how many requests were sent again.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sparkwal import events
from sparkwal.events import Durable, Event, Retried

# Of this worker, while it lives: queries whose last PUT is in no record yet, the newest last.
_MOST = 100
_pending: dict[str, dict[str, float]] = {}


@contextmanager
def hearing() -> Iterator[list[Event]]:
    """What happens while a task or a commit runs: a worker runs one at a time."""
    heard: list[Event] = []
    forget = events.subscribe(heard.append)
    try:
        yield heard
    finally:
        forget()


def retries_in(heard: list[Event]) -> int:
    return sum(isinstance(event, Retried) for event in heard)


@contextmanager
def measuring(query_id: str) -> Iterator[dict[str, float]]:
    """For the commit within: what its record holds of the one before."""
    with hearing() as heard:
        yield _pending.pop(query_id, {})
    for event in heard:
        if isinstance(event, Durable):
            _pending[query_id] = {"last_put_ms": event.put_ms, "retries": retries_in(heard)}
    while len(_pending) > _MOST:
        del _pending[next(iter(_pending))]
