"""A checkpoint's folder and the log never share a folder, and only a checkpoint is replaced."""

from __future__ import annotations

import os
import uuid
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

import sparkwal
from sparkwal import OptionError
from sparkwal.protocol.hint import Hints
from sparkwal.store.base import LogStore
from sparkwal.store.local import LocalStore
from tests.checkpoints.conftest import Room
from tests.checkpoints.stream import FileStream


@pytest.fixture
def wal(tmp_path: Path) -> Path:
    """A log of three microbatches and of one sequencer, two folders deep."""
    path = tmp_path / "data/wal"
    for log in (LogStore(LocalStore(path), ""), LogStore(LocalStore(path), "sequencers/s")):
        place = tmp_path / uuid.uuid4().hex
        sequencer = "s" if log.prefix else "default"
        sparkwal.checkpoint(str(path), "first", folder=place, sequencer=sequencer)
        FileStream(log, place, Hints(log.identity, tmp_path / "h")).run(range(3))
    return path


def content(path: Path) -> set[str]:
    return {str(each.relative_to(path)) for each in path.rglob("*")}


OVERLAPS = [
    "data/wal",
    "data",
    "",
    "data/wal/ck",
    "data/wal/batches",
    "data/wal/batches/ck",
    "data/wal/sequencers",
    "data/wal/sequencers/s",
    "data/wal/sequencers/s/batches",
    "data/wal/txns/a/b",
    "data/wal/lifecycle",
    "data/wal/consumers/ck",
    "data/other/../wal",
    "data/wal/../wal/./batches/",
]


@pytest.mark.parametrize("sequencer", ["default", "s", "new"])
@pytest.mark.parametrize("place", OVERLAPS)
def test_a_folder_that_holds_the_log_or_lies_in_it_is_refused(
    wal: Path, tmp_path: Path, place: str, sequencer: str
) -> None:
    before = content(tmp_path)
    with pytest.raises(OptionError, match="the log .* share a folder.* sparkwal wrote nothing"):
        sparkwal.checkpoint(str(wal), "orders", folder=f"{tmp_path}/{place}", sequencer=sequencer)
    assert content(tmp_path) == before
    assert sparkwal.verify(str(wal)).ok


@pytest.mark.parametrize("place", ["wal", "data", "wal/batches", "wal/ck"])
def test_a_folder_that_would_hold_the_log_one_day_or_lie_in_it_is_refused(
    tmp_path: Path, place: str
) -> None:
    """A folder made before the log would remove the log when it is replaced."""
    log = tmp_path / ("data/wal" if place == "data" else "wal")
    with pytest.raises(OptionError, match="share a folder"):
        sparkwal.checkpoint(str(log), "orders", folder=tmp_path / place)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "given", ["file://{}", "file:{}/", "{}//", "relative", "link", "linked log"]
)
def test_an_overlap_is_found_however_the_two_are_spelled(
    wal: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str
) -> None:
    log, place = str(wal), given.format(wal / "batches")
    if given == "relative":
        monkeypatch.chdir(wal.parent)
        place = "wal"
    elif given == "link":
        (tmp_path / "link").symlink_to(wal.parent)
        place = str(tmp_path / "link/wal/batches/ck")
    elif given == "linked log":
        (tmp_path / "link").symlink_to(wal)
        log, place = f"file://{tmp_path}/link", str(wal)
    with pytest.raises(OptionError, match="share a folder"):
        sparkwal.checkpoint(log, "orders", folder=place)
    assert sparkwal.verify(str(wal)).ok


def test_the_objects_of_a_log_may_lie_on_another_disk(wal: Path, tmp_path: Path) -> None:
    """A link leads to them: its target belongs to the log too."""
    (wal / "batches").rename(tmp_path / "disk")
    (wal / "batches").symlink_to(tmp_path / "disk")
    for place in (tmp_path / "disk", tmp_path / "disk/ck"):
        with pytest.raises(OptionError, match="share a folder"):
            sparkwal.checkpoint(str(wal), "orders", folder=place)
    assert sparkwal.verify(str(wal)).ok


def test_the_folder_beside_the_log_is_no_overlap(wal: Path) -> None:
    for place in (wal.with_name("wal2"), wal.with_name("wa"), wal.with_name("ck")):
        assert sparkwal.checkpoint(str(wal), "orders", folder=place) == str(place)


@pytest.mark.parametrize(
    "foreign",
    [
        "precious",
        "batches/1",
        ".hidden",
        "offsets.bak",
        "metadata2",
        "offsets/mine.csv",
        "commits/notes.txt",
        "sources/mine/notes.txt",
        "state/notes.txt",
        "offsets/wal/0",
    ],
)
def test_an_unknown_file_stops_the_replacement_of_a_checkpoint(room: Room, foreign: str) -> None:
    place = room.checkpoint()
    room.stream(place).run(range(2))
    (place / "offsets/1").unlink()
    (place / foreign).parent.mkdir(parents=True, exist_ok=True)
    (place / foreign).write_text("x")
    own = foreign.partition("/")[0] in ("offsets", "commits", "sources", "state")
    name = "/".join(foreign.split("/")[: 1 + own])
    with pytest.raises(OptionError, match=f"'{name}'.* is not part of a checkpoint"):
        room.checkpoint()
    assert (place / foreign).read_text() == "x" and not (place / "offsets/1").exists()
    assert {each.name for each in room.tmp.iterdir()} == {"ck", "hints"}
    (place / name).rename(room.tmp / "moved")
    assert (room.checkpoint() / "offsets/1").exists()


