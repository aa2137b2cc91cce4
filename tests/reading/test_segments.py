"""Segments: readers get the same with them, without them and with damaged ones."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from sparkwal.format import segment
from sparkwal.reading import segmenting, segments
from tests.reading.segmented import (
    BLOCK,
    all_of,
    looked,
    opened,
    random_log,
    segmented,
    segments_in,
    short_blocks,
    small_commits,
    without_segments,
)


@pytest.fixture(autouse=True)
def _short_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    short_blocks(monkeypatch)


@pytest.mark.parametrize("seed", range(12))
def test_readers_get_the_same_with_and_without_segments(seed: int, tmp_path: Path) -> None:
    store = random_log(seed, tmp_path)
    plain = without_segments(store)
    made = segmented(store)
    assert made.blocks and not made.skipped
    assert len(segments_in(store)) == len(made.blocks)
    draw = random.Random(seed)
    gap = looked(store).gap
    for start in (None, draw.randrange(gap)):
        for end in (None, draw.randrange(start or 0, gap)):
            assert [*all_of(store, start, end)] == [*all_of(plain, start, end)], (start, end)


def test_two_makers_of_one_block_make_the_same_bytes(tmp_path: Path) -> None:
    store = random_log(1, tmp_path)
    plain = without_segments(store)
    segmented(store)
    segmented(plain)
    assert store.objects == plain.objects
    assert segmented(store).blocks == []


def test_a_scan_reads_each_segment_once(tmp_path: Path) -> None:
    store = small_commits(tmp_path, 5 * BLOCK + 2)
    made = segmented(store)
    assert made.blocks == [0, 1, 2, 3, 4]
    store.counts.clear()
    assert opened(store).scan().read_all().num_rows == 5 * BLOCK + 1
    # The head, the floor and the segments; the head's record, each segment, one record after them,
    # and a witness for the first four segments and for the others.
    assert store.counts == {"LIST": 3, "GET": 1 + 5 + 1 + 2}
    store.counts.clear()
    assert len([*opened(store).records()]) == 5 * BLOCK + 2
    assert store.counts == {"LIST": 3, "GET": 1 + 5 + 1 + 2}
    store.counts.clear()
    (count,) = opened(store).sql("SELECT count(*) FROM records").read_all().to_pylist()
    assert [*count.values()] == [5 * BLOCK + 2]
    assert store.counts == {"LIST": 3, "GET": 1 + 5 + 1 + 2}


def test_a_read_of_less_than_a_block_makes_the_requests_of_before(tmp_path: Path) -> None:
    store = small_commits(tmp_path, 3 * BLOCK + 2)
    plain = without_segments(store)
    segmented(store)
    for each in (store, plain):
        each.counts.clear()
        opened(each).scan(2, BLOCK).read_all()
    assert store.counts == plain.counts
    for each in (store, plain):
        each.counts.clear()
        opened(each).scan(2, BLOCK + 2).read_all()
    assert store.counts["LIST"] == plain.counts["LIST"] == 3


def test_large_rows_stay_where_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segmenting, "LARGEST_PART", 400)
    store = random_log(3, tmp_path)
    plain = without_segments(store)
    segmented(store)
    assert [*all_of(store)] == [*all_of(plain)]


def test_rows_in_several_frames_and_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment, "_FRAME", 100)
    monkeypatch.setattr(segment, "RUN_SIZE", 3000)
    monkeypatch.setattr(segments, "_FRONT", 1000)
    store = random_log(4, tmp_path)
    plain = without_segments(store)
    segmented(store)
    for start in (None, 3, 11):
        assert [*all_of(store, start)] == [*all_of(plain, start)]
