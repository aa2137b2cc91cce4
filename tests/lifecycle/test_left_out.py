"""Reads of table and logs as one, of which one log is damaged, was recreated or does not fit."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import sparkwal
from sparkwal.errors import InvalidLogError, OptionError, PlanError
from sparkwal.events import Event, LogLeftOut, subscribe
from tests.lifecycle.lakes import Lake, value

OTHER = pa.schema([("id", pa.string()), ("v", pa.string())])


@pytest.fixture
def lakes(tmp_path: Path) -> dict[str, Lake]:
    """Three logs of one table, with a row of each in the table and a row above it."""
    lakes = {name: Lake(tmp_path, sequencer=name) for name in "abc"}
    for number, lake in enumerate(lakes.values()):
        lake.append([value(number)])
        lake.compact()
    for number, lake in enumerate(lakes.values()):
        lake.append([value(10 + number)])
    return lakes


def ids(current: Any) -> list[int]:
    return sorted(current.to_arrow(["id"]).column(0).to_pylist())


def current(lakes: dict[str, Lake], sequencers: str | list[str] = "*", **how: Any) -> Any:
    return sparkwal.Log(lakes["a"].path).current(sequencers=sequencers, **how)


def another_type(lakes: dict[str, Lake]) -> str:
    """A log that is new to the table has another type."""
    lake = Lake(Path(lakes["a"].path).parent, sequencer="d", schema=OTHER)
    lake.append([{"id": "x", "v": "y"}])
    return "d"


def damaged(lakes: dict[str, Lake]) -> str:
    """The rows of a record in the middle of the newer part are damaged."""
    lakes["b"].append([value(20)], [value(21)], [value(22)])
    flip(lakes["b"], b"v21")
    return "b"


def flip(lake: Lake, text: bytes) -> None:
    folder = Path(lake.path) / "sequencers" / lake.name / "batches"
    (file,) = (each for each in folder.iterdir() if text in each.read_bytes())
    body = bytearray(file.read_bytes())
    body[body.index(text)] ^= 1
    file.write_bytes(body)


def recreated(lakes: dict[str, Lake]) -> str:
    shutil.rmtree(Path(lakes["b"].path) / "sequencers" / "b")
    lakes["b"].append([value(30)], [value(31)])
    return "b"


def copied(lakes: dict[str, Lake]) -> str:
    """A log under two names: the chain has the first."""
    folder = Path(lakes["b"].path) / "sequencers"
    shutil.copytree(folder / "b", folder / "copy")
    return "copy"


WAYS = {
    another_type: (OptionError, [0, 1, 2, 10, 11, 12]),
    damaged: (InvalidLogError, [0, 1, 2, 10, 12]),
    recreated: (PlanError, [0, 1, 2, 10, 12]),
    copied: (PlanError, [0, 1, 2, 10, 11, 12]),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_bad_log_is_left_out_wholly_above_its_cut(lakes: dict[str, Lake], way: Any) -> None:
    error, left = WAYS[way]
    bad = way(lakes)
    with pytest.raises(error, match=f"sequencer {bad}: .*on_log_error=.leave out."):
        ids(current(lakes))
    events: list[Event] = []
    stop = subscribe(events.append)
    try:
        rows = current(lakes, on_log_error="leave out")
    finally:
        stop()
    assert ids(rows) == left
    assert {*rows.left_out} == {bad} and isinstance(rows.left_out[bad], error)
    assert bad not in rows.positions
    (event,) = (each for each in events if isinstance(each, LogLeftOut))
    assert event.path.endswith(f"/sequencers/{bad}") and event.reason == str(rows.left_out[bad])


@pytest.mark.parametrize("way", WAYS)
def test_the_other_logs_are_read_by_their_names(lakes: dict[str, Lake], way: Any) -> None:
    way(lakes)
    for names in (["a", "c"], "a,c"):
        rows = current(lakes, names)
        assert ids(rows) == [0, 1, 2, 10, 12]
        assert {*rows.positions} == {"a", "c"} and not rows.left_out


def test_sound_logs_are_all_read(lakes: dict[str, Lake]) -> None:
    rows = current(lakes, on_log_error="leave out")
    assert ids(rows) == [0, 1, 2, 10, 11, 12] and not rows.left_out


def test_the_table_wins_over_a_log_that_comes_first(tmp_path: Path) -> None:
    first, second = Lake(tmp_path, sequencer="a", schema=OTHER), Lake(tmp_path, sequencer="b")
    second.append([value(1)])
    second.compact()
    first.append([{"id": "x", "v": "y"}])
    rows = sparkwal.Log(first.path).current(sequencers="*", on_log_error="leave out")
    assert ids(rows) == [1] and {*rows.left_out} == {"a"}


def test_damage_of_the_head_leaves_a_log_out(lakes: dict[str, Lake]) -> None:
    lakes["c"].append([value(20)])
    last = min((Path(lakes["c"].path) / "sequencers" / "c" / "batches").iterdir())
    body = bytearray(last.read_bytes())
    body[300] ^= 1
    last.write_bytes(body)
    rows = current(lakes, on_log_error="leave out")
    assert ids(rows) == [0, 1, 2, 10, 11] and {*rows.left_out} == {"c"}


def test_a_read_without_any_log_is_an_error(lakes: dict[str, Lake]) -> None:
    for lake, text in zip(lakes.values(), (b"v10", b"v11", b"v12"), strict=True):
        flip(lake, text)
    with pytest.raises(InvalidLogError, match="sequencer a: "):
        current(lakes, on_log_error="leave out")
    with pytest.raises(InvalidLogError, match="CRC-32"):
        current(lakes, ["b"], on_log_error="leave out")


def test_a_name_without_a_log_is_an_error(lakes: dict[str, Lake]) -> None:
    with pytest.raises(OptionError, match="no log of sequencer z"):
        current(lakes, ["a", "z"])
    with pytest.raises(OptionError, match="'leave out' is expected"):
        current(lakes, on_log_error="ignore")


def test_a_log_that_was_recreated_is_refused_alone_too(tmp_path: Path) -> None:
    """As a compaction refuses it: the table has rows of the former log."""
    lake = Lake(tmp_path)
    lake.append([value(1)])
    lake.compact()
    shutil.rmtree(Path(lake.path) / "batches")
    lake.append([value(2)])
    with pytest.raises(PlanError, match="deleted and recreated") as refused:
        lake.reader().current()
    assert "on_log_error" not in str(refused.value)
    assert lake.reader().scan().read_all().to_pylist() == [value(2)]
