"""A repeated write: its number identifies it, and its rows must agree."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from sparkwal import events
from sparkwal.checkpoints.carry import StreamCheckpoint
from sparkwal.errors import DivergedCheckpointError, InvalidLogError, OptionError
from sparkwal.events.emitting import Event
from sparkwal.format import keys, schema
from sparkwal.protocol import archive
from sparkwal.protocol.recovery import find_head
from sparkwal.protocol.task import TaskAttempt, write_partition
from sparkwal.testing.memory import MemoryStore
from tests.chains import beginning, put_next
from tests.protocol.query import LIMITS, Query, hints_in

INLINED = replace(LIMITS, inline_threshold=2**16)


@pytest.fixture(params=[LIMITS, INLINED], ids=["objects", "inlined"])
def query(request: pytest.FixtureRequest, store: MemoryStore, tmp_path: Path) -> Query:
    """As `df.write` with txnAppId "query" and the batch id as txnVersion."""
    return Query(store, hints_in(tmp_path), limits=request.param)


def again(query: Query, version: int, *partitions: tuple[int, ...]) -> int | None:
    query.clock.wall_ms += 1000
    return query.restarted().microbatch(version, *partitions)


def test_a_repetition_with_the_same_rows_is_skipped_however_they_are_dealt_out(
    query: Query,
) -> None:
    again(query, 7, (1, 2, 3), (4,))
    again(replace(query, query_id="other"), 1, (9,))
    assert again(query, 7, (4, 1), (), (3, 2)) is None
    query.limits = replace(LIMITS, batch_size=1, codec=None)
    assert again(query, 7, (1,), (2,), (3,), (4,)) is None


@pytest.mark.proves("batch-same-rows")
@pytest.mark.parametrize("values", [(1, 2, 4), (1, 2), (1, 2, 3, 3), (1, 1, 2)])
def test_the_same_version_with_other_rows_is_refused(query: Query, values: tuple[int, ...]) -> None:
    again(query, 7, (1, 2, 3))
    with pytest.raises(DivergedCheckpointError, match="txnVersion 7 of txnAppId 'query' already"):
        again(query, 7, values)
    assert again(query, 8, values) is not None


@pytest.mark.proves("version-never-lower")
def test_a_lower_version_is_refused_and_the_last_one_is_named(query: Query) -> None:
    again(query, 20260131, (1,))
    with pytest.raises(OptionError, match=r"txnVersion is 20260115.*version 20260131.*backfill"):
        again(query, 20260115, (2,))
    with pytest.raises(OptionError):
        again(query, 20260115, (1,))


def test_the_record_is_found_among_many_of_one_moment(query: Query, store: MemoryStore) -> None:
    for number in range(40):
        query.clock.wall_ms += number // 10 * 10
        other = replace(query.restarted(), query_id=f"q{number}")
        other.microbatch(1, (number,))
    store.counts.clear()
    repeated = replace(query.restarted(), query_id="q13")
    assert repeated.microbatch(1, (13,)) is None
    assert store.counts["GET"] < 30
    with pytest.raises(DivergedCheckpointError):
        replace(query.restarted(), query_id="q13").microbatch(1, (14,))


def test_an_archived_transaction_is_compared_too(
    query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    again(query, 7, (1, 2))
    monkeypatch.setattr(archive, "MOST", 2)
    monkeypatch.setattr(archive, "KEPT", 1)
    for number in range(4):
        again(replace(query, query_id=f"q{number}"), 0, (number,))
    assert again(query, 7, (2, 1)) is None
    with pytest.raises(DivergedCheckpointError):
        again(query, 7, (2, 2))
    with pytest.raises(OptionError, match="version 7"):
        again(query, 6, (2, 1))


def test_a_column_that_was_added_since_does_not_make_a_repetition_another(query: Query) -> None:
    again(query, 7, (1, 2))
    wider = schema.from_arrow(pa.schema([("v", pa.int64()), ("w", pa.string())]))
    merging = replace(query, spark_schema=wider, merge_schema=True)
    again(replace(merging, query_id="other"), 1, (9,))
    merging.clock.wall_ms += 1000
    assert again(merging, 7, (2, 1)) is None
    plan = merging.restarted().plan()
    new = pa.record_batch({"v": [1, 2], "w": ["a", "b"]})
    result = write_partition(
        query.open,
        plan.for_tasks(),
        TaskAttempt("query", 7, 0, run_id="run"),
        iter([new]),
        query.limits,
    )
    with pytest.raises(DivergedCheckpointError):
        query.commit([result])


def test_for_a_collected_record_the_number_decides_and_an_event_is_emitted(query: Query) -> None:
    again(query, 7, (1, 2))
    for version in range(4):
        again(replace(query, query_id="other"), version, (9,))
    live = find_head(query.open()).live
    assert live is not None
    # A collection may have deleted what is below the floor, and somebody put other things there.
    head = beginning(live.header.log_id, "default", 1)
    assert put_next(query.open(), head, "floor", query.clock, "host", floor=5)
    reported: list[Event] = []
    unsubscribe = events.subscribe(reported.append)
    try:
        assert again(query, 7, (5,)) is None
    finally:
        unsubscribe()
    assert events.ReplayNotCompared(query_id="query", batch_id=7) in reported
    with pytest.raises(OptionError):
        again(query, 6, (1,))


def test_a_flipped_bit_anywhere_in_an_object_is_reported(
    store: MemoryStore, tmp_path: Path
) -> None:
    """No CRC is known of an object that a task finds at its key."""
    query = Query(store, hints_in(tmp_path))
    again(query, 7, (1, 2))
    repeated = query.restarted()
    result = repeated.task(repeated.plan(), 7, 0, 1, 2)
    stored = query.open().key(keys.data(1, 1000, 0))
    body = store.objects[stored]
    for place in range(0, len(body), 3):
        damaged = bytearray(body)
        damaged[place] ^= 1 << place % 8
        store.objects[stored] = bytes(damaged)
        with pytest.raises(InvalidLogError):
            repeated.commit([result])


@pytest.mark.parametrize("what", ["the record", "its object", "bytes"])
def test_lost_or_damaged_rows_are_not_compared(
    store: MemoryStore, tmp_path: Path, what: str
) -> None:
    query = Query(store, hints_in(tmp_path))
    again(query, 7, (1, 2))
    repeated = query.restarted()
    result = repeated.task(repeated.plan(), 7, 0, 1, 2)
    slot, stored = (query.open().key(n) for n in (keys.slot(1, 1000), keys.data(1, 1000, 0)))
    body = bytearray(store.objects[stored])
    store.delete(slot if what == "the record" else stored)
    if what == "bytes":
        body[len(body) // 2] ^= 1
        store.put_if_absent(stored, bytes(body))
    with pytest.raises(InvalidLogError):
        repeated.commit([result])


def test_a_stream_with_a_remote_checkpoint_does_not_skip_other_rows_just_as_many(
    query: Query,
) -> None:
    stream = replace(query, carrier=StreamCheckpoint("s3a://bucket/ck", "query", 2**20))
    again(stream, 0, (1, 2), (3,))
    assert again(stream, 0, (3, 2, 1)) is None
    with pytest.raises(DivergedCheckpointError, match="not the same ones.*other rows"):
        again(stream, 0, (1, 2), (4,))
