"""Deleting what nobody needs any more, below a bound that no reader and no writer can cross.

It deletes in any order, and an old view only sees a lower bound: a collector may die, sleep or run
twice. The next one finds what is left.
"""

from bisect import bisect
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from sparkwal import events
from sparkwal.errors import InvalidLogError
from sparkwal.format import keys
from sparkwal.format.lifecycle_record import LifecycleRecord, decode
from sparkwal.lifecycle.compaction import confirmed
from sparkwal.lifecycle.consumers import bound as consumers_bound
from sparkwal.lifecycle.consumers import forget_expired_leases, holders
from sparkwal.lifecycle.table import Table
from sparkwal.protocol.archive import read_archive
from sparkwal.protocol.recovery import Head
from sparkwal.reading.floor import KEPT_SLOTS
from sparkwal.store.base import Entry, LogStore, NotFound, numbered

_AT_ONCE = 1000  # keys of one DELETE


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


def old_floor(log: LogStore, head: LifecycleRecord, grace_ms: int) -> int:
    """The floor of the newest record that is older than the grace, by the store's clock; 0 where
    none is: O(log n) requests."""

    def is_older(number: int) -> bool:
        # SAFETY(grace-before-delete) §10: only a floor older than the grace allows a delete
        return log.store.age_ms(keys.lifecycle_key(log.prefix, number)) > grace_ms

    try:
        # Older records have higher numbers.
        number = head.number + bisect(range(head.number, keys.MAX + 1), False, key=is_older)
    except NotFound:
        # Something else deletes them, a rule of the bucket for example: one by one then.
        found = numbered(log.store, keys.lifecycle_prefix(log.prefix))
        number = next((each for each, _ in found if is_older(each)), keys.MAX + 1)
    if number > keys.MAX:
        return 0
    key = keys.lifecycle_key(log.prefix, number)
    return decode(log.store.get(key), f"{log.store.url}/{key}").floor


def _bound(
    log: LogStore, state: LifecycleRecord, table: Table | None, grace_ms: int, expiry_ms: int | None
) -> tuple[int, str]:
    """The first position that stays, and what keeps it from being higher. A consumer that joins
    later begins at the floor or above."""
    floor = old_floor(log, state, grace_ms)
    held = "the grace" if floor < state.floor else ""
    # SAFETY(floor-then-consumers) §10: a collection takes the floor first and lists the consumers
    # after it
    bound = consumers_bound(log, state.log_id, floor, expiry_ms)
    if bound < floor:
        names = holders(log, state.log_id, bound, expiry_ms)
        held = ", ".join(names) or "a consumer that is gone now"
    if state.target is not None and bound > 0:
        if table is None:
            raise InvalidLogError(f"{log.url} has a table; collecting it needs Delta to look at it")
        # SAFETY(table-before-delete) §10: a collection confirms the table before it deletes
        confirmed(log, state, table)
        bound = min(bound, state.cut)
    return bound, held


def collect(
    log: LogStore,
    head: Head,
    state: LifecycleRecord,
    *,
    table: Table | None,
    grace_ms: int,
    expiry_ms: int | None,
    above: int = -1,
    dry_run: bool = False,
) -> Collection | None:
    """Delete data objects, orphans and unfinished uploads below the bound, and slot records below
    bound − KEPT_SLOTS: for each thousand objects 1 LIST and 1 DELETE. None where the bound is not
    above `above`. The head is of a look after the one at the floor.

    Raises ConfirmError where the table no longer holds what the log would lose, MovedOn.
    """
    grace_ms = max(grace_ms, state.gc_grace_ms)
    bound, held = _bound(log, state, table, grace_ms, expiry_ms)
    if bound <= above:
        return None
    if not held and bound < head.gap:
        # The floor itself may stand at a consumer that has not read on.
        held = ", ".join(holders(log, state.log_id, bound, expiry_ms))
    objects = records = size = 0
    below = _below(log, head, bound)
    while listed := [*islice(below, _AT_ONCE)]:
        batch = [entry for entry, stays in listed if not stays]
        records += len(listed) - len(batch)
        if not batch:
            continue
        objects += len(batch)
        size += sum(entry.size for entry in batch)
        if not dry_run:
            # What was put there since the LIST stays, where the store compares ETags.
            log.store.delete_many([x.key for x in batch], [x.etag for x in batch])
    uploads = _discard_uploads(log, head, bound, dry_run)
    if not dry_run:
        forget_expired_leases(log)
        if objects or uploads:
            events.emit(events.Collected(path=log.url, below=bound, objects=objects, bytes=size))
    if records and not held:
        held = f"{records} records that stay"
    return Collection(bound, objects, uploads, size, records, held)


def _below(log: LogStore, head: Head, bound: int) -> Iterator[tuple[Entry, bool]]:
    """Every object below the bound, newest first, and whether it is a record that stays."""
    if bound <= 0:
        return
    assert head.live is not None
    window, header = head.window, head.live.header
    found = [*header.checkpoints.values()]
    if header.txns_archive:
        found += read_archive(log, header.txns_archive).checkpoints.values()
    # §12: records that hold a query's checkpoint stay
    pinned = {each.position for each in found}
    pinned |= {position for each in found for position, _ in each.files.values()}
    # Numbers count down: what follows the slot at the bound is of positions below it.
    after = log.key(keys.slot(bound, window))
    for number, entry in numbered(log.store, keys.batches_prefix(log.prefix), after):
        position = keys.position(number, window)
        # SAFETY(keep-slots) §10: 1,000 slot records below the bound stay
        is_near = position >= bound - KEPT_SLOTS or position in pinned
        yield entry, is_near and keys.is_slot(number, window)


def _discard_uploads(log: LogStore, head: Head, bound: int, dry_run: bool) -> int:
    """How many unfinished uploads were begun below the bound: 1 request for a thousand."""
    prefix = keys.batches_prefix(log.prefix)
    count, after = 0, ""
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
