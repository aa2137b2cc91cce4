"""Events of compaction, collection and consumers."""

import logging

from sparkwal.events.emitting import Event, PathEvent


class SizeLimit(PathEvent, level=logging.WARNING):
    """Compaction is behind: about `bytes` of the log are neither in a table nor below the floor.

    At `softLimitBytes` an appender continues; at `hardLimitBytes` it waits.
    """

    option: str
    bytes: int
    limit: int


class CompactionPlanned(PathEvent):
    """The range of positions [cut, to) is promised to the table, as number `k`."""

    k: int
    cut: int
    to: int


class CompactionDone(PathEvent):
    """The table holds range `k`: this is confirmed. The log may drop it once `floor` passes.

    The range, which several logs may share, added `files` data files of `bytes` bytes in `versions`
    commits of the table and of those beside it, as far as the tables recorded it.
    """

    k: int
    cut: int
    table: str
    table_version: int
    versions: int
    files: int
    bytes: int


class RowsAside(PathEvent, level=logging.WARNING):
    """Range `k` is in the table, but for `rows` rows that the table refused: `table` has them."""

    k: int
    rows: int
    table: str


class CompactionRetried(PathEvent):
    """Another writer committed to the table first, so range `k` is tried again."""

    k: int
    reason: str


class CompactionWaits(Event, level=logging.WARNING):
    """This process has waited `seconds` seconds to write a table on the local disk.

    Another process of this machine, `holder`, writes it now. Emitted once a minute.
    """

    table: str
    seconds: int
    holder: str
    advice: str


class CompactionSuspended(PathEvent, level=logging.WARNING):
    """A range did not reach the table. Compaction skipped nothing and deleted nothing."""

    stage: str
    reason: str


class FloorMoved(PathEvent):
    """The floor rose: positions below `floor` may be deleted once the grace has passed."""

    floor: int


class Collected(PathEvent):
    """Objects below the floor were deleted."""

    below: int
    objects: int
    bytes: int


class NotCollected(PathEvent, level=logging.WARNING):
    """A collection failed in part: it could not delete objects, or erase the rows of records."""

    below: int
    reason: str


class RowsErased(PathEvent):
    """Records below the floor that must stay lost their rows."""

    below: int
    records: int


class SegmentIgnored(PathEvent, level=logging.WARNING):
    """A segment cannot be used, so readers take the records themselves: the same rows, slower.

    `sparkwal segment` replaces it.
    """

    segment: str
    reason: str


class SegmentsMade(PathEvent):
    """`segments` blocks of a thousand records each have a segment now."""

    segments: int


class SegmentsNotMade(PathEvent, level=logging.WARNING):
    """Blocks get no segment from this process. Readers take their records: the same rows, slower.

    `sparkwal segment` makes what is missing.
    """

    reason: str


class ConsumerNotPublished(PathEvent, level=logging.WARNING):
    """A stream continues, but could not publish its position: the log keeps more than it needs."""

    consumer: str
    position: int
    reason: str


class ConsumerShared(PathEvent, level=logging.WARNING):
    """Another run published `position` under this stream's name. Give each stream its own name."""

    consumer: str
    host: str
    position: int


class LeaseLeftBehind(PathEvent, level=logging.WARNING):
    """The lease of a read that has ended could not be removed. It will expire."""

    lease: str
    reason: str


class CurrentRead(PathEvent):
    """Table version `table_version` (−1: none) and positions [start, end) are read as one."""

    table_version: int
    start: int
    end: int


class LogLeftOut(PathEvent, level=logging.WARNING):
    """A read of table and logs as one lacks the rows of this log that the table does not have."""

    reason: str


class RowsInTable(PathEvent):
    """A read without a range begins at `floor`. Only `table` has the rows below it.

    `read_current`, or `Log.current`, reads table and log as one.
    """

    floor: int
    table: str
