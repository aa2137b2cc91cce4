"""A run of a log's lifecycle makes the segments that are missing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import sparkwal
from sparkwal import events
from sparkwal.events import Event
from sparkwal.format import keys
from sparkwal.lifecycle import new_segments
from sparkwal.lifecycle.new_segments import SegmentMaker
from sparkwal.lifecycle.policy import LifecycleOptions
from sparkwal.options.parsing import parse
from sparkwal.protocol.recovery import find_head
from sparkwal.store.base import Refusal
from sparkwal.testing.memory import MemoryStore
from tests.cli.test_segment import long_log
from tests.reading.segmented import (
    BLOCK,
    INLINED,
    log_of,
    query_in,
    segments_in,
    small_commits,
)
from tests.reading.segmented import short_blocks as short_blocks

pytestmark = pytest.mark.usefixtures("short_blocks")


def test_a_run_makes_what_is_missing_and_asks_for_nothing_until_the_next_block(
    tmp_path: Path,
) -> None:
    store = MemoryStore()
    query = query_in(store, tmp_path, limits=INLINED)
    for batch_id in range(2 * BLOCK + 1):
        query.microbatch(batch_id, (batch_id,))
    maker = SegmentMaker(log_of(store), "default")
    assert maker.run(find_head(log_of(store))) == 2
    for batch_id in range(2 * BLOCK + 1, 3 * BLOCK - 2):
        query.microbatch(batch_id, (batch_id,))
    head = find_head(log_of(store))
    store.counts.clear()
    assert maker.run(head) == 0
    assert store.counts == {}
    for batch_id in range(3 * BLOCK - 2, 3 * BLOCK + 2):
        query.microbatch(batch_id, (batch_id,))
    head = find_head(log_of(store))
    store.counts.clear()
    assert maker.run(head) == 1
    # The floor and the segments; the records with one before and one after them.
    assert (store.counts["LIST"], store.counts["PUT"]) == (2, 1)
    assert len(segments_in(store)) == 3


def test_a_run_makes_a_limited_number_and_the_next_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(new_segments, "_MOST", 2)
    store = small_commits(tmp_path, 5 * BLOCK + 2)
    maker, head = SegmentMaker(log_of(store), "default"), find_head(log_of(store))
    assert [maker.run(head) for _ in range(4)] == [2, 2, 1, 0]


def test_a_damaged_block_is_one_event_and_read_once(tmp_path: Path, seen: list[Event]) -> None:
    store = small_commits(tmp_path, 3 * BLOCK + 2)
    key = log_of(store).key(keys.slot(BLOCK + 3, 1000))
    store.objects[key] = store.objects[key][:500] + b"damaged" + store.objects[key][507:]
    maker = SegmentMaker(log_of(store), "default")
    head = find_head(log_of(store))
    assert [maker.run(head) for _ in range(2)] == [2, 0]
    assert len([event for event in seen if isinstance(event, events.SegmentsNotMade)]) == 1


def test_a_policy_without_the_right_to_write_segments_is_one_event(
    tmp_path: Path, seen: list[Event]
) -> None:
    store = small_commits(tmp_path, 3 * BLOCK + 2)

    def refuse(key: str, body: bytes) -> bool:
        raise Refusal("no right to write segments/")

    store.put_if_absent = refuse  # type: ignore[method-assign, assignment]
    maker = SegmentMaker(log_of(store), "default")
    head = find_head(log_of(store))
    assert [maker.run(head) for _ in range(2)] == [0, 0]
    assert len([event for event in seen if isinstance(event, events.SegmentsNotMade)]) == 1


@pytest.mark.parametrize(
    ("options", "has_table", "expected"),
    [
        ({}, False, True),
        ({}, True, False),
        ({"retainSeconds": "60"}, True, True),
        ({"retainBytes": "1gb"}, True, True),
        ({"retainBytes": "1gb", "makeSegments": "false"}, True, False),
        ({"makeSegments": "false"}, False, False),
        ({"makeSegments": "true"}, True, True),
    ],
)
def test_segments_are_made_where_rows_stay_in_the_log(
    options: dict[str, Any], has_table: bool, expected: bool
) -> None:
    settings = parse(LifecycleOptions, {"path": "wal", **options})
    assert settings.makes_segments(has_table=has_table) is expected


def test_the_lifecycle_of_a_log_makes_segments_and_readers_use_them(tmp_path: Path) -> None:
    path = long_log(tmp_path / "log", 3 * BLOCK)
    expected = sparkwal.Log(path).scan(include_metadata=True).read_all()
    assert sparkwal.Lifecycle(path, makeSegments=False).run_once().segments == 0
    life = sparkwal.Lifecycle(path)
    assert [life.run_once().segments for _ in range(2)] == [3, 0]
    assert sparkwal.Log(path).scan(include_metadata=True).read_all().equals(expected)
    assert len([*(tmp_path / "log" / "segments").iterdir()]) == 3
