"""Finds the head of a log with one LIST, however long the log is (PROTOCOL §4)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import count, islice

from sparkwal.errors import InvalidLogError, NewerFormatError, StoreUnavailableError
from sparkwal.format import keys
from sparkwal.protocol import chain
from sparkwal.protocol.liveness import Run, run_to
from sparkwal.protocol.missing import ForeignRecord, MissingRecord
from sparkwal.protocol.slots import (
    GLANCE,
    SlotRecord,
    TornRecord,
    WrongWindow,
    copied,
    last_listed,
    read_any,
    read_front,
    read_slot,
)
from sparkwal.protocol.view import LENIENT, STRICT, DamagePolicy, LogView, Slot
from sparkwal.store.base import LogStore, NotFound, Page, first_entries
from sparkwal.store.parallel import run_parallel

LIST_LIMIT = 1000
DEFAULT_WINDOW = 1000
# The number of objects that are read to find the log's window.
_TRIED = 5
# The number of looks at a log that changes while the LIST runs.
_LOOKS = 5


@dataclass(frozen=True)
class Head:
    """The end of a log.

    Attributes:
        position: the last slot before the first gap; −1 in an empty log.
        live: the last live record at or before `position`, or None in an empty log. Its term,
            transactions, schema and in-flight limit are the log's.
        window: the log's window.
        oldest: the first position in the LIST, if that showed the complete log, or None.
        after: the records read after the gap, newest first: only the newest, or all in a thorough
            look.
        listed: the numbers of the objects in the LIST, newest first.
        torn: the torn records from `gap` on, which no leader passed over.
        taken: the last slot before the first free one: `position`, or a later one if a torn record
            lies at `gap`. Records there are dead.
    """

    position: int
    live: SlotRecord | None
    window: int
    oldest: int | None = None
    after: tuple[SlotRecord, ...] = ()
    listed: tuple[int, ...] = field(default=(), repr=False)
    torn: tuple[TornRecord, ...] = ()
    taken: int = -1

    @property
    def gap(self) -> int:
        """The first position without a record."""
        return self.position + 1

    @property
    def free(self) -> int:
        """The first free slot: the gap, unless a torn record lies there."""
        return max(self.position, self.taken) + 1

    @property
    def in_flight_limit(self) -> int:
        """The number of slots, from the gap on, that earlier writers may still reach; 1 in an empty
        log."""
        return self.live.header.in_flight_limit if self.live else 1

    def view(self, log: LogStore, damage: DamagePolicy = STRICT) -> LogView:
        """The view of a reader that has found this head."""
        log_id = self.live.header.log_id if self.live else None
        return LogView(log, self.window, log_id, self.live, damage)


def find_head(
    log: LogStore,
    window: int = DEFAULT_WINDOW,
    *,
    damage: DamagePolicy = STRICT,
    thorough: bool = False,
    proven: bool = True,
    page: Page | None = None,
) -> Head:
    """Find the head: 1 LIST and, in a log that only the sink wrote, 1 GET.

    Records after the gap cost one GET more: the newest shows whether the gap was once filled. If
    there is no log, two GETs prove it.

    A reader counts a lost record that a segment has as if it was there.

    Args:
        log: the log.
        window: a guess, which saves one or two GETs if it is right.
        thorough: read all records after the gap, for a writer about to fill it or a check.
        damage: STRICT; or LENIENT, to find the newest intact record if others are missing or
            damaged. For readers only: a writer's record there would kill acknowledged commits.
        proven: if False, an empty LIST alone counts as no log. For readers that wait for a log.
        page: the log's first LIST, if the caller has made it for several logs together.

    Raises:
        InvalidLogError: a record is damaged, or was written and is missing.
        StoreUnavailableError: the LIST is empty although there is a log.
    """
    unlisted: UnlistedLog | None = None
    missing: MissingRecord | None = None
    # The numbers of lost records that a segment has. They count as listed.
    copies: frozenset[int] = frozenset()
    looks = 0
    while looks < _LOOKS:
        looks += 1
        try:
            listed, page = page or _first_page(log), None
            head = _find_head(log, listed, window, copies, damage=damage, thorough=thorough)
            if head is None:
                # SAFETY(empty-list-proven) §4: an empty LIST is no log only if GETs find none
                trace = trace_of_log(log) if proven else None
                if trace is None:
                    return Head(-1, None, window)
                unlisted = UnlistedLog(log, trace)
                continue
            return head
        except MissingRecord as error:
            twice = missing is not None and missing.position == error.position
            missing = error
        # A LIST is no snapshot, so only a hole that two looks find counts.
        if twice and read_any(log, missing.position, missing.window, GLANCE) is None:
            log_id = missing.before.header.log_id if missing.before is not None else None
            if copied(log, missing.position, missing.window, log_id) is None:
                break
            copies |= _numbers_of_block(missing)
            looks = 0
    if missing is None:
        assert unlisted is not None
        raise unlisted
    if missing.before is not None:
        log_id, window = missing.before.header.log_id, missing.window
        newest = read_slot(log, missing.newest, window, GLANCE, tolerant=True)
        if newest is not None and newest.header.log_id != log_id:
            raise ForeignRecord(log, keys.slot(missing.newest, window), log_id, newest)
    raise missing


def find_end(
    log: LogStore, damage: DamagePolicy, *, proven: bool = True, page: Page | None = None
) -> tuple[Head, int]:
    """Find the head, and the first position after it without an object.

    Args:
        log: the log.
        damage: its report gets the damaged records between the two, which are then no error.
        proven: see `find_head`.
        page: see `find_head`.

    Raises:
        InvalidLogError: the end is damaged, or no record is intact.
    """
    try:
        head = find_head(log, damage=damage.of_head, proven=proven, page=page)
        return head, head.gap
    except InvalidLogError as error:
        if damage.report is None:
            raise
        damage.report(error)
    head = find_head(log, damage=LENIENT)
    for gap in count(head.gap):
        try:
            if read_any(log, gap, head.window, GLANCE) is None or head.torn:
                break
        except InvalidLogError as error:
            damage.report(error)
    return head, gap


class UnlistedLog(StoreUnavailableError):
    """The LIST of the log is empty, although the object `key` exists."""

    def __init__(self, log: LogStore, key: str) -> None:
        super().__init__(
            f"the LIST of {log.url} shows no record, although {log.store.url}/{key} exists. "
            "sparkwal wrote nothing. Run it again once the store lists its objects"
        )


def trace_of_log(log: LogStore) -> str | None:
    """Find an object that only a log has, without the LIST of its records.

    It costs 2 GETs, or some more if a deleted log left its lifecycle.

    Returns:
        The key of the object, or None if there is no log.
    """
    first = log.key(keys.slot(0, DEFAULT_WINDOW))
    if _exists(log, first):
        return first
    # A collection may have deleted that slot, but no process deletes the first lifecycle record.
    begin = keys.lifecycle_key(log.root.prefix, keys.MAX)
    if not _exists(log, begin):
        return None
    record = chain.newest_record(log)
    if record is None:
        return begin
    state = record.log(log.name)
    # The chain has other logs of the path only.
    if state is None:
        return None
    # A collection leaves records below the floor. Without them the chain's log was deleted.
    last = max(state.floor - 1, 0)
    windows = (window for window in keys.WINDOWS if last <= keys.last_position(window))
    slots = (log.key(keys.slot(last, window)) for window in windows)
    return next((key for key in slots if _exists(log, key)), None)


def _exists(log: LogStore, key: str) -> bool:
    try:
        log.store.get_range(key, 0, 1)
    except NotFound:
        return False
    return True


def is_unchanged(log: LogStore, head: Head) -> bool:
    """Whether a look would find the same head: the same objects in the LIST, and the same live
    record.

    It costs 1 LIST and 1 GET at the same time, or 2 GETs if there is no log.
    """
    live = head.live

    def call(request: Callable[[], bool]) -> bool:
        return request()

    def lists_the_same() -> bool:
        return _numbers(log, _first_page(log)) == head.listed

    def holds_the_same() -> bool:
        if live is None:
            return trace_of_log(log) is None
        record = read_slot(log, live.header.position, head.window, GLANCE)
        return record is not None and record.header == live.header

    return all([*run_parallel(log.store, call, [lists_the_same, holds_the_same])])


def _numbers_of_block(missing: MissingRecord) -> frozenset[int]:
    """The numbers of the slots of a lost record's block. Its segment shows that all were taken."""
    first = missing.position - missing.position % keys.BLOCK
    return frozenset(keys.slot(first + at, missing.window) for at in range(keys.BLOCK))


