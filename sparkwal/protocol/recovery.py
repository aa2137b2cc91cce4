"""One LIST → the head of the log, however long the log is.

Because numbers count down, the first 1000 keys are the newest 1000 objects, and
that is enough to see the first gap: at most 1000 slots are in flight at once,
and a window of 1000 has at most 999 data objects before its slot.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from sparkwal.errors import InvalidLogError
from sparkwal.format import keys
from sparkwal.protocol.log_store import LogStore
from sparkwal.protocol.slots import SlotRecord, WrongWindow, read_header, read_slot
from sparkwal.store.listing import first_entries
from sparkwal.store.parallel import run_parallel

LIST_LIMIT = 1000
DEFAULT_WINDOW = 1000


@dataclass(frozen=True)
class Head:
    """Where the log ends.

    Attributes:
        position: the last slot before the first gap; −1 in an empty log.
        live: the last live record at or before `position`; None in an empty log.
            Its term, transactions, schema and in-flight limit are the log's.
        window: numbers for each position.
        oldest: the first position whose slot the LIST showed, where it showed all there is: fewer
            objects than a collection leaves.
    """

    position: int
    live: SlotRecord | None
    window: int
    oldest: int | None = None

    @property
    def gap(self) -> int:
        """The first position that no record holds."""
        return self.position + 1

    @property
    def in_flight_limit(self) -> int:
        """Slots from the gap on that writers so far may still reach; 1 in an empty log."""
        return self.live.header.in_flight_limit if self.live else 1


def find_head(log: LogStore, window_guess: int = DEFAULT_WINDOW, *, tolerant: bool = False) -> Head:
    """The head by one LIST and, in a log that only the sink wrote, one GET.

    Args:
        window_guess: saves one or two GETs when it is the log's window.
        tolerant: where records are missing or damaged, report the newest intact one
            instead of raising. For readers told to go on; a writer must never do
            this, its record would kill acknowledged commits.

    Raises InvalidLogError where a record is damaged, or missing though the protocol wrote it.
    """
    try:
        return _find_head(log, window_guess, tolerant)
    except MissingRecord:
        # A LIST is not a snapshot: what looks like a hole may have been filled
        # while it ran. Only a hole that is there twice is one.
        return _find_head(log, window_guess, tolerant)


class MissingRecord(InvalidLogError):
    """A record is absent though later objects prove that it was written."""


def _find_head(log: LogStore, window: int, tolerant: bool) -> Head:
    start = keys.batches_prefix(log.prefix)
    page = first_entries(log.store, start, LIST_LIMIT)
    named = (keys.decode(entry.key.removeprefix(start)) for entry in page.entries)
    numbers = [number for number in named if number is not None]
    if not numbers:
        return Head(-1, None, window)
    try:
        last, record = _last_record(log, numbers, window, page.more, tolerant)
        if record is None:
            # Perhaps the assumed window is wrong; any object tells the true one.
            newest = read_header(log, numbers[0])
            if newest is not None and newest.window != window:
                raise WrongWindow("", newest.window)
    except WrongWindow as wrong:
        window = wrong.window
        last, record = _last_record(log, numbers, window, page.more, tolerant)
    newest_position = keys.position(numbers[0], window)
    head = _head(log, last, record, window, tolerant)
    # A writer of limit m sends nothing beyond the first gap + m − 1. What lies
    # further on was written when the gap was still filled: a record was lost.
    if record is None or newest_position > last + head.in_flight_limit:
        if not tolerant:
            raise MissingRecord(_lost(log, last + 1, numbers, window))
        slots = [n for n in numbers if keys.is_slot(n, window)]
        last, record = -1, None
        if slots:
            last, record = _intact(log, keys.position(slots[0], window), window, tolerant)
        head = _head(log, last, record, window, tolerant)
    # A collection leaves 1000 slots below its bound. A full page may be all there is, and be short
    # of nothing.
    # Safety (§10): "a full LIST counts as the whole of a log"
    if page.more or len(page.entries) >= LIST_LIMIT:
        return head
    slots = [n for n in numbers if keys.is_slot(n, window)]
    return replace(head, oldest=keys.position(slots[-1], window) if slots else None)


def _head(log: LogStore, last: int, record: SlotRecord | None, window: int, tolerant: bool) -> Head:
    live = last_live(log, record, tolerant=tolerant) if record is not None else None
    return Head(last, live, window)


def _intact(
    log: LogStore, position: int, window: int, tolerant: bool
) -> tuple[int, SlotRecord | None]:
    """`position` and its record; for the tolerant the newest intact one at or before it.

    Raises InvalidLogError for a damaged record; to the tolerant where none is intact.
    """
    while True:
        try:
            record = read_slot(log, position, window)
            if record is not None or not tolerant or position == 0:
                return position, record
        except WrongWindow:
            raise
        except InvalidLogError:
            if not tolerant or position == 0:
                raise
        position -= 1


def _last_record(
    log: LogStore,
    numbers: list[int],
    window: int,
    truncated: bool,
    tolerant: bool,
) -> tuple[int, SlotRecord | None]:
    """The last position before the first gap, and its record."""
    newest = keys.position(numbers[0], window)
    listed = {keys.position(n, window) for n in numbers if keys.is_slot(n, window)}
    # From here on every slot that exists is in the LIST.
    oldest = -((numbers[-1] - keys.MAX) // window)
    low = oldest if truncated else min(listed, default=0)
    if low > newest:
        # Only with windows above 1000: the LIST shows nothing but data of one window.
        record = read_slot(log, newest, window)
        if record is not None:
            return newest, record
        low = newest
    gap = low
    # Safety (§4): "the leader record goes after the highest slot instead of into the first gap"
    while gap in listed:
        gap += 1
    if gap == 0:
        return -1, None
    return _intact(log, gap - 1, window, tolerant)


def _lost(log: LogStore, position: int, numbers: list[int], window: int) -> str:
    number = keys.slot(position, window)
    return (
        f"the record of position {position} is missing ({log.where(number)}), yet later objects "
        f"exist (newest number {numbers[0]}). It was deleted from outside: restore it (for "
        "example from a bucket version), or read what is there with failOnDataLoss=false; to begin "
        "a new log at this path delete the rest of the old one first. Nothing was written"
    )


def last_live(log: LogStore, record: SlotRecord, *, tolerant: bool = False) -> SlotRecord:
    """The last live record at or before `record`.

    Args:
        tolerant: judge by the records that are there and intact, instead of raising.

    A record whose term is lower than one before it is dead: its writer had been
    fenced when it arrived. A writer of limit m leaves dead records only within
    the m−1 positions after the leader record that fenced it, so looking back
    m−1 slots decides, with the m of `record` itself: a commit carries its writer's
    own, a leader record or seal that of all writers that can still reach its zone. After a
    commit of the sink m is 1 and costs nothing.
    """
    limit = record.header.in_flight_limit
    # Safety (§4): "a start in the middle does not look back"
    if limit == 1:
        return record
    first = max(record.header.position - (limit - 1), 0)
    before = range(first, record.header.position)
    window = record.header.window

    def read(position: int) -> SlotRecord | None:
        try:
            return read_slot(log, position, window)
        except InvalidLogError:
            if tolerant:
                return None
            raise

    run = [*run_parallel(log.store, read, before), record]
    live: SlotRecord | None = None
    for position, found in zip([*before, record.header.position], run, strict=True):
        if found is None:
            if tolerant:
                continue
            raise MissingRecord(_lost(log, position, [record.header.number], window))
        if live is None or found.header.term >= live.header.term:
            live = found
    assert live is not None
    return live
