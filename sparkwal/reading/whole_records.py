"""Reads every record of a log to its last byte, or takes it from a segment, for `verify`."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from dataclasses import replace
from functools import partial

from isal.isal_zlib import crc32

from sparkwal.errors import InvalidLogError
from sparkwal.format import arrowfile, keys
from sparkwal.format.header import CommitHeader
from sparkwal.protocol.missing import MissingRecord
from sparkwal.protocol.records import LONG_HOLE
from sparkwal.protocol.segments import Opened
from sparkwal.protocol.slots import SlotRecord, TornRecord, open_slot
from sparkwal.protocol.view import LogView, Slot
from sparkwal.reading.segments import Segments
from sparkwal.store.base import PART_SIZE, Front, LogStore, NotFound, sound
from sparkwal.store.parallel import run_parallel


class CutFooter(InvalidLogError):
    """A record that is cut off after its rows. Readers of the log do not need the footer."""

    def __init__(self, name: str, size: int, record: SlotRecord) -> None:
        super().__init__(
            f"{name}: cut off after its rows, {size} bytes. It counts, and readers of the log "
            "return it; other readers of Arrow files refuse it"
        )
        self.record = record


def whole_record(log: LogStore, position: int, window: int) -> SlotRecord | None:
    """Read the record at a position, and check it to its last byte.

    Returns:
        The record, or None if the position has none.

    Raises:
        CutFooter: only its footer is cut off.
        InvalidLogError: the record is damaged.
    """
    key = log.key(keys.slot(position, window))

    def read() -> SlotRecord:
        return check_whole(log, position, window, log.store.get(key))

    try:
        return sound(key, read, read)
    except NotFound:
        return None


def check_whole(log: LogStore, position: int, window: int, data: bytes) -> SlotRecord:
    """Check the bytes of a record to the last one. Raises the errors of `whole_record`."""
    name = log.locate(keys.slot(position, window), window)
    record = open_slot(log, position, window, Front.with_total(data, len(data)))
    assert record is not None
    is_cut = arrowfile.is_cut_end(data)
    if not is_cut:
        arrowfile.check_footer(data, name)
    header = record.header
    entry = header.checkpoints.get(header.query_id) if isinstance(header, CommitHeader) else None
    # Neither the header nor the footer covers the files of a checkpoint.
    if entry is not None and entry.position == header.position and entry.bytes:
        start = arrowfile.block_offset(record.size)
        end = start + entry.bytes
        if crc32(data[start:end]) != entry.crc32:
            raise InvalidLogError(f"{name}: the checkpoint in it does not match its CRC-32")
        if entry.state and crc32(data[end : end + entry.state.bytes]) != entry.state.crc32:
            raise InvalidLogError(f"{name}: the state in it does not match its CRC-32")
    # Without a part of a state.
    record = replace(record, front=record.front[: record.size])
    if is_cut:
        raise CutFooter(name, len(data), record)
    return record


# A record, a problem, or None for a record that does not count.
Checked = Slot | CutFooter | str | None


def checked_slots(
    log: LogStore,
    live: SlotRecord,
    span: range,
    listed: Mapping[str, int],
    trusted: Set[int],
    problem: Callable[[str], None],
) -> Iterator[tuple[int, Checked]]:
    """Check the slots of positions, in order.

    Args:
        log: the log.
        live: its newest live record.
        span: the positions.
        listed: the sizes of the objects of the log by key.
        trusted: the blocks with a segment that stands for its records.
        problem: called with a line for each long run of positions without an object.

    Yields:
        A position with its record, with the problem there, or with None if a segment shows that
        the record there does not count.
    """
    window = live.header.window
    start, end = span.start, span.stop

    def check(position: int) -> tuple[int, Checked]:
        try:
            record = whole_record(log, position, window)
            return position, record or _no_record(position)
        except (TornRecord, CutFooter) as part:
            return position, part
        except InvalidLogError as error:
            return position, str(error)

    def fetch(position: int) -> Callable[[], tuple[int, Checked]]:
        later = partial(check, position)
        # A record with a part of a state may have 32 MiB and more: one is in memory at a time.
        if listed.get(log.key(keys.slot(position, window)), 0) > PART_SIZE:
            return later
        outcome = later()
        return lambda: outcome

    stretches: Iterable[Opened | range] = [range(start, end)]
    if trusted:
        view = LogView(log, window, live.header.log_id)
        stretches = Segments(view).stretches(start, end)
    positions = _Positions(log, window, listed)
    for stretch in stretches:
        part = range(max(stretch.start, start), min(stretch.stop, end))
        if isinstance(stretch, range) or stretch.block not in trusted:
            for pending in run_parallel(log.store, fetch, positions.of(part, problem)):
                yield pending()
            continue
        records = {record.header.position: record for record in stretch.records(start, end)}
        for position in positions.of(part, problem):
            is_there = log.key(keys.slot(position, window)) in listed
            yield position, records.get(position) if is_there else _no_record(position)


def _no_record(position: int) -> str:
    return f"position {position}: no record, though the log continues"


class _Positions:
    """The positions that have an object in the LIST of a log."""

    def __init__(self, log: LogStore, window: int, listed: Iterable[str]) -> None:
        self._log = log
        self._window = window
        prefix = keys.batches_prefix(log.prefix)
        numbers = (keys.listed(key.removeprefix(prefix)) for key in listed)
        self._listed = sorted({keys.position(n, window) for n in numbers if n is not None})

    def of(self, span: range, problem: Callable[[str], None]) -> Iterator[int]:
        """The positions of a span. Of a long run without objects only the first ones.

        Anyone may have put a record at any position, so a run may be very long.
        """
        start = span.start
        first, after = (bisect_left(self._listed, end) for end in (span.start, span.stop))
        for position in self._listed[first:after]:
            yield from self._hole(start, position, problem)
            yield position
            start = position + 1
        yield from self._hole(start, span.stop, problem)

    def _hole(self, start: int, end: int, problem: Callable[[str], None]) -> range:
        tried = min(end, start + LONG_HOLE)
        if tried < end:
            problem(str(MissingRecord(self._log, tried, self._window, end=end)))
        return range(start, tried)
