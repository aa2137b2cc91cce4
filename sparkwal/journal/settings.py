from __future__ import annotations

from dataclasses import dataclass

from sparkwal.journal.segment import entry_size

ALWAYS, INTERVAL, NONE = "always", "interval", "none"
DEFAULT_SLOTS = 2**20


@dataclass(frozen=True)
class Settings:
    """How much a journal may hold, and when an append returns.

    Attributes:
        segment_bytes: of one file, and so of the largest entry.
        max_bytes: of all files. Appends leave room for one segment.
        slots: entries that may wait; None: as many as the newest segment says, or `default_slots`.
        sync: when an append returns: `ALWAYS` once it is on the disk, `INTERVAL` and `NONE` at
            once. `INTERVAL` syncs every `interval_ms`, `NONE` when a segment is full.
    """

    segment_bytes: int = 64 * 2**20
    max_bytes: int = 2**30
    slots: int | None = None
    sync: str = ALWAYS
    interval_ms: int = 100
    default_slots: int = DEFAULT_SLOTS

    @property
    def largest(self) -> int:
        """The largest size of an entry's content, in bytes."""
        return self.segment_bytes - entry_size(0)
