"""The stand-in for Spark's state files: what it wrote it loads, and it notices what is lost."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from sparkwal.checkpoints import folder, names
from tests.checkpoints.conftest import Room
from tests.checkpoints.state_files import PROVIDERS, StateLost
from tests.checkpoints.stateful import DEDUPLICATE, JOIN, StatefulStream

FILES = 24


@pytest.fixture(params=PROVIDERS)
def stream(request: pytest.FixtureRequest, room: Room, tmp_path: Path) -> StatefulStream:
    """A query over a folder that sparkwal did not make."""
    hints = room.stream(tmp_path / "unused").hints
    return StatefulStream(
        room.log,
        tmp_path / "own",
        hints,
        keys=9,
        provider=request.param,
        operators=(DEDUPLICATE, JOIN),
        random=random.Random(1),
        repeats=0.2,
    )


def states(stream: StatefulStream) -> list[frozenset[int]]:
    number = folder.latest(stream.place, "commits") + 1
    found = [stream.load(store, number) for store in stream.stores]
    assert found == [stream.expected(store, number) for store in stream.stores]
    return found


def test_a_query_writes_each_key_once_and_loads_its_state(
    room: Room, stream: StatefulStream
) -> None:
    for files in range(0, FILES, 3):
        stream.run(range(files))
        if files:
            states(stream)
    assert room.values() == [*range(9)]


def test_maintenance_leaves_what_a_load_needs(stream: StatefulStream) -> None:
    most = 0
    place = stream.place / "state/0/0"
    for files in range(1, FILES):
        stream.run(range(files))
        stream.maintain()
        states(stream)
        versions = {file.name.partition(".")[0].partition("_")[0] for file in place.glob("[0-9]*")}
        most = max(most, len(versions))
    assert most < FILES / 2
    assert sorted(set().union(*states(stream))) == [*range(9)]


def test_a_version_without_rows_is_written_too(stream: StatefulStream) -> None:
    stream.run(range(5))
    before = states(stream)
    moves = stream.moves(lambda: range(5), empty=iter([True, False]).__next__)
    assert [*moves][-1] == "noted" and folder.latest(stream.place, "commits") == 5
    assert states(stream) == before


def test_a_folder_of_the_users_own_notes_a_microbatch_without_rows(stream: StatefulStream) -> None:
    """Without the note and its hold the source would release what a rebuild reads again."""
    stream.run(range(5))
    assert not (stream.place / names.EMPTY).exists()
    for _ in stream.moves(lambda: range(5), empty=iter([True, False]).__next__):
        pass
    assert (stream.place / names.EMPTY).exists()


def test_a_lost_or_torn_file_is_noticed(stream: StatefulStream) -> None:
    stream.operators = (DEDUPLICATE,)
    stream.run(range(6))
    stream.maintain()
    stream.run(range(7))
    noticed = 0
    for file in sorted((stream.place / "state").rglob("[!.]*")):
        if not file.is_file():
            continue
        data = file.read_bytes()
        for torn in (None, b"", data[: len(data) // 2], bytes(len(data))):
            if torn is None:
                file.unlink()
            else:
                file.write_bytes(torn)
            try:
                states(stream)
            except StateLost:
                noticed += 1
            file.write_bytes(data)
    # At least the newest change or snapshot of each store is needed.
    assert noticed > 4 * len(stream.stores)
    states(stream)


def test_a_folder_without_state_is_noticed(stream: StatefulStream) -> None:
    stream.run(range(3))
    shutil.rmtree(stream.place / "state/0/1")
    with pytest.raises(StateLost):
        states(stream)
