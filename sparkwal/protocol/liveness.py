"""Which records count: by terms, and after torn records (PROTOCOL §3, §4)."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import count

from sparkwal import events
from sparkwal.errors import InvalidLogError
from sparkwal.format.header import SEAL, LeaderHeader, SlotHeader
from sparkwal.protocol.missing import MissingRecord
from sparkwal.protocol.slots import GLANCE, WHOLE, SlotRecord, TornRecord, read_any
from sparkwal.protocol.view import LogView, Slot
from sparkwal.store.base import LogStore
from sparkwal.store.parallel import run_parallel


class Run:
    """The verdict on consecutive slots: which of their records are live.

    A leader whose record is torn stops there, but its later records may be in flight already. They
    build on the torn one, so they are dead. Only from the leader record on that passes over the
    torn record do records count again.

    Attributes:
        live: the last live record so far.
        term: the term of the last live record, also of one before the first slot. None if unknown.
        torn: torn records that no leader has passed over.
        passed: torn records that a leader has passed over.
    """

    def __init__(self, term: int | None = None) -> None:
        self.live: SlotRecord | None = None
        self.term = term
        self.torn: list[TornRecord] = []
        self.passed: list[TornRecord] = []
        # The records after a torn one. They are dead once a leader passes over it, and live if the
        # torn one turns out to be damaged.
        self._waiting: list[SlotRecord] = []

    def add(self, slot: Slot) -> list[SlotRecord]:
        """Judge the next slot.

        Returns:
            The records that are live by now and were not returned before.

        Raises:
            TornRecord: one was complete once. To continue, `give_up` and add the slot again.
        """
        if isinstance(slot, TornRecord):
            self.torn.append(slot)
            return []
        if self.torn:
            first = self.torn[0]
            if not passes(slot.header, first):
                check_torn(slot.header, first)
                # SAFETY(torn-ends-run) §4: a torn record ends the run of its leader
                self._waiting.append(slot)
                return []
            self.passed += self.torn
            self.torn = []
            self._waiting = []
        return self._judged(slot)

    def give_up(self) -> list[SlotRecord]:
        """Treat the torn records as damaged: they were complete once, so the log continues.

        Returns:
            The records after them that are live now.
        """
        waiting = self._waiting
        self._waiting = []
        self.torn = []
        return [live for record in waiting for live in self._judged(record)]

    def _judged(self, record: SlotRecord) -> list[SlotRecord]:
        # SAFETY(skip-dead) §3: readers skip a record with a lower term than one before it
        if self.term is not None and record.header.term < self.term:
            return []
        self.live, self.term = record, record.header.term
        return [record]


def passes(header: SlotHeader, torn: TornRecord) -> bool:
    """Whether a later leader record passes over a torn record: its leader saw the log end there."""
    # SAFETY(seal-passes-nothing) §4: a seal passes over no torn record
    if not isinstance(header, LeaderHeader) or header.reason == SEAL:
        return False
    # SAFETY(torn-passed-by-leader) §4: a leader passes over a torn record if it saw the log end
    # before it
    return header.prev_position < torn.position and header.decided < torn.position


def check_torn(header: SlotHeader, torn: TornRecord) -> None:
    """Check that the writer of a later object did not see the torn record whole.

    Raises:
        TornRecord: it did.
    """
    # SAFETY(torn-decided-damage) §4: a torn record that some object claims as decided is damage
    if header.decided >= torn.position:
        raise torn


def report_passed(log: LogStore, torn: Iterable[TornRecord]) -> None:
    """Emit one event for each torn record."""
    for record in torn:
        events.emit(events.TornRecordPassed(log.url, record.position, record.size))


def later_slots(view: LogView, start: int) -> Iterator[Slot]:
    """Read the slots from a position on up to the first empty one, with a GET for each.

    A damaged record decides nothing about a torn one, so this goes on after it.

    Raises:
        InvalidLogError: a record was damaged, and all slots are read.
    """
    damage: InvalidLogError | None = None
    for position in count(start):
        try:
            slot = read_any(view.log, position, view.window, GLANCE)
        except InvalidLogError as error:
            damage = damage or error
            continue
        if slot is None:
            break
        yield slot
    if damage is not None:
        raise damage


def passed_by(view: LogView, torn: TornRecord) -> SlotRecord | None:
    """Look for the leader record that passes over a torn record: a GET for each slot after it.

    Returns:
        The leader record; None as long as the log ends before the torn record.

    Raises:
        InvalidLogError: the torn record was complete once, or no intact record decides.
    """
    for slot in later_slots(view, torn.position + 1):
        if isinstance(slot, SlotRecord):
            if passes(slot.header, torn):
                return slot
            check_torn(slot.header, torn)
    return None


def last_live(view: LogView, record: SlotRecord) -> SlotRecord:
    """Find the last live record at or before `record` (§3): m−1 GETs.

    It costs none if m is 1, or if the record has the term of the view's newest one. If the view's
    policy continues, it decides from the intact records instead of raising. After a torn record it
    reads on until a record decides about it.

    Raises:
        InvalidLogError: a record is missing or damaged.
    """
    return settled_run(view, record).live or record


def live_until(view: LogView, position: int, size: int = WHOLE) -> SlotRecord | None:
    """Find the last live record at or before a position: 1 GET, and those of `last_live`.

    Returns:
        The record, or None if the position holds no record, or no live one lies before it.

    Raises:
        InvalidLogError: a record is missing or damaged.
        WrongWindow: the log has another window.
    """
    slot = view.slot(position, size)
    return None if slot is None else settled_run(view, slot).live


def settled_run(view: LogView, slot: Slot) -> Run:
    """Judge the slots up to this one as `run_to`, and let later records decide about torn ones.

    A walk that goes back over a torn record must ask whether the record was complete once: only a
    record after it can show that. If the view's policy continues, such a record counts as damaged
    instead of raising.

    Raises:
        InvalidLogError: a record is missing or damaged, or a torn record was complete once.
    """
    run = run_to(view, slot)
    if not run.torn:
        return run
    first = run.torn[0]
    newest = view.newest
    try:
        leader = passed_by(view, first)
        if leader is None and newest is not None and newest.header.position > first.position:
            # The record at the head lies after a hole.
            raise first
    except InvalidLogError:
        if not view.damage.continues:
            raise
        run.give_up()
    return run


def run_to(view: LogView, slot: Slot) -> Run:
    """Judge the slots up to this one, for a read that begins in the middle of the log.

    It reads back the slots that the record's writer had not decided, at most m−1 (m is the record's
    `in_flight_limit`), and more after a torn record. It makes no request if there is no such slot,
    or if the record has the term of the view's newest one. If the view's policy continues, it
    decides from the intact records instead of raising.

    Raises:
        InvalidLogError: a record is missing or damaged.
    """
    run = Run()
    slots: list[Slot] = [slot]
    if isinstance(slot, SlotRecord):
        own, last = slot.header, view.newest.header if view.newest else None
        is_of_head = last is not None and own.term == last.term and own.position <= last.position
        earliest = max(own.position - (own.in_flight_limit - 1), 0)
        # The writer was not fenced up to the last slot that it decided: no term there is higher.
        # SAFETY(look-back-decided) §3: a look-back ends at the last slot that the writer decided
        before = range(max(earliest, own.decided + 1), own.position)
        # SAFETY(look-back) §3: a start in the middle of a log reads up to m−1 slots back
        if not before or is_of_head:
            run.add(slot)
            return run
        of_log = replace(view, log_id=own.log_id)
        # Wait for all reads first, so that an error leaves no request in flight.
        earlier = zip(before, [*run_parallel(view.log.store, of_log.slot, before)], strict=True)
        slots = [*_taken_slots(view, earlier), slot]
    first = next((n for n, one in enumerate(slots) if isinstance(one, TornRecord)), None)
    if first is not None:
        # The records before a torn one decide whether those after it count.
        torn = slots[first]
        assert isinstance(torn, TornRecord)
        run = _run_before(view, torn)
        slots = slots[first:]
    for one in slots:
        _add(run, one, view)
    return run


def _taken_slots(view: LogView, slots: Iterable[tuple[int, Slot | None]]) -> Iterator[Slot]:
    for position, slot in slots:
        if slot is not None:
            yield slot
        elif not view.damage.continues:
            raise MissingRecord(view.log, position, view.window)


def _add(run: Run, slot: Slot, view: LogView) -> None:
    try:
        run.add(slot)
    except TornRecord:
        if not view.damage.continues:
            raise
        run.give_up()
        run.add(slot)


def _run_before(view: LogView, torn: TornRecord) -> Run:
    """Judge the slots before a torn record, from the last intact record on."""
    view = replace(view, newest=None)
    torn_before: list[Slot] = []
    run = Run()
    for position in range(torn.position - 1, -1, -1):
        slot = view.slot(position)
        if isinstance(slot, SlotRecord):
            run = run_to(view, slot)
            break
        if slot is None:
            if not view.damage.continues:
                raise MissingRecord(view.log, position, view.window)
            break
        torn_before.append(slot)
    for one in reversed(torn_before):
        _add(run, one, view)
    return run
