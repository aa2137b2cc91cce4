"""Contents of records and objects: windows of any size, rows in a record and in objects."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from sparkwal import Log
from sparkwal.errors import (
    OptionError,
)
from sparkwal.format import arrowfile, keys
from sparkwal.format.header import CommitHeader, LeaderHeader
from sparkwal.protocol.records import live_records
from sparkwal.protocol.recovery import find_head
from sparkwal.protocol.task import MOST_PARTITIONS
from sparkwal.protocol.view import LogView
from sparkwal.store.base import LogStore
from sparkwal.store.local import LocalStore
from sparkwal.testing.memory import MemoryStore
from tests.protocol.query import LIMITS, Query, hints_in, values_of


def test_a_partition_beyond_the_window_has_no_object(query: Query) -> None:
    plan = query.plan()
    with pytest.raises(OptionError, match=r"inlineThreshold.*coalesce\(999\)"):
        query.task(plan, 0, 999, 1)


def test_a_partition_that_no_header_can_name_has_no_object(query: Query) -> None:
    query.window = 1_000_000
    plan = query.plan()
    assert query.task(plan, 0, MOST_PARTITIONS - 1, 1).batch is not None
    with pytest.raises(OptionError, match=r"names the objects of 100000 .*coalesce\(100000\)"):
        query.task(plan, 0, MOST_PARTITIONS, 1)


def test_partitions_beyond_the_window_may_be_empty_or_inlined(query: Query) -> None:
    query.limits = replace(LIMITS, inline_threshold=100)
    plan = query.plan()
    large = tuple(range(100))
    tasks = [(0, ()), (998, large), (999, ()), (1000, (100,)), (5000, ())]
    results = [query.task(plan, 0, partition, *values) for partition, values in tasks]
    assert query.commit(results) == 1
    assert values_of(query.store) == [*large, 100]


@pytest.mark.parametrize("partitions", [1, 1500])
def test_a_writer_with_another_window_recovers_a_wide_log_with_one_list(
    query: Query, store: MemoryStore, partitions: int
) -> None:
    wide = replace(query, window=10_000)
    wide.microbatch(0, *[(p,) for p in range(partitions)])
    plan = wide.plan()
    for partition in range(partitions):
        wide.task(plan, 1, partition, partition)
    store.counts.clear()
    assert query.restarted().plan().position == 3
    assert store.counts["LIST"] == 1
    assert store.counts["GET"] <= 3


def test_the_head_of_a_wide_log_costs_at_most_three_gets(query: Query, store: MemoryStore) -> None:
    wide = replace(query, window=10_000)
    for batch in range(3):
        wide.microbatch(batch, *[(p,) for p in range(1200)])
    store.counts.clear()
    assert find_head(LogStore(store, "wal")).position == 3
    assert store.counts["GET"] <= 3


def test_a_writer_that_wants_another_window_is_refused(query: Query) -> None:
    query.microbatch(0, (1,))
    with pytest.raises(OptionError, match="created with 1000"):
        replace(query, window=10_000).plan()
    with pytest.raises(OptionError, match="created with 1000"):
        replace(query.restarted(), window=10_000).plan()


def test_inlined_rows_are_one_put_and_come_back_in_order(query: Query, store: MemoryStore) -> None:
    query.limits = replace(LIMITS, inline_threshold=2**20)
    query.microbatch(0, (1,))
    store.counts.clear()
    query.microbatch(1, (2, 3), (), (4,))
    assert store.counts == {"PUT": 1}
    assert values_of(store) == [1, 2, 3, 4]


@pytest.mark.parametrize(("window", "inlined"), [(1000, True), (10_000, True), (100_000, False)])
def test_more_room_for_partitions_does_not_make_larger_records(
    query: Query, store: MemoryStore, window: int, inlined: bool
) -> None:
    query.limits = replace(LIMITS, inline_threshold=None)
    query.window = window
    query.microbatch(0, tuple(range(200)))
    (record,) = [
        r.header
        for r in live_records(LogView(LogStore(store, "wal"), window), 1, 2)
        if isinstance(r.header, CommitHeader)
    ]
    assert bool(record.inline) == inlined == (not record.batches)


@pytest.mark.parametrize("inline", [0, 2**20])
def test_a_frame_has_at_most_so_many_bytes(
    query: Query, store: MemoryStore, monkeypatch: pytest.MonkeyPatch, inline: int
) -> None:
    monkeypatch.setattr(arrowfile, "LARGEST_FRAME", 1000)
    query.limits = replace(LIMITS, inline_threshold=inline)
    query.microbatch(0, tuple(range(500)))
    (record,) = [
        r.header
        for r in live_records(LogView(LogStore(store, "wal"), 1000), 1, 2)
        if isinstance(r.header, CommitHeader)
    ]
    frames = record.inline[0].record_batches if inline else len(record.batches[0].frames)
    assert frames == 4 and values_of(store) == list(range(500))


def test_large_and_inlined_partitions_of_one_commit_are_read_in_order(
    query: Query, store: MemoryStore
) -> None:
    query.limits = replace(LIMITS, inline_threshold=100)
    query.microbatch(0, (1,), tuple(range(2, 500)), (500,))
    assert values_of(store) == list(range(1, 501))
    (record,) = [
        r.header
        for r in live_records(LogView(LogStore(store, "wal"), 1000), 1, 2)
        if isinstance(r.header, CommitHeader)
    ]
    assert [b.partition for b in record.batches] == [1]
    assert [i.partition for i in record.inline] == [0, 2]
    assert record.rows == 500


def test_anonymous_appends_leave_no_trace_in_the_transactions(
    query: Query, store: MemoryStore
) -> None:
    for number in range(3):
        append = replace(query, query_id=f"append:{number}")
        append.microbatch(0, (number,))
    query.microbatch(0, (9,))
    live = find_head(LogStore(store, "wal")).live
    assert live is not None and list(live.header.txns) == ["query"]


def test_a_leader_record_carries_the_transactions_of_the_live_head(
    query: Query, store: MemoryStore
) -> None:
    query.microbatch(0, (1,))
    replace(query.restarted(), query_id="other").plan()
    live = find_head(LogStore(store, "wal")).live
    assert live is not None and isinstance(live.header, LeaderHeader)
    assert live.header.txns["query"][0] == 0
    assert live.header.prev_position == 1
    assert live.header.term == 2


def test_an_object_is_an_arrow_file_with_equal_headers_at_both_ends(
    query: Query, store: MemoryStore
) -> None:
    import pyarrow as pa

    query.microbatch(0, (1, 2, 3))
    body = store.objects[keys.key("wal", keys.data(1, 1000, 0))]
    footer = pa.ipc.open_file(body).schema.metadata
    front = pa.ipc.open_stream(body[8:]).schema.metadata
    assert footer == front
    assert json.loads(footer[b"weaselwal"])["rows"] == 3
    assert pa.ipc.open_file(body).read_all().column("v").to_pylist() == [1, 2, 3]
    assert arrowfile.open_front(body, "").header == arrowfile.open_front(body, "").header


def test_a_large_partition_is_uploaded_in_parts(tmp_path: Path) -> None:
    import numpy as np
    import pyarrow as pa

    from sparkwal.protocol.task import TaskAttempt, write_partition

    store = LocalStore(tmp_path / "log")
    query = Query(store, hints_in(tmp_path), limits=replace(LIMITS, codec=None))
    plan = query.plan()
    values = np.random.default_rng(1).integers(0, 2**60, 4_000_000)
    batches = [
        pa.record_batch([pa.array(part)], names=["v"]) for part in np.array_split(values, 40)
    ]
    result = write_partition(
        query.open, plan.for_tasks(), TaskAttempt("query", 0, 0), iter(batches), query.limits
    )
    assert result.batch is not None and result.batch.bytes > 16 * 2**20
    query.commit([result])
    read = Log(str(tmp_path / "log" / "wal")).scan().read_all().column("v").to_numpy()
    assert (read == values).all()
    again = write_partition(
        query.open, plan.for_tasks(), TaskAttempt("query", 0, 0), iter(batches), query.limits
    )
    assert again.batch == result.batch
    assert not [name for name in os.listdir(tmp_path / "log" / ".tmp")]
