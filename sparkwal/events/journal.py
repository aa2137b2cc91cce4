"""What a journal on the local disk reports."""

from __future__ import annotations

import logging

from sparkwal.events.emitting import Event


class JournalOpened(Event):
    """a journal was read: `entries` of it wait for the log, `sequence` is its newest"""

    path: str
    entries: int
    bytes: int
    sequence: int


class TailTruncated(Event, level=logging.WARNING):
    """a crash tore entry `sequence` of a journal, which was never accepted; it was cut off"""

    path: str
    segment: int
    sequence: int
    reason: str


class ReplayStopped(Event, level=logging.WARNING):
    """entry `sequence` of a journal is damaged: nothing from it on is sent, though `complete`
    entries after it can be read"""

    path: str
    file: str
    sequence: int
    reason: str
    complete: int


class Quarantined(Event, level=logging.WARNING):
    """these files of a journal were moved to `quarantine/` as they are; entries `first` … `last`
    must be sent again, in this order and before others (−1: none)"""

    path: str
    files: str
    first: int
    last: int


class CursorRejected(Event, level=logging.WARNING):
    """a journal's cursor is not used; all of the journal is read, and the log shows what it has"""

    path: str
    reason: str


class ReplayStarted(Event):
    """entries `first` … `last` of a journal, accepted by an earlier process, are being sent"""

    path: str
    first: int
    last: int


class Replayed(Event):
    """everything that an earlier process accepted, up to `sequence`, is in the log"""

    path: str
    sequence: int


class Checkpointed(Event):
    """a journal's cursor is on the disk: the log has everything up to `sequence`"""

    path: str
    sequence: int


class SegmentRemoved(Event):
    """a file of a journal, whose last entry was `last`, was removed: the log has all of it"""

    path: str
    segment: int
    last: int


class JournalFull(Event, level=logging.WARNING):
    """a journal or its disk has no room: appends wait, or are refused, until the log has taken
    some; reported once until an append fits again"""

    path: str
    bytes: int
    reason: str


class StoreAway(Event, level=logging.WARNING):
    """the store does not answer; the journal goes on accepting, and tries again"""

    path: str
    reason: str


class StoreBack(Event):
    """the store answers again, and the journal is being sent from entry `sequence` on"""

    path: str
    sequence: int
