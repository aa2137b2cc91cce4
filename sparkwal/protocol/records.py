"""Reads the log in order: the records of a range, new records at the head, the position of a
time."""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from itertools import count, islice
from operator import itemgetter
from types import MappingProxyType

from sparkwal.errors import InvalidLogError
from sparkwal.format import keys
from sparkwal.format.header import CommitHeader, LeaderHeader
from sparkwal.protocol.liveness import Run, Slot, passed_by, report_passed, run_to
from sparkwal.protocol.missing import MissingRecord
from sparkwal.protocol.recovery import Head, last_live
from sparkwal.protocol.slots import (
    GLANCE,
    WHOLE,
    SlotRecord,
    TornRecord,
    copied,
    fetch_slot,
    first_listed,
    first_range,
    open_again,
    read_any,
    read_slot,
    read_taken,
)
from sparkwal.store.base import LogStore
from sparkwal.store.parallel import GetRange, Range, read_parallel, run_parallel

# The maximum number of records that are fetched at once. A probe grows up to this.
WIDEST_PROBE = 32
# After this many positions without a record, LISTs find the next one: anyone may have put a record
# at any position.
LONG_HOLE = 16
# The bytes that are requested ahead of the reader.
_AHEAD = WIDEST_PROBE * WHOLE


class AnotherLog(InvalidLogError):
    """A record of another log: this one was recreated at the same path."""


class _RequestSize:
    """The number of bytes to request of each record of a read.

    The first records are requested with all bytes that the caller wants. If they were small, later
    requests are smaller, so that more of them fit into `_AHEAD`; a larger record then costs another
    request.

    Attributes:
        asked: the bytes to request of the next record.
        likely: the bytes that its reply probably has.
    """

    def __init__(self, size: int, concurrency: int) -> None:
        self.asked = size
        self.likely = size
        self._size = size
        self._small = min(size, _AHEAD // max(concurrency, 1))
        self._largest = 0

    def note(self, record: SlotRecord, position: int) -> None:
        """Take the size of a record into account, the one at `position` of the read."""
        self._largest = max(self._largest, record.size)
        if position >= WIDEST_PROBE:
            self.asked = self._small if self._largest <= self._small else self._size
            self.likely = min(self._size, self._largest)


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
    cached: Mapping[int, SlotRecord] = MappingProxyType({}),
    size: int = WHOLE,
    at_once: int = 1,
    on_damage: Callable[[InvalidLogError], None] | None = None,
) -> Iterator[SlotRecord]:
    """Read the live records, commits and leaders, of positions start … end−1 in order.

    Args:
        log: the log.
        window: its window.
        start: the first position.
        end: at most the head's gap: every position below must hold a record.
        log_id: the id of the log. Without it the first record decides.
        term: the term of the last live record before `start`. Without it the records before
            `start` are read to find out whether the first one is dead (`run_to`).
        head: the head, if the caller has read it and it is intact. It may save that.
        tolerant: skip a position without a record instead of raising.
        cached: records by position that need not be fetched again.
        size: the bytes to read of each record; GLANCE for a caller that does not read their rows.
        at_once: the number of requests to begin with, which grows as records are consumed.
            WIDEST_PROBE suits a caller that reads the whole range.
        on_damage: gets the error of each missing or damaged record, which is then not raised.

    Raises:
        InvalidLogError: a record is missing or damaged.
        AnotherLog: the log was recreated.
    """
    request_size = _RequestSize(size, log.store.concurrency)
    # The number of positions in a row without a record.
    empty = 0
    continues = tolerant or on_damage is not None

    def fetch(
        request: tuple[int, int], get_range: GetRange
    ) -> tuple[int, bytes | InvalidLogError | None]:
        position, size = request
        is_cached = position in cached
        front = None if is_cached else fetch_slot(log, position, window, size, get_range)
        return position, front

    def first(request: tuple[int, int]) -> Range | None:
        position, size = request
        if position in cached:
            return None
        return first_range(log, position, window, size, request_size.likely)

    def positions() -> Iterator[int]:
        nonlocal empty
        position = start
        # SAFETY(read-to-head) §3: readers read every record up to the head
        while position < end:
            yield position
            position += 1
            if empty >= LONG_HOLE and continues:
                empty = 0
                begin, position = position, first_listed(log, window, position, end)
                if position > begin and on_damage is not None:
                    on_damage(MissingRecord(log, begin, window, end=position))

    fetched = read_parallel(
        log.store,
        fetch,
        ((position, request_size.asked) for position in positions()),
        first_range=first,
        at_once=at_once,
        weigh=itemgetter(1),
        capacity=_AHEAD,
    )
    run = Run(term) if term is not None else None
    newest = head.live if head else None

    def judge(slot: Slot) -> list[SlotRecord]:
        """The records that are live, now that this slot was read."""
        nonlocal run
        if run is None:
            # A read that starts in the middle must first find out whether this record is dead.
            run = run_to(log, slot, window, tolerant=continues, newest=newest)
            return [slot] if isinstance(slot, SlotRecord) and run.live is slot else []
        try:
            return run.add(slot)
        except TornRecord as error:
            if on_damage is None:
                raise
            on_damage(error)
            return [*run.give_up(), *run.add(slot)]

    for position, front in fetched:
        try:
            # Decode in this thread: decoding threads would wait for each other.
            record = cached.get(position) or open_again(log, position, window, front, size)
            if record is None:
                record = copied(log, position, window, log_id)
            empty = 0 if record or front is not None else empty + 1
            if record is None and not tolerant:
                raise MissingRecord(log, position, window)
        except TornRecord as torn:
            judge(torn)
            continue
        except InvalidLogError as error:
            if on_damage is None:
                raise
            on_damage(error)
            continue
        if record is None:
            continue
        request_size.note(record, position - start)
        log_id = log_id or record.header.log_id
        check_log(log, record, log_id)
        before = run.live if run is not None else None
        last_term = run.term if run is not None else None
        judged = judge(record)
        if not continues and judged and judged[0] is record:
            _check_link(log, record, before, last_term)
        # SAFETY(deliver-live) §3: readers deliver every live record
        yield from (live for live in judged if live.header.position >= start)
    if run is not None and run.torn:
        yield from _settled(log, window, end, judge, run)
    if run is not None:
        report_passed(log, (torn for torn in run.passed if start <= torn.position < end))


