"""Deletes the objects below a bound that no reader and no writer needs.

The order of deletes does not matter, and a collector with an old view computes a lower bound. So a
collector may crash, pause or run twice; the next one deletes the remaining objects.
"""

from bisect import bisect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import islice

from sparkwal import events
from sparkwal.errors import InvalidLogError, OptionError
from sparkwal.format import keys
from sparkwal.format.lifecycle_record import ChainRecord, LogInChain
from sparkwal.lifecycle.collecting.erasing import Erasure, erase_rows
from sparkwal.lifecycle.collecting.leftovers import Leftovers, list_leftovers, unneeded_segments
from sparkwal.lifecycle.compaction import confirm_table
from sparkwal.lifecycle.consumers.readers import Readers, look_at_readers
from sparkwal.lifecycle.table import Table
from sparkwal.protocol.archive import named_records
from sparkwal.protocol.chain import KEPT_RECORDS, Chain, MovedOn, record_at
from sparkwal.protocol.lifecycle_steps import with_logs
from sparkwal.protocol.recovery import Head
from sparkwal.reading.floor import KEPT_SLOTS
from sparkwal.reading.listing import list_logs
from sparkwal.store.base import (
    KEYS_OF_DELETE,
    Entry,
    LogStore,
    NotFound,
    Store,
    delete_listed,
    numbered,
)
from sparkwal.store.parallel import run_parallel


@dataclass(frozen=True)
class Collection:
    """The objects below position `bound` that were deleted, or may be.

    Attributes:
        bound: every position below it may be collected.
        objects, uploads: how many objects and unfinished uploads.
        bytes: the size of the objects.
        records: how many records below `bound` stay: a log keeps its newest 1,000 records, and
            those with a query's checkpoint.
        erased: how many of them lost their rows now, or may lose them.
        with_rows: how many of them may hold rows after that.
        kept: how many more objects the store kept: it compared another ETag than its LIST shows.
        held_by: for people: what keeps objects in the store. It is "the grace", the names of
            consumers and leases that keep `bound` from being higher, or the records that stay with
            their rows, and why; "" if nothing does.
        without_rows: no record below this position holds rows.
        looked: how many records were read for that.
        looked_below: every record below this position was read, now or earlier.
        left: the erasure of these records failed, now or earlier.
    """

    bound: int
    objects: int = 0
    uploads: int = 0
    bytes: int = 0
    records: int = 0
    erased: int = 0
    with_rows: int = 0
    kept: int = 0
    held_by: str = ""
    without_rows: int = 0
    looked: int = 0
    looked_below: int = 0
    left: Erasure = field(default_factory=Erasure)

    @property
    def failure(self) -> str:
        """For people: the part of the work that failed; "" if none did."""
        faults = []
        if self.kept:
            faults.append(
                f"the store kept {self.kept} objects: it compared another ETag than its LIST "
                "shows. Run it again; if they stay, the store does not compare ETags as S3 does"
            )
        if self.left.failure:
            faults.append(f"the rows of a record could not be erased: {self.left.failure}")
        return "; ".join(faults)


@dataclass(frozen=True)
class Safeguards:
    """The settings that keep objects from collection.

    Attributes:
        table: the log's table, which must hold all rows below the bound.
        grace_ms: the floor must have passed an object at least this long ago.
        expiry_ms: a consumer that has not published for longer holds nothing back.
    """

    table: Table | None
    grace_ms: int
    expiry_ms: int | None


@dataclass(frozen=True)
class Collected:
    """A log whose objects may be deleted.

    Attributes:
        log: the log.
        head: its head, read after `state`.
        state: the log in the newest record of the chain.
        above: nothing is deleted unless the bound is above this position.
        looked_below: this process has read the records below this position.
        left: the erasures that failed among them.
        is_small: few objects were listed of it.
        looks_again: all records are read, also those in which a collection left no rows.
    """

    log: LogStore
    head: Head
    state: LogInChain
    above: int = -1
    looked_below: int = 0
    left: Erasure = field(default_factory=Erasure)
    is_small: bool = False
    looks_again: bool = False

    @property
    def first(self) -> int:
        """The first position whose record must be read."""
        return 0 if self.looks_again else max(self.looked_below, self.state.without_rows)


@dataclass(frozen=True)
class _Limits:
    """The positions of a log that a collection may take.

    Attributes:
        bound: the first position that stays.
        erasable: rows below it may be erased from the records that stay.
        held_by: for people: what keeps the bound from being higher.
    """

    bound: int
    erasable: int
    held_by: str


