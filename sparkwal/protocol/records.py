"""Reads the log in order: the records of a range, new records at the head, the position of a
time."""

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from itertools import islice
from types import MappingProxyType

from sparkwal.errors import InvalidLogError
from sparkwal.format import keys
from sparkwal.format.header import CommitHeader, LeaderHeader
from sparkwal.protocol.liveness import Run, last_live, later_slots, passed_by, report_passed, run_to
from sparkwal.protocol.missing import MissingRecord, check_log
from sparkwal.protocol.slots import (
    GLANCE,
    WHOLE,
    SlotRecord,
    TornRecord,
    copied,
    first_listed,
    front_of,
    open_again,
    read_any,
    read_slot,
)
from sparkwal.protocol.view import LogView, Slot
from sparkwal.store.base import LogStore
from sparkwal.store.parallel import Range, get_many, run_parallel

# The maximum number of records that are fetched at once. A probe grows up to this.
WIDEST_PROBE = 32
# After this many positions without a record, LISTs find the next one: anyone may have put a record
# at any position.
LONG_HOLE = 16
_NONE: Mapping[int, SlotRecord] = MappingProxyType({})


class _Positions:
    """The positions of a read in order, without those that a LIST shows to be empty.

    Attributes:
        empty: how many positions in a row had no record.
    """

    def __init__(self, view: LogView, start: int, end: int) -> None:
        self.empty = 0
        self._view = view
        self._start = start
        self._end = end

    def __iter__(self) -> Iterator[int]:
        position, end = self._start, self._end
        # SAFETY(read-to-head) §3: readers read every record up to the head
        while position < end:
            yield position
            position += 1
            if self.empty >= LONG_HOLE and self._view.damage.continues:
                self.empty = 0
                position = self._after_hole(position)

    def _after_hole(self, begin: int) -> int:
        view = self._view
        position = first_listed(view.log, view.window, begin, self._end)
        if position > begin and view.damage.report is not None:
            view.damage.report(MissingRecord(view.log, begin, view.window, end=position))
        return position


class Judge:
    """Judges the slots of a read, from its first one on. The view's policy gets torn records that
    were complete once.

    Args:
        view: the view of the reader.
        term: the term of the last live record before the read, or None if it is unknown.
    """

    def __init__(self, view: LogView, term: int | None) -> None:
        self._view = view
        self.run = Run(term) if term is not None else None

    def add(self, slot: Slot) -> list[SlotRecord]:
        """Judge the next slot, and return the records that are live now.

        Raises:
            InvalidLogError: a record was complete once, and the policy reports no damage; or the
                record does not follow the one before it, and the policy does not continue.
        """
        before = self.run.live if self.run is not None else None
        term = self.run.term if self.run is not None else None
        live = self._judged(slot)
        if not self._view.damage.continues and live and live[0] is slot:
            _check_link(self._view.log, live[0], before, term)
        return live

    def _judged(self, slot: Slot) -> list[SlotRecord]:
        if self.run is None:
            # A read that starts in the middle must first find out whether this record is dead.
            self.run = run_to(self._view, slot)
            return [slot] if isinstance(slot, SlotRecord) and self.run.live is slot else []
        try:
            return self.run.add(slot)
        except TornRecord:
            if self._view.damage.report is None:
                raise
            return [*self._given_up(), *self.run.add(slot)]

    def _given_up(self) -> list[SlotRecord]:
        """Report the torn records, and return the records after them that are live now."""
        assert self.run is not None and self._view.damage.report is not None
        for torn in self.run.torn:
            self._view.damage.report(torn)
        return self.run.give_up()

    def settled(self, end: int) -> Iterator[SlotRecord]:
        """Read the slots after a range that ends with torn records, until a record decides about
        them.

        Either a leader record passes over them, or a record shows that they were complete once, or
        the log ends and they with it.

        Yields:
            The records before `end` that count.

        Raises:
            InvalidLogError: the torn records were complete once, or no intact record decides; and
                the policy reports no damage.
        """
        later = later_slots(self._view, end)
        while self.run is not None and self.run.torn:
            try:
                slot = next(later, None)
            except InvalidLogError:
                if self._view.damage.report is None:
                    raise
                live = self._given_up()
            else:
                if slot is None:
                    return
                live = self._judged(slot)
            yield from (record for record in live if record.header.position < end)


