"""What an appender's records tell of the records before them: their latency, and retries."""

from __future__ import annotations

from sparkwal.appender.subscribers import Subscribers


class Measured:
    """Of one leadership: how long PUTs took.

    Attributes:
        put_ms: position → milliseconds, until it is acknowledged.
    """

    def __init__(self, subscribers: Subscribers) -> None:
        self._subscribers = subscribers
        self._retried = subscribers.retried
        self._last: float | None = None
        self.put_ms: dict[int, float] = {}

    def durable(self, position: int) -> float:
        """How long the PUT of this record took; the next record tells so."""
        self._last = took = self.put_ms.pop(position)
        return took

    def told(self) -> dict[str, float]:
        """For the next record; each PUT is told at most once. One thread asks."""
        last, self._last = self._last, None
        retried = self._subscribers.retried
        found: dict[str, float] = {"retries": retried - self._retried}
        self._retried = retried
        return found if last is None else {**found, "last_put_ms": last}
