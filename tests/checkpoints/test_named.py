"""Checkpoints of sources that have names: lost, damaged, and moved from machine to machine."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from sparkwal.errors import OptionError
from tests.checkpoints.conftest import Room
from tests.checkpoints.stream import FileStream

NAMED: dict[str, Any] = {"source": "orders", "version": 2}


@pytest.fixture(params=["orders", "0"])
def stream(request: pytest.FixtureRequest, room: Room) -> Any:
    """A new application over one folder."""

    def start(machine: str) -> FileStream:
        return room.stream(room.checkpoint(folder=machine), source=request.param, version=2)

    return start


def test_two_machines_that_take_turns_store_each_row_once(room: Room, stream: Any) -> None:
    for turn, machine in enumerate("ABABBA"):
        stream(machine).run(range(3 * turn + 3))
        assert room.values() == [*range(3 * turn + 3)]


@pytest.mark.parametrize("at", ["first", "second", "compacted"])
def test_a_lost_folder_is_made_from_the_log(room: Room, stream: Any, at: str) -> None:
    files = {"first": 1, "second": 2, "compacted": 12}[at]
    stream("A").run(range(files))
    shutil.rmtree(room.tmp / "A")
    stream("A").run(range(files + 3))
    assert (
        room.values() == [*range(files + 3)]
        and room.why() == "there is no checkpoint of this query"
    )


def test_a_folder_without_its_newest_list_is_rebuilt(room: Room, stream: Any) -> None:
    life = stream("A")
    life.hidden = frozenset({1})
    life.run(range(2))
    (life.place / "sources" / life.source / "1").unlink()
    again = stream("A")
    again.hidden = life.hidden
    again.run(range(4))
    assert room.values() == [0, 2, 3]
    assert room.why() == f"it is incomplete: sources/{life.source}"


def test_a_plan_of_a_version_to_come_is_refused_before_the_commit(room: Room) -> None:
    life = room.stream(room.checkpoint(), version=3)
    with pytest.raises(OptionError, match="version 3 .*sparkwal wrote nothing"):
        life.run(range(1))
    assert room.commits() == []


SINKS = 'v3\n{"nextBatchWatermarkMs":0,"sinkMetadataMap":{"lake":{"sinkName":"lake"}}}'


def test_a_rebuilt_folder_names_the_sinks_as_before(room: Room) -> None:
    place = room.checkpoint()
    for batch in range(3):
        room.stream(place).run(range(batch + 1))
        (place / f"commits/{batch}").write_text(SINKS)
    shutil.rmtree(place)
    assert (room.checkpoint() / "commits/2").read_text() == SINKS


def test_a_commit_of_a_version_to_come_is_refused_before_the_next_commit(room: Room) -> None:
    place = room.checkpoint()
    room.stream(place).run(range(1))
    (place / "commits/0").write_text("v4\n{}")
    with pytest.raises(OptionError, match="version 4 of its commit log.*sparkwal wrote nothing"):
        room.stream(place).run(range(2))
    assert room.values() == [0]


@pytest.mark.parametrize("name", ["mine/x", "sources/a-b/0", "README", "commits/notes"])
def test_an_unknown_file_in_a_checkpoint_is_refused_before_the_first_commit(
    room: Room, name: str
) -> None:
    place = room.checkpoint()
    write(place / name)
    with pytest.raises(OptionError, match="not part of a checkpoint.*sparkwal wrote nothing"):
        room.stream(place).run(range(1))
    assert room.commits() == []


def test_the_schema_log_of_a_delta_source_comes_back_with_the_folder(room: Room) -> None:
    place = room.checkpoint()
    logs = ("_schema_log_1b4e/0", "schemas/orders/_schema_log_1b4e_orders/0")
    for name in logs:
        write(place / name)
        write((place / name).with_name(".0.crc"))
    room.stream(place).run(range(2))
    shutil.rmtree(place)
    assert room.checkpoint() == place
    assert all((place / name).read_text() == "x" for name in logs)
    # A folder whose source has gone on to another schema plans other input.
    write(place / "_schema_log_1b4e/1")
    (place / "offsets/1").unlink()
    room.checkpoint()
    assert not (place / "_schema_log_1b4e/1").exists()
    room.stream(place).run(range(3))
    assert room.values() == [0, 1, 2]


def write(file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("x")