def live_records(
    view: LogView,
    start: int,
    end: int,
    *,
    term: int | None = None,
    cached: Mapping[int, SlotRecord] = _NONE,
    size: int = WHOLE,
    at_once: int = 1,
) -> Iterator[SlotRecord]:
    """Read the live records, commits and leaders, of positions start … end−1 in order.

    Args:
        view: what is read. Its policy decides whether a missing or damaged record ends the read.
        start: the first position.
        end: at most the head's gap: every position below must hold a record.
        term: the term of the last live record before `start`. Without it the records before
            `start` are read to find out whether the first one is dead (`run_to`).
        cached: records by position that need not be fetched again.
        size: the bytes to read of each record; GLANCE for a caller that does not read their rows.
        at_once: the number of requests to begin with, which grows as records are consumed.
            WIDEST_PROBE suits a caller that reads the whole range.

    Raises:
        InvalidLogError: a record is missing or damaged.
        AnotherLog: the log was recreated.
    """
    damage = view.damage
    log_id = view.log_id
    positions = _Positions(view, start, end)
    judge = Judge(view, term)
    most = view.newest.likely_front if view.newest is not None else size

    def wanted(position: int) -> Range | None:
        if position in cached:
            return None
        return front_of(view.log, position, view.window, min(size, most))

    fronts = get_many(view.log.store, ((at, wanted(at)) for at in positions), at_once=at_once)
    for position, front in fronts:
        try:
            # Decode in this thread: decoding threads would wait for each other.
            record = cached.get(position) or open_again(
                view.log, position, view.window, front, size
            )
            if record is None:
                record = copied(view.log, position, view.window, log_id)
            positions.empty = 0 if record is not None else positions.empty + 1
            if record is None and not damage.skips_lost:
                raise MissingRecord(view.log, position, view.window)
        except TornRecord as torn:
            judge.add(torn)
            continue
        except InvalidLogError as error:
            if damage.report is None:
                raise
            damage.report(error)
            continue
        if record is None:
            continue
        log_id = log_id or record.header.log_id
        most = record.likely_front
        check_log(view.log, record, log_id)
        judged = judge.add(record)
        # SAFETY(deliver-live) §3: readers deliver every live record
        yield from (live for live in judged if live.header.position >= start)
    yield from judge.settled(end)
    if judge.run is not None:
        passed = (torn for torn in judge.run.passed if start <= torn.position < end)
        report_passed(view.log, passed)


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


def newer(view: LogView, gap: int) -> Iterator[SlotRecord]:
    """Read the records of the log from `gap` up to the first gap.

    It costs one GET if there is none. In a busy log it probes more and more positions at once.

    Raises:
        InvalidLogError: a record is damaged.
        MissingRecord: a record after the gap proves that the gap was once filled.
        AnotherLog: the log was recreated.
    """

    log, window = view.log, view.window
    log_id = view.log_id

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
                    if (leader := passed_by(view, record)) is None:
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


def first_at_or_after(view: LogView, timestamp_ms: int, *, start: int, end: int) -> int:
    """Find the first position of start … end−1 whose record is not older than `timestamp_ms`.

    A binary search: log₂ n GETs. If all records are older, it is `end`, without a request if the
    view has the newest record. Timestamps never go back along live records. If the view's policy
    continues, a position without an intact record counts as the next one with one.

    Args:
        view: what is read.
        timestamp_ms: the time.
        start: the first position.
        end: the head's gap.

    Raises:
        InvalidLogError: a record is missing or damaged.
    """
    if view.newest is not None and view.newest.header.timestamp_ms < timestamp_ms:
        return max(end, start)

    def is_late_enough(position: int) -> bool:
        tried = 0
        while not isinstance(record := view.slot(position, GLANCE), SlotRecord):
            if record is None and not view.damage.continues:
                raise MissingRecord(view.log, position, view.window)
            if record is not None and not view.damage.continues:
                # This raises if the record was complete once.
                passed_by(view, record)
            position += 1
            tried += 1
            if tried % LONG_HOLE == 0:
                position = first_listed(view.log, view.window, position, end)
            if position == end:
                return True
        # A dead record has the time of a fenced writer, so use the live record before it.
        return last_live(view, record).header.timestamp_ms >= timestamp_ms

    return start + bisect_left(range(start, end), True, key=is_late_enough)


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