def _find_head(
    log: LogStore,
    page: Page,
    window: int,
    copies: frozenset[int],
    *,
    damage: DamagePolicy,
    thorough: bool,
) -> Head | None:
    """Find the head as `find_head`, or return None if the LIST is empty."""
    numbers = _numbers(log, page)
    if not numbers:
        return None
    in_page = (number for number in copies if number <= numbers[-1] or not page.more)
    numbers = tuple(sorted({*numbers, *in_page}))
    try:
        last, record = _last_record(log, numbers, window, truncated=page.more, damage=damage)
        if not isinstance(record, SlotRecord) and numbers[0] != keys.MAX:
            # The assumed window may be wrong. Any complete object shows the true one.
            _check_window(log, numbers, window)
    except WrongWindow as wrong:
        window = wrong.window
        last, record = _last_record(log, numbers, window, truncated=page.more, damage=damage)
    slots = [keys.position(n, window) for n in numbers if keys.is_slot(n, window)]
    newest_position = keys.position(numbers[0], window)
    view = LogView(log, window, damage=damage)
    run = run_to(view, record) if record is not None else Run()
    head = _head_after(run, last, window, numbers)
    if thorough:
        _check_sizes(log, run, window, page)
    _check_data(head, numbers, damage=damage)
    # A writer of limit m sends no record beyond the first gap + m − 1. An object further on was
    # written when the gap was still filled, so a record was lost.
    lost = record is None or newest_position > last + head.in_flight_limit
    if not lost and newest_position > head.free:
        head, lost = _look_after_gap(log, head, numbers, damage=damage, thorough=thorough)
    if lost:
        if not damage.continues and head.torn:
            raise head.torn[0]
        if not damage.continues:
            # A record that was listed may have been deleted since.
            missing = max(last, 0) if record is None else last + 1
            before = record if isinstance(record, SlotRecord) else None
            raise MissingRecord(log, missing, window, before, slots[0] if slots else missing)
        last, record = _intact(log, slots[0], window, damage=damage) if slots else (-1, None)
        run = run_to(view, record) if record is not None else Run()
        while run.live is None and run.torn:
            # Behind a gap no record decides about a torn one.
            earlier = last_listed(log, window, run.torn[0].position)
            if earlier < 0:
                break
            last, record = _intact(log, earlier, window, damage=damage)
            run = run_to(view, record) if record is not None else Run()
        head = _head_after(run, last, window, numbers)
    # A collection leaves 1000 slots below its bound. So a full page may show a collected log, which
    # rightly lacks its beginning.
    # SAFETY(full-list-not-whole) §10: a full LIST never counts as the whole log
    if page.more or len(page.entries) >= LIST_LIMIT:
        return head
    return replace(head, oldest=slots[-1] if slots else None)