def _old_record(
    log: LogStore, newest: int, grace_ms: int, ages: dict[int, int]
) -> ChainRecord | None:
    """The newest lifecycle record that is older than the grace, or None: O(log n) requests.

    The store's clock decides the age. `ages` keeps what was asked.
    """
    root = log.root.prefix

    def is_older(number: int) -> bool:
        if number not in ages:
            try:
                ages[number] = log.store.age_ms(keys.lifecycle_key(root, number))
            except NotFound:
                if number < newest + KEPT_RECORDS:
                    raise
                # Old records beyond the newest thousand are deleted.
                return True
        # SAFETY(grace-before-delete) §10: only a floor older than the grace allows a delete
        return ages[number] > grace_ms

    try:
        number = _first_older(newest, is_older)
    except (NotFound, OverflowError):
        # A rule of the bucket or a person deleted a record: check the existing ones one by one.
        existing = numbered(log.store, keys.lifecycle_prefix(root))
        number = next((number for number, _ in existing if is_older(number)), keys.MAX + 1)
        # An object at a number that was freed may be a late PUT.
        if number >= newest + KEPT_RECORDS:
            return None
    # A torn record is passed over, as by `newest_lifecycle`.
    while number <= keys.MAX:
        try:
            record = record_at(log, number)
        except NotFound:
            return None
        if record is not None:
            return record
        number += 1
    return None


def _first_older(newest: int, is_older: Callable[[int], bool]) -> int:
    """The first number from `newest` on that is older, or the one after the last: O(log n) checks.

    Older records have higher numbers, but a late PUT at a freed number is younger than those around
    it. It may lead a binary search beyond the first older record, to another late PUT.
    """
    last_kept = newest + KEPT_RECORDS - 1
    # §10: a late PUT lies beyond the newest thousand numbers
    end = last_kept if last_kept < keys.MAX and is_older(last_kept) else keys.MAX + 1
    while True:
        number = newest + bisect(range(newest, end), False, key=is_older)
        if number <= last_kept:
            return number
        # All numbers before the first older one are younger.
        before = [number - 2**n for n in range(1, (number - newest).bit_length())]
        older = next(filter(is_older, before), None)
        if older is None:
            return number
        end = older


def _limits(
    chain: Chain, record: ChainRecord, logs: Sequence[Collected], safeguards: Safeguards
) -> tuple[list[_Limits | InvalidLogError], Readers | None]:
    """Compute the positions of each log that a collection may take.

    It also returns the readers of the logs. A log with a damaged consumer has an error instead.

    A consumer that joins later begins at the floor or above.
    """
    grace_ms = max(safeguards.grace_ms, record.gc_grace_ms)
    ages: dict[int, int] = {}
    floors = _old_floors(record, logs, grace_ms, ages)
    # Below a floor that allows nothing new, the consumers do not matter.
    moved = {
        one.log.name: (one.log, one.state.log_id, floor)
        for one, floor in zip(logs, floors, strict=True)
        if floor > min(one.above, one.first)
    }
    if not moved:
        return [_Limits(floor, floor, "") for floor in floors], None
    small = [one.log.name for one in logs if one.is_small]
    walked = list_logs(logs[0].log.root, small)
    # SAFETY(floor-then-consumers) §10: a collection takes the floor first and lists the consumers
    # after it
    readers = look_at_readers([log for log, _, _ in moved.values()], walked)
    allowed = iter(readers.bounds([*moved.values()], safeguards.expiry_ms))
    results = {name: bound for name, bound in zip(moved, allowed, strict=True)}
    errors = {name: bound for name, bound in results.items() if isinstance(bound, InvalidLogError)}
    bounds = []
    for one, floor in zip(logs, floors, strict=True):
        result = results.get(one.log.name, floor)
        # Nothing of a log with a damaged consumer is deleted.
        bounds.append(0 if isinstance(result, InvalidLogError) else result)
    erasable = _erasable(record, logs, bounds, 2 * grace_ms, ages)
    with_table = [
        one
        for one, bound, end in zip(logs, bounds, erasable, strict=True)
        if one.state.table and (bound > max(one.above, 0) or end > one.first)
    ]
    if with_table:
        read = safeguards.table.target.table if safeguards.table else ""
        for one in with_table:
            if one.state.table != read:
                raise InvalidLogError(
                    f"{one.log.url} has the table {one.state.table}, and collection must read it: "
                    "pass it"
                )
        assert safeguards.table is not None
        # SAFETY(table-before-delete) §10: a collection confirms the table before it deletes
        confirm_table(chain, record, safeguards.table)
    limits: list[_Limits | InvalidLogError] = []
    for one, floor, bound, end in zip(logs, floors, bounds, erasable, strict=True):
        if one.log.name in errors:
            limits.append(errors[one.log.name])
            continue
        held_by = "the grace" if floor < one.state.floor else ""
        if bound < floor:
            names = readers.holders(one.log, one.state.log_id, bound, safeguards.expiry_ms)
            held_by = ", ".join(names) or "a consumer that was forgotten meanwhile"
        if one.state.table:
            bound = min(bound, one.state.cut)
        limits.append(_Limits(bound, min(end, bound), held_by))
    return limits, readers


