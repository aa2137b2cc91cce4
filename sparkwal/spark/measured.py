"""What Spark's Python workers measure, for the records of the log.

Spark takes no metrics from a sink in Python, and its workers are no place to ask: each record
holds how long the PUT of the record before took, and how many requests were sent again.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from sparkwal import events
from sparkwal.events import Durable, Event, Retried

# Of this worker: queries whose last PUT is in no record yet, the newest last. A worker that was
# idle for a minute ends, and what it measured with it.
_MOST = 100
_pending: dict[str, dict[str, float]] = {}


@dataclass
class Counted:
    """Requests sent again while a task or a commit ran: a worker runs one at a time."""

    retries: int = 0
    durable: Durable | None = None

    def count(self, event: Event) -> None:
        if isinstance(event, Retried):
            self.retries += 1
        elif isinstance(event, Durable):
            self.durable = event


@contextmanager
def counting() -> Iterator[Counted]:
    counted = Counted()
    forget = events.subscribe(counted.count)
    try:
        yield counted
    finally:
        forget()


@contextmanager
def measuring(query_id: str) -> Iterator[dict[str, float]]:
    """For the commit within: what its record holds of the one before."""
    with counting() as counted:
        yield _pending.pop(query_id, {})
    if counted.durable is None:
        return
    _pending[query_id] = {"last_put_ms": counted.durable.put_ms, "retries": counted.retries}
    while len(_pending) > _MOST:
        del _pending[next(iter(_pending))]
