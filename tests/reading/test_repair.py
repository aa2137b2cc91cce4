"""A record whose front is damaged is recreated from its footer; a lost head is given up."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from sparkwal import Appender, InvalidLogError, Log, OptionError, repair, verify
from sparkwal.format import keys
from sparkwal.reading.repair import repair_record
from sparkwal.store.base import LogStore
from sparkwal.store.local import LocalStore
from tests.cli.logs import ran
from tests.logs import record, values

SCHEMA = pa.schema([("v", pa.int64()), ("s", pa.string())])
LAST = 3


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Value n at position n, up to LAST."""
    write(tmp_path / "log", *range(1, LAST + 1))
    return tmp_path / "log"


def write(folder: Path, *numbers: int) -> None:
    with Appender(str(folder), SCHEMA, producer_id="p") as wal:
        for value in numbers:
            wal.append([{"v": value, "s": "é" * value}]).result()


@pytest.mark.parametrize("position", [0, LAST], ids=["leader", "commit"])
@pytest.mark.parametrize("at", [0, 12, 100, 300, 500])
@pytest.mark.parametrize("named", [int, lambda position: keys.slot(position, 1000)])
def test_a_damaged_front_is_rebuilt(
    path: Path, position: int, at: int, named: Callable[[int], int]
) -> None:
    file = record(path, position)
    intact = file.read_bytes()
    file.write_bytes(intact[:at] + b"\xff\x00\xff\x00" + intact[at + 4 :])
    assert not verify(str(path)).ok
    repair(str(path), named(position))
    assert file.read_bytes() == intact
    assert verify(str(path)).ok and values(path) == [1, 2, 3]
    assert not list((path / "repaired").iterdir())


@pytest.mark.parametrize("part", ["rows", "footer", "both ends"])
def test_a_record_that_cannot_be_rebuilt_is_not_changed(path: Path, part: str) -> None:
    file = record(path, LAST)
    data = bytearray(file.read_bytes())
    if part == "rows":
        data[data.index("ééé".encode())] ^= 1
    if part != "rows":
        data[-12] ^= 1
    if part == "both ends":
        data[100] ^= 1
    file.write_bytes(data)
    with pytest.raises(InvalidLogError):
        repair(str(path), LAST)
    assert file.read_bytes() == data


@pytest.mark.parametrize("position", ["5", None, -1, 5.0])
def test_a_position_is_a_whole_number(path: Path, position: Any) -> None:
    with pytest.raises(OptionError, match="a whole number from 0 is expected"):
        repair(str(path), position)


def test_a_repair_that_broke_off_is_run_again(path: Path) -> None:
    number = keys.slot(LAST, 1000)
    intact = record(path, LAST).read_bytes()
    (path / "repaired").mkdir()
    record(path, LAST).rename(path / "repaired" / keys.encode(number))
    repair_record(LogStore(LocalStore(path), ""), number)
    assert record(path, LAST).read_bytes() == intact and values(path) == [1, 2, 3]