def _old_floors(
    record: ChainRecord, logs: Sequence[Collected], grace_ms: int, ages: dict[int, int]
) -> list[int]:
    """The floor of each log that was passed longer ago than the grace."""
    old = _old_record(logs[0].log, record.number, grace_ms, ages)
    floors = []
    for one in logs:
        before = old.log(one.log.name, one.state.log_id) if old else None
        # No honest floor goes back; a forged older one must not take more than the newest allows.
        # If the old record does not have the log, nothing of it was released so long ago.
        floors.append(min(before.floor, one.state.floor) if before else 0)
    return floors


def _erasable(
    record: ChainRecord,
    logs: Sequence[Collected],
    bounds: Sequence[int],
    grace_ms: int,
    ages: dict[int, int],
) -> list[int]:
    """The position of each log below which rows are erased from the records that stay.

    The floor passed it twice the grace ago. So a busy log deletes its records before that.
    """
    if all(bound <= one.first for one, bound in zip(logs, bounds, strict=True)):
        return [*bounds]
    return [*map(min, bounds, _old_floors(record, logs, grace_ms, ages))]


def collect(
    chain: Chain,
    record: ChainRecord,
    logs: Sequence[Collected],
    safeguards: Safeguards,
    *,
    dry_run: bool = False,
) -> tuple[dict[str, Collection | InvalidLogError | None], ChainRecord]:
    """Delete data objects, orphans and unfinished uploads below the bound of each log, and slot
    records below bound − KEPT_SLOTS. Erase the rows of the others.

    It costs 1 LIST and 1 DELETE for each thousand objects of a log, and as much for the segments.
    See `erase_rows` for the records that stay, and `list_leftovers`.

    Args:
        chain: the chain of the path.
        record: the newest record of the chain.
        logs: logs of the path.
        safeguards: keep objects from collection.
        dry_run: count the objects only.

    Returns:
        The collected objects of each log by name, or None if nothing more may be collected, or the
        error of a log with a damaged consumer. And the newest record of the chain.

    Raises:
        ConfirmError: the table no longer holds rows that the log would lose.
        MovedOn: another process changed the lifecycle meanwhile.
    """
    if not logs:
        return {}, record
    limits, readers = _limits(chain, record, logs, safeguards)
    collections: dict[str, Collection | InvalidLogError | None] = {}
    due: list[tuple[Collected, _Limits]] = []
    for one, limit in zip(logs, limits, strict=True):
        collections[one.log.name] = limit if isinstance(limit, InvalidLogError) else None
        if isinstance(limit, _Limits) and (limit.bound > one.above or limit.erasable > one.first):
            due.append((one, limit))
    if not due or readers is None:
        return collections, record
    leftovers = list_leftovers([one.log for one, _ in due])

    def work(pair: tuple[Collected, _Limits]) -> tuple[str, Collection]:
        one, limit = pair
        expiry_ms = safeguards.expiry_ms
        return one.log.name, _collect(
            one, limit, readers, expiry_ms, leftovers, dry_run=dry_run, logs=len(due)
        )

    collections |= run_parallel(logs[0].log.store, work, due)
    if not dry_run:
        readers.forget_expired_leases()
    return collections, record if dry_run else _note(chain, record, logs, collections)


