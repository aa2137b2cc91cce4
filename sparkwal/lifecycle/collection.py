"""Deletes the objects below a bound that no reader and no writer needs.

The order of deletes does not matter, and a collector with an old view computes a lower bound. So a
collector may crash, pause or run twice; the next one deletes the remaining objects.
"""

from bisect import bisect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from sparkwal import events
from sparkwal.errors import InvalidLogError
from sparkwal.format import keys
from sparkwal.format.arrowfile import open_front
from sparkwal.format.lifecycle_record import ChainRecord, LifecycleRecord
from sparkwal.lifecycle.compaction import confirm_table
from sparkwal.lifecycle.consumers import bounds as consumers_bounds
from sparkwal.lifecycle.consumers import holders
from sparkwal.lifecycle.leases import forget_expired_leases
from sparkwal.lifecycle.table import Table
from sparkwal.protocol.archive import read_archive
from sparkwal.protocol.chain import part_of, record_at
from sparkwal.protocol.recovery import Head
from sparkwal.reading.floor import KEPT_SLOTS
from sparkwal.store.base import Entry, LogStore, NotFound, numbered

# The bytes of a segment that hold its header.
_FRONT = 256 * 2**10
# Keys in one DELETE.
_KEYS_OF_DELETE = 1000


@dataclass(frozen=True)
class Collection:
    """The objects below position `bound` that were deleted, or may be.

    Attributes:
        bound: every position below it may be collected.
        objects, uploads: how many objects and unfinished uploads.
        bytes: the size of the objects.
        records: how many records below `bound` stay, with the rows that they hold: a log keeps its
            newest 1,000 records, and those with a query's checkpoint.
        held_by: for people: what keeps objects in the store. It is "the grace", the names of
            consumers and leases that keep `bound` from being higher, or the records that stay; ""
            if nothing does.
    """

    bound: int
    objects: int = 0
    uploads: int = 0
    bytes: int = 0
    records: int = 0
    held_by: str = ""


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
        state: its part of the newest lifecycle record.
        above: nothing is done unless the bound is above this position.
    """

    log: LogStore
    head: Head
    state: LifecycleRecord
    above: int = -1


def _old_record(log: LogStore, newest: int, grace_ms: int) -> ChainRecord | None:
    """The newest lifecycle record that is older than the grace, or None: O(log n) requests.

    The store's clock decides the age.
    """
    root = log.root.prefix

    def is_older(number: int) -> bool:
        # SAFETY(grace-before-delete) §10: only a floor older than the grace allows a delete
        return log.store.age_ms(keys.lifecycle_key(root, number)) > grace_ms

    try:
        # Older records have higher numbers.
        number = newest + bisect(range(newest, keys.MAX + 1), False, key=is_older)
    except (NotFound, OverflowError):
        # A rule of the bucket or a person deleted a record: check the existing ones one by one.
        existing = numbered(log.store, keys.lifecycle_prefix(root))
        number = next((number for number, _ in existing if is_older(number)), keys.MAX + 1)
    # A torn record is passed over, as by `newest_lifecycle`.
    while number <= keys.MAX:
        record = record_at(log, number)
        if record is not None:
            return record
        number += 1
    return None


def _bounds(logs: Sequence[Collected], safeguards: Safeguards) -> list[tuple[int, str]]:
    """The first position of each log that stays, and for people what keeps it from being higher.

    A consumer that joins later begins at the floor or above.
    """
    states = [one.state for one in logs]
    grace_ms = max(safeguards.grace_ms, states[0].gc_grace_ms)
    old = _old_record(logs[0].log, states[0].number, grace_ms)
    floors = []
    for one in logs:
        part = part_of(one.log, old, one.state.log_id)
        # No honest floor goes back; a forged older one must not take more than the newest allows.
        # If the old record does not have the log, nothing of it was released so long ago.
        floors.append(min(part.floor, one.state.floor) if part else 0)
    # Below a floor that allows nothing new, the consumers do not matter.
    moved = [
        (one.log, one.state.log_id, floor)
        for one, floor in zip(logs, floors, strict=True)
        if floor > one.above
    ]
    # SAFETY(floor-then-consumers) §10: a collection takes the floor first and lists the consumers
    # after it
    allowed = iter(consumers_bounds(moved, safeguards.expiry_ms))
    bounds = [
        next(allowed) if floor > one.above else floor
        for one, floor in zip(logs, floors, strict=True)
    ]
    with_table = [
        one
        for one, bound in zip(logs, bounds, strict=True)
        if one.state.target is not None and bound > max(one.above, 0)
    ]
    if with_table:
        log, state = with_table[0].log, with_table[0].state
        if safeguards.table is None:
            raise InvalidLogError(f"{log.url} has a table, and collection must read it: pass it")
        # All of them have the table that this process reads.
        # SAFETY(table-before-delete) §10: a collection confirms the table before it deletes
        confirm_table(log, state, safeguards.table)
    results = []
    for one, floor, bound in zip(logs, floors, bounds, strict=True):
        held_by = "the grace" if floor < one.state.floor else ""
        if bound < floor:
            names = holders(one.log, one.state.log_id, bound, safeguards.expiry_ms)
            held_by = ", ".join(names) or "a consumer that was forgotten meanwhile"
        if one.state.target is not None:
            bound = min(bound, one.state.cut)
        results.append((bound, held_by))
    return results


def collect(
    logs: Sequence[Collected], safeguards: Safeguards, *, dry_run: bool = False
) -> dict[str, Collection | None]:
    """Delete data objects, orphans and unfinished uploads below the bound of each log, and slot
    records below bound − KEPT_SLOTS.

    It costs 1 LIST and 1 DELETE for each thousand objects of a log, and as much for the segments.

    Args:
        logs: logs of one path and one newest record of its chain.
        safeguards: keep objects from collection.
        dry_run: count the objects only.

    Returns:
        The collected objects of each log by name, or None if its bound is not above `above`.

    Raises:
        ConfirmError: the table no longer holds rows that the log would lose.
        MovedOn: another process changed the lifecycle meanwhile.
    """
    if not logs:
        return {}
    bounds = _bounds(logs, safeguards)
    return {
        one.log.name: _collect(one, bound, held_by, safeguards, dry_run=dry_run)
        for one, (bound, held_by) in zip(logs, bounds, strict=True)
    }


def _collect(
    one: Collected, bound: int, held_by: str, safeguards: Safeguards, *, dry_run: bool
) -> Collection | None:
    log = one.log
    head = one.head
    state = one.state
    if bound <= one.above:
        return None
    if not held_by and bound < head.gap:
        # A consumer that does not continue may keep the floor itself from moving.
        held_by = ", ".join(holders(log, state.log_id, bound, safeguards.expiry_ms))
    objects = records = size = 0
    below = _below(log, head, bound)
    while listed := [*islice(below, _KEYS_OF_DELETE)]:
        batch = [entry for entry, stays in listed if not stays]
        records += len(listed) - len(batch)
        if not batch:
            continue
        objects += len(batch)
        size += sum(entry.size for entry in batch)
        if not dry_run:
            # If the store compares ETags, an object that replaced one since the LIST stays.
            names = [entry.key for entry in batch]
            log.store.delete_many(names, [entry.etag for entry in batch])
    old = [*unneeded_segments(log, head, bound)]
    objects += len(old)
    size += sum(entry.size for entry in old)
    for begin in range(0, 0 if dry_run else len(old), _KEYS_OF_DELETE):
        batch = old[begin : begin + _KEYS_OF_DELETE]
        log.store.delete_many([entry.key for entry in batch], [entry.etag for entry in batch])
    uploads = _discard_uploads(log, head, bound, dry_run=dry_run)
    if not dry_run:
        forget_expired_leases(log)
        if objects or uploads:
            events.emit(events.Collected(path=log.url, below=bound, objects=objects, bytes=size))
    if records and not held_by:
        held_by = f"{records} records that stay"
    return Collection(bound, objects, uploads, size, records, held_by)


def _below(log: LogStore, head: Head, bound: int) -> Iterator[tuple[Entry, bool]]:
    """Every object below the bound, newest first, and whether it is a record that stays."""
    if bound <= 0:
        return
    assert head.live is not None
    window = head.window
    header = head.live.header
    checkpoints = [*header.checkpoints.values()]
    if header.txns_archive:
        checkpoints += read_archive(log, header.txns_archive).checkpoints.values()
    # §12: records that hold a query's checkpoint stay
    pinned = {checkpoint.position for checkpoint in checkpoints}
    for checkpoint in checkpoints:
        pinned |= {position for position, _ in checkpoint.files.values()}
    # Numbers count down, so the objects after the slot of the bound belong to positions below it.
    after = log.key(keys.slot(bound, window))
    for number, entry in numbered(log.store, keys.batches_prefix(log.prefix), after):
        position = keys.position(number, window)
        # SAFETY(keep-slots) §10: 1,000 slot records below the bound stay
        may_stay = position >= bound - KEPT_SLOTS or position in pinned
        yield entry, may_stay and keys.is_slot(number, window)


def unneeded_segments(log: LogStore, head: Head, bound: int) -> Iterator[Entry]:
    """The segments that end below the bound or beyond the head, and those of another log.

    It costs 1 LIST for each thousand segments, and 1 GET for each one that stays.
    """
    assert head.live is not None
    log_id = head.live.header.log_id
    # Readers that need a segment take the records, so no delete harms one.
    for number, entry in numbered(log.store, keys.segments_prefix(log.prefix)):
        position = keys.position(number, head.window)
        if position < bound or position > head.position:
            yield entry
            continue
        try:
            front = open_front(log.store.get_range(entry.key, 0, _FRONT), entry.key)
        except (InvalidLogError, NotFound):
            # `sparkwal segment` replaces a damaged one.
            continue
        if front.header.log_id != log_id:
            yield entry


def _discard_uploads(log: LogStore, head: Head, bound: int, *, dry_run: bool) -> int:
    """Discard, or only count, the unfinished uploads below the bound: 1 LIST for each thousand.

    Returns:
        Their number.
    """
    prefix = keys.batches_prefix(log.prefix)
    count = 0
    after = ""
    while True:
        page = log.store.unfinished(prefix, after)
        for upload in page.uploads:
            number = keys.listed(upload.key.removeprefix(prefix))
            if number is not None and keys.position(number, head.window) < bound:
                count += 1
                if not dry_run:
                    log.store.discard(upload)
        if not (after := page.after):
            return count
