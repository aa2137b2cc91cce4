"""Reads what one log tells of its past: its records' headers, a LIST of its objects, its chain."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from sparkwal.errors import InvalidLogError
from sparkwal.format import keys
from sparkwal.format.header import SlotHeader
from sparkwal.format.lifecycle import LifecycleRecord, decode
from sparkwal.history.folding import History
from sparkwal.history.series import DAY, LAST_MS, holding
from sparkwal.open import open_log
from sparkwal.options.reading import SourceOptions
from sparkwal.protocol import chain
from sparkwal.protocol.clock import Clock
from sparkwal.protocol.log_store import LogStore
from sparkwal.reading.log_range import LogRange
from sparkwal.store.base import NotFound
from sparkwal.store.listing import all_entries
from sparkwal.store.parallel import run_parallel

# What else lies under a log's path at rest.
_BESIDE = ("lifecycle", "txns", "consumers")


@dataclass(frozen=True)
class Looked:
    """One log, as it was found.

    Attributes:
        sequencer: its name under the path.
        start, end: the positions that were read, start … end−1.
        head: its last live record.
        gap: its next position.
        floor: positions below may be gone.
        since_ms, until_ms: the time that is told of; what lies in the store is as of now.
        chain: the newest record of its lifecycle.
        held: bytes in the store of positions before `start`.
        stored, objects: all of the log in the store now.
        damage: why the read ended before `end`; "" where it did not.
    """

    sequencer: str
    url: str
    start: int
    end: int
    head: SlotHeader
    spark_schema: str
    gap: int
    floor: int
    since_ms: int
    until_ms: int
    history: History
    chain: LifecycleRecord | None
    held: int
    stored: int
    objects: int
    damage: str = ""


def look_back(
    options: SourceOptions,
    clock: Clock,
    by: str | None = None,
    told: Callable[[int, int], None] = lambda done, of: None,
) -> Looked | None:
    """Read the headers of a log's records, with as many GETs, and 1 LIST for a thousand objects.

    Args:
        options: of one log; those that say where to begin and to end count.
        by: as for `History`.
        told: is called with how many records were read, and of how many.

    Returns None where there is no log. Raises CollectedError, OptionError, StoreUnavailableError,
    and InvalidLogError where not even the head can be read; damage further on ends the read.
    """
    now_ms = clock.now_ms()
    log = open_log(options, fail_fast=True)
    found = LogRange(options, options.sequencer, log, clock)
    found.look()
    if found.head is None or found.head.live is None:
        return None
    head = found.head.live
    start, end = found.start(), found.end()
    # A log's clock may be ahead of this one; nothing is told of times that have not come.
    until_ms = max(now_ms, min(head.header.timestamp_ms, LAST_MS))
    if options.ending_timestamp_ms is not None:
        until_ms = min(until_ms, options.ending_timestamp_ms)
    history = History(start, by, until_ms - DAY)
    damage = ""
    try:
        for record in found.records(start, end):
            history.add(record.header)
            told(record.header.position + 1 - start, end - start)
        history.end(end)
    except InvalidLogError as error:
        damage = str(error)
    held, stored, objects = _store(log, found.window, history, start)
    state = chain.look(log, head.header.log_id)
    since_ms = options.starting_timestamp_ms
    if since_ms is None:
        # Nothing above the floor: what lies below it is there, and paid.
        since_ms = (history.first or head.header).timestamp_ms
    since_ms = min(since_ms, until_ms)
    for time in _chain_times(log, state, since_ms, until_ms):
        _count_chain(history, time)
    return Looked(
        sequencer=options.sequencer, url=log.url, start=start, end=end, head=head.header,
        spark_schema=head.spark_schema, gap=found.gap, floor=found.floor.current(),
        since_ms=since_ms, until_ms=until_ms,
        history=history, chain=state, held=held, stored=stored, objects=objects, damage=damage,
    )  # fmt: skip


def _store(log: LogStore, window: int, history: History, start: int) -> tuple[int, int, int]:
    """Count what lies in the store into the history's buckets. Returns the bytes before `start`,
    all bytes, all objects."""
    held = stored = objects = 0
    timed = [list(history.series)]
    if history.periods is not None:
        timed.append(list(history.periods))
    if history.recent.records:
        timed.append([history.recent])
    prefix = keys.batches_prefix(log.prefix)
    for entry in all_entries(log.store, prefix):
        number = keys.decode(entry.key.removeprefix(prefix))
        if number is None:
            continue
        stored, objects = stored + entry.size, objects + 1
        position = keys.position(number, window)
        if position < start:
            held += entry.size
            continue
        if position >= history.after:
            continue  # after the time that is told of, or under way
        history.total.stored += entry.size
        history.total.objects += 1
        for buckets in timed:
            bucket = holding(buckets, position)
            if bucket is not None:
                bucket.stored += entry.size
                bucket.objects += 1
    for name in _BESIDE:
        folder = keys.join_key(log.prefix, name) + "/"
        for entry in all_entries(log.store, folder):
            stored, objects = stored + entry.size, objects + 1
    return held, stored, objects


def _chain_times(
    log: LogStore, newest: LifecycleRecord | None, since_ms: int, until_ms: int
) -> Iterator[int]:
    """When the records of the chain were put, the newest first: 1 GET for each."""

    def fetch(number: int) -> LifecycleRecord | None:
        key = keys.lifecycle_key(log.prefix, number)
        try:
            return decode(log.store.get(key), f"{log.store.url}/{key}")
        except NotFound:
            return None

    if newest is None:
        return
    for record in run_parallel(log.store, fetch, range(newest.number, keys.MAX + 1)):
        if record is None or record.timestamp_ms < since_ms:
            return
        if record.log_id == newest.log_id and record.timestamp_ms <= until_ms:
            yield record.timestamp_ms


def _count_chain(history: History, time: int) -> None:
    buckets = [history.total, history.series.at(min(time, LAST_MS))]
    if history.periods is not None:
        buckets.append(history.periods.at(min(time, LAST_MS)))
    if time >= history.recent.start_ms:
        buckets.append(history.recent)
    for bucket in buckets:
        bucket.requests["PUT"] += 1