def _check_link(
    log: LogStore, record: SlotRecord, before: SlotRecord | None, term: int | None
) -> None:
    """Check that a live record follows the one `before`, and the last `term`, if they are known.

    Raises:
        InvalidLogError: the record belongs to another history of the log, as after a restore from
            a backup.
    """
    header, last = record.header, before.header if before is not None else None
    fault = ""
    if not isinstance(header, LeaderHeader) and term is not None and header.term > term:
        fault = "begins a new term without a leader record"
    elif last is not None and header.timestamp_ms < last.timestamp_ms:
        fault = "is older than the record before it"
    elif last is not None and isinstance(header, CommitHeader):
        last_batch, _ = last.txns.get(header.query_id, (-1, 0))
        if last_batch >= header.batch_id:
            fault = f"repeats number {header.batch_id} of {header.query_id}"
    if not fault:
        return
    error = InvalidLogError(
        f"{log.locate(header.number, header.window)}: it {fault}, so it does not follow the record "
        "before it. Probably an older copy of the log was restored, and this object was left: move "
        "it away, or read up to the position before it (endingPosition, or onCorruption=stop)"
    )
    error.position = header.position
    raise error


def _settled(
    log: LogStore, window: int, end: int, judge: Callable[[Slot], list[SlotRecord]], run: Run
) -> Iterator[SlotRecord]:
    """Read the slots after a range that ends with torn records, until a record decides about them.

    Either a leader record passes over them, or a record shows that they were complete once, or the
    log ends and they with it.

    Yields:
        The records before `end` that count.

    Raises:
        InvalidLogError: the torn records were complete once.
    """
    for position in count(end):
        slot = read_any(log, position, window, GLANCE)
        if slot is None:
            return
        yield from (live for live in judge(slot) if live.header.position < end)
        if not run.torn:
            return