def test_a_sound_record_is_not_touched(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def files() -> dict[Path, tuple[int, int, bytes]]:
        """Which file each name is, when it was written, and its bytes."""
        found = {}
        for file in (path / "batches").iterdir():
            status = file.stat()
            found[file] = (status.st_ino, status.st_mtime_ns, file.read_bytes())
        return found

    before = files()
    read = LocalStore.get
    asked: list[str] = []

    def flipped(self: LocalStore, key: str) -> bytes:
        """One wrong byte in the first reply of each object."""
        asked.append(key)
        data = read(self, key)
        return data if asked.count(key) > 1 else bytes([*data[:60], data[60] ^ 1, *data[61:]])

    for position in range(LAST + 1):
        assert not repair(str(path), position)
    monkeypatch.setattr(LocalStore, "get", flipped)
    for position in range(LAST + 1):
        assert not repair(str(path), position)
    assert files() == before
    assert "it is sound, so nothing was changed" in ran("repair", str(path), "1")


@pytest.fixture
def copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A log of blocks of ten positions, with segments of the first two."""
    monkeypatch.setattr(keys, "BLOCK", 10)
    write(tmp_path / "log", *range(1, 26))
    ran("segment", str(tmp_path / "log"))
    assert len([*(tmp_path / "log" / "segments").iterdir()]) == 2
    return tmp_path / "log"


@pytest.mark.parametrize("position", [0, 3, 9, 10, 19])
@pytest.mark.parametrize("damage", ["lost", "front", "rows", "cut", "empty"])
def test_a_lost_or_damaged_record_is_put_back_from_its_segment(
    copied: Path, position: int, damage: str
) -> None:
    file = record(copied, position)
    intact = file.read_bytes()
    rows = values(copied)
    file.unlink()
    if damage != "lost":
        part = {"front": 100, "rows": intact.rindex(b"ARROW1") // 2, "cut": -40, "empty": 0}[damage]
        broken = bytes([*intact[:part], intact[part] ^ 1, *intact[part + 1 :]])
        file.write_bytes(broken if damage in ("front", "rows") else intact[:part])
    assert repair(str(copied), position)
    assert file.read_bytes() == intact
    assert verify(str(copied)).ok and values(copied) == rows
    assert not repair(str(copied), position)


def test_rows_of_many_types_are_put_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keys, "BLOCK", 10)
    path = str(tmp_path / "log")
    kinds = pa.schema(
        [
            ("i", pa.int32()),
            ("s", pa.string()),
            ("l", pa.list_(pa.struct([("x", pa.float64()), ("y", pa.string())]))),
            ("m", pa.map_(pa.string(), pa.int64())),
            ("b", pa.bool_()),
        ]
    )
    with Appender(path, kinds, producer_id="p", maxInFlightRequests=1) as wal:
        for n in range(25):
            row = {"i": n, "s": "é" * n, "l": [{"x": n / 3, "y": None}] * n, "m": [("k", n)]}
            wal.append([row, {**row, "b": n % 2 == 0, "s": None}] * (1 + n % 3)).result()
    ran("segment", path)
    expected = Log(path).scan().read_all()
    for position in range(1, 20):
        record(tmp_path / "log", position).unlink()
        assert repair(path, position)
    assert verify(path).ok and Log(path).scan().read_all().equals(expected)


def test_rows_that_a_segment_has_are_not_given_up(copied: Path) -> None:
    rows = values(copied)
    record(copied, 5).unlink()
    before = {*copied.rglob("*")}
    with pytest.raises(InvalidLogError, match="has this record and its rows, so it is not lost"):
        repair(str(copied), 5, give_up=True)
    assert {*copied.rglob("*")} == before
    assert repair(str(copied), 5) and values(copied) == rows
    with pytest.raises(InvalidLogError, match="intact, so there is nothing to give up"):
        repair(str(copied), 5, give_up=True)
    assert {*copied.rglob("*")} == before | {record(copied, 5), copied / "repaired"}


def test_a_damaged_segment_stays_while_a_record_of_it_is_lost(copied: Path) -> None:
    segment = min((copied / "segments").iterdir())
    data = bytearray(segment.read_bytes())
    data[-30] ^= 1
    segment.write_bytes(data)
    lost = record(copied, 15)
    intact = lost.read_bytes()
    lost.write_bytes(intact[:100] + b"?" + intact[101:-12] + b"?" + intact[-11:])
    with pytest.raises(InvalidLogError, match="it may have the last copy of a record"):
        repair(str(copied), 12)
    assert segment.exists()
    # The record comes back from the sound part of the segment, which may go then.
    assert repair(str(copied), 15) and not segment.exists()
    assert lost.read_bytes() == intact and verify(str(copied)).ok


def test_a_lost_record_that_no_segment_has_is_not_put_back(copied: Path) -> None:
    record(copied, 24).unlink()
    with pytest.raises(InvalidLogError, match="no such object, and no segment has it"):
        repair(str(copied), 24)


def test_a_lost_head_can_be_given_up(path: Path) -> None:
    """The steps in docs/operations.md: the next writer's leader record takes the place."""
    file = record(path, LAST)
    file.write_bytes(b"no record")
    with pytest.raises(InvalidLogError):
        write(path, 4)
    file.unlink()
    write(path, 4)
    assert values(path) == [1, 2, 4] and verify(str(path)).ok
    assert Log(str(path)).head() is not None
    assert next(Log(str(path)).records(LAST, LAST)).kind == "leader"


@pytest.mark.parametrize("position", [LAST - 1, LAST])
@pytest.mark.parametrize("end", ["sound", "cut", "overwritten", "longer"])
def test_no_advice_deletes_a_record_that_readers_return(
    path: Path, position: int, end: str
) -> None:
    """A record whose footer alone is damaged counts, and readers return its rows."""
    file = record(path, position)
    data = file.read_bytes()
    ends = {"cut": data[:-40], "overwritten": data[:-40] + bytes(40), "longer": data + b"xx"}
    file.write_bytes(ends.get(end, data))
    assert verify(str(path)).ok and values(path) == [1, 2, 3]
    with pytest.raises(InvalidLogError, match="are intact.*Do not delete it"):
        repair(str(path), position, give_up=True)
    if end == "sound":
        assert not repair(str(path), position)
    else:
        with pytest.raises(InvalidLogError, match="cut off after its rows.*It counts"):
            repair(str(path), position)
    assert file.read_bytes() == ends.get(end, data)


@pytest.mark.parametrize(
    ("position", "advice"),
    [
        (LAST - 1, "is damaged: restore it, or delete it first"),
        (LAST, "is damaged: restore it, or delete it and start the writer"),
    ],
)
def test_a_damaged_record_is_deleted_before_it_is_given_up(
    path: Path, position: int, advice: str
) -> None:
    file = record(path, position)
    file.write_bytes(b"<html>502 Bad Gateway</html>")
    with pytest.raises(InvalidLogError, match=advice):
        repair(str(path), position, give_up=True)
    assert file.exists()
