"""Each awkward value and name by each way into a log and out of it.

It is the same value, or the writer refuses it, or one reader refuses its column by name. Then a
read of the other columns works.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from sparkwal import Log
from sparkwal.errors import OptionError
from tests.values.awkward import NAMES, NAMES_REFUSED, REFUSED, STORED, VALUES
from tests.values.doors import DOORS
from tests.values.log import expected, without_checks, write_stored, write_table


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A log with all values, also those that an older version took."""
    found = str(tmp_path_factory.mktemp("values") / "wal")
    write_stored(found)
    return found


@pytest.mark.parametrize("door", DOORS)
def test_a_value_comes_out_as_it_went_in(path: str, tmp_path: Path, door: str) -> None:
    names = [name for name in (*VALUES, *STORED) if name not in DOORS[door].refuses]
    found = DOORS[door].read(path, names, tmp_path)
    wrong = {
        name: str(found[name])[:200]
        for name in names
        if found[name] != expected(name, DOORS[door].nan)
    }
    assert not wrong


@pytest.mark.parametrize(
    ("door", "name"), [(door, name) for door in DOORS for name in DOORS[door].refuses]
)
def test_a_reader_that_cannot_hold_a_column_names_it(
    path: str, tmp_path: Path, door: str, name: str
) -> None:
    with pytest.raises((OptionError, ValueError)) as caught:
        DOORS[door].read(path, ["long", name], tmp_path)
    assert f"column {name!r}" in str(caught.value)
    assert DOORS[door].refuses[name] in str(caught.value)
    assert DOORS[door].read(path, ["long"], tmp_path)["long"] == expected("long")


@pytest.mark.parametrize("name", REFUSED)
def test_a_value_that_readers_cannot_hold_is_refused_by_the_writer(
    tmp_path: Path, name: str
) -> None:
    table = pa.table({"id": [1], "v": REFUSED[name].rows})
    with pytest.raises(OptionError, match=REFUSED[name].says):
        write_table(str(tmp_path), table)


def test_a_name_comes_out_as_it_went_in(tmp_path: Path) -> None:
    path = str(tmp_path / "wal")
    table = pa.table([[number] for number in range(len(NAMES))], names=NAMES)
    write_table(path, table)
    for name, door in DOORS.items():
        names = [
            each for each in NAMES if each or "sql" not in name.lower() and "where" not in name
        ]
        found = door.read(path, names, tmp_path)
        assert found == {each: [NAMES.index(each)] for each in names}, name
    # SQL cannot name the column "", so it is left out.
    assert Log(path).sql("SELECT * FROM log").schema.names[: len(NAMES) - 1] == NAMES[1:]


@pytest.mark.parametrize("name", NAMES_REFUSED)
def test_a_name_that_readers_cannot_hold_is_refused_by_the_writer(
    tmp_path: Path, name: str
) -> None:
    with pytest.raises(OptionError, match=NAMES_REFUSED[name]):
        write_table(str(tmp_path), pa.table({"s": [1], name: [1]}))


def test_a_column_that_sql_cannot_name_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path)
    without_checks(monkeypatch)
    write_table(path, pa.table([[1], [2], [3]], names=["n", "n\0n", "n\0m"]))
    assert Log(path).sql("SELECT n FROM log WHERE n = 1").read_all().to_pylist() == [{"n": 1}]
    assert Log(path).sql("SELECT * FROM log").schema.names[:2] == ["n", "_wal_position"]
    assert Log(path).scan().read_all().to_pylist() == [{"n": 1, "n\0n": 2, "n\0m": 3}]
