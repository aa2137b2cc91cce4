"""Walks the records of a log: a range in either direction, and new records as they arrive."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from sparkwal.errors import CollectedError, InvalidLogError
from sparkwal.format.header import SEAL, LeaderHeader
from sparkwal.protocol.missing import AnotherLog, MissingRecord
from sparkwal.protocol.records import LONG_HOLE, WIDEST_PROBE, live_records
from sparkwal.protocol.segments import Opened
from sparkwal.protocol.slots import GLANCE, SlotRecord, last_listed, read_slot
from sparkwal.protocol.view import DamagePolicy, LogView
from sparkwal.reading.log_range import LogRange
from sparkwal.reading.segments import Segments, read_records

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
    each next step more. With `newest_first` a takeover between two steps also costs a look-back (up
    to m − 1 GETs). Segments are read in place of the records that they copy: newest first after the
    first thousand records.

    Args:
        log: a log that has looked.
        start: the first position.
        end: the position after the last.
        newest_first: read from the end.
        most: the limit of delivered records; newest first no more positions are read than it needs.
        seals: deliver seals too.
        at_once: see above.

    Raises:
        AnotherLog: the log was recreated.
    """
    if newest_first:
        items = _newest_first(log, start, end, most=most, seals=seals, at_once=at_once)
    else:
        items = _oldest_first(log, start, end, at_once=at_once)
    yield from islice((item for item in items if seals or not is_seal(item)), most)


def _oldest_first(log: LogRange, start: int, end: int, *, at_once: int) -> Iterator[Found]:
    """Do `walk` with seals."""
    while start < end:
        for item in _with_damage(read_records, log, log.view, start, end, at_once=at_once):
            # Check the floor after reading: below it the record may be a stray.
            floor = log.floor.current()
            if start < floor:
                break
            start = max(start, _position(item) + 1)
            yield item
        else:
            if start >= end or (floor := log.floor.current()) <= start:
                return
        yield Collected(start, floor)
        start = floor


def _newest_first(
    log: LogRange, start: int, end: int, *, most: int | None, seals: bool, at_once: int
) -> Iterator[Found]:
    """Do `walk` with seals, for a caller that stops after `most` items."""
    left = end - start if most is None else most
    # More requests than run at once would only be wasted if the caller stops early.
    widest = log.log.store.concurrency
    at_once = min(at_once, widest)
    # All positions from `reached` on are read. `newest` is the first live record there, and
    # `taken` the first position there with a record.
    reached = end
    taken = end
    newest = log.live
    for stretch in Segments(log.view).newest_first(start, end):
        lowest = max(stretch.start, start)
        # Nobody has looked for segments below the first stretch.
        bottom = start if stretch.stop == end else lowest
        while lowest < reached and left > 0:
            batch: Sequence[SlotRecord | InvalidLogError]
            if isinstance(stretch, Opened):
                batch, reached = [*stretch.records(lowest, reached)], lowest
            else:
                first = max(lowest, reached - min(at_once, left))
                # Below a live record all records of its term are live.
                view = replace(log.view, newest=newest)
                read = _with_damage(live_records, log, view, first, reached, at_once=at_once)
                batch, reached = sorted(read, key=_position), first
                at_once = min(2 * at_once, widest)
            for item in reversed(batch):
                position, floor = _position(item), log.floor.current()
                if position < floor:
                    yield Collected(start, floor)
                    return
                taken = taken if isinstance(item, MissingRecord) else position
                left -= seals or not is_seal(item)
                yield item
            newest = next((item for item in batch if isinstance(item, SlotRecord)), newest)
            is_missing = bool(batch) and isinstance(batch[0], MissingRecord)
            if is_missing and taken - reached >= LONG_HOLE:
                first = max(last_listed(log.log, log.window, reached) + 1, bottom)
                if first < reached:
                    yield MissingRecord(log.log, first, log.window, end=reached)
                reached = first


def _with_damage(
    read: Callable[..., Iterator[SlotRecord]],
    log: LogRange,
    view: LogView,
    start: int,
    end: int,
    *,
    at_once: int,
) -> Iterator[SlotRecord | InvalidLogError]:
    """The live records of positions start … end−1 as `read` delivers them, and the damage there."""
    assert log.live is not None
    damage: list[InvalidLogError] = []

    def report(error: InvalidLogError) -> None:
        # A look-back may find damage before them.
        if error.position is None or error.position >= start:
            damage.append(error)

    view = replace(view, damage=DamagePolicy(report=report))
    cached = {log.live.header.position: log.live}
    for record in read(view, start, end, cached=cached, size=GLANCE, at_once=at_once):
        yield from damage
        damage.clear()
        yield record
    yield from damage


def _position(item: SlotRecord | InvalidLogError) -> int:
    position = item.header.position if isinstance(item, SlotRecord) else item.position
    assert position is not None
    return position


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


def is_seal(item: Found) -> bool:
    """Whether an item is a seal: a record that repeats the leader record before it."""
    header = item.header if isinstance(item, SlotRecord) else None
    return isinstance(header, LeaderHeader) and header.reason == SEAL


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
