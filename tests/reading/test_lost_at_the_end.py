"""A record near the end of an appender's log is deleted from outside: no reader and no writer
takes the hole for the end of the log, and no acknowledged row becomes dead."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import sparkwal
from sparkwal import Appender, InvalidLogError, Log, repair
from sparkwal.cli.doctor import check_log
from sparkwal.format import arrowfile, keys
from sparkwal.format.header import CommitHeader
from sparkwal.protocol.slots import read_slot
from sparkwal.store.base import LogStore
from sparkwal.store.local import LocalStore
from tests.logs import SCHEMA, record

APPENDS, LOST = 160, 130


def filled(path: Path, appends: int = APPENDS) -> Path:
    """An appender's log, with many in flight at most: value n at position n, each acknowledged."""
    with Appender(str(path), SCHEMA, producer_id="p", batchSizeThreshold=1) as wal:
        assert [wal.append([{"v": n}]).result() for n in range(1, appends + 1)] == list(
            range(1, appends + 1)
        )
    return path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A log in which position LOST was deleted."""
    folder = filled(tmp_path / "log")
    record(folder, LOST).unlink()
    return folder


def test_160_appends_were_acknowledged_and_verify_misses_the_one_that_was_deleted(
    path: Path,
) -> None:
    report = sparkwal.verify(str(path))
    assert not report.ok and report.commits == APPENDS - 1
    assert any(f"position {LOST}" in problem for problem in report.problems), report.problems


def test_the_doctor_names_the_record_that_was_deleted(path: Path) -> None:
    (line,) = check_log(str(path), {})
    assert line.outcome == "to do" and f"position {LOST} is missing" in line.said


def test_the_next_writer_raises_with_advice(path: Path) -> None:
    before = sorted(path.rglob("*"))
    with pytest.raises(InvalidLogError, match=rf"position {LOST} is missing.*repair"):
        Appender(str(path), SCHEMA, producer_id="p")
    assert sorted(file for file in path.rglob("*") if ".tmp" not in file.parts) == [
        file for file in before if ".tmp" not in file.parts
    ]


def test_readers_raise_and_tolerant_ones_skip_it(path: Path) -> None:
    with pytest.raises(InvalidLogError, match=f"position {LOST} is missing"):
        Log(str(path)).scan().read_all()
    rows = Log(str(path), failOnDataLoss=False).scan().read_all().column("v").to_pylist()
    assert rows == [n for n in range(1, APPENDS + 1) if n != LOST]


def test_give_up_refuses_a_position_that_is_not_missing(tmp_path: Path) -> None:
    folder = filled(tmp_path / "log", 3)
    for position, why in ((4, "no record is lost"), (0, "the first record of a log has no")):
        with pytest.raises(InvalidLogError, match=why):
            repair(str(folder), position, give_up=True)
    assert sparkwal.verify(str(folder)).commits == 3


def test_a_lost_record_can_be_given_up(path: Path) -> None:
    repair(str(path), LOST, give_up=True)
    assert sparkwal.verify(str(path)).ok
    with Appender(str(path), SCHEMA, producer_id="p") as wal:
        assert wal.last_sequence == APPENDS - 1
        wal.append([{"v": APPENDS + 1}]).result()
    rows = Log(str(path)).scan().read_all().column("v").to_pylist()
    assert rows == [n for n in range(1, APPENDS + 2) if n != LOST]
    with pytest.raises(InvalidLogError, match="intact, so there is nothing to give up"):
        repair(str(path), LOST, give_up=True)


@pytest.mark.parametrize("lost", ["leader", "commit"])
def test_giving_up_a_record_beside_a_takeover_neither_kills_nor_revives(
    tmp_path: Path, lost: str
) -> None:
    """The log has commits up to 3, and a leader record of the next term with its seals.

    The leader record is at 4 with seals up to 53, or at 5 with the seals after it. The lost record
    is at 4.
    """
    path = filled(tmp_path / "log", 3 if lost == "leader" else 4)
    with Appender(str(path), SCHEMA, producer_id="q") as wal:
        wal.append([{"v": 100}]).result()
    before = [(each.position, each.term) for each in Log(str(path)).records() if each.position != 4]
    record(path, 4).unlink()
    repair(str(path), 4, give_up=True)
    after = {each.position: each.term for each in Log(str(path)).records()}
    assert after.pop(4) == (2 if lost == "leader" else 1)
    assert list(after.items()) == before
    assert sparkwal.verify(str(path)).ok
    rows = Log(str(path)).scan().read_all().column("v").to_pylist()
    assert rows == [1, 2, 3, 100]


def test_a_dead_record_after_a_lost_leader_record_stays_dead(tmp_path: Path) -> None:
    """A leader record is at 4, a late record of the leader before at 5, then another leader."""
    path = filled(tmp_path / "log", 3)
    with Appender(str(path), SCHEMA, producer_id="q", maxInFlightRequests=1):
        pass
    seals = [record(path, position) for position in range(5, 54)]
    for file in seals:
        file.unlink()
    log = LogStore(LocalStore(path), "")
    former = read_slot(log, 3, 1000)
    assert former is not None and isinstance(former.header, CommitHeader)
    dead = replace(former.header, position=5, number=keys.slot(5, 1000), rows=0, bytes=0, inline=())
    log.store.put_if_absent(log.key(dead.number), arrowfile.encode(dead, former.spark_schema))
    with Appender(str(path), SCHEMA, producer_id="r") as wal:
        wal.append([{"v": 100}]).result()
    before = [(each.position, each.term) for each in Log(str(path)).records() if each.position != 4]
    record(path, 4).unlink()
    repair(str(path), 4, give_up=True)
    after = [(each.position, each.term) for each in Log(str(path)).records() if each.position != 4]
    assert after == before and 5 not in dict(after)
