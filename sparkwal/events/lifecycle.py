"""What becomes of a log's rows afterwards: compaction, collection, consumers."""

from __future__ import annotations

import logging

from sparkwal.events.emitting import Event


class SizeLimit(Event, level=logging.WARNING):
    """about `bytes` bytes of the log are neither in a table nor below its floor: compaction is
    behind. At `softLimitBytes` an appender goes on, at `hardLimitBytes` it waits"""

    path: str
    option: str
    bytes: int
    limit: int


class CompactionPlanned(Event):
    """the range of positions [cut, to) is promised to the table, as number `k`"""

    path: str
    k: int
    cut: int
    to: int


class CompactionDone(Event):
    """the table is confirmed to have range `k`; the log may drop it once `floor` passes"""

    path: str
    k: int
    cut: int
    table: str
    table_version: int


class CompactionRetried(Event):
    """another writer of the table was faster; range `k` is tried again"""

    path: str
    k: int
    reason: str


class CompactionWaits(Event, level=logging.WARNING):
    """another process of this machine writes the table on the local disk; this one waits for it"""

    table: str


class CompactionSuspended(Event, level=logging.WARNING):
    """a range could not be brought into the table; nothing is skipped and nothing deleted"""

    path: str
    stage: str
    reason: str


class FloorMoved(Event):
    """positions below `floor` may be deleted from now on plus the grace"""

    path: str
    floor: int


class Collected(Event):
    """objects below the floor were deleted"""

    path: str
    below: int
    objects: int
    bytes: int


class ConsumerNotPublished(Event, level=logging.WARNING):
    """a stream could not publish its position; it goes on, and the log keeps more than needed"""

    path: str
    consumer: str
    position: int
    reason: str


class ConsumerShared(Event, level=logging.WARNING):
    """another run has published `position` under this stream's consumer name; the log keeps what
    either needs, and moves on only when each has a name of its own"""

    path: str
    consumer: str
    host: str
    position: int


class LeaseLeftBehind(Event, level=logging.WARNING):
    """the lease of a read that has ended could not be removed; it expires by itself"""

    path: str
    lease: str
    reason: str


class CurrentRead(Event):
    """table and log are read as one: version `table_version` (−1: no table) and the log's
    positions `start` … `end` − 1"""

    path: str
    table_version: int
    start: int
    end: int
