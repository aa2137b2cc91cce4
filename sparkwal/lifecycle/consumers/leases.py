"""Leases: consumers without a name that hold the floors for the time of one read."""

import socket
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

from sparkwal import events
from sparkwal.errors import SparkWalError
from sparkwal.format.consumer_record import Consumer, LogPosition
from sparkwal.lifecycle.consumers.objects import ConsumerObject, forget, join
from sparkwal.protocol.clock import SYSTEM
from sparkwal.reading.log_range import LogRange

L = TypeVar("L", bound=LogRange)


@dataclass(frozen=True)
class Lease:
    """The lease of a read, which has its own object in the store."""

    stored: ConsumerObject

    def release(self) -> None:
        """Remove the lease of a read that ended. If that fails, the lease expires by itself."""
        try:
            forget(self.stored)
        except SparkWalError as error:
            path, name = self.stored.log.url, self.stored.name
            events.emit(events.LeaseLeftBehind(path=path, lease=name, reason=str(error)))


@contextmanager
def leased(
    logs: Sequence[L], start: Callable[[L], int]
) -> Iterator[tuple[list[int], Lease | None]]:
    """Take a lease for a read, if its options ask for one: 1 PUT, and 1 or 2 for the floors.

    One lease protects all logs of the read, and no others. Without the option `lease` it sends no
    request. If the block fails, it releases the lease; otherwise the read must release it.

    Args:
        logs: the ranges to read, which have the options. Each has a log.
        start: computes the first position of the read of a log. It is called again if the floor
            passed that position before the lease was written.

    Yields:
        The first position of each log, and the lease.
    """
    firsts = [start(log) for log in logs]
    options = logs[0].options
    if options.lease_ms is None:
        yield firsts, None
        return
    is_of_all = bool(options.sequencers)
    run_id = uuid.uuid4().hex
    own = logs[0].log
    stored = ConsumerObject(own.root if is_of_all else own, f"lease-{run_id}", is_of_all)
    positions = {
        log.log.name: LogPosition(log.log_id, first)
        for log, first in zip(logs, firsts, strict=True)
        if log.log_id is not None
    }
    now_ms, host = SYSTEM.now_ms(), socket.gethostname()
    consumer = Consumer(stored.name, positions, now_ms, host, run_id, options.lease_ms)
    starts = {name: position.position for name, position in positions.items()}
    lease = Lease(stored)
    try:
        begins = join(stored, starts, lambda _: consumer, is_new=True)
        for index, log in enumerate(logs):
            if begins[log.log.name] > firsts[index]:
                log.floor.refresh()
                firsts[index] = start(log)
        yield firsts, lease
    except BaseException:
        lease.release()
        raise
