"""What a journal on the local disk reports."""

import logging

from sparkwal.events.emitting import OfPath


class JournalOpened(OfPath):
    """a journal was read: `entries` of it wait for the log, `sequence` is its newest"""

    entries: int
    bytes: int
    sequence: int


class TailTruncated(OfPath, level=logging.WARNING):
    """a crash tore entry `sequence` of a journal, which was never accepted; it was cut off"""

    segment: int
    sequence: int
    reason: str


class ReplayStopped(OfPath, level=logging.WARNING):
    """entry `sequence` of a journal is damaged: it and the `complete` ones after it are not sent"""

    file: str
    sequence: int
    reason: str
    complete: int


class Quarantined(OfPath, level=logging.WARNING):
    """these files of a journal were moved to `quarantine/` as they are; entries `first` … `last`
    must be sent again, in this order and before others (−1: none); the last `unknown` of these may
    never have been accepted"""

    files: str
    first: int
    last: int
    unknown: int


class CursorRejected(OfPath, level=logging.WARNING):
    """a journal's cursor is not used; all of the journal is read, and the log shows what it has"""

    reason: str


class ReplayStarted(OfPath):
    """entries `first` … `last` of a journal, accepted by an earlier process, are being sent"""

    first: int
    last: int


class Replayed(OfPath):
    """everything that an earlier process accepted, up to `sequence`, is in the log"""

    sequence: int


class Checkpointed(OfPath):
    """a journal's cursor is on the disk: the log has everything up to `sequence`"""

    sequence: int


class SegmentRemoved(OfPath):
    """a file of a journal, whose last entry was `last`, was removed: the log has all of it"""

    segment: int
    last: int


class JournalFull(OfPath, level=logging.WARNING):
    """a journal or its disk has no room: appends wait, or are refused; told once until one fits"""

    bytes: int
    reason: str


class StoreAway(OfPath, level=logging.WARNING):
    """the store does not answer; the journal goes on accepting, and tries again"""

    reason: str


class StoreBack(OfPath):
    """the store answers again, and the journal is being sent from entry `sequence` on"""

    sequence: int
