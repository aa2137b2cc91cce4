"""A log of many small commits: each record is asked for once, far enough ahead and no further."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from threading import Lock

import pytest

from sparkwal.errors import InvalidLogError
from sparkwal.format import keys, schema
from sparkwal.options.parsing import parse
from sparkwal.options.reading import SourceOptions
from sparkwal.protocol.slots import WHOLE
from sparkwal.reading import planning
from sparkwal.reading.log_range import LogRange
from sparkwal.reading.planning import read_tasks, task_rows
from sparkwal.store import parallel
from sparkwal.store.base import LogStore
from sparkwal.testing.memory import MemoryStore
from tests.protocol.query import LIMITS, SCHEMA, Query, hints_in

COMMITS = 300
TARGET = schema.to_arrow(SCHEMA)


class RecordingStore(MemoryStore):
    """Notes what is asked for."""

    def __init__(self) -> None:
        super().__init__(concurrency=100)
        self.ranges: list[tuple[str, int, int]] = []
        self.noting = Lock()

    def get_range(self, key: str, offset: int, length: int) -> bytes:
        with self.noting:
            self.ranges.append((key, offset, length))
        return super().get_range(key, offset, length)

    @property
    def keys(self) -> Counter[str]:
        return Counter(key for key, _, _ in self.ranges)


def written(tmp_path: Path, commits: int, inlined: range) -> RecordingStore:
    """A log whose commits hold a row in each of two partitions, some of them as objects."""
    store = RecordingStore()
    query = Query(store, hints_in(tmp_path))
    for batch_id in range(commits):
        threshold = 2**16 if batch_id in inlined else None
        query.limits = replace(LIMITS, inline_threshold=threshold)
        query.microbatch(batch_id, (2 * batch_id,), (2 * batch_id + 1,))
    return store


def opened(store: RecordingStore) -> LogRange:
    log = LogRange(parse(SourceOptions, {"path": "memory"}), "default", LogStore(store, "wal"))
    log.refresh()
    store.ranges.clear()
    return log


def values(batches: object) -> list[int]:
    return [value for batch in batches for value in batch.column(0).to_pylist()]  # type: ignore[attr-defined]


@pytest.mark.parametrize("inlined", [range(COMMITS), range(0), range(0, COMMITS, 3)])
def test_a_scan_asks_once_for_each_object(tmp_path: Path, inlined: range) -> None:
    store = written(tmp_path, COMMITS, inlined)
    log = opened(store)
    found = values(log.scan(0, log.gap, TARGET))
    assert sorted(found) == [*range(2 * COMMITS)]
    assert [value // 2 for value in found] == [n for n in range(COMMITS) for _ in range(2)]
    # The head is known from the look.
    objects = {key for key in store.objects if "/batches/" in key}
    assert store.keys.keys() <= objects and len(store.keys) >= len(objects) - 1
    assert set(store.keys.values()) == {1}


def test_a_read_of_one_record_is_one_get_and_a_longer_read_fetches_ahead(tmp_path: Path) -> None:
    store = written(tmp_path, COMMITS, range(COMMITS))
    log = opened(store)
    found = log.scan(1, log.gap, TARGET)
    next(found)
    assert len(store.ranges) == 1
    for _ in range(300):
        next(found)
    assert 200 < len(store.ranges) <= 151 + 100


def test_an_error_comes_after_all_rows_before_it(tmp_path: Path) -> None:
    store = written(tmp_path, COMMITS, range(COMMITS))
    log = opened(store)
    lost = keys.key("wal", keys.slot(200, 1000))
    del store.objects[lost]
    delivered: list[int] = []
    with pytest.raises(InvalidLogError, match="position 200"):
        for batch in log.scan(0, log.gap, TARGET):
            delivered += batch.column(0).to_pylist()
    assert sorted(delivered) == [*range(2 * 199)]


def test_bytes_that_are_asked_for_ahead_are_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = written(tmp_path, COMMITS, range(COMMITS))
    largest = max(map(len, store.objects.values()))
    log = opened(store)
    first = [*log.records(0, log.gap, at_once=1, size=WHOLE)]
    # A few at a time with room for the largest record that there may be, then many small ones.
    lengths = [length for _, _, length in store.ranges]
    assert set(lengths[:32]) == {WHOLE} and set(lengths[-100:]) == {32 * WHOLE // 100}
    # After a record that does not fit, few at a time again; its rows are read all the same.
    monkeypatch.setattr(parallel, "AHEAD", 8 * largest)
    log = opened(store)
    again = [*log.records(0, log.gap, at_once=1, size=largest)]
    assert [each.header for each in again] == [each.header for each in first]
    small = largest * 32 // 100
    assert {length for _, _, length in store.ranges} <= {largest, small}
    log = opened(store)
    assert len(values(log.scan(0, log.gap, TARGET))) == 2 * COMMITS


def test_small_records_are_spread_over_all_cores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A record takes a request and its parsing, however few its rows are."""
    monkeypatch.setattr(planning, "_RECORD", 2**20)
    monkeypatch.setattr(planning, "PLANNED_RECORDS", 100)
    store = written(tmp_path, COMMITS, range(COMMITS))
    log = opened(store)
    planned = read_tasks(log, 0, log.gap, None, 16)
    assert len(planned) == 16
    sizes = [task.end - task.start for task in planned if task.pieces is None]
    assert sum(sizes) == log.gap and max(sizes) - min(sizes) <= 1
    store.ranges.clear()
    found = [values(task_rows(store, task, TARGET, log.options)) for task in planned]
    assert sorted(sum(found, [])) == [*range(2 * COMMITS)]
    assert max(store.keys.values()) == 1
