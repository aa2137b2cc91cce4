"""Events of a journal on the local disk."""

import logging

from sparkwal.events.emitting import PathEvent


class JournalOpened(PathEvent):
    """A journal was opened. Its newest entry is `sequence`; `entries` are not in the log yet."""

    entries: int
    bytes: int
    sequence: int


class TailTruncated(PathEvent, level=logging.WARNING):
    """The journal cut off entry `sequence`: a crash tore it before it was accepted."""

    segment: int
    sequence: int
    reason: str


class ReplayStopped(PathEvent, level=logging.WARNING):
    """Entry `sequence` of a journal is damaged. It and `complete` entries after it are not sent."""

    file: str
    sequence: int
    reason: str
    complete: int


class Quarantined(PathEvent, level=logging.WARNING):
    """These files of a journal were moved, unchanged, to `quarantine/`.

    Send entries `first` … `last` again, in this order and before any others (−1: none). The last
    `unknown` of them may never have been accepted.
    """

    files: str
    first: int
    last: int
    unknown: int


class CursorRejected(PathEvent, level=logging.WARNING):
    """A journal's cursor is unusable, so the journal is read whole and compared with the log."""

    reason: str


class ReplayStarted(PathEvent):
    """The appender sends entries `first` … `last`, which an earlier process accepted."""

    first: int
    last: int


class Replayed(PathEvent):
    """The log holds every entry that an earlier process accepted, up to `sequence`."""

    sequence: int


class Checkpointed(PathEvent):
    """A journal's cursor is on the disk: the log has every entry up to `sequence`."""

    sequence: int


class SegmentRemoved(PathEvent):
    """A file of a journal, whose last entry was `last`, was removed: the log has its entries."""

    segment: int
    last: int


class JournalFull(PathEvent, level=logging.WARNING):
    """A journal or its disk is full: appends wait or fail. Emitted once until an append fits."""

    bytes: int
    reason: str


class StoreAway(PathEvent, level=logging.WARNING):
    """The store does not answer. The journal continues to accept rows, and tries again."""

    reason: str


class StoreBack(PathEvent):
    """The store answers again, and the journal is sent from entry `sequence` on."""

    sequence: int
