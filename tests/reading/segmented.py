"""Random logs with short blocks, and all that readers get from a log."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from sparkwal import events
from sparkwal.events import Event
from sparkwal.format import arrowfile, keys, schema, segment
from sparkwal.format.header import CommitHeader
from sparkwal.log import Log
from sparkwal.options.parsing import parse
from sparkwal.options.reading import SourceOptions
from sparkwal.protocol import segments
from sparkwal.protocol.recovery import find_head
from sparkwal.protocol.slots import SlotRecord
from sparkwal.reading.history import walk
from sparkwal.reading.log_range import LogRange
from sparkwal.reading.segmenting import Made, make_segments
from sparkwal.store.base import LogStore
from sparkwal.testing.memory import MemoryStore
from tests.appender.faulty_store import FaultyStore
from tests.protocol.query import LIMITS, SCHEMA, Query, hints_in

BLOCK = 8
INLINED = replace(LIMITS, inline_threshold=None)
WIDER = schema.from_arrow(pa.schema([("v", pa.int64()), ("w", pa.string())]))


def log_of(store: Any) -> LogStore:
    return LogStore(store, "wal")


@pytest.fixture
def short_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of BLOCK positions, so that a test needs only a few records."""
    monkeypatch.setattr(keys, "BLOCK", BLOCK)


def small_parts(patch: pytest.MonkeyPatch, frame: int, run: int, front: int) -> None:
    """Let a small segment have several frames and runs, which a reader fetches one by one."""
    patch.setattr(segment, "_FRAME", frame)
    patch.setattr(segment, "RUN_SIZE", run)
    patch.setattr(segments, "FRONT", front)


def opened(store: Any, **options: Any) -> Log:
    log = Log("/nowhere", **options)
    log._log = log_of(store)
    return log


def looked(store: Any) -> LogRange:
    options = parse(SourceOptions, {"path": "memory"})
    log = LogRange(options, options.sequencer, log_of(store))
    log.refresh()
    return log


def ignored(seen: Sequence[Event]) -> list[str]:
    """The keys of the segments that readers did not use."""
    return [event.segment for event in seen if isinstance(event, events.SegmentIgnored)]


def segmented(store: Any, **options: Any) -> Made:
    return make_segments(looked(store), **options)


def segments_in(store: MemoryStore) -> list[str]:
    """The keys of the segments, the oldest first."""
    return sorted((key for key in store.objects if "/segments/" in key), reverse=True)


def without_segments(store: MemoryStore) -> MemoryStore:
    copy = MemoryStore()
    copy.objects = {key: body for key, body in store.objects.items() if "/segments/" not in key}
    copy.modified = dict(store.modified)
    return copy


def everything(store: MemoryStore) -> object:
    """The records of a log, and its rows with where they came from."""
    log = opened(store)
    return [*log.records()], log.scan(include_metadata=True).read_all().to_pylist()


def query_in(store: Any, folder: Path, **options: Any) -> Query:
    return Query(store, hints_in(folder), **options)


def random_log(seed: int, folder: Path, positions: int = 60) -> MemoryStore:
    """A log of appenders and queries, with takeovers, dead records, new columns, empty commits,
    several partitions, and rows in records and in objects."""
    draw = random.Random(seed)
    faulty = FaultyStore()
    store = faulty.inner
    query = query_in(store, folder, query_id="query")
    batch_id = 0
    value = 0

    def values(count: int) -> tuple[int, ...]:
        nonlocal value
        value += count
        return tuple(range(value - count, value))

    while find_head(log_of(store)).gap < positions:
        if draw.random() < 0.4 and query.spark_schema == SCHEMA:
            with faulty.appender(f"producer{draw.randint(0, 2)}") as appender:
                for _ in range(draw.randint(1, 9)):
                    appender.append([{"v": each} for each in values(draw.randint(1, 5))])
            _late_record(draw, store)
        if draw.random() < 0.1:
            query = replace(query, spark_schema=WIDER, merge_schema=True)
        limits = replace(LIMITS, inline_threshold=draw.choice((None, 0, 2**16)))
        query = replace(query.restarted(), limits=limits)
        for _ in range(draw.randint(1, 9)):
            partitions = [values(draw.choice((0, 1, 3, 40))) for _ in range(draw.randint(1, 4))]
            query.microbatch(batch_id, *partitions)
            batch_id += 1
    return store


def small_commits(folder: Path, positions: int) -> MemoryStore:
    """A log of one query: its leader record, and commits of one row each."""
    store = MemoryStore()
    query = query_in(store, folder, limits=INLINED)
    for batch_id in range(positions - 1):
        query.microbatch(batch_id, (batch_id,))
    return store


def _late_record(draw: random.Random, store: MemoryStore) -> None:
    """Perhaps a record that a fenced leader still sent, after the gap: it is dead."""
    head = find_head(log_of(store))
    if head.live is None or head.in_flight_limit < 2 or draw.random() < 0.5:
        return
    header = head.live.header
    if not isinstance(header, CommitHeader):
        return
    position = head.gap + draw.randint(1, head.in_flight_limit - 1)
    number = keys.slot(position, head.window)
    batch = header.batch_id + 100
    late = replace(
        header,
        position=position,
        number=number,
        batch_id=batch,
        rows=0,
        inline=(),
        batches=(),
        txns={**header.txns, header.query_id: (batch, header.timestamp_ms)},
    )
    store.put_if_absent(log_of(store).key(number), arrowfile.encode(late, head.live.spark_schema))


def all_of(store: Any, start: int | None = None, end: int | None = None) -> Iterator[object]:
    """All that the readers of a log give."""
    log = opened(store)
    yield [*log.records(start, end)]
    yield log.scan(start, end, include_metadata=True).read_all().to_pylist()
    yield log.scan(start, end, columns=["_wal_position", "v"]).read_all().to_pylist()
    yield log.scan(start, end, columns=["_wal_batch_id"]).read_all().to_pylist()
    at_least = f"_wal_position >= {start or 0} AND _wal_position <= {2**40 if end is None else end}"
    yield log.sql(f"SELECT * FROM log WHERE {at_least}").read_all().to_pylist()
    yield log.sql(f"SELECT count(*) FROM log WHERE {at_least}").read_all().to_pylist()
    records = at_least.replace("_wal_position", "position")
    yield log.sql(f"SELECT * FROM records WHERE {records}").read_all().to_pylist()
    seen = looked(store)
    first, after = start or 0, seen.gap if end is None else end + 1
    for newest_first in (False, True):
        for seals in (False, True):
            walked = walk(seen, first, after, newest_first=newest_first, seals=seals, at_once=2)
            yield [item.header for item in walked if isinstance(item, SlotRecord)]
    replay = log.replay()
    yield [(entry.header, pa.Table.from_batches(entry.rows).to_pylist()) for entry in replay]
    yield log.current().to_pandas().to_dict("records")