def _first_page(log: LogStore) -> Page:
    """The LIST of the log's newest objects, newest first."""
    return first_entries(log.store, keys.batches_prefix(log.prefix), LIST_LIMIT)


def _numbers(log: LogStore, page: Page) -> tuple[int, ...]:
    """The numbers of the objects of a page."""
    start = keys.batches_prefix(log.prefix)
    named = (keys.listed(entry.key.removeprefix(start)) for entry in page.entries)
    return tuple(number for number in named if number is not None)


def _look_after_gap(
    log: LogStore, head: Head, numbers: Sequence[int], *, damage: DamagePolicy, thorough: bool
) -> tuple[Head, bool]:
    """Read the records after the gap.

    Returns:
        The head with those records, and whether they prove that the gap was once filled (§4).

    Raises:
        InvalidLogError: a record is damaged, and the policy does not continue.
    """
    if head.live is None:
        return head, True
    after = [n for n in numbers if keys.position(n, head.window) > head.free]
    # A writer plans a window only when the slot before it is decided.
    if not all(keys.is_slot(n, head.window) for n in after):
        return head, True
    log_id = head.live.header.log_id

    def read(number: int) -> Slot | None:
        position, window = keys.position(number, head.window), head.window
        record = read_any(log, position, window, GLANCE, tolerant=damage.continues)
        if not isinstance(record, SlotRecord) or record.header.log_id == log_id:
            return record
        if damage.continues:
            return None
        raise ForeignRecord(log, number, log_id, record)

    records = run_parallel(log.store, read, after) if thorough else map(read, after)
    existing = (record for record in records if isinstance(record, SlotRecord))
    read_of = tuple(existing if thorough else islice(existing, 1))
    # SAFETY(after-gap-knows) §4: a record after the gap that knows the gap proves a lost record
    lost = any(record.proves_filled(head.gap, log_id) for record in read_of)
    return replace(head, after=read_of), lost


