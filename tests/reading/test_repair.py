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


def record(path: Path, position: int) -> Path:
    return path / keys.key("", keys.slot(position, 1000))


def values(path: Path) -> list[int]:
    found: list[int] = Log(str(path)).scan().read_all().column("v").to_pylist()
    return found


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
