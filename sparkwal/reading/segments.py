"""Divides the positions of a read into segments and ranges without one (PROTOCOL §13)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile
from types import MappingProxyType

from sparkwal import events
from sparkwal.errors import InvalidLogError
from sparkwal.format import keys
from sparkwal.protocol.records import live_records
from sparkwal.protocol.segments import Opened, decoded, open_blocks, trusted_of
from sparkwal.protocol.slots import GLANCE, SlotRecord
from sparkwal.protocol.view import LogView
from sparkwal.store.base import LogStore, Refusal, numbered

# The segments that a reader opens together, first and later.
_FIRST, _MOST = 4, 32
_NONE: Mapping[int, SlotRecord] = MappingProxyType({})


def listed_blocks(log: LogStore, window: int, start: int, end: int) -> list[int]:
    """The blocks with positions of start … end−1 that have an object: 1 LIST for each thousand."""
    last = (end - 1) // keys.BLOCK
    try:
        number = keys.slot((last + 1) * keys.BLOCK - 1, window)
    except ValueError:
        number = keys.LEAST_NUMBER
    prefix = keys.segments_prefix(log.prefix)
    after = prefix + keys.encode(number - 1)
    positions = (
        keys.position(number, window)
        for number, _ in numbered(log.store, prefix, after)
        if keys.is_slot(number, window)
    )
    in_range = takewhile(lambda position: position >= start, positions)
    return [position // keys.BLOCK for position in in_range if (position + 1) % keys.BLOCK == 0]


class Segments:
    """The segments of one log, for the reader with this view."""

    def __init__(self, view: LogView) -> None:
        self._view = view

    def stretches(self, start: int, end: int) -> Iterator[Opened | range]:
        """Divide positions start … end−1, in order, into segments and ranges without one.

        It costs no request for fewer positions than a block has. For others it costs 1 LIST, 1 GET
        for each segment, and 1 GET for up to 32 segments that follow each other.
        """
        reached = start
        blocks = self.listed(start, end)[::-1]
        size = _FIRST
        while blocks:
            group, blocks = blocks[:size], blocks[size:]
            size = _MOST
            usable = self._usable(group)
            for block in group:
                segment = decoded(usable.pop(block, None))
                if segment is None:
                    continue
                if reached < segment.start:
                    yield range(reached, segment.start)
                yield segment
                reached = min(segment.stop, end)
        if reached < end or start == end:
            yield range(reached, end)

    def newest_first(self, start: int, end: int) -> Iterator[Opened | range]:
        """As `stretches`, from the last stretch to the first. It opens segments when they are
        needed.

        The first stretch is the range of the last thousand positions: the caller may stop early.
        """
        reached = max(start, end - keys.BLOCK)
        yield range(reached, end)
        blocks = self.listed(start, reached)
        size = 1
        while blocks:
            group, blocks = blocks[:size], blocks[size:]
            size = min(2 * size, _MOST)
            usable = self._usable(group)
            for block in group:
                segment = decoded(usable.pop(block, None))
                if segment is None:
                    continue
                if segment.stop < reached:
                    yield range(segment.stop, reached)
                yield segment
                reached = max(segment.start, start)
        if start < reached:
            yield range(start, reached)

    def listed(self, start: int, end: int) -> list[int]:
        """The blocks of positions start … end−1 that have a segment, newest first. 1 LIST.

        It makes no request for fewer positions than a block has.
        """
        if end - start < keys.BLOCK:
            return []
        try:
            return listed_blocks(self._view.log, self._view.window, start, end)
        except Refusal as refusal:
            # A policy from before there were segments lets a reader see the records alone.
            events.emit(events.SegmentIgnored(self._view.log.url, "segments/", str(refusal)))
            return []

    def _usable(self, blocks: Sequence[int]) -> dict[int, Opened]:
        """Open the segments of blocks, and return those that a reader may use."""
        opened: dict[int, Opened] = {}
        log, window = self._view.log, self._view.window
        for block, segment in open_blocks(log, window, blocks):
            if isinstance(segment, InvalidLogError):
                key = keys.segment_key(log.prefix, block, window)
                events.emit(events.SegmentIgnored(log.url, key, str(segment)))
            else:
                opened[block] = segment
        return trusted_of(log, window, self._view.log_id or "", opened)


def read_records(
    view: LogView,
    start: int,
    end: int,
    *,
    term: int | None = None,
    cached: Mapping[int, SlotRecord] = _NONE,
    size: int = GLANCE,
    at_once: int = 1,
) -> Iterator[SlotRecord]:
    """Read live records as `live_records`, from segments where a reader may use them."""
    last = start - 1
    for stretch in Segments(view).stretches(start, end):
        if isinstance(stretch, range):
            # SAFETY(segment-then-look-back) §13: the term of a segment's last record counts for the
            # next position only
            term_before = term if last == stretch.start - 1 else None
            records = live_records(
                view,
                stretch.start,
                stretch.stop,
                term=term_before,
                cached=cached,
                size=size,
                at_once=at_once,
            )
        else:
            records = stretch.records(start, end)
        for record in records:
            term, last = record.header.term, record.header.position
            yield record