def _head_after(run: Run, last: int, window: int, numbers: tuple[int, ...]) -> Head:
    """The head of a log that ends with a run of slots, the last one at `last`."""
    # SAFETY(torn-ends-log) §4: the log ends before a torn record that no leader passed over
    position = run.torn[0].position - 1 if run.torn else last
    torn = tuple(run.torn)
    return Head(position, run.live, window, listed=numbers, torn=torn, taken=last)


def _check_window(log: LogStore, numbers: Sequence[int], window: int) -> None:
    """Check the assumed window against the newest complete object.

    Raises:
        WrongWindow: the log has another window.
    """
    for number in numbers[:_TRIED]:
        try:
            header = read_front(log, number, window).header
        except NotFound:
            return
        except InvalidLogError:
            # It may be torn too.
            continue
        if header.window != window:
            raise WrongWindow("", header.window)
        return


def _check_sizes(log: LogStore, run: Run, window: int, page: Page) -> None:
    """Check the torn records against the LIST: a writer that passed over an acknowledged record
    would kill it.

    Raises:
        StoreUnavailableError: the LIST shows another size than the GET.
    """
    sizes = {entry.key: entry.size for entry in page.entries}
    for torn in run.torn:
        key = log.key(keys.slot(torn.position, window))
        # SAFETY(torn-two-looks) §4: a writer passes over a torn record only if LIST and GET agree
        if sizes.get(key, torn.size) != torn.size:
            raise StoreUnavailableError(
                f"{torn.name} has {sizes[key]} bytes in the LIST, and its GET returned "
                f"{torn.size}. sparkwal wrote nothing. Run again once the store's replies agree"
            )


def _check_data(head: Head, numbers: Sequence[int], *, damage: DamagePolicy) -> None:
    """Check that no writer planned a window after the first torn record.

    Raises:
        TornRecord: a writer did, so the record was complete then.
    """
    if damage.continues or not head.torn:
        return
    first = head.torn[0]
    for number in numbers:
        # SAFETY(torn-planned-damage) §4: data in a window after a torn record shows damage
        is_data = not keys.is_slot(number, head.window)
        if is_data and keys.position(number, head.window) > first.position:
            raise first


def _intact(
    log: LogStore, position: int, window: int, *, damage: DamagePolicy
) -> tuple[int, Slot | None]:
    """The record at `position`, or if damage is passed over the last intact or torn
    one, with its position.

    Raises:
        InvalidLogError: the record is damaged.
    """
    while True:
        before = -1
        try:
            record = LogView(log, window).slot(position)
        except InvalidLogError as error:
            before = last_listed(log, window, position) if damage.continues and position else -1
            if before < 0 or isinstance(error, (NewerFormatError, WrongWindow)):
                raise
            record = None
        if record is None and damage.continues and position:
            before = last_listed(log, window, position)
        if before < 0 or record is not None:
            return position, record
        position = before


def _last_record(
    log: LogStore, numbers: Sequence[int], window: int, *, truncated: bool, damage: DamagePolicy
) -> tuple[int, Slot | None]:
    """The last position before the first free slot, and its record."""
    newest = keys.position(numbers[0], window)
    listed = {keys.position(n, window) for n in numbers if keys.is_slot(n, window)}
    # The LIST shows every slot that exists from this position on.
    oldest = -((numbers[-1] - keys.MAX) // window)
    low = oldest if truncated else min(listed, default=0)
    if low > newest:
        # This happens only with windows above 1000: the LIST shows only data of one window.
        record = read_any(log, newest, window)
        if record is not None:
            return newest, record
        low = newest
    gap = low
    # SAFETY(gap-is-first) §4: the gap is the first free slot, not the slot after the highest
    while gap in listed:
        gap += 1
    if gap == 0:
        return -1, None
    return _intact(log, gap - 1, window, damage=damage)
