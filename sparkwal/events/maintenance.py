"""What becomes of a log's rows afterwards: compaction, collection, consumers."""

import logging

from sparkwal.events.emitting import Event, OfPath


class SizeLimit(OfPath, level=logging.WARNING):
    """compaction is behind: about `bytes` of the log are neither in a table nor below its floor;
    at `softLimitBytes` an appender goes on, at `hardLimitBytes` it waits"""

    option: str
    bytes: int
    limit: int


class CompactionPlanned(OfPath):
    """the range of positions [cut, to) is promised to the table, as number `k`"""

    k: int
    cut: int
    to: int


class CompactionDone(OfPath):
    """the table is confirmed to have range `k`; the log may drop it once `floor` passes"""

    k: int
    cut: int
    table: str
    table_version: int


class CompactionRetried(OfPath):
    """another writer of the table was faster; range `k` is tried again"""

    k: int
    reason: str


class CompactionWaits(Event, level=logging.WARNING):
    """another process of this machine writes the table on the local disk, and this one has waited
    so many seconds for it; again each minute"""

    table: str
    seconds: int
    holder: str
    advice: str


class CompactionSuspended(OfPath, level=logging.WARNING):
    """a range could not be brought into the table; nothing is skipped and nothing deleted"""

    stage: str
    reason: str


class FloorMoved(OfPath):
    """positions below `floor` may be deleted from now on plus the grace"""

    floor: int


class Collected(OfPath):
    """objects below the floor were deleted"""

    below: int
    objects: int
    bytes: int


class ConsumerNotPublished(OfPath, level=logging.WARNING):
    """a stream could not publish its position; it goes on, and the log keeps more than needed"""

    consumer: str
    position: int
    reason: str


class ConsumerShared(OfPath, level=logging.WARNING):
    """another run published `position` under this stream's name: give each a name of its own"""

    consumer: str
    host: str
    position: int


class LeaseLeftBehind(OfPath, level=logging.WARNING):
    """the lease of a read that has ended could not be removed; it expires by itself"""

    lease: str
    reason: str


class CurrentRead(OfPath):
    """version `table_version` of the table (−1: none) and positions [start, end) are read as one"""

    table_version: int
    start: int
    end: int


class RowsInTable(OfPath):
    """a read without a range begins at `floor`: the rows below it are in `table` only;
    read_current, or Log.current, reads both as one"""

    floor: int
    table: str
