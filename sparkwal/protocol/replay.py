"""Reading the log in order: a range of records, new records at the head, a moment."""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from operator import itemgetter
from types import MappingProxyType

from sparkwal.errors import InvalidLogError
from sparkwal.format import keys
from sparkwal.format.header import CommitHeader
from sparkwal.protocol.recovery import Head, MissingRecord, last_live
from sparkwal.protocol.slots import (
    GLANCE,
    WHOLE,
    SlotRecord,
    fetch_slot,
    first_get,
    first_listed,
    open_slot,
    read_slot,
)
from sparkwal.store.base import LogStore
from sparkwal.store.parallel import SMALL, Reply, run_parallel

# The most records fetched at once. A probe grows up to this while more records come.
WIDEST_PROBE = 32
# After so many positions without a record it is asked where the next one is: somebody may have put
# one at any position.
LONG_HOLE = 16
# Bytes requested ahead of the reader.
_AHEAD = WIDEST_PROBE * WHOLE


class AnotherLog(InvalidLogError):
    """A record of a log that was recreated at the same path."""


def live_records(
    log: LogStore,
    window: int,
    start: int,
    end: int,
    *,
    log_id: str | None = None,
    term: int | None = None,
    head: Head | None = None,
    tolerant: bool = False,
    known: Mapping[int, SlotRecord] = MappingProxyType({}),
    size: int = WHOLE,
    at_once: int = 1,
    on_damage: Callable[[InvalidLogError], None] | None = None,
) -> Iterator[SlotRecord]:
    """The live records, commits and leaders, of the positions start … end−1, in order.

    Args:
        end: at most the head's gap: every position below must hold a record.
        log_id: the log that is read; None: the first record has it.
        term: of the last live record before `start`; None: it is read from the records before.
        tolerant: pass over a position without a record, instead of raising.
        known: records that need not be fetched again.
        size: bytes to read of each; GLANCE for a caller that does not read their rows.
        at_once: records to fetch at once in the beginning; WIDEST_PROBE to read all of them.
        on_damage: gets the error of each missing or damaged record, instead of raising.

    Raises InvalidLogError for a missing or damaged record, AnotherLog (one of them).
    """
    asked = size
    largest = 0
    are_small = size <= SMALL
    # While all records are small, ask for less of each. A larger one costs another request.
    wide = min(size, _AHEAD // max(log.store.concurrency, 1))

    # So many positions in a row have no record.
    empty = 0
    goes_on = tolerant or on_damage is not None

    def fetch(
        each: tuple[int, int], sent: Reply | None = None
    ) -> tuple[int, bytes | InvalidLogError | None]:
        position, size = each
        front = None if position in known else fetch_slot(log, position, window, size, sent)
        return position, front

    def positions() -> Iterator[int]:
        nonlocal empty
        position = start
        # SAFETY(read-to-head) §3: readers read every record up to the head
        while position < end:
            yield position
            position += 1
            if empty >= LONG_HOLE and goes_on:
                empty = 0
                begin, position = position, first_listed(log, window, position, end)
                if position > begin and on_damage is not None:
                    on_damage(MissingRecord(log, begin, window, end=position))

    fetched = run_parallel(
        log.store,
        fetch,
        ((position, asked) for position in positions()),
        at_once=at_once,
        weigh=itemgetter(1),
        capacity=_AHEAD,
        is_here=lambda each: each[0] in known,
        gets=lambda each: first_get(log, each[0], window, each[1]) if are_small else None,
    )
    for position, front in fetched:
        try:
            # Decode in this thread: decoding threads would wait for each other.
            record = known.get(position) or open_slot(log, position, window, front)
            empty = 0 if record or front else empty + 1
            if record is None and not tolerant:
                raise MissingRecord(log, position, window)
        except InvalidLogError as error:
            if on_damage is None:
                raise
            on_damage(error)
            continue
        if record is None:
            continue
        largest = max(largest, record.size)
        many = position - start >= WIDEST_PROBE
        asked = wide if many and largest <= wide else size
        are_small = size <= SMALL or many and largest <= SMALL
        log_id = log_id or record.header.log_id
        check_log(log, record, log_id)
        if term is None:
            # A reader that starts in the middle does not know yet whether this record is dead.
            live = last_live(log, record, tolerant=tolerant or on_damage is not None, head=head)
            term = live.header.term
        # SAFETY(skip-dead) §3: readers skip a record with a lower term than one before it
        if record.header.term < term:
            continue
        # SAFETY(deliver-live) §3: readers deliver every live record
        term = record.header.term
        yield record


def check_log(log: LogStore, record: SlotRecord, log_id: str) -> None:
    """Raises AnotherLog for a record of another log than `log_id`."""
    # Rows of two logs must not be taken for one: neither positions nor order hold.
    if record.header.log_id != log_id:
        raise AnotherLog(
            f"the log at {log.url} was recreated while it was read: position "
            f"{record.header.position} belongs to the log {record.header.log_id}, what was read "
            f"before it to {log_id}. Read it from the start; a stream needs a new checkpoint"
        )


def newer(log: LogStore, window: int, gap: int, log_id: str | None) -> Iterator[SlotRecord]:
    """The records of the log `log_id` from `gap` up to the first gap: one GET if there is none. It
    probes a busy log wider and wider. Raises InvalidLogError for a damaged record; MissingRecord if
    a record after the gap shows that the gap was once filled; AnotherLog."""

    def fetch(position: int) -> SlotRecord | None:
        return read_slot(log, position, window, GLANCE)

    width, end = 1, keys.last_position(window)
    while gap < end:
        chunk = range(gap, min(gap + width, end))
        records = run_parallel(log.store, fetch, chunk)
        for position, record in zip(chunk, records, strict=True):
            # A record after a gap is not committed, but it may know that the gap was once filled.
            if record is None:
                asked = islice(records, log.store.concurrency - 1)  # at once with the gap
                for later in filter(None, asked):
                    # The gap may have been filled since its first GET.
                    if later.knows(position, log_id) and fetch(position) is None:
                        raise MissingRecord(log, position, window)
                return
            check_log(log, record, log_id or record.header.log_id)
            yield record
        gap, width = chunk.stop, min(width * 2, WIDEST_PROBE)


def first_at_or_after(
    log: LogStore, head: Head, timestamp_ms: int, *, tolerant: bool = False, start: int = 0
) -> int:
    """The first position from `start` on whose record is not older than `timestamp_ms`, by binary
    search: log₂ n GETs; the head's gap if all are older, without a request where the head's live
    record is known. Timestamps never go back along live records. If tolerant, a position without an
    intact record counts as the next one that has one."""
    if head.live is not None and head.live.header.timestamp_ms < timestamp_ms:
        return max(head.gap, start)

    def holds(position: int) -> bool:
        tried = 0
        while (record := read_slot(log, position, head.window, GLANCE, tolerant=tolerant)) is None:
            if not tolerant:
                raise MissingRecord(log, position, head.window)
            position += 1
            tried += 1
            if tried % LONG_HOLE == 0:
                position = first_listed(log, head.window, position, head.gap)
            if position == head.gap:
                return True
        # A dead record has a fenced writer's time; the live one before it counts.
        live = last_live(log, record, tolerant=tolerant, head=head)
        return live.header.timestamp_ms >= timestamp_ms

    return start + bisect_left(range(start, head.gap), True, key=holds)


def about_bytes(log: LogStore, window: int, start: int, end: int, samples: int) -> int:
    """About how many bytes the commits of start … end−1 hold: `samples` GETs at most."""

    def size(position: int) -> int:
        # The read reports what is damaged.
        record = read_slot(log, position, window, GLANCE, tolerant=True)
        return record.header.bytes if record and isinstance(record.header, CommitHeader) else 0

    count = max(end - start, 0)
    taken = min(count, samples)
    positions = [start + count * i // taken for i in range(taken)]
    return sum(run_parallel(log.store, size, positions)) * count // max(taken, 1)
