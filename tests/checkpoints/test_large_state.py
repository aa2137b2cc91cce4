"""A state that is larger than what one process may hold in memory."""

from __future__ import annotations

import json
import os
import threading
from dataclasses import dataclass
from pathlib import Path

import pytest

import sparkwal
from sparkwal.checkpoints import names, packing, query_state
from sparkwal.checkpoints.query_state import Part
from sparkwal.errors import OptionError
from sparkwal.format import schema
from sparkwal.format.header import QueryState
from sparkwal.options.parsing import parse
from sparkwal.options.reading import SourceOptions
from sparkwal.protocol.hint import Hints
from sparkwal.protocol.plan import TaskPlan
from sparkwal.protocol.recovery import find_head
from sparkwal.reading.log_range import LogRange
from sparkwal.store import parallel
from sparkwal.store.base import PART_SIZE, LogStore
from sparkwal.testing.memory import MemoryStore
from tests.checkpoints.conftest import Room
from tests.checkpoints.state_files import PROVIDERS, put
from tests.checkpoints.stateful import StatefulStream
from tests.checkpoints.stream import FileStream
from tests.protocol.query import SCHEMA

MIB = 2**20


class CountingStore(MemoryStore):
    """Counts the bytes of the replies."""

    def __init__(self) -> None:
        super().__init__(concurrency=16)
        self.replies: list[int] = []

    def get_range(self, key: str, offset: int, length: int) -> bytes:
        body = super().get_range(key, offset, length)
        self.replies.append(len(body))
        return body


@dataclass
class Changing(FileStream):
    """A query whose every microbatch changes so many bytes of its state."""

    change: int = 0

    def sink(self, number: int, new: list[int], tasks: TaskPlan) -> None:
        described = {"stateStoreInfo": [{"storeName": "default", "numPartitions": 1}]}
        put(self.place / "state/0/_metadata/metadata", f"v1\n{json.dumps(described)}".encode())
        put(self.place / f"state/0/0/{number + 1}.delta", b"LZ4" + os.urandom(self.change))
        super().sink(number, new, tasks)


def changed(store: MemoryStore, tmp_path: Path, change: int, microbatches: int) -> LogStore:
    """A log of such a query."""
    log = LogStore(store, "wal")
    stream = Changing(log, tmp_path / "own", Hints("wal", tmp_path / "hints"), change=change)
    stream.run(range(microbatches))
    return log


def last_state(log: LogStore) -> tuple[str, QueryState]:
    live = find_head(log).live
    assert live is not None
    ((query_id, entry),) = live.header.checkpoints.items()
    assert entry.state is not None
    return query_id, entry.state


def test_readers_of_rows_do_not_fetch_the_state(tmp_path: Path) -> None:
    store = CountingStore()
    log = changed(store, tmp_path, 400 * 2**10, 40)
    sizes = [len(body) for key, body in store.objects.items() if "/batches/" in key]
    assert sum(sizes) > 40 * 400 * 2**10
    read = LogRange(parse(SourceOptions, {"path": "memory"}), "default", log)
    read.refresh()
    rows: list[int] = []
    for batches in (
        read.scan(0, read.gap, schema.to_arrow(SCHEMA)),
        # As a follower reads on.
        read.scan(20, read.gap, schema.to_arrow(SCHEMA)),
    ):
        store.replies.clear()
        found = [value for batch in batches for value in batch.column(0).to_pylist()]
        rows += found
        # A reply of the least size for each record, and one or two that came before.
        assert sum(store.replies) < len(found) * 64 * 2**10 + 2 * MIB
        assert len(store.replies) <= len(found) + 2
    assert rows == [*range(40), *range(19, 40)]


def test_a_rebuild_holds_one_part_of_the_state_and_few_that_come_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(query_state, "_is_due", lambda *_: False)
    monkeypatch.setattr(parallel, "AHEAD", 2 * MIB)
    store = CountingStore()
    size = PART_SIZE + 6 * MIB
    log = changed(store, tmp_path, size, 6)
    query_id, state = last_state(log)
    store.replies.clear()
    parts = packing.read_state(log, 1000, query_id, state)
    # The first record carries no change yet.
    next(parts)
    next(parts)
    # The fronts of three records, and the rest of one part.
    assert sum(store.replies) <= size + 3 * 4 * MIB
    assert max(store.replies) <= PART_SIZE
    assert len([*parts]) == 4


def test_a_large_part_is_read_in_slices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(query_state, "_is_due", lambda *_: False)
    store = CountingStore()
    log = changed(store, tmp_path, PART_SIZE + 6 * MIB, 2)
    query_id, state = last_state(log)
    parts: list[Part] = [part for _, part in packing.read_state(log, 1000, query_id, state)]
    items = [item for part in parts for item in query_state.decode(part, "a record")]
    assert [piece.name for piece, _ in items] == ["state/0/0/1.delta"]
    assert items[0][1] == (tmp_path / "own/state/0/0/1.delta").read_bytes()


@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_large_state_whose_changes_are_missing_is_carried_in_parts(
    room: Room, provider: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(query_state, "PART", 1000)
    monkeypatch.setattr(query_state, "MOST", 3000)
    monkeypatch.setattr(query_state, "WHOLE", 3000)
    hints = room.stream(room.tmp / "unused").hints
    stream = StatefulStream(room.log, room.checkpoint(), hints, keys=2000, provider=provider)
    stream.run(range(600), 60)
    before = last_state(room.log)[1]
    # As after an error of the disk: the folder does not know what the log holds of it.
    (stream.place / names.STATE_NOTE).unlink()
    stream.run(range(601))
    query_id, state = last_state(room.log)
    assert state.base == 0 and state.copy is not None
    with pytest.raises(OptionError, match="the next records carry the rest of its state"):
        room.checkpoint(folder="too early")
    files, since = 601, 0
    while state.base == 0:
        # The part of the copy, the changes and the index.
        assert state.bytes <= 3000 + (state.since - since) + 1000
        files, since = files + 1, state.since
        stream.run(range(files))
        state = last_state(room.log)[1]
    # In larger parts than beside a copy that is still whole.
    assert files - 601 <= before.base_bytes / 3000 + 12
    other = room.checkpoint(folder="other")
    for number, store in enumerate(stream.stores):
        rebuilt = StatefulStream(room.log, other, hints, keys=2000, provider=provider)
        version = state.version
        assert rebuilt.load(store, version) == stream.expected(store, version), number
    assert query_id == stream.query_id


def test_verify_has_one_large_record_in_memory_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(query_state, "_is_due", lambda *_: False)
    threads: list[int] = []

    class WholeStore(CountingStore):
        def get(self, key: str) -> bytes:
            body = super().get(key)
            if len(body) > PART_SIZE:
                threads.append(threading.get_ident())
            return body

    store = WholeStore()
    changed(store, tmp_path, PART_SIZE + MIB, 4)
    threads.clear()
    report = sparkwal.verify(store.path())
    assert report.ok and report.rows == 4
    assert len(threads) >= 3 and {*threads} == {threading.get_ident()}
