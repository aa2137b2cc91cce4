"""Decides which segments a reader may use, also for a lost or damaged record (PROTOCOL §13)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from threading import Lock

from isal.isal_zlib import crc32

from sparkwal import events
from sparkwal.errors import InvalidLogError
from sparkwal.format import arrowfile, keys
from sparkwal.format.header import Mark
from sparkwal.format.segment import Copy, Segment, open_segment
from sparkwal.protocol.slots import GLANCE, SlotRecord, read_slot
from sparkwal.store.base import LogStore, NotFound, Refusal, Store, sound
from sparkwal.store.parallel import run_parallel

# The bytes of a segment that are read first: its header and its records, unless these are large.
FRONT = 256 * 2**10
# The segments that are opened at most to find out whether one can be trusted.
_MOST = 32


class Opened:
    """A segment whose header is decoded, with the bytes of its records.

    Attributes:
        block: the number of its block.
        segment: its front.
        data: the bytes of its records.
        start: the first position of the block.
        stop: the position after its last one.
    """

    def __init__(self, block: int, segment: Segment, data: bytes) -> None:
        self.block = block
        self.segment = segment
        self.data = data
        self.start = block * keys.BLOCK
        self.stop = self.start + keys.BLOCK
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


def ignore(segment: Segment, reason: str) -> None:
    """Use a segment no more, and emit one event for it."""
    if not segment.state.faults:
        path = segment.location.rpartition("/segments/")[0]
        events.emit(events.SegmentIgnored(path, segment.key, reason))
    segment.state.faults.append(reason)


def mark_of(record: SlotRecord) -> Mark:
    """The mark that identifies a record."""
    header = record.header
    return Mark(header.position, header.plan_id, crc32(record.text))


def open_blocks(
    log: LogStore, window: int, blocks: Sequence[int]
) -> Iterator[tuple[int, Opened | InvalidLogError]]:
    """Read the segments of blocks up to their rows: 1 GET each, 2 if the records are large.

    Yields:
        Each block with its segment, or with the reason why it cannot be used.
    """

    def fetch(block: int) -> tuple[int, Opened | InvalidLogError]:
        key = keys.segment_key(log.prefix, block, window)
        location = f"{log.store.url}/{key}"
        attempt = partial(_open, log.store, key, location, block, window)
        try:
            return block, sound(key, attempt, attempt)
        except NotFound:
            # SAFETY(segment-falls-back) §13: a reader without a segment reads the records
            return block, InvalidLogError(f"{location}: it was deleted meanwhile")
        except InvalidLogError as error:
            return block, error

    return run_parallel(log.store, fetch, blocks)


def _open(store: Store, key: str, location: str, block: int, window: int) -> Opened:
    front = store.get_range(key, 0, FRONT)
    needed = arrowfile.needed(front)
    if len(front) == FRONT < needed <= arrowfile.LARGEST_FRONT:
        front += store.get_range(key, FRONT, needed - FRONT)
    number = keys.slot((block + 1) * keys.BLOCK - 1, window)
    segment = open_segment(front, number, key, location)
    if segment.end > len(front):
        front += store.get_range(key, len(front), segment.end - len(front))
    segment.check(segment.of_records, front[needed : segment.end])
    first = segment.of_rows[: segment.runs[0].stop] if segment.runs else ()
    if first and first[-1].end <= len(front):
        segment.check(first, front[segment.end :])
        # The rows of a small segment came with its records.
        segment.state.frames = segment.runs[0]
        segment.state.data = front[segment.end :]
    return Opened(block, segment, front[needed : segment.end])


def decoded(opened: Opened | None) -> Opened | None:
    """The segment with its records, or None if they are damaged."""
    try:
        if opened is not None:
            opened.decode()
    except InvalidLogError as error:
        assert opened is not None
        ignore(opened.segment, str(error))
        return None
    return opened


def trusted_of(
    log: LogStore,
    window: int,
    log_id: str,
    opened: Mapping[int, Opened],
    *,
    witnessed: int | None = None,
) -> dict[int, Opened]:
    """The segments that are copies of the records that are in the slots now, by block.

    It costs 1 GET for segments that follow each other.

    Args:
        log: the log.
        window: its window.
        log_id: its id.
        opened: segments, by block.
        witnessed: a block of which the caller has seen the witness.
    """
    trusted: dict[int, Opened] = {}
    for block in sorted(opened, reverse=True):
        candidate = opened[block]
        header = candidate.segment.header
        # SAFETY(segment-of-this-log) §13: a segment of another log_id is no copy of this log
        if header.log_id != log_id:
            ignore(candidate.segment, f"it is of the log {header.log_id}")
            continue
        later = trusted.get(block + 1)
        # SAFETY(segment-followed) §13: a segment is trusted if the trusted one after it follows
        # its last record
        is_followed = later is not None and later.segment.header.follows == header.last
        if is_followed or block == witnessed or _is_witnessed(log, window, header.witness):
            trusted[block] = candidate
        else:
            ignore(candidate.segment, "the log has another record since it was made")
    return trusted


def _is_witnessed(log: LogStore, window: int, witness: Mark) -> bool:
    """Whether the slot of a witness holds it. 1 GET."""
    try:
        # A copy is no witness.
        plain = log.without_copies
        record = read_slot(plain, witness.position, window, GLANCE, tolerant=True)
    except ValueError:
        return False
    # SAFETY(segment-witness) §13: a segment is trusted if the slot of its witness holds it
    return record is not None and mark_of(record) == witness


class _Copies:
    """The copies of lost and damaged records, for one reader. It keeps the last block's segment."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._place: tuple[str, int, int] | None = None
        self._opened: Opened | None = None

    def __call__(self, log: LogStore, position: int, window: int) -> SlotRecord | None:
        """The copy of the record at a position, or None without one.

        The first one of a block costs 1 GET for its segment, and 1 for each witness that is looked
        for.
        """
        block = log.prefix, window, position // keys.BLOCK
        with self._lock:
            if block != self._place:
                self._opened = _trusted_block(log.without_copies, window, block[2])
                self._place = block
            opened = self._opened
        if opened is None or opened.segment.state.faults:
            return None
        return next(opened.records(position, position + 1), None)


def with_copies(log: LogStore) -> LogStore:
    """The log for a reader: its lost and damaged records are those that trusted segments have."""
    return replace(log, copy_of=_Copies())


def _trusted_block(log: LogStore, window: int, block: int) -> Opened | None:
    """The segment of a block, if it can be trusted.

    Its witness may be lost too. Then the next segments show whether it can be trusted.
    """
    opened: dict[int, Opened] = {}
    for number in range(block, block + _MOST):
        try:
            [(_, segment)] = open_blocks(log, window, [number])
        except Refusal as refusal:
            # A policy from before there were segments lets a reader see the records alone.
            events.emit(events.SegmentIgnored(log.url, "segments/", str(refusal)))
            break
        except ValueError:
            # The window has no such block.
            break
        if isinstance(segment, InvalidLogError):
            break
        opened[number] = segment
        header = segment.segment.header
        if _is_witnessed(log, window, header.witness):
            trusted = trusted_of(log, window, header.log_id, opened, witnessed=number)
            return decoded(trusted.get(block))
    return None
