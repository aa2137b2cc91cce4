"""Random runs of stateful queries: crashes, lost and restored machines, maintenance, collection."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparkwal.checkpoints import query_state
from sparkwal.protocol.recovery import find_head
from tests.checkpoints.conftest import Room
from tests.checkpoints.state_files import PROVIDERS
from tests.checkpoints.state_runs import SEEDS, run
from tests.checkpoints.stateful import StatefulStream

MORE = 300


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_stateful_query_writes_each_key_once_and_finds_its_state(
    seed: int, tmp_path: Path
) -> None:
    run(seed, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(SEEDS, SEEDS + MORE, 10))
def test_in_more_runs_a_stateful_query_writes_each_key_once(first: int, tmp_path: Path) -> None:
    for seed in range(first, first + 10):
        run(seed, tmp_path / str(seed))


@pytest.mark.parametrize("provider", PROVIDERS)
def test_records_carry_three_times_the_changes_and_the_state_at_most(
    room: Room, provider: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The copies of the whole state cost as much as the changes; each record has a small index."""
    monkeypatch.setattr(query_state, "SMALL", 2000)
    hints = room.stream(room.tmp / "unused").hints
    stream = StatefulStream(room.log, room.checkpoint(), hints, keys=100_000, provider=provider)
    for files in range(50, 1251, 50):
        stream.run(range(files), 50)
        if files % 150 == 0:
            stream.maintain()
    (last,) = find_head(room.log).live.header.checkpoints.values()  # type: ignore[union-attr]
    entries = [next(iter(header.checkpoints.values())) for header in room.commits()]
    carried = sum(entry.state.bytes for entry in entries if entry.state is not None)
    assert last.state is not None and len(last.state.positions) < len(entries)
    state = sum(stream.size(store) for store in stream.stores)
    assert carried <= 3 * (stream.written + state) + 500 * len(entries)
