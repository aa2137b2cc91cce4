from __future__ import annotations

from dataclasses import dataclass

from sparkwal.journal.segment import entry_size

ALWAYS, INTERVAL, NONE = "always", "interval", "none"
DEFAULT_SLOTS = 2**20


@dataclass(frozen=True)
class Settings:
    """How much a journal may hold, and when an append returns."""

    segment_bytes: int = 64 * 2**20  # of one file, and so of the largest entry
    max_bytes: int = 2**30  # of all files; appends leave room for one segment
    slots: int | None = None  # entries that may wait; None: as many as the newest segment says
    # An append returns once it is on the disk, or with INTERVAL and NONE at once. INTERVAL syncs
    # every `interval_ms`, NONE when a segment is full.
    sync: str = ALWAYS
    interval_ms: int = 100
    default_slots: int = DEFAULT_SLOTS  # where there is no segment

    @property
    def largest(self) -> int:
        """The largest size of an entry's content, in bytes."""
        return self.segment_bytes - entry_size(0)