def test_a_folder_that_is_not_replaced_may_hold_other_files(room: Room) -> None:
    place = room.checkpoint()
    room.stream(place).run(range(2))
    (place / "notes.txt").write_text("x")
    room.checkpoint()
    assert room.why() is None


def test_all_that_spark_writes_is_replaced(room: Room) -> None:
    place = room.checkpoint()
    room.stream(place).run(range(2))
    (place / "offsets/1").unlink()
    for name in (".metadata.crc", ".metadata.0b1e.tmp", "state/0/0/1.delta", "commits/.1.crc"):
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text("x")
    assert (room.checkpoint() / "offsets/1").exists()
    assert not (place / "state").exists() and not (place / ".metadata.crc").exists()
    assert {each.name for each in room.tmp.iterdir()} == {"ck", "hints"}


def test_a_folder_that_is_a_link_leaves_what_it_led_to(room: Room) -> None:
    place = room.checkpoint("orders", "real")
    room.stream(place).run(range(2))
    (room.tmp / "ck").symlink_to(place)
    (place / "offsets/1").unlink()
    assert (room.checkpoint() / "offsets/1").exists()
    assert (room.tmp / "real/offsets/0").exists()
    assert not [each for each in os.listdir(room.tmp) if each.startswith("ck.new-")]


@pytest.mark.parametrize("left", ["", "-old"])
def test_only_a_checkpoint_is_removed_after_an_interrupted_rebuild(room: Room, left: str) -> None:
    folders = {name: room.tmp / f"ck.new-{name * 32}{left}" for name in "ab"}
    for place in folders.values():
        (place / "offsets").mkdir(parents=True)
        (place / "offsets/0").write_text("x")
    (folders["b"] / "precious").write_text("x")
    room.checkpoint()
    assert not folders["a"].exists()
    assert (folders["b"] / "precious").exists() and (folders["b"] / "offsets/0").exists()


def test_a_link_in_a_checkpoint_is_no_part_of_it(room: Room) -> None:
    place = room.checkpoint()
    room.stream(place).run(range(2))
    (place / "offsets/1").unlink()
    (room.tmp / "elsewhere").mkdir()
    (place / "state").symlink_to(room.tmp / "elsewhere")
    with pytest.raises(OptionError, match="'state'.* is not part of a checkpoint"):
        room.checkpoint()


@pytest.mark.parametrize("inside", ["lifecycle", "batches/cp", "txns/a/b", ""])
@pytest.mark.parametrize("sequencer", ["default", "s"])
def test_a_folder_in_another_log_is_refused(tmp_path: Path, inside: str, sequencer: str) -> None:
    schema = pa.schema([("v", pa.int64())])
    for name in ("one", "other"):
        path = str(tmp_path / name)
        with sparkwal.Appender(path, schema, producer_id="p", sequencer=sequencer) as wal:
            wal.append([{"v": 1}]).result()
    before = sorted((tmp_path / "other").rglob("*"))
    with pytest.raises(OptionError, match="is a log"):
        sparkwal.checkpoint(str(tmp_path / "one"), "q", folder=str(tmp_path / "other" / inside))
    assert sorted((tmp_path / "other").rglob("*")) == before


@pytest.mark.parametrize(
    "place",
    [
        "table",
        "table/ck",
        "journal",
        "journal/ck",
        "table/_change_data/x",
        "table/_delta_log/x",
        "table/link",
    ],
)
def test_a_folder_in_a_table_or_a_journal_is_refused(tmp_path: Path, place: str) -> None:
    rows = pa.table({"v": [1]})
    write_deltalake(tmp_path / "table", rows)
    log, journal = str(tmp_path / "one"), str(tmp_path / "journal")
    with sparkwal.Appender(log, rows.schema, producer_id="p", journal=journal) as wal:
        wal.append(rows).result()
    (tmp_path / "big disk").mkdir()
    (tmp_path / "table/link").symlink_to(tmp_path / "big disk")
    with pytest.raises(OptionError, match=f"is a .*{place[:5]}"):
        sparkwal.checkpoint(log, "q", folder=tmp_path / place)
    assert not (tmp_path / place / "sparkwal.json").exists()


def test_deltas_own_place_for_checkpoints_in_a_table_may_be_used(tmp_path: Path) -> None:
    write_deltalake(tmp_path / "table", pa.table({"v": [1]}))
    for place in ("table/_checkpoints/q", "table/_checkpoint"):
        folder = sparkwal.checkpoint(str(tmp_path / "one"), "q", folder=tmp_path / place)
        assert (Path(folder) / "sparkwal.json").exists()


def test_a_users_lock_file_beside_a_checkpoint_stays(room: Room) -> None:
    (room.tmp / "precious").write_text("x")
    for name in ("ck.lock", ".ck.lock"):
        (room.tmp / name).write_text("mine")
    (room.tmp / "linked.lock").symlink_to(room.tmp / "precious")
    before = {each.name for each in room.tmp.iterdir()}
    for name in ("ck", "linked"):
        place = room.checkpoint("orders" if name == "ck" else "other", name)
        assert place.is_dir()
    assert {each.name for each in room.tmp.iterdir()} >= before
    assert (room.tmp / "ck.lock").read_text() == "mine"
    assert (room.tmp / "precious").read_text() == "x"
