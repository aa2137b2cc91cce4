"""The records of a log one after another: a range, either way, and new ones as they come."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from sparkwal.errors import CollectedError, InvalidLogError
from sparkwal.format.header import SEAL, LeaderHeader
from sparkwal.protocol.recovery import MissingRecord, last_live
from sparkwal.protocol.replay import LONG_HOLE, WIDEST_PROBE, AnotherLog, check_log
from sparkwal.protocol.slots import (
    GLANCE,
    SlotRecord,
    first_listed,
    first_range,
    last_listed,
    read_slot,
)
from sparkwal.reading.log_range import LogRange
from sparkwal.store.parallel import GetRange, Range, read_parallel

# Records asked for before any of them is delivered, at most.
_CHUNK = 256
# So many idle looks later it is asked whether the last record is still there: a log that was
# recreated has free positions where the former one goes on.
_IDLE_LOOKS = 10


@dataclass(frozen=True)
class Collected:
    """Positions start … end−1 left the log while it was read."""

    start: int
    end: int


# An error, with its `position`, is of one below the head that holds no intact record.
Found = SlotRecord | InvalidLogError | Collected


def walk(
    log: LogRange,
    start: int,
    end: int,
    *,
    newest_first: bool,
    most: int | None = None,
    seals: bool = False,
    at_once: int = _CHUNK,
) -> Iterator[Found]:
    """The live records of positions start … end−1, at most the log's gap, headers alone; seals only
    if they are asked for. Raises AnotherLog where the log was recreated.

    1 GET for each position but the head's, and not more positions than `most` needs; they are asked
    for in steps of `at_once`, then of twice as many. Newest first also what a look-back takes
    (m − 1 GETs) where another leader took over.
    """
    assert log.live is not None and log.log_id is not None
    newest = log.live
    log_id = log.log_id
    window = log.window
    # Of the last live record that was seen. No record's is greater than that of the head.
    live: int | None = newest.header.term if newest_first else None

    def is_newest(position: int) -> bool:
        return position == newest.header.position

    def first(position: int) -> Range | None:
        if is_newest(position):
            return None
        return first_range(log.log, position, window, GLANCE, likely=GLANCE)

    def fetch(position: int, get_range: GetRange) -> SlotRecord | InvalidLogError:
        if is_newest(position):
            return newest
        try:
            found = read_slot(log.log, position, window, GLANCE, get_range)
        except InvalidLogError as error:
            return error
        return found or MissingRecord(log.log, position, window)

    def counts(record: SlotRecord) -> bool:
        nonlocal live
        check_log(log.log, record, log_id)
        term = record.header.term
        if live is None or (newest_first and term != live):
            # Below a live record of the same term all of that term are live.
            last = last_live(log.log, record, tolerant=True)
            live = last.header.term
            return last is record
        live = max(live, term)
        return term == live

    left = end - start if most is None else most
    while start < end and left > 0:
        count, at_once = min(end - start, left, at_once), min(2 * at_once, _CHUNK)
        chunk = range(end - 1, end - 1 - count, -1) if newest_first else range(start, start + count)
        start, end = (start, chunk[-1]) if newest_first else (chunk[-1] + 1, end)
        records = read_parallel(log.log.store, fetch, chunk, first_range=first)
        empty = 0
        for position, found in zip(chunk, records, strict=True):
            empty += isinstance(found, MissingRecord)
            # Asked after it was read: what is there may be a stray.
            floor = log.floor.current()
            if floor > position:
                yield Collected(start if newest_first else position, floor)
                if newest_first:
                    return
                start = floor
                break
            if isinstance(found, InvalidLogError) or (
                counts(found) and (seals or not is_seal(found))
            ):
                left -= 1
                yield found
        if empty == count >= LONG_HOLE and start < end:
            hole = _hole(log, start, end, newest_first)
            if hole is not None:
                left -= 1
                start, end = (start, hole.position) if newest_first else (hole.end, end)
                yield hole


def _hole(log: LogRange, start: int, end: int, newest_first: bool) -> MissingRecord | None:
    """The positions without any object at one end of start … end−1: a few LISTs."""
    if newest_first:
        begin = max(start, last_listed(log.log, log.window, end) + 1)
        return MissingRecord(log.log, begin, log.window, end=end) if begin < end else None
    after = first_listed(log.log, log.window, start, end)
    return MissingRecord(log.log, start, log.window, end=after) if after > start else None


def sound(log: LogRange, found: Iterable[Found]) -> Iterator[SlotRecord | InvalidLogError]:
    """What `walk` found. Raises CollectedError, and the error of a damaged or missing record unless
    the log passes it over; a missing one is left out with failOnDataLoss=false."""
    for each in found:
        if isinstance(each, Collected):
            log.floor.check(each.start)
            continue
        if isinstance(each, InvalidLogError):
            if log.passed_over is not None:
                log.passed_over(each)
            elif log.options.tolerant and isinstance(each, MissingRecord):
                continue
            else:
                raise each
        yield each


def is_seal(record: SlotRecord) -> bool:
    """Whether a record says no more than the leader record before it."""
    return isinstance(record.header, LeaderHeader) and record.header.reason == SEAL


class Follower:
    """Goes along a log that has looked; `position` is that of the record that is looked at, else
    the next one to come."""

    def __init__(self, log: LogRange, position: int) -> None:
        self.log, self.position = log, position
        self._log_id = log.log_id
        self._idle = 0

    def new(
        self, *, floor: bool = True, at_once: int = WIDEST_PROBE, size: int = GLANCE
    ) -> Iterator[SlotRecord | Collected]:
        """The live records that came since the last look, and what was collected meanwhile: 1 GET
        where nothing came, now and then 1 more. Who ends in the middle of a record gets it once
        more. Without the `floor` a log that was recreated is found only where its records are.
        Raises AnotherLog where it was, or is gone; InvalidLogError."""
        log = self.log
        end = log.look(floor=floor)
        self._idle = 0 if end > self.position else self._idle + 1
        gone = log.log_id != self._log_id
        if floor and self._idle >= _IDLE_LOOKS and not gone and log.log_id is not None:
            self._idle = 0
            last = read_slot(log.log, log.gap - 1, log.window, GLANCE)
            gone = last is None or last.header.log_id != log.log_id
        if gone:
            raise AnotherLog(
                f"the log {self._log_id} at {log.log.url} is gone, or was recreated: follow what "
                "is there now anew"
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
