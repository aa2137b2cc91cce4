"""A table that was moved, and a log that was copied with its table, get their place in one step."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import sparkwal
from sparkwal.errors import ConfirmError, PlanError
from sparkwal.format.lifecycle_record import MERGE, Target
from sparkwal.lifecycle.coordinator import Coordinator
from sparkwal.lifecycle.policy import Policy
from sparkwal.protocol.chain import newest_record
from tests.lifecycle.lakes import Lake, value
from tests.lifecycle.table import ModelTable
from tests.lifecycle.test_coordinator import Life
from tests.lifecycle.test_many_logs import Lives

MOVED = Target("memory://moved")
KEPT = Target("memory://table", MERGE, ("v",), "v", "d", tombstone_horizon_ms=1)


def placed(lake: Lake) -> Coordinator:
    return Coordinator(lake.log, Policy(late_window_seconds=0), table=lake.table)


def ids(path: str, **how: Any) -> list[int]:
    return sorted(sparkwal.Log(path).current(**how).to_arrow(["id"]).column(0).to_pylist())


@pytest.mark.parametrize("stage", ["done", "intent", "written"])
def test_a_moved_table_is_accepted_at_its_new_place(tmp_path: Path, stage: str) -> None:
    lake = Lake(tmp_path)
    lake.append([value(1)])
    lake.compact()
    lake.append([value(2)])
    lake.compact(stage)
    shutil.move(tmp_path / "table", tmp_path / "new")
    moved = Lake(tmp_path, table=f"{tmp_path}/new")
    with pytest.raises(ConfirmError, match="if it was moved, run once with its new place"):
        placed(lake).run_once()
    with pytest.raises(PlanError, match="moved or copied there, give --accept-table"):
        placed(moved).run_once()
    placed(moved).accept_table()
    moved.append([value(3)])
    assert ids(moved.path) == [1, 2, 3]
    placed(moved).run_once()
    assert sorted(moved.delta().to_pyarrow_table()["id"].to_pylist()) == [1, 2, 3]
    assert not (tmp_path / "table").exists()
    with pytest.raises(PlanError, match="Use the target of the log, or"):
        placed(lake).run_once()


def test_a_copied_path_takes_its_own_table(tmp_path: Path) -> None:
    """Until then its chain names the table of the original."""
    old, new = tmp_path / "old", tmp_path / "new"
    lake = Lake(old)
    lake.append([value(1)])
    lake.compact()
    shutil.copytree(old, new)
    copy = Lake(new)
    copy.append([value(2)])
    lake.append([value(3)])
    placed(copy).accept_table()
    placed(copy).run_once()
    placed(lake).run_once()
    assert ids(copy.path) == [1, 2] and ids(lake.path) == [1, 3]
    assert sparkwal.Log(copy.path).current().table == f"{new}/table"
    assert sorted(lake.delta().to_pyarrow_table()["id"].to_pylist()) == [1, 3]


def test_all_logs_of_a_table_move_with_it() -> None:
    lives = Lives()
    for name in "ab":
        lives.write(name)
    lives.process().run_all()
    lives.table.target = MOVED
    lives.process().accept_table()
    lives.write("a")
    lives.process().run_all()
    chain = newest_record(lives.root)
    assert chain is not None and {*chain.tables} == {MOVED.table}
    assert {log.table for log in chain.logs.values()} == {MOVED.table}
    assert lives.rows == lives.written


def test_another_table_is_not_taken_for_a_moved_one() -> None:
    life = Life()
    life.write(2)
    life.process().run_once()
    other = ModelTable(life.log, MOVED)
    other.versions, other.table_id = life.table.versions, "another"
    with pytest.raises(PlanError, match="is not memory://table, moved"):
        life.process(table=other).accept_table()
    other.versions = ()
    with pytest.raises(PlanError, match="it does not exist"):
        life.process(table=other).accept_table()
    other.target = replace(MOVED, mode=MERGE, keys=("v",))
    with pytest.raises(PlanError, match="mode: append there, merge here"):
        life.process(table=other).accept_table()
    chain = newest_record(life.log)
    assert chain is not None and {*chain.tables} == {"memory://table"}


def test_an_older_copy_of_a_table_is_refused() -> None:
    life = Life()
    life.write(2)
    life.process().run_once()
    older = ModelTable(life.log, MOVED)
    older.versions = life.table.versions
    life.write(1)
    life.process().run_once()
    with pytest.raises(PlanError, match="its last range is 1"):
        life.process(table=older).accept_table()


def test_the_tombstones_move_with_their_table() -> None:
    life = Life()
    life.table = ModelTable(life.log, KEPT)
    life.write(2)
    life.process().run_once()
    life.write(1)
    moved = ModelTable(life.log, replace(KEPT, table="memory://moved"))
    moved.versions = life.table.versions
    with pytest.raises(
        PlanError, match="is not memory://table_tombstones, moved: move that folder there too"
    ):
        life.process(table=moved).accept_table()
    assert moved.tombstones is not None and life.table.tombstones is not None
    moved.tombstones.versions = life.table.tombstones.versions
    life.process(table=moved).accept_table()
    life.process(table=moved).run_once()
    chain = newest_record(life.log)
    assert chain is not None and {*chain.tables} == {"memory://moved"}
