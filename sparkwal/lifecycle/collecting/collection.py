"""Deletes the objects below a bound that no reader and no writer needs.

The order of deletes does not matter, and a collector with an old view computes a lower bound. So a
collector may crash, pause or run twice; the next one deletes the remaining objects.
"""

from bisect import bisect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice

from sparkwal import events
from sparkwal.errors import InvalidLogError, OptionError
from sparkwal.format import keys
from sparkwal.format.arrowfile import open_front
from sparkwal.format.lifecycle_record import ChainRecord, LogInChain
from sparkwal.lifecycle.collecting.erasing import erase_rows
from sparkwal.lifecycle.consumers.readers import Readers, look_at_readers
from sparkwal.lifecycle.known_log import Collection, KnownLog, noted, other_logs
from sparkwal.lifecycle.table import Table, confirm
from sparkwal.protocol.archive import named_records
from sparkwal.protocol.chain import KEPT_RECORDS, Chain, MovedOn, record_at
from sparkwal.protocol.lifecycle_steps import with_logs
from sparkwal.protocol.recovery import Head
from sparkwal.protocol.segments import FRONT
from sparkwal.reading.floor import KEPT_SLOTS
from sparkwal.reading.listing import list_logs
from sparkwal.store.base import (
    KEYS_OF_DELETE,
    Entry,
    LogStore,
    NotFound,
    Store,
    Unfinished,
    delete_listed,
    numbered,
)
from sparkwal.store.parallel import run_parallel

# A run deletes old records of the chain if the newest number passed a multiple of this meanwhile.
EVERY = 100


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


@dataclass
class _Part:
    """A log in a collection, and the positions of it that may be taken.

    Attributes:
        known: the log.
        state: the log in the newest record of the chain. The head is younger.
        first: the first position whose record must be read.
        floor: the floor that was passed longer ago than the grace.
        bound: the first position that stays.
        erasable: rows below it may be erased from the records that stay.
        held_by: for people: what keeps the bound from being higher.
        error: a consumer of the log is damaged. Nothing of the log is deleted.
    """

    known_log: KnownLog
    state: LogInChain
    first: int
    floor: int
    bound: int
    erasable: int = 0
    held_by: str = ""
    error: InvalidLogError | None = None

    @property
    def log(self) -> LogStore:
        """The log."""
        return self.known_log.log

    def floor_in(self, old: ChainRecord | None) -> int:
        """The floor in an old record.

        No honest floor goes back; a forged older one must not take more than the newest allows. If
        the old record does not have the log, nothing of it was released so long ago.
        """
        before = old.log(self.log.name, self.state.log_id) if old else None
        return min(before.floor, self.state.floor) if before else 0


