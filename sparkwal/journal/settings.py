"""What a journal may take, and when an append returns."""

from __future__ import annotations

from dataclasses import dataclass

from sparkwal.journal.segment import entry_size

ALWAYS, INTERVAL, NONE = "always", "interval", "none"
DEFAULT_SLOTS = 2**20


@dataclass(frozen=True)
class Settings:
    """What a journal may take.

    Attributes:
        segment_bytes: of one file; also the largest entry's.
        max_bytes: of all files. Appends leave one segment of it free.
        slots: entries that may wait; None: as many as it was made with.
        sync: when an append returns: `ALWAYS` once it is on the disk; `INTERVAL`, `NONE` at once,
            and it is synced every `interval_ms`, or when its segment is full.
    """

    segment_bytes: int = 64 * 2**20
    max_bytes: int = 2**30
    slots: int | None = None
    sync: str = ALWAYS
    interval_ms: int = 100

    @property
    def largest(self) -> int:
        """Bytes of the largest content of an entry."""
        return self.segment_bytes - entry_size(0)
