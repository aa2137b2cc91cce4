"""Finds the segments of a range, and decides which of them a reader may use (PROTOCOL §13)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import takewhile

from isal.isal_zlib import crc32

from sparkwal import events
from sparkwal.errors import InvalidLogError
from sparkwal.format import arrowfile, keys
from sparkwal.format.header import Mark
from sparkwal.format.segment import Copy, Segment, open_segment
from sparkwal.protocol.slots import GLANCE, SlotRecord, read_slot
from sparkwal.reading.copied_rows import ignore
from sparkwal.store.base import LogStore, NotFound, Refusal, numbered, sound
from sparkwal.store.parallel import GetRange, Range, read_parallel

# The bytes of a segment that are read first: its header and its records, unless these are large.
_FRONT = 256 * 2**10
# The segments that a reader opens together, first and later.
_FIRST, _MOST = 4, 32

# Reads the live records of positions start … end−1 from their slots. The third argument is the term
# of the last live record before them, or None.
ReadSlots = Callable[[int, int, int | None], Iterator[SlotRecord]]


class Opened:
    """A segment whose header is decoded, with the bytes of its records.

    Attributes:
        block: the number of its block.
        segment: its front.
        data: the bytes of its records.
    """

    def __init__(self, block: int, segment: Segment, data: bytes) -> None:
        self.block = block
        self.segment = segment
        self.data = data
        self._copies: list[Copy] = []

    def decode(self) -> None:
        """Decode its records, which take much more memory than their bytes.

        Raises:
            InvalidLogError: they are damaged, or are not those of the block.
        """
        self._copies = self.segment.records(self.data)

    def records(self, start: int, end: int) -> Iterator[SlotRecord]:
        """The decoded records of positions start … end−1."""
        for copy in self._copies:
            if start <= copy.header.position < end:
                yield SlotRecord(
                    copy.header,
                    copy.spark_schema,
                    copy.body,
                    text=copy.text,
                    copied=copy.parts,
                )


def mark_of(record: SlotRecord) -> Mark:
    """The mark that identifies a record."""
    header = record.header
    return Mark(header.position, header.plan_id, crc32(record.text))


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


def open_blocks(
    log: LogStore, window: int, blocks: Sequence[int]
) -> Iterator[tuple[int, Opened | InvalidLogError]]:
    """Read the segments of blocks up to their rows: 1 GET each, 2 if the records are large.

    Yields:
        Each block with its segment, or with the reason why it cannot be used.
    """

    def first_range(block: int) -> Range:
        return Range(keys.segment_key(log.prefix, block, window), 0, _FRONT, likely=_FRONT)

    def fetch(block: int, get_range: GetRange) -> tuple[int, Opened | InvalidLogError]:
        key = keys.segment_key(log.prefix, block, window)
        location = f"{log.store.url}/{key}"
        try:
            attempt = partial(_open, key, location, block, window)
            return block, sound(
                key, lambda: attempt(get_range), lambda: attempt(log.store.get_range)
            )
        except NotFound:
            # SAFETY(segment-falls-back) §13: a reader without a segment reads the records
            return block, InvalidLogError(f"{location}: it was deleted meanwhile")
        except InvalidLogError as error:
            return block, error

    return read_parallel(log.store, fetch, blocks, first_range=first_range)


def _open(key: str, location: str, block: int, window: int, get_range: GetRange) -> Opened:
    front = get_range(key, 0, _FRONT)
    needed = arrowfile.needed(front)
    if len(front) == _FRONT < needed <= arrowfile.LARGEST_FRONT:
        front += get_range(key, _FRONT, needed - _FRONT)
    number = keys.slot((block + 1) * keys.BLOCK - 1, window)
    segment = open_segment(front, number, key, location)
    if segment.end > len(front):
        front += get_range(key, len(front), segment.end - len(front))
    segment.check(segment.of_records, front[needed : segment.end])
    first = segment.of_rows[: segment.runs[0].stop] if segment.runs else ()
    if first and first[-1].end <= len(front):
        segment.check(first, front[segment.end :])
        # The rows of a small segment came with its records.
        segment.state.frames = segment.runs[0]
        segment.state.data = front[segment.end :]
    return Opened(block, segment, front[needed : segment.end])


def _decoded(opened: Opened | None) -> Opened | None:
    """The segment with its records, or None if they are damaged."""
    try:
        if opened is not None:
            opened.decode()
    except InvalidLogError as error:
        assert opened is not None
        ignore(opened.segment, str(error))
        return None
    return opened


class Segments:
    """The segments of one log, for one reader.

    Args:
        log: the log.
        window: its window.
        log_id: its id.
    """

    def __init__(self, log: LogStore, window: int, log_id: str) -> None:
        self._log = log
        self._window = window
        self._log_id = log_id

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
                segment = _decoded(usable.pop(block, None))
                if segment is None:
                    continue
                begin = max(block * keys.BLOCK, start)
                if reached < begin:
                    yield range(reached, begin)
                yield segment
                reached = min((block + 1) * keys.BLOCK, end)
        if reached < end or start == end:
            yield range(reached, end)

    def newest_first(self, start: int, end: int) -> Iterator[Opened | range]:
        """As `stretches`, from the last stretch to the first. It opens segments when they are
        needed.
        """
        reached = end
        blocks = self.listed(start, end)
        size = 1
        while blocks:
            group, blocks = blocks[:size], blocks[size:]
            size = min(2 * size, _MOST)
            usable = self._usable(group)
            for block in group:
                segment = _decoded(usable.pop(block, None))
                if segment is None:
                    continue
                after = min((block + 1) * keys.BLOCK, end)
                if after < reached:
                    yield range(after, reached)
                yield segment
                reached = max(block * keys.BLOCK, start)
        if start < reached:
            yield range(start, reached)

    def listed(self, start: int, end: int) -> list[int]:
        """The blocks of positions start … end−1 that have a segment, newest first. 1 LIST.

        It makes no request for fewer positions than a block has.
        """
        if end - start < keys.BLOCK:
            return []
        try:
            return listed_blocks(self._log, self._window, start, end)
        except Refusal as refusal:
            # A policy from before there were segments lets a reader see the records alone.
            events.emit(events.SegmentIgnored(self._log.url, "segments/", str(refusal)))
            return []

    def _usable(self, blocks: Sequence[int]) -> dict[int, Opened]:
        """Open the segments of blocks, and return those that a reader may use."""
        opened: dict[int, Opened] = {}
        for block, found in open_blocks(self._log, self._window, blocks):
            if isinstance(found, InvalidLogError):
                key = keys.segment_key(self._log.prefix, block, self._window)
                events.emit(events.SegmentIgnored(self._log.url, key, str(found)))
            else:
                opened[block] = found
        return self.trusted(opened)

    def trusted(self, opened: Mapping[int, Opened]) -> dict[int, Opened]:
        """The segments that are copies of the records that are in the slots now.

        It costs 1 GET for segments that follow each other.
        """
        trusted: dict[int, Opened] = {}
        for block in sorted(opened, reverse=True):
            candidate = opened[block]
            header = candidate.segment.header
            # SAFETY(segment-of-this-log) §13: a segment of another log_id is no copy of this log
            if header.log_id != self._log_id:
                ignore(candidate.segment, f"it is of the log {header.log_id}")
                continue
            later = trusted.get(block + 1)
            # SAFETY(segment-followed) §13: a segment is trusted if the trusted one after it follows
            # its last record
            is_followed = later is not None and later.segment.header.follows == header.last
            if is_followed or self._is_witnessed(header.witness):
                trusted[block] = candidate
            else:
                ignore(candidate.segment, "the log has another record since it was made")
        return trusted

    def _is_witnessed(self, witness: Mark) -> bool:
        """Whether the slot of a witness holds it. 1 GET."""
        try:
            record = read_slot(self._log, witness.position, self._window, GLANCE, tolerant=True)
        except ValueError:
            return False
        # SAFETY(segment-witness) §13: a segment is trusted if the slot of its witness holds it
        return record is not None and mark_of(record) == witness


def read_records(
    segments: Segments, start: int, end: int, read_slots: ReadSlots, term: int | None = None
) -> Iterator[SlotRecord]:
    """Read the live records of positions start … end−1: from segments, and others from their slots.

    Args:
        segments: the segments of the log.
        start: the first position.
        end: the position after the last.
        read_slots: reads records from their slots.
        term: the term of the last live record before `start`, if it is known.
    """
    last = start - 1
    for stretch in segments.stretches(start, end):
        if isinstance(stretch, range):
            # SAFETY(segment-then-look-back) §13: the term of a segment's last record counts for the
            # next position only
            known = term if last == stretch.start - 1 else None
            records = read_slots(stretch.start, stretch.stop, known)
        else:
            records = stretch.records(start, end)
        for record in records:
            term, last = record.header.term, record.header.position
            yield record