def _collect(
    one: Collected,
    limits: _Limits,
    readers: Readers,
    expiry_ms: int | None,
    leftovers: Leftovers,
    *,
    dry_run: bool,
    logs: int,
) -> Collection:
    log = one.log
    head = one.head
    state = one.state
    bound = limits.bound
    held_by = limits.held_by
    if not held_by and bound < head.gap:
        # A consumer that does not continue may keep the floor itself from moving.
        held_by = ", ".join(readers.holders(log, state.log_id, bound, expiry_ms))
    taken = _take(one, bound, dry_run=dry_run)
    # A log that is too short for a segment of its own may have those of a deleted log. Only the
    # collection of a single log, or one that looks again, lists them.
    has_blocks = head.gap >= keys.BLOCK or not leftovers.is_for_several or one.looks_again
    old = [*unneeded_segments(log, head, bound)] if has_blocks else []
    gone = taken.taken(log.store, old, dry_run=dry_run)
    uploads = [*leftovers.uploads_below(log, head, bound)]
    for upload in () if dry_run else uploads:
        log.store.discard(upload)
    # SAFETY(erase-below-bound) §10: rows are erased only below the bound
    positions = [at for at in taken.staying if one.first <= at < limits.erasable]
    erasure = erase_rows(log, head.window, state.log_id, positions, dry_run=dry_run, logs=logs)
    if not dry_run:
        if gone.objects or uploads:
            events.emit(events.Collected(log.url, bound, gone.objects, gone.bytes))
        if erasure.erased:
            events.emit(events.RowsErased(log.url, limits.erasable, erasure.erased))
    # Another collection may have succeeded in the meantime.
    left = one.left.among([at for at in taken.staying if at >= state.without_rows]) + erasure
    looked_below = max(limits.erasable, one.first)
    young = sum(at >= looked_below for at in taken.staying)
    with_rows = young + len(left.left)
    if with_rows and not held_by:
        reason = left.reason or "their floor is younger than twice the grace"
        held_by = f"{with_rows} records that stay: {reason}"
    collection = Collection(
        bound=bound,
        objects=gone.objects,
        uploads=len(uploads),
        bytes=gone.bytes,
        records=len(taken.staying),
        erased=erasure.erased,
        with_rows=with_rows,
        kept=gone.kept,
        held_by=held_by,
        without_rows=min((*left.left, looked_below)),
        looked=len(positions),
        looked_below=looked_below,
        left=left,
    )
    if collection.failure and not dry_run:
        events.emit(events.NotCollected(log.url, bound, collection.failure))
    return collection


def _note(
    chain: Chain,
    record: ChainRecord,
    logs: Sequence[Collected],
    collections: Mapping[str, Collection | InvalidLogError | None],
) -> ChainRecord:
    """Put a record that notes below which positions no record holds rows: 1 conditional PUT.

    So no other process reads these records again. Without the record nothing is lost.

    Returns:
        The record, or `record` without one: no record was read, or another process put one first.
    """
    states = {one.log.name: one.state for one in logs}
    changed = {
        name: replace(states[name], without_rows=done.without_rows)
        for name, done in collections.items()
        if isinstance(done, Collection)
        and done.looked
        and done.without_rows > states[name].without_rows
    }
    # A collector may have no permission to put one.
    with suppress(MovedOn, OptionError):
        return chain.put(with_logs(record, changed, 0)) if changed else record
    return record


@dataclass(frozen=True)
class _Taken:
    """The objects of a log that were deleted, or would be.

    Attributes:
        kept: how many objects the store kept.
        staying: the positions below the bound whose records stay.
    """

    objects: int = 0
    bytes: int = 0
    kept: int = 0
    staying: tuple[int, ...] = ()

    def taken(self, store: Store, entries: list[Entry], *, dry_run: bool) -> "_Taken":
        """Delete these objects too, unless it is a dry run."""
        kept = [] if dry_run else delete_listed(store, entries)
        return replace(
            self,
            objects=self.objects + len(entries) - len(kept),
            bytes=self.bytes + sum(entry.size for entry in entries) - sum(e.size for e in kept),
            kept=self.kept + len(kept),
        )


def _take(one: Collected, bound: int, *, dry_run: bool) -> _Taken:
    """Delete the objects below the bound, but for the records that stay."""
    log = one.log
    taken = _Taken()
    staying: list[int] = []
    below = _below(log, one.head, bound)
    while listed := [*islice(below, KEYS_OF_DELETE)]:
        staying += [position for _, position in listed if position is not None]
        batch = [entry for entry, position in listed if position is None]
        taken = taken.taken(log.store, batch, dry_run=dry_run)
    return replace(taken, staying=tuple(staying))


def _below(log: LogStore, head: Head, bound: int) -> Iterator[tuple[Entry, int | None]]:
    """Every object below the bound, newest first, with the position of a record that stays."""
    if bound <= 0:
        return
    assert head.live is not None
    window = head.window
    header = head.live.header
    # §12: records that hold a query's checkpoint stay
    pinned = named_records(log, header)
    # Numbers count down, so the objects after the slot of the bound belong to positions below it.
    after = log.key(keys.slot(bound, window))
    for number, entry in numbered(log.store, keys.batches_prefix(log.prefix), after):
        position = keys.position(number, window)
        # SAFETY(keep-slots) §10: 1,000 slot records below the bound stay
        may_stay = position >= bound - KEPT_SLOTS or position in pinned
        yield entry, position if may_stay and keys.is_slot(number, window) else None
