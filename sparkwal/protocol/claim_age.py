"""How old an appender's knowledge of its own leadership is."""

from __future__ import annotations

import threading

from sparkwal.errors import OutcomeUnknownError
from sparkwal.format.header import CommitHeader
from sparkwal.protocol.clock import Clock
from sparkwal.protocol.leadership import fenced
from sparkwal.protocol.log_store import LogStore
from sparkwal.protocol.recovery import find_head
from sparkwal.protocol.slots import SlotRecord


class ClaimAge:
    """Looks at the log again before a slot is used on knowledge older than `ttl_ms`.

    A process may sleep for hours. Meanwhile another may have led, filled the slot, and
    a collection removed it: the number is free again, and a conditional PUT there would
    succeed outside the log. Collected numbers stay taken for longer than `ttl_ms`.
    """

    def __init__(self, log: LogStore, clock: Clock, ttl_ms: int) -> None:
        self._log, self._clock, self._ttl_ms = log, clock, ttl_ms
        self._known_ms = clock.boot_ms()
        self._lock = threading.Lock()

    def before(self, header: CommitHeader) -> int:
        """Call before a slot is claimed; the answer is for `after`. Raises FencedError."""
        now = self._clock.boot_ms()
        if now - self._known_ms >= self._ttl_ms:
            # One looks for all that wake up together.
            with self._lock:
                if now - self._known_ms >= self._ttl_ms:
                    other = self._overtaken(header)
                    if other is not None:
                        raise fenced(self._log, other)
                    self._known_ms = now
        return now

    def after(self, header: CommitHeader, began: int) -> None:
        """Call when the slot is ours. Raises OutcomeUnknownError if that took too long."""
        if self._clock.boot_ms() - began >= self._ttl_ms and self._overtaken(header) is not None:
            # It may be the record from before the other came, or one put after a collection.
            raise OutcomeUnknownError(
                f"position {header.position} of {self._log.url} was written, but "
                "it took so long that another writer leads now: open a new appender, its "
                "last_sequence tells whether the rows are there"
            )
        # That slot was free when its PUT began, so nothing behind it was in use then.
        self._known_ms = max(self._known_ms, began)

    def _overtaken(self, header: CommitHeader) -> SlotRecord | None:
        live = find_head(self._log, header.window).live
        return live if live is not None and live.header.term > header.term else None
