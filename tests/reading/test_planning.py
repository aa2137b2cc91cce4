"""The driver's requests before the first row: only those that cannot wait."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkwal.format.arrowfile import Opened
from sparkwal.format.header import Frame
from sparkwal.format.lifecycle_record import OpenRange
from sparkwal.options.parsing import parse
from sparkwal.options.reading import SourceOptions
from sparkwal.protocol.records import live_records
from sparkwal.protocol.view import LogView
from sparkwal.reading.log_range import PLANNED_RECORDS, LogRange
from sparkwal.reading.pieces import Piece
from sparkwal.reading.planning import plan_ranges, read_tasks
from sparkwal.reading.rows import pack, pieces_of
from sparkwal.store.base import LogStore
from sparkwal.testing.memory import MemoryStore
from tests.lifecycle.timed_log import TimedLog
from tests.protocol.query import LIMITS, Query, hints_in

COMMITS = PLANNED_RECORDS + 300


def test_a_long_range_is_planned_without_its_records(tmp_path: Path) -> None:
    store = MemoryStore()
    query = Query(store, hints_in(tmp_path), limits=replace(LIMITS, inline_threshold=None))
    for batch_id in range(COMMITS):
        query.microbatch(batch_id, (batch_id,))
    log = LogRange(parse(SourceOptions, {"path": "memory"}), "default", LogStore(store, "wal"))
    store.counts.clear()
    log.refresh()
    tasks = read_tasks(log, log.start(), log.end(), None, 2)
    # The head, the floor, and eight records that show how much there is.
    assert store.counts == {"LIST": 2, "GET": 9}
    rows = 0
    expected = 0
    for task in tasks:
        assert task.pieces is None and task.start == expected
        expected = task.end
        view = LogView(LogStore(store, task.looked.prefix), task.window)
        for record in live_records(view, task.start, task.end):
            rows += sum(piece.rows for piece in pieces_of(LogStore(store, "wal"), record))
    assert expected == log.gap and rows == COMMITS


@given(st.lists(st.integers(1, 100), max_size=40), st.integers(1, 9))
def test_packed_pieces_keep_their_order_and_weigh_about_the_same(
    lengths: list[int], count: int
) -> None:
    pieces = [
        Piece("key", (Frame(n, length, 1, 0),), "", 0, 0, 0, "", 0)
        for n, length in enumerate(lengths)
    ]
    groups = pack(pieces, count)
    assert [piece for group in groups for piece in group] == pieces
    assert len(groups) <= count and all(groups)
    fair = sum(lengths) / count
    assert all(sum(p.length for p in group) <= fair + max(lengths) for group in groups)


def test_two_objects_of_nearly_one_size_are_two_tasks() -> None:
    """A third task with what did not fit would keep one core waiting for the other."""
    pieces = [
        Piece(key, (Frame(n, length, 1, 0),), "", 0, 0, 0, "", 0)
        for key, last in (("a", 5), ("b", 4))
        for n, length in enumerate([8, 8, 8, last])
    ]
    assert [{p.key for p in group} for group in pack(pieces, 2)] == [{"a"}, {"b"}]


@pytest.mark.process
def test_the_planner_imports_no_client() -> None:
    """A warm plan makes no request; the S3 library takes a fifth of a second to load."""
    unwanted = {"boto3", "botocore", "pandas"}
    program = f"import sys, sparkwal.spark.datasource; print({unwanted} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.strip() == "set()", done.stdout + done.stderr


def test_a_plan_gets_no_record_that_was_read_before() -> None:
    timed = TimedLog()
    timed.write(0, 1, rows=5)
    head = timed.head()
    assert head.live is not None
    part = OpenRange("default", head.live.header.log_id, 0, head.gap)
    timed.requests()
    plans, made = [], []
    nothing: dict[str, Opened] = {}
    for known in (nothing, {"default": head.live}):
        plan = plan_ranges(timed.log, [part], parallelism=1, read_records=known, clock=timed.clock)
        plans.append([task.pieces for group in plan.tasks for task in group])
        made.append(timed.requests())
    assert plans[0] == plans[1] and made[1] == made[0] - 1
