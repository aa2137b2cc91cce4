"""Finds the place of each live entry by its sequence, in O(1)."""

from __future__ import annotations

import mmap
import struct

from sparkwal.journal.segment import Found

_PLACE = struct.Struct("<QQQ")


class Ring:
    """The places of the newest `slots` entries. Each takes 24 bytes of memory once it is used."""

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self._places = mmap.mmap(-1, slots * _PLACE.size)

    def put(self, segment: int, found: Found) -> None:
        """Note where an entry lies. It replaces the entry `slots` sequences before it."""
        at = found.sequence % self.slots * _PLACE.size
        _PLACE.pack_into(self._places, at, segment, found.offset, found.length)

    def get(self, sequence: int) -> tuple[int, Found]:
        """(segment id, place) of an entry, which must be among the newest `slots`."""
        at = sequence % self.slots * _PLACE.size
        segment, offset, length = _PLACE.unpack_from(self._places, at)
        return segment, Found(sequence, offset, length)

    def shift(self, sequences: range, by: int, into: int) -> None:
        """These entries now lie `by` bytes further on, in the segment `into`."""
        for sequence in sequences[-self.slots :]:
            _, found = self.get(sequence)
            self.put(into, Found(sequence, found.offset + by, found.length))

    def close(self) -> None:
        self._places.close()
