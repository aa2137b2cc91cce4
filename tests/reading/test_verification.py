"""`verify` reports every kind of damage of a log, and raises none."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner

from sparkwal import Appender, Log, verify
from sparkwal.cli.main import main
from sparkwal.errors import OptionError
from sparkwal.format import keys
from tests.logs import flip, record

SCHEMA = pa.schema([("v", pa.int64()), ("s", pa.string())])
LAST = 4


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A leader record and four commits of an appender."""
    folder = tmp_path / "log"
    with Appender(str(folder), SCHEMA, producer_id="p") as wal:
        for value in range(1, LAST + 1):
            wal.append([{"v": value, "s": "text" * value}]).result()
    return folder


def test_a_sound_log_has_no_problems(path: Path) -> None:
    report = verify(str(path))
    assert report.ok and (report.head, report.commits, report.leaders) == (LAST, LAST, 1)


@pytest.mark.parametrize("position", [0, 2, LAST])
def test_a_damaged_record_is_reported_wherever_it_is(path: Path, position: int) -> None:
    flip(record(path, position), 0)
    report = verify(str(path))
    assert not report.ok and str(keys.slot(position, 1000)) in report.problems[-1]
    assert report.head == LAST and not report.under_way
    assert report.commits + report.leaders == LAST


def test_a_log_without_one_intact_record_is_reported(path: Path) -> None:
    for position in range(LAST + 1):
        flip(record(path, position), 0)
    report = verify(str(path))
    assert not report.ok and report.head == -1


@pytest.mark.parametrize("position", [0, LAST], ids=["leader", "commit"])
def test_a_record_that_is_cut_off_after_its_rows_counts(path: Path, position: int) -> None:
    """A store that keeps a part of a PUT may cut the footer, which no reader of the log needs."""
    file = record(path, position)
    file.write_bytes(file.read_bytes()[:-20])
    report = verify(str(path))
    assert report.ok and report.head == LAST and report.commits == LAST
    (sentence,) = report.torn
    assert str(keys.slot(position, 1000)) in sentence and "cut off after its rows" in sentence
    assert Log(str(path)).to_pandas().v.tolist() == [1, 2, 3, 4]


@pytest.mark.parametrize("position", [0, LAST], ids=["leader", "commit"])
def test_damage_in_a_footer_is_reported(path: Path, position: int) -> None:
    """Readers of the log never look there; a program that opens it as an Arrow file does."""
    file = record(path, position)
    intact = file.read_bytes()
    footer = intact.rindex(b'{"format"')
    last = intact.rindex(b'"type":"struct"')
    seed = random.randrange(2**32)
    print("seed", seed)
    rng = random.Random(seed)
    text = range(footer, footer + 200)
    trailer = range(len(intact) - 10, len(intact))
    for at in [*rng.sample(text, 20), *range(last, last + 15), *trailer]:
        flip(file, at, rng.randrange(8))
        report = verify(str(path))
        assert not report.ok, at
        assert Log(str(path)).scan().read_all().num_rows == LAST
        file.write_bytes(intact)
    assert verify(str(path)).ok


def test_an_object_of_another_program_is_named_and_no_damage(path: Path) -> None:
    for folder in keys.FOLDERS:
        for name in (".DS_Store", "Thumbs.db"):
            (path / folder).mkdir(exist_ok=True)
            (path / folder / name).write_bytes(b"x")
    with Appender(str(path), SCHEMA, producer_id="p") as wal:
        wal.append([{"v": 5, "s": ""}]).result()
    report = verify(str(path))
    assert report.ok and report.foreign == ["batches/.DS_Store", "batches/Thumbs.db"]
    result = CliRunner().invoke(main, ["verify", str(path)])
    assert result.exit_code == 0
    assert "no part of the log: batches/.DS_Store, batches/Thumbs.db\n" in result.output
    for number in range(10):
        (path / "batches" / f".nfs{number}").touch()
    assert "/.nfs3 and 7 more objects" in str(verify(str(path)))
    # A name that a log could have is no other program's.
    (path / "batches" / f"{0:020d}").touch()
    assert not verify(str(path)).ok


def test_a_record_of_another_log_is_reported(path: Path, tmp_path: Path) -> None:
    """A log was deleted and recreated; one of its old records came back."""
    with Appender(str(tmp_path / "other"), SCHEMA, producer_id="p") as wal:
        for value in range(1, LAST + 1):
            wal.append([{"v": value, "s": "other"}]).result()
    record(path, 3).write_bytes(record(tmp_path / "other", 3).read_bytes())
    assert any("another log" in problem for problem in verify(str(path)).problems)


def test_a_missing_log_is_no_log_and_nothing_else(tmp_path: Path) -> None:
    where = str(tmp_path / "none")
    report = verify(where)
    assert str(report) == f"there is no log at file://{where}; check the path" and not report.ok
    log = Log(where, endingPosition=3)
    assert log.head() is None
    for look in (log.records, log.scan, Log(where).current):
        with pytest.raises(OptionError, match=f"there is no log at file://{where}"):
            list(look())


def test_a_path_with_sequencers_only_names_one_of_them(tmp_path: Path) -> None:
    where = str(tmp_path / "wal")
    with Appender(where, SCHEMA, producer_id="p", sequencer="probe-7") as wal:
        wal.append([{"v": 1, "s": "a"}]).result()
    assert "has sequencers, such as probe-7" in str(verify(where))
    log = Log(where)
    for look in (log.scan, log.current):
        with pytest.raises(OptionError, match="such as probe-7: name one"):
            list(look())
    for command in ("status", "log", "collect", "verify"):
        result = CliRunner().invoke(main, [command, where])
        assert result.exit_code == 2 and "such as probe-7" in " ".join(result.output.split())