def old_record(
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


def _parts(
    chain: Chain, record: ChainRecord, logs: Sequence[KnownLog], safeguards: Safeguards
) -> tuple[list[_Part], Readers | None]:
    """Compute the positions of each log that a collection may take.

    It also returns the readers of the logs, or None if nothing may be taken. A consumer that joins
    later begins at the floor or above.
    """
    grace_ms = max(safeguards.grace_ms, record.gc_grace_ms)
    ages: dict[int, int] = {}
    parts = [
        _Part(one, one.state(record), one.first_unread(record), floor=0, bound=0) for one in logs
    ]
    old = old_record(logs[0].log, record.number, grace_ms, ages)
    for part in parts:
        part.floor = part.bound = part.floor_in(old)
    # Below a floor that allows nothing new, the consumers do not matter.
    moved = [part for part in parts if part.floor > min(part.known_log.collected, part.first)]
    if not moved:
        return parts, None
    walked = list_logs(logs[0].log.root, [one.log.name for one in logs if one.is_small])
    floors = [(part.log, part.state.log_id, part.floor) for part in moved]
    # SAFETY(floor-then-consumers) §10: a collection takes the floor first and lists the consumers
    # after it
    readers = look_at_readers([part.log for part in moved], walked)
    allowed = readers.bounds(floors, safeguards.expiry_ms)
    for part, bound in zip(moved, allowed, strict=True):
        if isinstance(bound, InvalidLogError):
            part.error = bound
        part.bound = 0 if isinstance(bound, InvalidLogError) else bound
    if any(part.bound > part.first for part in parts):
        # Rows are erased below a floor that was passed twice the grace ago. So a busy log deletes
        # its records before that.
        old = old_record(logs[0].log, record.number, 2 * grace_ms, ages)
        for part in parts:
            part.erasable = min(part.bound, part.floor_in(old))
    _confirm_table(chain, record, parts, safeguards.table)
    for part in parts:
        if part.error is not None:
            continue
        part.held_by = "the grace" if part.floor < part.state.floor else ""
        if part.bound < part.floor:
            names = _holders(readers, part, safeguards)
            part.held_by = names or "a consumer that was forgotten meanwhile"
        if part.state.table:
            part.bound = min(part.bound, part.state.cut)
        part.erasable = min(part.erasable, part.bound)
    return parts, readers


def _confirm_table(
    chain: Chain, record: ChainRecord, parts: Sequence[_Part], table: Table | None
) -> None:
    """Check that the table holds what logs lose, if they have one.

    Raises:
        ConfirmError: it does not.
        InvalidLogError: the table is another one, or was not passed.
        MovedOn: another process changed the lifecycle meanwhile.
    """
    with_table = [
        part
        for part in parts
        if part.state.table
        and (part.bound > max(part.known_log.collected, 0) or part.erasable > part.first)
    ]
    for part in with_table:
        if table is None or part.state.table != table.target.table:
            raise InvalidLogError(
                f"{part.log.url} has the table {part.state.table}, and collection must read it: "
                "pass it"
            )
    promise = record.promise(table.target.table) if table and with_table else None
    if table is not None and promise is not None:
        with chain.unless_moved_on(record):
            # SAFETY(table-before-delete) §10: a collection confirms the table before it deletes
            confirm(promise, table)


def _holders(readers: Readers, part: _Part, safeguards: Safeguards) -> str:
    """For people: the consumers and leases that keep the bound from being higher."""
    names = readers.holders(part.log, part.state.log_id, part.bound, safeguards.expiry_ms)
    return ", ".join(names)


def collect(
    chain: Chain,
    record: ChainRecord,
    logs: Sequence[KnownLog],
    safeguards: Safeguards,
    *,
    dry_run: bool = False,
) -> tuple[dict[str, Collection | InvalidLogError | None], ChainRecord]:
    """Delete data objects, orphans and unfinished uploads below the bound of each log, and slot
    records below bound − KEPT_SLOTS. Erase the rows of the others.

    It costs 1 LIST and 1 DELETE for each thousand objects of a log, and as much for the segments.
    See `erase_rows` for the records that stay, and `_uploads`.

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
    parts, readers = _parts(chain, record, logs, safeguards)
    collections: dict[str, Collection | InvalidLogError | None] = {
        part.log.name: part.error for part in parts
    }
    chosen = [
        part
        for part in parts
        if part.error is None
        and (part.bound > part.known_log.collected or part.erasable > part.first)
    ]
    if not chosen or readers is None:
        return collections, record

    def look(known_log: KnownLog, state: LogInChain) -> None:
        with noted(known_log):
            known_log.look(state)
        if known_log.takes_part:
            others = other_logs(record, [(known_log.log, known_log.log_id)])
            known_log.error = others.get(known_log.log.name)

    unread = [part for part in chosen if part.known_log.head is None]
    [*run_parallel(chain.log.store, lambda part: look(part.known_log, part.state), unread)]
    chosen = [part for part in chosen if part.known_log.takes_part]
    if not chosen:
        return collections, record
    uploads = _uploads([part.log for part in chosen])

    def work(part: _Part) -> tuple[str, Collection]:
        if not part.held_by and part.bound < part.known_log.live_head.gap:
            # A consumer that does not continue may keep the floor itself from moving.
            part.held_by = _holders(readers, part, safeguards)
        return part.log.name, _collect(part, uploads, dry_run=dry_run, is_single=len(chosen) == 1)

    collections |= run_parallel(logs[0].log.store, work, chosen)
    if not dry_run:
        readers.forget_expired_leases()
        record = _note(chain, record, parts, collections)
    return collections, record


def _collect(
    part: _Part, uploads: Mapping[str, Sequence[Unfinished]], *, dry_run: bool, is_single: bool
) -> Collection:
    """Collect a log. `is_single`: no other one is collected with it."""
    log = part.log
    head = part.known_log.live_head
    bound = part.bound
    taken = _take(part, dry_run=dry_run)
    # A log that is too short for a segment of its own may have those of a deleted log. Only the
    # collection of a single log, or one that looks again, lists them.
    has_blocks = head.gap >= keys.BLOCK or is_single or part.known_log.looks_again
    old = [*_unneeded_segments(log, head, bound)] if has_blocks else []
    gone = taken.taken(log.store, old, dry_run=dry_run)
    unfinished = [*_below_bound(log, head, bound, uploads)]
    for upload in () if dry_run else unfinished:
        log.store.discard(upload)
    # SAFETY(erase-below-bound) §10: rows are erased only below the bound
    positions = [at for at in taken.staying if part.first <= at < part.erasable]
    erasure = erase_rows(log, head.window, part.state.log_id, positions, dry_run=dry_run)
    if not dry_run:
        if gone.objects or unfinished:
            events.emit(events.Collected(log.url, bound, gone.objects, gone.bytes))
        if erasure.erased:
            events.emit(events.RowsErased(log.url, part.erasable, erasure.erased))
    # Another collection may have succeeded in the meantime.
    before = part.known_log.left.among(
        [at for at in taken.staying if at >= part.state.without_rows]
    )
    left = before + erasure
    looked_below = max(part.erasable, part.first)
    young = sum(at >= looked_below for at in taken.staying)
    with_rows = young + len(left.left)
    held_by = part.held_by
    if with_rows and not held_by:
        reason = left.reason or "their floor is younger than twice the grace"
        held_by = f"{with_rows} records that stay: {reason}"
    collection = Collection(
        bound=bound,
        objects=gone.objects,
        uploads=len(unfinished),
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
    parts: Sequence[_Part],
    collections: Mapping[str, Collection | InvalidLogError | None],
) -> ChainRecord:
    """Put a record that notes below which positions no record holds rows: 1 conditional PUT.

    So no other process reads these records again. Without the record nothing is lost.

    Returns:
        The record, or `record` without one: no record was read, or another process put one first.
    """
    changed = {
        part.log.name: replace(part.state, without_rows=done.without_rows)
        for part in parts
        if isinstance(done := collections[part.log.name], Collection)
        and done.looked
        and done.without_rows > part.state.without_rows
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
        undeleted = [] if dry_run else delete_listed(store, entries)
        return replace(
            self,
            objects=self.objects + len(entries) - len(undeleted),
            bytes=self.bytes
            + sum(entry.size for entry in entries)
            - sum(e.size for e in undeleted),
            kept=self.kept + len(undeleted),
        )


def _take(part: _Part, *, dry_run: bool) -> _Taken:
    """Delete the objects below the bound, but for the records that stay."""
    log = part.log
    taken = _Taken()
    staying: list[int] = []
    below = _below(log, part.known_log.live_head, part.bound)
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


def _uploads(logs: Sequence[LogStore]) -> dict[str, list[Unfinished]]:
    """The unfinished uploads of logs of one path, by the folders of their records.

    It costs 1 LIST for each thousand.
    """
    root = logs[0].root
    prefix = keys.batches_prefix(logs[0].prefix)
    if len(logs) > 1:
        prefix = f"{root.prefix}/" if root.prefix else ""
    uploads: dict[str, list[Unfinished]] = {}
    after = ""
    while True:
        page = root.store.unfinished(prefix, after)
        for upload in page.uploads:
            uploads.setdefault(f"{upload.key.rpartition('/')[0]}/", []).append(upload)
        if not (after := page.after):
            return uploads


def _below_bound(
    log: LogStore, head: Head, bound: int, uploads: Mapping[str, Sequence[Unfinished]]
) -> Iterator[Unfinished]:
    """The unfinished uploads of a log to positions below the bound."""
    prefix = keys.batches_prefix(log.prefix)
    for upload in uploads.get(prefix, ()):
        number = keys.listed(upload.key.removeprefix(prefix))
        if number is not None and keys.position(number, head.window) < bound:
            yield upload


def _unneeded_segments(log: LogStore, head: Head, bound: int) -> Iterator[Entry]:
    """The segments with a position below the bound or beyond the head, and those of another log.

    It costs 1 LIST for each thousand segments, and 1 GET for each one that stays.
    """
    assert head.live is not None
    log_id = head.live.header.log_id

    def is_foreign(entry: Entry) -> bool:
        try:
            front = open_front(log.store.get_range(entry.key, 0, FRONT), entry.key)
        except (InvalidLogError, NotFound):
            # `sparkwal segment` replaces a damaged one.
            return False
        return front.header.log_id != log_id

    staying: list[Entry] = []
    # Readers that need a segment take the records, so no delete harms one.
    for number, entry in numbered(log.store, keys.segments_prefix(log.prefix)):
        position = keys.position(number, head.window)
        # A segment with one position below the bound has copies of rows that left the log.
        if position - keys.BLOCK + 1 < bound or position > head.position:
            yield entry
        else:
            staying.append(entry)
    checked = run_parallel(log.store, is_foreign, staying)
    yield from (entry for entry, foreign in zip(staying, checked, strict=True) if foreign)


def forget_old_records(
    log: LogStore, begun: ChainRecord | None, newest: ChainRecord, grace_ms: int
) -> None:
    """Delete records that no process needs, after each hundred new ones.

    The first record stays (§4), and the newest `KEPT_RECORDS` numbers. A collection takes its
    floor from a record that is older than the grace, or than twice the grace. So records up to that
    age stay, and the newest older record. It costs 1 LIST, 1 DELETE, and the requests of a binary
    search for ages.

    Args:
        log: any log of the path.
        begun: the newest record when the run began; with None it deletes in any case.
        newest: the newest record now.
        grace_ms: the grace.
    """
    if newest.number >= keys.MAX - KEPT_RECORDS:
        return
    before = keys.MAX + 1 if begun is None else begun.number
    if (keys.MAX - before) // EVERY == (keys.MAX - newest.number) // EVERY:
        return
    prefix = keys.lifecycle_prefix(log.root.prefix)
    # SAFETY(chain-newest-kept) §10: the newest thousand numbers of the chain are never freed
    last_kept = newest.number + KEPT_RECORDS - 1
    after = keys.lifecycle_key(log.root.prefix, last_kept)
    entries = [entry for _, entry in islice(numbered(log.store, prefix, after), KEYS_OF_DELETE)]
    first = keys.lifecycle_key(log.root.prefix, keys.MAX)
    age_ms = 2 * max(grace_ms, newest.gc_grace_ms)
    old = _older(log, [entry for entry in entries if entry.key != first], age_ms)
    # A policy from before this version does not allow the delete. Then the records stay.
    with suppress(OptionError):
        delete_listed(log.store, old)


def _older(log: LogStore, entries: list[Entry], age_ms: int) -> list[Entry]:
    """The records that are older than the newest one of this age.

    A late PUT at a freed number is younger than its neighbours. It may end the search early: then
    fewer records are deleted.

    Args:
        log: any log of the path.
        entries: the records, newest first.
        age_ms: the age, by the store's clock.
    """

    def is_old(entry: Entry) -> bool:
        try:
            # SAFETY(chain-record-age) §10: a record is deleted only if it is older than the grace
            return log.store.age_ms(entry.key) > age_ms
        except NotFound:
            # Another process deletes it now.
            return True

    return entries[bisect(entries, False, key=is_old) + 1 :]
