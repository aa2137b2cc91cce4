"""Leases: consumers without a name that hold the floors for the time of one read."""

import socket
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

from sparkwal import events
from sparkwal.errors import SparkWalError
from sparkwal.format.consumer_record import ConsumerOfAll, LogPosition
from sparkwal.lifecycle.consumers.objects import OfAllLogs, OfOneLog, Registry, at_least, register
from sparkwal.protocol.clock import SYSTEM
from sparkwal.reading.log_range import LogRange

L = TypeVar("L", bound=LogRange)


@dataclass(frozen=True)
class Lease:
    """The lease of a read, which has its own object in the store."""

    registry: Registry
    name: str

    def release(self) -> None:
        """Remove the lease of a read that ended. If that fails, the lease expires by itself."""
        try:
            self.registry.forget(self.name)
        except SparkWalError as error:
            path = self.registry.log.url
            event = events.LeaseLeftBehind(path=path, lease=self.name, reason=str(error))
            events.emit(event)


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
    registry = OfAllLogs(logs[0].log.root) if options.sequencers else OfOneLog(logs[0].log)
    run_id = uuid.uuid4().hex
    positions = {
        log.log.name: LogPosition(log.log_id, first)
        for log, first in zip(logs, firsts, strict=True)
        if log.log_id is not None
    }
    consumer = ConsumerOfAll(
        f"lease-{run_id}",
        positions,
        SYSTEM.now_ms(),
        socket.gethostname(),
        run_id,
        options.lease_ms,
    )
    lease = Lease(registry, consumer.name)

    def publish_above(floors: Mapping[str, int]) -> ConsumerOfAll:
        raised = at_least(consumer, floors)
        registry.publish(raised)
        return raised

    try:
        registered = register(registry.log, positions, publish_above)
        for place, log in enumerate(logs):
            if registered[log.log.name] > firsts[place]:
                log.floor.refresh()
                firsts[place] = start(log)
        yield firsts, lease
    except BaseException:
        lease.release()
        raise
