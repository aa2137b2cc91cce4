"""A log whose older positions were collected, made by hand."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from sparkwal.format import keys
from sparkwal.format.lifecycle_record import FLOOR
from sparkwal.protocol.chain import newest_record
from sparkwal.protocol.clock import Clock
from sparkwal.protocol.recovery import find_head
from sparkwal.store.base import LogStore
from sparkwal.testing.memory import MemoryStore
from tests.chains import Seen, beginning, newest, put_next
from tests.protocol.query import LIMITS, Query, hints_in

__all__ = ["LIMITS", "Query", "collect", "copied", "move_floor", "written"]
# Slot records below the bound that a collection leaves.
LEFT = 1000
DAY_MS = 86_400_000


def written(folder: Path, commits: int, store: MemoryStore | None = None) -> MemoryStore:
    """A leader record at position 0, then value n at position n, each in a data object."""
    store = store or MemoryStore(concurrency=4)
    query = Query(store, hints_in(folder))
    for value in range(1, commits + 1):
        query.microbatch(value, (value,))
    return store


def copied(store: MemoryStore) -> MemoryStore:
    """Another store with the same objects."""
    found = MemoryStore(concurrency=4)
    for key, body in store.objects.items():
        found.put_if_absent(key, body)
    found.counts.clear()
    return found


def move_floor(log: LogStore, floor: int, grace_ms: int = DAY_MS) -> Seen:
    """Put a record with this floor into the log's chain."""
    live = find_head(log).live
    assert live is not None
    log_id = live.header.log_id
    head = newest(log, log_id)
    head = head or beginning(log_id, log.name, grace_ms, newest_record(log))
    record = put_next(log, head, FLOOR, Clock(), "test", floor=floor)
    assert record is not None
    return record


def collect(log: LogStore, bound: int, window: int = 1000, kept: Iterable[int] = ()) -> None:
    """Delete what lies below `bound`, but 1000 slot records and those at `kept`."""
    prefix = keys.batches_prefix(log.prefix)
    after = ""
    while entries := log.store.list(prefix, 1000, after).entries:
        after = entries[-1].key
        for entry in entries:
            number = keys.decode(entry.key.removeprefix(prefix))
            assert number is not None
            position = keys.position(number, window)
            free = position < bound - LEFT if keys.is_slot(number, window) else position < bound
            if free and position not in kept:
                log.store.delete(entry.key)
