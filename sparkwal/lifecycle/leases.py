"""A batch read keeps what it needs in the log, for a time that it names before."""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import dataclass

from sparkwal import events
from sparkwal.errors import SparkWalError
from sparkwal.lifecycle.consumers import forget, lease
from sparkwal.protocol.clock import Clock, SystemClock
from sparkwal.reading.log_range import LogRange
from sparkwal.store.log_store import LogStore

_CLOCK = SystemClock()


@dataclass(frozen=True)
class Leased:
    """Where a read begins, and the name of its lease; "" for one that has none."""

    log: LogStore
    start: int
    name: str = ""

    def release(self) -> None:
        """The read has ended. A lease that can not be removed expires by itself."""
        if not self.name:
            return
        try:
            forget(self.log, self.name)
        except SparkWalError as error:
            events.emit(
                events.LeaseLeftBehind(path=self.log.url, lease=self.name, reason=str(error))
            )


def leased(log: LogRange, start: Callable[[], int], clock: Clock = _CLOCK) -> Leased:
    """Where a read begins: at `start`, which is asked anew where the floor passed it before the
    lease was there.

    Without the option `lease` no request; with it 1 PUT, and the look at the chain (1 or 2).
    """
    first = start()
    if log.options.lease_ms is None or log.log_id is None:
        return Leased(log.log, first)
    name, begin = lease(
        log.log, log.log_id, first, log.options.lease_ms, clock, socket.gethostname()
    )
    if begin > first:
        log.floor.look()
        first = start()
    return Leased(log.log, first, name)
