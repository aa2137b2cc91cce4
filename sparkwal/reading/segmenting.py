"""Makes segments: copies of blocks of decided records (PROTOCOL §13)."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import pyarrow as pa

from sparkwal import events
from sparkwal.errors import CollectedError, InvalidLogError, NewerFormatError
from sparkwal.format import arrowfile, keys, schema
from sparkwal.format.header import Mark, SegmentHeader, SlotHeader
from sparkwal.format.merging import narrower
from sparkwal.format.segment import (
    LARGEST_PART,
    MOST_ROWS,
    Source,
    encode,
    has_room,
    parts_of,
)
from sparkwal.options.reading import SourceOptions
from sparkwal.protocol.missing import AnotherLog
from sparkwal.protocol.records import WIDEST_PROBE, live_records
from sparkwal.protocol.segments import Opened, mark_of, open_blocks, trusted_of
from sparkwal.protocol.slots import GLANCE, SlotRecord
from sparkwal.protocol.view import LogView
from sparkwal.reading.log_range import LogRange
from sparkwal.reading.pieces import Piece
from sparkwal.reading.rows import pieces_of, read_pieces
from sparkwal.reading.segments import listed_blocks
from sparkwal.store.base import LogStore, NotFound, Refusal, holds, sound

# The most bytes of one unpacked part, and of all unpacked parts, in a segment.
_LARGEST_UNPACKED = 8 * 2**20
_MOST_UNPACKED = 128 * 2**20


@dataclass
class Made:
    """The result of `make_segments`.

    Attributes:
        blocks: the blocks that have a new segment.
        replaced: those of them whose former segment no reader could use.
        others: the blocks that had one.
        skipped: {block: reason} of those that cannot have one, or whose former one must stay.
        damaged: {block: reason} of those with a missing or damaged record.
        bytes: the size of the new segments.
    """

    blocks: list[int] = field(default_factory=list)
    replaced: list[int] = field(default_factory=list)
    others: int = 0
    skipped: dict[int, str] = field(default_factory=dict)
    damaged: dict[int, str] = field(default_factory=dict)
    bytes: int = 0


def decided_before(header: SlotHeader) -> int:
    """The position before which a live record, in its slot, shows that all records are decided."""
    # SAFETY(segment-ends-decided) §13: a record that has decided all before it decides its own
    # position too
    if header.decided == header.position - 1:
        return header.position + 1
    return header.decided + 1


def decided_blocks(log: LogRange) -> range:
    """The blocks of a log that has looked of which no record changes or may be deleted."""
    if log.live is None:
        return range(0)
    first = -(-log.floor.current() // keys.BLOCK)
    return range(first, max(decided_before(log.live.header) // keys.BLOCK, first))


def make_segments(
    log: LogRange,
    *,
    every: bool = True,
    without: Container[int] = (),
    most: int | None = None,
    done: Callable[[int, int], None] = lambda blocks, of: None,
) -> Made:
    """Make the segments of a log that are missing, oldest first.

    It costs 1 LIST; 1,001 GETs and 1 PUT for each missing one; with `every` 2 GETs for each other.
    A block with damage gets none, and the others do.

    Args:
        log: a log that has looked.
        every: check the existing segments, and replace those that no reader uses.
        without: blocks to leave out.
        most: the limit of new segments.
        done: called with the number of blocks that are done, and of all.

    Raises:
        AnotherLog: the log was recreated.
        Refusal: the store does not let the caller write segments.
    """
    result = Made()
    blocks = decided_blocks(log)
    if not blocks:
        return result
    wanted = [block for block in _wanted(log, blocks, result, every=every) if block not in without]
    for count, block in enumerate(wanted[:most]):
        done(count, len(wanted))
        _make(log, block, result)
    done(len(wanted), len(wanted))
    if result.blocks:
        events.emit(events.SegmentsMade(log.log.url, len(result.blocks)))
    return result


def _make(log: LogRange, block: int, result: Made) -> None:
    """Make the segment of one block."""
    try:
        body = segment_of(log, block)
    except (Unfit, CollectedError) as reason:
        result.skipped[block] = str(reason)
        return
    except AnotherLog:
        raise
    except InvalidLogError as error:
        result.damaged[block] = str(error)
        return
    if block in result.replaced:
        try:
            log.log.store.delete(keys.segment_key(log.log.prefix, block, log.window))
        except Refusal as refusal:
            result.skipped[block] = (
                f"readers do not use its segment, which must go first: {refusal}"
            )
            result.replaced.remove(block)
            return
    if put_segment(log, block, body):
        result.blocks.append(block)
        result.bytes += len(body)
    else:
        result.others += 1


def _wanted(log: LogRange, blocks: range, result: Made, *, every: bool) -> list[int]:
    """The blocks of a range without a segment, with `every` also those with an unusable one."""
    listed = _listed(log, blocks)
    unusable = unusable_blocks(log, listed, whole=True) if every else {}
    result.replaced = sorted(unusable)
    result.others = len(listed) - len(unusable)
    usable = {*listed} - unusable.keys()
    return [block for block in blocks if block not in usable]


def _listed(log: LogRange, blocks: range) -> list[int]:
    """The blocks of a range that have a segment, oldest first. 1 LIST."""
    start, end = blocks.start * keys.BLOCK, blocks.stop * keys.BLOCK
    listed = listed_blocks(log.log, log.window, start, end)
    return sorted(block for block in listed if block in blocks)


def unusable_blocks(log: LogRange, blocks: Sequence[int], *, whole: bool = False) -> dict[int, str]:
    """The blocks whose segment no reader uses, each with the reason.

    It costs 1 GET for each segment, and 1 GET; with `whole` 1 more for its rows.
    """
    reasons: dict[int, str] = {}
    opened: dict[int, Opened] = {}
    for block, item in open_blocks(log.log, log.window, blocks):
        if isinstance(item, NewerFormatError):
            # A maker of this version would only replace it again and again.
            raise item
        fault = str(item) if isinstance(item, InvalidLogError) else ""
        if isinstance(item, Opened):
            fault = _fault_of(log, item) if whole else ""
            opened[block] = item
        if fault:
            reasons[block] = fault
            opened.pop(block, None)
    trusted = trusted_of(log.log, log.window, log.log_id or "", opened)
    for block in opened.keys() - trusted.keys():
        reasons[block] = opened[block].segment.state.faults[0]
    return reasons


def _fault_of(log: LogRange, opened: Opened) -> str:
    """The damage of the records, the rows and the footer of a segment, or "". 1 GET."""
    segment = opened.segment

    def check() -> None:
        segment_data = log.log.store.get(segment.key)
        Opened(opened.block, segment, opened.data).decode()
        for frame in segment.of_rows:
            segment.read(segment_data[frame.offset : frame.end], frame)
        arrowfile.check_footer(segment_data, segment.location)

    try:
        sound(segment.key, check, check)
    except NotFound:
        return "it was deleted meanwhile"
    except InvalidLogError as error:
        return str(error)
    return ""


@dataclass(frozen=True)
class CheckedSegments:
    """The segments of a log, each read to its last byte.

    Attributes:
        sound: the blocks with a segment that readers may use.
        problems: a line for each other segment, with what to do.
    """

    sound: frozenset[int] = frozenset()
    problems: tuple[str, ...] = ()


def check_segments(log: LogStore, *, with_records: bool) -> CheckedSegments:
    """Check all segments of a log: 2 GETs each, and those of a look.

    If the log is damaged or collected meanwhile, the remaining segments are not checked.

    Args:
        log: the log.
        with_records: also compare each segment with the records that it copies: 1,001 GETs more.
    """
    seen = LogRange(SourceOptions(path=log.url), keys.ROOT, log)
    sound: set[int] = set()
    problems: list[str] = []
    with suppress(InvalidLogError, CollectedError):
        seen.refresh()
        blocks = decided_blocks(seen)
        listed = _listed(seen, blocks) if blocks else []
        unusable = unusable_blocks(seen, listed, whole=True)
        for block in listed:
            fault = unusable.get(block, "")
            if with_records and not fault:
                fault = _difference(seen, block)
            if fault:
                problems.append(_problem(seen, block, fault))
            else:
                sound.add(block)
    return CheckedSegments(frozenset(sound), tuple(problems))


def _problem(log: LogRange, block: int, fault: str) -> str:
    name = f"{log.log.store.url}/{keys.segment_key(log.log.prefix, block, log.window)}"
    last = (block + 1) * keys.BLOCK - 1
    return (
        f"{name}: {fault}. Readers take the records if they notice that. sparkwal repair "
        f"{log.log.url} {last} deletes it, and sparkwal segment makes a new one"
    )


def _difference(log: LogRange, block: int) -> str:
    """The difference between a segment and the records that it copies, or "" without one."""
    try:
        is_equal = _is_copy(log, block)
    except (InvalidLogError, NotFound, Unfit):
        # The check of the records reports it.
        return ""
    return "" if is_equal else "it differs from the records that it copies"


def delete_damaged(log: LogRange, block: int) -> bool:
    """Delete the segment of a block if it is damaged, or no copy of the records there.

    It costs 1 LIST, and for an existing segment 4 GETs and 1 for each of its records.

    Returns:
        Whether it was deleted.

    Raises:
        InvalidLogError: it is damaged, and so is a record that it copies: it may have the last copy
            of other rows.
    """
    blocks = range(block, block + 1)
    if not _listed(log, blocks):
        return False
    key = keys.segment_key(log.log.prefix, block, log.window)
    fault = unusable_blocks(log, blocks, whole=True).get(block)
    try:
        if _is_copy(log, block):
            return False
    except InvalidLogError as error:
        if fault is None:
            # The check of the records reports it.
            return False
        raise InvalidLogError(
            f"{log.log.store.url}/{key}: {fault}. It is not deleted, because it may have the last "
            f"copy of a record: {error}. Repair that record first"
        ) from None
    except (NotFound, Unfit):
        if fault is None:
            return False
    log.log.store.delete(key)
    return True


def put_segment(log: LogRange, block: int, body: bytes) -> bool:
    """Create a segment: 1 conditional PUT. False if there is one."""
    return log.log.store.put_if_absent(keys.segment_key(log.log.prefix, block, log.window), body)


class Unfit(Exception):
    """A block that has no segment; the text is the reason."""


def segment_of(log: LogRange, block: int) -> bytes:
    """Read the records of a block, and encode its segment: a GET for each position.

    Raises:
        Unfit: the block can have no segment.
        InvalidLogError: a record is missing or damaged.
        CollectedError: the floor passed the block.
    """
    return next(_segments_of(log, block))


def _is_copy(log: LogRange, block: int) -> bool:
    """Whether the segment of a block is a copy of the records there. Raises as `segment_of`."""
    key = keys.segment_key(log.log.prefix, block, log.window)
    return any(holds(log.log.store, key, body) for body in _segments_of(log, block))


def _segments_of(log: LogRange, block: int) -> Iterator[bytes]:
    """Do `segment_of`, and then encode the segment that was made while the log ended there."""
    first = block * keys.BLOCK
    try:
        for read in _read(log, first, first + keys.BLOCK):
            body = encoded(log.log.without_copies, read, check=log.floor.check)
            # SAFETY(segment-floor-after-read) §13: a maker checks the floor after it read: late
            # PUTs may have filled collected slots
            log.floor.check(first)
            yield body
    except InvalidLogError:
        # A collection may have deleted the missing record: then that is the error.
        log.floor.check(first)
        raise


def _read(log: LogRange, first: int, after: int) -> Iterator[Block]:
    """Read the block of positions first … after−1, without a look at the floor.

    Yields:
        The block with the first witness after it, if there is one; and with its last record as
        witness, if that is one.

    Raises:
        Unfit: no record shows that it is decided.
        InvalidLogError: a record is missing or damaged.
    """
    # One record before the block, and those after it up to its witness.
    begin = max(first - 1, 0)
    # A copy of a copy would hide that a record is lost.
    view = LogView(log.log.without_copies, log.window, log.log_id, log.live)
    records = live_records(view, begin, log.gap, size=GLANCE, at_once=WIDEST_PROBE)
    follows: Mark | None = None
    of_block: list[SlotRecord] = []
    witnesses: list[Mark] = []
    for record in records:
        position = record.header.position
        if position < first:
            follows = mark_of(record)
            continue
        if position < after:
            of_block.append(record)
        # SAFETY(segment-decided) §13: a record from the block's last one on proves that it is
        # decided
        if decided_before(record.header) >= after:
            witnesses.insert(0, mark_of(record))
            if position >= after:
                break
    if not witnesses:
        raise Unfit("no record shows that it is decided")
    for witness in witnesses:
        yield Block(after - 1, of_block, follows, witness)


@dataclass(frozen=True)
class Block:
    """A decided block.

    Attributes:
        last_position: its last position.
        records: its live records.
        follows: the mark of the last live record before it.
        witness: the mark of the record that proves that it is decided.
    """

    last_position: int
    records: Sequence[SlotRecord]
    follows: Mark | None
    witness: Mark


def encoded(
    log: LogStore,
    block: Block,
    *,
    check: Callable[[int], None] = lambda position: None,
    memory: int | None = None,
) -> bytes:
    """Encode the segment of a block. It reads the rows that did not come with the records.

    Args:
        log: the log.
        block: the block.
        check: called with the position of rows that were read before they are decoded; it may
            raise.
        memory: the limit of bytes of the unpacked rows.

    Raises:
        Unfit: the block can have no segment, or needs more memory.
        InvalidLogError: rows are missing or damaged.
    """
    records = block.records
    if not records:
        raise Unfit("no record of the block is live")
    last = records[-1]
    if sum(len(record.text) for record in records) > arrowfile.LARGEST_FRAME:
        raise Unfit("the headers of its records are too large")
    if not has_room(last.spark_schema):
        raise Unfit("a column of the log has a name that segments use")
    header = SegmentHeader(
        number=keys.slot(block.last_position, last.header.window),
        position=block.last_position,
        window=last.header.window,
        leader_id=last.header.leader_id,
        term=last.header.term,
        plan_id=last.header.plan_id,
        in_flight_limit=last.header.in_flight_limit,
        timestamp_ms=last.header.timestamp_ms,
        schema_crc32=0,
        log_id=last.header.log_id,
        records=len(records),
        last=mark_of(last),
        follows=block.follows,
        witness=block.witness,
        frames=(),
    )
    sources = _sources(log, records, last.spark_schema, check, memory)
    return encode(header, last.spark_schema, [*sources])


def _sources(
    log: LogStore,
    records: Sequence[SlotRecord],
    spark_schema: str,
    check: Callable[[int], None],
    memory: int | None,
) -> Iterator[Source]:
    """The records, with the rows that the segment gets.

    Raises:
        Unfit: the rows take more than `memory` bytes.
    """
    target = schema.to_arrow(spark_schema)
    chosen = _chosen(log, records, target)
    pieces = [piece for by_partition in chosen for piece in by_partition.values() if piece.rows]
    batches = read_pieces(log, pieces, target, check=check)
    empty = pa.RecordBatch.from_pylist([], schema=target)
    size = 0
    for record, by_partition in zip(records, chosen, strict=True):
        parts: list[pa.RecordBatch | None] = []
        for partition, _, _ in parts_of(record.header):
            piece = by_partition.get(partition)
            if piece is None or not piece.rows:
                parts.append(piece and empty)
                continue
            rows = _rows(batches, piece.rows)
            unpacked = rows.nbytes
            if memory is not None and size + unpacked > memory:
                raise Unfit(f"its rows take more than {memory} bytes of memory")
            is_copied = unpacked <= _LARGEST_UNPACKED and size + unpacked <= _MOST_UNPACKED
            size += unpacked * is_copied
            parts.append(rows if is_copied else None)
        yield Source(record.text, record.spark_schema, record.body, parts)


def _chosen(
    log: LogStore, records: Sequence[SlotRecord], target: pa.Schema
) -> list[dict[int, Piece]]:
    """The small parts of each record, by partition, up to MOST_ROWS bytes in all."""
    chosen: list[dict[int, Piece]] = []
    size = 0
    fits_by_schema: dict[str, bool] = {}
    for record in records:
        fits = fits_by_schema.get(record.spark_schema)
        if fits is None:
            fits = narrower(schema.to_arrow(record.spark_schema), target) is None
            fits_by_schema[record.spark_schema] = fits
        small = [part for part in parts_of(record.header) if fits and part[2] <= LARGEST_PART]
        partitions = set()
        for partition, _, stored in small:
            size += stored
            if size <= MOST_ROWS:
                partitions.add(partition)
        pieces = pieces_of(log, record) if partitions else []
        chosen.append({p.partition: p for p in pieces if p.partition in partitions})
    return chosen


def _rows(batches: Iterator[pa.RecordBatch], count: int) -> pa.RecordBatch:
    """The next rows of a reader. No batch has rows of two parts."""
    taken: list[pa.RecordBatch] = []
    while sum(batch.num_rows for batch in taken) < count:
        taken.append(next(batches))
    if len(taken) == 1:
        return taken[0]
    (batch,) = pa.Table.from_batches(taken).combine_chunks().to_batches()
    return batch
