"""Leases: consumers without a name that hold the floor for the time of one read."""

import socket
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from sparkwal import events
from sparkwal.errors import SparkWalError
from sparkwal.format.consumer_record import Consumer
from sparkwal.lifecycle.consumers import (
    Names,
    forget,
    is_live,
    iter_consumers,
    published_ms_ago,
    register,
)
from sparkwal.protocol.clock import SYSTEM
from sparkwal.reading.log_range import LogRange
from sparkwal.store.base import LogStore

# The begin of a lease's name.
_PREFIX = "lease-"


@contextmanager
def leased(log: LogRange, start: Callable[[], int]) -> Iterator[tuple[int, str]]:
    """Take a lease for a read, if its options ask for one: 1 PUT, and 1 or 2 for the floor.

    Without the option `lease` it sends no request, and the lease's name is "". If the block fails,
    it releases the lease; otherwise the read must release it.

    Args:
        log: the range to read, which knows the options.
        start: computes the first position of the read. It is called again if the floor passed
            that position before the lease was written.

    Yields:
        The first position of the read, and the name of its lease.
    """
    first = start()
    if log.options.lease_ms is None or log.log_id is None:
        yield first, ""
        return
    now_ms = SYSTEM.now_ms()
    host = socket.gethostname()
    run_id = uuid.uuid4().hex
    lease = Consumer(
        f"{_PREFIX}{run_id}", log.log_id, first, now_ms, host, run_id, log.options.lease_ms
    )
    try:
        if register(log.log, lease) > first:
            log.floor.refresh()
            first = start()
        yield first, lease.name
    except BaseException:
        release(log.log, lease.name)
        raise


def release(log: LogStore, name: str) -> None:
    """Remove the lease of a read that ended. If that fails, the lease expires by itself."""
    try:
        if name:
            forget(log, name)
    except SparkWalError as error:
        events.emit(events.LeaseLeftBehind(path=log.url, lease=name, reason=str(error)))


def forget_expired_leases(log: LogStore, entries: Sequence[str] | None = None) -> None:
    """Delete the leases that have expired: no lease is written twice.

    Args:
        log: the log.
        entries: the names of the objects of its consumers, if they were listed.
    """
    leases = [name for name in entries or () if name.startswith(_PREFIX)]
    names = None if entries is None else Names(leases, ())
    for consumer, key in iter_consumers(log, names=names):
        age_ms = None if consumer.expires_ms is None else published_ms_ago(log, key)
        if age_ms is not None and not is_live(consumer, consumer.log_id, age_ms, None):
            forget(log, consumer.name)
