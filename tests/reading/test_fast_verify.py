"""`verify --fast`: sound segments stand for their records; damage and missing objects are seen."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from sparkwal import Appender, verify
from sparkwal.errors import OptionError
from sparkwal.format import keys
from sparkwal.reading.verification import Report, verify_store
from sparkwal.testing.memory import MemoryStore
from tests.reading.collected import move_floor
from tests.reading.segmented import (
    BLOCK,
    log_of,
    random_log,
    segmented,
    segments_in,
    small_commits,
)
from tests.reading.segmented import short_blocks as short_blocks

pytestmark = pytest.mark.usefixtures("short_blocks")


def verified(store: MemoryStore, *, fast: bool = True) -> Report:
    return verify_store(log_of(store), "wal", fast=fast)


def counted(report: Report) -> object:
    """What both reports have. A fast one counts a torn record of a segment's block as dead."""
    return (
        (report.head, report.floor, report.commits, report.leaders, report.rows, report.bytes),
        report.dead + len(report.torn),
        (report.orphans, report.under_way, report.problems),
    )


@pytest.mark.parametrize("seed", range(1, 9))
def test_a_fast_check_of_a_sound_log_reports_the_same(seed: int, tmp_path: Path) -> None:
    store = random_log(seed, tmp_path)
    assert segmented(store).blocks
    assert counted(verified(store)) == counted(verified(store, fast=False))


def test_a_fast_check_reads_no_record_of_a_sound_segment(tmp_path: Path) -> None:
    store = small_commits(tmp_path, 5 * BLOCK + 2)
    segmented(store)
    store.counts.clear()
    assert verified(store).ok
    fast = store.counts["GET"]
    store.counts.clear()
    assert verified(store, fast=False).ok
    # For each block three reads of its segment instead of its records and two reads of them.
    assert fast <= store.counts["GET"] - 5 * (2 * BLOCK - 2)


def test_a_fast_check_starts_inside_a_block(tmp_path: Path) -> None:
    store = small_commits(tmp_path, 3 * BLOCK + 2)
    segmented(store)
    move_floor(log_of(store), BLOCK + 3)
    report = verified(store)
    assert report.ok and report.floor == BLOCK + 3
    assert report.commits == 3 * BLOCK + 2 - (BLOCK + 3)


def test_a_missing_record_of_a_segments_block_is_a_problem(tmp_path: Path) -> None:
    store = small_commits(tmp_path, 3 * BLOCK + 2)
    segmented(store)
    del store.objects[keys.key("wal", keys.slot(BLOCK + 3, 1000))]
    assert any(f"position {BLOCK + 3}: no record" in line for line in verified(store).problems)


def test_a_missing_object_of_rows_that_a_segment_has_is_a_problem(tmp_path: Path) -> None:
    store = random_log(2, tmp_path)
    segmented(store)
    report = verified(store)
    assert report.ok
    objects = {
        key
        for key in store.objects
        if "/batches/" in key
        and key not in (*report.orphans, *report.under_way)
        and not keys.is_slot(keys.listed(key.rpartition("/")[2]), 1000)
    }
    assert objects
    for key in objects:
        body = store.objects.pop(key)
        assert any(key in line and "missing" in line for line in verified(store).problems), key
        store.objects[key] = body


@pytest.mark.parametrize("part", [0, 1, 3, 6, 9, 11])
def test_a_fast_check_finds_a_damaged_segment_and_reads_its_records(
    part: int, tmp_path: Path
) -> None:
    store = random_log(2, tmp_path)
    segmented(store)
    sound = counted(verified(store))
    key = segments_in(store)[1]
    body = bytearray(store.objects[key])
    body[len(body) * part // 12] ^= 0x40
    store.objects[key] = bytes(body)
    report = verified(store)
    (problem,) = report.problems
    assert key in problem
    report.problems.clear()
    assert counted(report) == sound
    # Without a segment to trust, damage of a record shows.
    block = int(key.rpartition("/")[2])
    record = keys.key("wal", keys.slot(keys.position(block, 1000), 1000))
    if record in store.objects:
        store.objects[record] = store.objects[record][:-20] + bytes(20)
        assert len(verified(store).problems) + len(verified(store).torn) > 1


def test_verify_takes_fast_as_an_option(tmp_path: Path) -> None:
    path = str(tmp_path / "log")
    with Appender(path, pa.schema([("v", pa.int64())]), producer_id="p") as wal:
        wal.append([{"v": 1}])
    assert verify(path, fast=True).ok
    with pytest.raises(OptionError, match="fast"):
        verify(path, fast="perhaps")