def check_log(log: LogStore, record: SlotRecord, log_id: str) -> None:
    """Check that a record belongs to the log `log_id`.

    Raises:
        AnotherLog: it does not.
    """
    # SAFETY(records-of-one-log) §9: two logs share neither positions nor order, so no read mixes
    # their records
    if record.header.log_id != log_id:
        raise AnotherLog(
            f"the log at {log.url} was recreated while it was read: position "
            f"{record.header.position} belongs to the log {record.header.log_id}, the records "
            f"before it to {log_id}. Read it from the start; a stream needs a new checkpoint"
        )


def newer(log: LogStore, window: int, gap: int, log_id: str | None) -> Iterator[SlotRecord]:
    """Read the records of the log `log_id` from `gap` up to the first gap.

    It costs one GET if there is none. In a busy log it probes more and more positions at once.

    Raises:
        InvalidLogError: a record is damaged.
        MissingRecord: a record after the gap proves that the gap was once filled.
        AnotherLog: the log was recreated.
    """

    def fetch(position: int) -> Slot | None:
        return read_any(log, position, window, GLANCE)

    # The position of the last leader record that passed over torn records.
    passed = -1
    width = 1
    end = keys.last_position(window)
    while gap < end:
        chunk = range(gap, min(gap + width, end))
        records = run_parallel(log.store, fetch, chunk)
        for position, record in zip(chunk, records, strict=True):
            reached = position + 1
            if isinstance(record, TornRecord):
                # The log ends before it as long as no leader passed over it.
                if position > passed:
                    if (leader := passed_by(log, record, window)) is None:
                        return
                    passed = leader.header.position
                continue
            is_missing = record is None
            # A record after a gap is not committed, but it may prove that the gap was once filled.
            if record is None:
                # Their requests were sent at the same time as that of the gap.
                sent = islice(records, log.store.concurrency - 1)
                later = (slot for slot in sent if isinstance(slot, SlotRecord))
                is_lost = any(slot.proves_filled(position, log_id) for slot in later)
                # The gap may have been filled since its first GET.
                if not is_lost or fetch(position) is not None:
                    return
                record = copied(log, position, window, log_id)
                if record is None:
                    raise MissingRecord(log, position, window)
            check_log(log, record, log_id or record.header.log_id)
            yield record
            if is_missing:
                # The records after it are read again.
                break
        gap, width = reached, min(width * 2, WIDEST_PROBE)


def first_at_or_after(
    log: LogStore, head: Head, timestamp_ms: int, *, tolerant: bool = False, start: int = 0
) -> int:
    """Find the first position from `start` on whose record is not older than `timestamp_ms`.

    A binary search: log₂ n GETs. If all records are older, it is the head's gap, without a request
    if the head's live record is known. Timestamps never go back along live records. If tolerant, a
    position without an intact record counts as the next one with one.

    Raises:
        InvalidLogError: a record is missing or damaged.
    """
    if head.live is not None and head.live.header.timestamp_ms < timestamp_ms:
        return max(head.gap, start)

    def read(position: int) -> Slot | None:
        return read_taken(log, position, head.window, GLANCE, tolerant=tolerant)

    def is_late_enough(position: int) -> bool:
        tried = 0
        while not isinstance(record := read(position), SlotRecord):
            if record is None and not tolerant:
                raise MissingRecord(log, position, head.window)
            if record is not None and not tolerant:
                # This raises if the record was complete once.
                passed_by(log, record, head.window)
            position += 1
            tried += 1
            if tried % LONG_HOLE == 0:
                position = first_listed(log, head.window, position, head.gap)
            if position == head.gap:
                return True
        # A dead record has the time of a fenced writer, so use the live record before it.
        live = last_live(log, record, tolerant=tolerant, head=head)
        return live.header.timestamp_ms >= timestamp_ms

    return start + bisect_left(range(start, head.gap), True, key=is_late_enough)


def about_bytes(log: LogStore, window: int, start: int, end: int, samples: int) -> int:
    """Estimate the bytes of the commits of start … end−1, with at most `samples` GETs."""

    def size(position: int) -> int:
        # The read itself reports damage.
        record = read_slot(log, position, window, GLANCE, tolerant=True)
        return record.header.bytes if record and isinstance(record.header, CommitHeader) else 0

    count = max(end - start, 0)
    taken = min(count, samples)
    positions = [start + count * i // taken for i in range(taken)]
    return sum(run_parallel(log.store, size, positions)) * count // max(taken, 1)
