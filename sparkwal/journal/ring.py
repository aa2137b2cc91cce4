"""Where each live entry lies: by its sequence in O(1), in memory that was not touched before."""

from __future__ import annotations

import mmap
import struct

from sparkwal.journal.segment import Found

_PLACE = struct.Struct("<QQQ")


class Ring:
    """The places of the newest `slots` entries; 24 bytes each, once it is used."""

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self._places = mmap.mmap(-1, slots * _PLACE.size)

    def put(self, segment: int, found: Found) -> None:
        """Takes the place of the entry `slots` before it."""
        at = found.sequence % self.slots * _PLACE.size
        _PLACE.pack_into(self._places, at, segment, found.offset, found.length)

    def get(self, sequence: int) -> tuple[int, Found]:
        """(id of its segment, its place there). Of a live entry only."""
        at = sequence % self.slots * _PLACE.size
        segment, offset, length = _PLACE.unpack_from(self._places, at)
        return segment, Found(sequence, offset, length)

    def shift(self, sequences: range, by: int, into: int) -> None:
        """The newest entries lie so many bytes further on, in another segment."""
        for sequence in sequences[-self.slots :]:
            _, found = self.get(sequence)
            self.put(into, Found(sequence, found.offset + by, found.length))

    def close(self) -> None:
        self._places.close()
