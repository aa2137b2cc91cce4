"""Walks the records of a log: a range in either direction, and new records as they arrive."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from sparkwal.errors import CollectedError, InvalidLogError
from sparkwal.format import keys
from sparkwal.format.header import SEAL, LeaderHeader
from sparkwal.protocol.liveness import passed_by, settled_run
from sparkwal.protocol.missing import AnotherLog, MissingRecord, check_log
from sparkwal.protocol.records import LONG_HOLE, WIDEST_PROBE
from sparkwal.protocol.segments import Opened
from sparkwal.protocol.slots import (
    GLANCE,
    SlotRecord,
    TornRecord,
    copied,
    first_listed,
    first_range,
    last_listed,
    read_slot,
)
from sparkwal.protocol.view import LENIENT, LogView
from sparkwal.reading.log_range import LogRange
from sparkwal.reading.segments import Segments
from sparkwal.store.parallel import GetRange, Range, read_parallel

# The maximum number of records that are requested before one of them is delivered.
_CHUNK = 256
# After this many idle looks check that the last record still exists: a recreated log has free
# positions where the former one would continue.
_IDLE_LOOKS = 10


@dataclass(frozen=True)
class Collected:
    """Positions start … end−1 were collected while the log was read."""

    start: int
    end: int


# An InvalidLogError stands for the record at its `position`, which is damaged or missing.
Found = SlotRecord | InvalidLogError | Collected


def walk(
    log: LogRange,
    start: int,
    end: int,
    *,
    newest_first: bool,
    most: int | None = None,
    seals: bool = False,
    at_once: int = WIDEST_PROBE,
) -> Iterator[Found]:
    """Read the headers of the live records of positions start … end−1, at most up to the log's gap.

    It costs 1 GET for each position except the head's. The first step requests `at_once` records,
    each next step twice as many. With `newest_first` each takeover also costs a look-back (up to m
    − 1 GETs). Segments are read in place of the records that they copy: newest first after the
    first thousand records. With `most` none is read.

    Args:
        log: a log that has looked.
        start: the first position.
        end: the position after the last.
        newest_first: read from the end.
        most: the limit of delivered records; no more positions are read than it needs.
        seals: deliver seals too.
        at_once: see above.

    Raises:
        AnotherLog: the log was recreated.
    """
    if most is not None:
        yield from _walk(
            log, start, end, newest_first=newest_first, most=most, seals=seals, at_once=at_once
        )
        return
    if newest_first:
        yield from _walk_back(log, start, end, seals=seals, at_once=at_once)
        return
    for stretch in Segments(log.view).stretches(start, end):
        if isinstance(stretch, range):
            first, after = max(stretch.start, start), stretch.stop
            yield from _walk(
                log, first, after, newest_first=False, most=None, seals=seals, at_once=at_once
            )
            continue
        for record in stretch.records(start, end):
            position, floor = record.header.position, log.floor.current()
            if start <= position < floor:
                yield Collected(position, floor)
                start = floor
            elif position >= start and (seals or not is_seal(record)):
                yield record


def _walk_back(
    log: LogRange, start: int, end: int, *, seals: bool, at_once: int
) -> Iterator[Found]:
    """Do `walk` newest first. The caller may stop early, so the first records are those in their
    slots.
    """
    # The positions before it are not walked yet.
    bottom = first = max(start, end - keys.BLOCK)
    term: int | None = None

    def walked(stretch: Opened | range) -> Iterator[Found]:
        if isinstance(stretch, Opened):
            return _copied_back(log, stretch, start, bottom)
        return _walk(
            log,
            stretch.start,
            stretch.stop,
            newest_first=True,
            most=None,
            seals=True,
            at_once=at_once,
            lowest=start if stretch.stop == end else None,
            term=term,
        )

    def stretches() -> Iterator[Opened | range]:
        yield range(first, end)
        if start < bottom:
            yield from Segments(log.view).newest_first(start, bottom)

    for stretch in stretches():
        for item in walked(stretch):
            if isinstance(item, Collected):
                yield Collected(start, item.end)
                return
            if isinstance(item, MissingRecord):
                # A long hole may reach further down.
                bottom = min(bottom, item.position)
            if isinstance(item, SlotRecord):
                term = item.header.term
            if seals or not (isinstance(item, SlotRecord) and is_seal(item)):
                yield item


def _copied_back(log: LogRange, segment: Opened, start: int, end: int) -> Iterator[Found]:
    """The records of a segment at positions start … end−1, newest first."""
    for record in reversed([*segment.records(start, end)]):
        floor = log.floor.current()
        if record.header.position < floor:
            yield Collected(start, floor)
            return
        yield record


def _walk(
    log: LogRange,
    start: int,
    end: int,
    *,
    newest_first: bool,
    most: int | None,
    seals: bool,
    at_once: int,
    term: int | None = None,
    lowest: int | None = None,
) -> Iterator[Found]:
    """Do `walk` by the records in their slots.

    Args:
        term: newest first, the term of the first live record after `end`; by default the head's.
        lowest: newest first, the lowest position that a long hole may reach; by default `start`.
    """
    assert log.live is not None and log.log_id is not None
    newest = log.live
    log_id = log.log_id
    window = log.window
    view = LogView(log.log, window, damage=LENIENT)
    # The term of the last live record. The head has the highest term.
    live: int | None = None
    if newest_first:
        live = newest.header.term if term is None else term

    def is_newest(position: int) -> bool:
        return position == newest.header.position

    def first(position: int) -> Range | None:
        if is_newest(position):
            return None
        return first_range(log.log, position, window, GLANCE, likely=GLANCE)

    def fetch(position: int, get_range: GetRange) -> SlotRecord | InvalidLogError | None:
        """The record or its damage; None for a torn record, which counts as a dead one."""
        if is_newest(position):
            return newest
        try:
            record = read_slot(log.log, position, window, GLANCE, get_range)
        except TornRecord as torn:
            return damage_of(torn)
        except InvalidLogError as error:
            return error
        record = record or copied(log.log, position, window, log_id)
        return record or MissingRecord(log.log, position, window)

    def damage_of(torn: TornRecord) -> InvalidLogError | None:
        try:
            passed_by(view, torn)
        except InvalidLogError as error:
            return error
        return None

    def counts(record: SlotRecord) -> bool:
        nonlocal live
        check_log(log.log, record, log_id)
        term = record.header.term
        if live is None or (newest_first and term != live):
            # Below a live record all records of the same term are live.
            run = settled_run(view, record)
            # Each record after a torn one needs a look-back of its own.
            live = run.term if not run.torn else live if newest_first else None
            return run.live is record
        live = max(live, term)
        return term == live

    left = end - start if most is None else most
    while start < end and left > 0:
        count, at_once = min(end - start, left, at_once), min(2 * at_once, _CHUNK)
        chunk = range(end - 1, end - 1 - count, -1) if newest_first else range(start, start + count)
        start, end = (start, chunk[-1]) if newest_first else (chunk[-1] + 1, end)
        records = read_parallel(log.log.store, fetch, chunk, first_range=first)
        empty = 0
        for position, item in zip(chunk, records, strict=True):
            empty += isinstance(item, MissingRecord)
            # Check the floor after reading: below it the record may be a stray.
            floor = log.floor.current()
            if floor > position:
                yield Collected(start if newest_first else position, floor)
                if newest_first:
                    return
                start = floor
                break
            if item is None:
                live = live if newest_first else None
                continue
            if isinstance(item, InvalidLogError) or (counts(item) and (seals or not is_seal(item))):
                left -= 1
                yield item
        if empty == count >= LONG_HOLE and start < end:
            begin = start if lowest is None else lowest
            hole = _hole(log, begin, end, newest_first=newest_first)
            if hole is not None:
                left -= 1
                start, end = (start, hole.position) if newest_first else (hole.end, end)
                yield hole


def _hole(log: LogRange, start: int, end: int, *, newest_first: bool) -> MissingRecord | None:
    """The positions without any object at one end of start … end−1. Costs a few LISTs."""
    if newest_first:
        begin = max(start, last_listed(log.log, log.window, end) + 1)
        return MissingRecord(log.log, begin, log.window, end=end) if begin < end else None
    after = first_listed(log.log, log.window, start, end)
    return MissingRecord(log.log, start, log.window, end=after) if after > start else None


def apply_policy(log: LogRange, items: Iterable[Found]) -> Iterator[SlotRecord | InvalidLogError]:
    """Apply the log's policy for damage to the items of `walk`.

    Yields:
        The records, and the damage that the policy reports.

    Raises:
        CollectedError: positions were collected, and the policy does not skip them.
        InvalidLogError: a record is damaged or missing, and the policy does not continue after it.
    """
    for item in items:
        if isinstance(item, Collected):
            log.floor.check(item.start)
            continue
        if isinstance(item, InvalidLogError):
            if log.damage.report is not None:
                log.damage.report(item)
            elif log.damage.skips_lost and isinstance(item, MissingRecord):
                continue
            else:
                raise item
        yield item


def is_seal(record: SlotRecord) -> bool:
    """Whether a record is a seal: it repeats the leader record before it."""
    return isinstance(record.header, LeaderHeader) and record.header.reason == SEAL


class Follower:
    """Follows a log that has looked. `position` is that of the current record, or else the next
    one."""

    def __init__(self, log: LogRange, position: int) -> None:
        self.log = log
        self.position = position
        self._log_id = log.log_id
        self._idle = 0

    def new(
        self, *, floor: bool = True, at_once: int = WIDEST_PROBE, size: int = GLANCE
    ) -> Iterator[SlotRecord | Collected]:
        """Read the live records since the last look, and the positions that were collected
        meanwhile.

        It costs 1 GET if no record is new, and sometimes 1 more. If the caller ends in the middle
        of a record, the next call delivers that record again.

        Args:
            floor: look at the floor too. Without it a recreated log is noticed only at its next
                record.
            at_once: the number of records that are requested first.
            size: the bytes of each record that are read.

        Raises:
            AnotherLog: the log was deleted or recreated.
            InvalidLogError: a record is damaged.
        """
        log = self.log
        end = log.refresh(floor=floor)
        self._idle = 0 if end > self.position else self._idle + 1
        is_another = log.log_id != self._log_id
        if floor and self._idle >= _IDLE_LOOKS and not is_another and log.log_id is not None:
            self._idle = 0
            last = read_slot(log.log, log.gap - 1, log.window, GLANCE)
            is_another = last is None or last.header.log_id != log.log_id
        if is_another:
            raise AnotherLog(
                f"the log {self._log_id} at {log.log.url} was deleted or recreated: begin again "
                "with the log that exists now"
            )
        if end <= self.position:
            return
        try:
            for record in log.records(self.position, end, at_once=at_once, size=size):
                self.position = record.header.position
                yield record
                self.position += 1
            self.position = end
        except CollectedError as error:
            yield Collected(self.position, error.floor)
            self.position = error.floor
        log.forget(self.position)
