"""A user changes how the table takes rows. The rows that it has stay, and no row is lost."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sparkwal.errors import ConfirmError, PlanError, WriteError
from sparkwal.format.lifecycle_record import MERGE, Target
from sparkwal.lifecycle.cycle import Run
from sparkwal.protocol.chain import newest_record
from tests.chains import newest
from tests.lifecycle.table import Died, ModelTable, dying_at
from tests.lifecycle.test_coordinator import Life, Mortal
from tests.lifecycle.test_giving_up import refuse, take
from tests.lifecycle.test_many_logs import Lives

KEYED = Target("memory://table", MERGE, ("v",), delete_when="CAST(w AS INT) < 0")
NEW = replace(KEYED, delete_when="TRY_CAST(w AS INT) < 0")
KEPT = replace(KEYED, sequence_by="s", tombstone_horizon_ms=1)


def with_target(life: Life | Lives, target: Target) -> ModelTable:
    """The table, as a process with another target opens it."""
    table = life.table
    table.target = target
    return table


@pytest.fixture
def life() -> Life:
    made = Life()
    with_target(made, KEYED)
    made.write(2)
    made.process().run_once()
    return made


@pytest.mark.proves("target-between-ranges")
def test_a_range_that_a_condition_fails_on_is_promised_again_with_another(life: Life) -> None:
    life.write(2)
    refuse(life.table)
    for _ in range(2):
        with pytest.raises(WriteError):
            life.process().run_once()
    take(life.table)
    with_target(life, NEW)
    with pytest.raises(PlanError, match=r"change it for all later rows with --change-target"):
        life.process().run_once()
    life.process().change_target()
    state = newest(life.log)
    assert state is not None and not state.is_open and state.target == NEW
    run = life.process().run_once()
    assert run.compacted is not None and run.compacted.k == 3
    assert life.table.rows == life.written


def test_a_process_with_the_former_target_names_the_command(life: Life) -> None:
    with_target(life, NEW)
    changed = life.process().change_target()
    assert life.process().change_target() == changed == newest_record(life.log)
    life.write(1)
    with_target(life, KEYED)
    with pytest.raises(PlanError, match="Use the target of the log, or .* --change-target"):
        life.process().run_once()
    with pytest.raises(PlanError, match="CAST.* here"):
        life.process().accept_table()


@pytest.mark.parametrize(
    ("first", "then", "why"),
    [
        (KEYED, replace(KEYED, keys=("w",)), "written by other keys"),
        (KEYED, Target(KEYED.table), "written by other keys, or by none"),
        (KEYED, replace(KEYED, partition_by=("v",)), "by ALTER TABLE"),
        (KEYED, replace(KEYED, properties=(("a", "b"),)), "by ALTER TABLE"),
        (KEYED, KEPT, "were not kept"),
        (KEPT, replace(KEPT, delete_when="", tombstone_horizon_ms=0), "--delete-when false"),
        (KEPT, replace(KEPT, sequence_by="w"), "do not follow"),
    ],
)
def test_a_target_that_its_rows_contradict_is_refused(
    first: Target, then: Target, why: str
) -> None:
    life = Life()
    life.table = ModelTable(life.log, first)
    life.write(1)
    life.process().run_once()
    before = newest(life.log)
    with_target(life, then)
    with pytest.raises(PlanError, match=f"cannot be changed: .*{why}"):
        life.process().change_target()
    with pytest.raises(PlanError, match="or begin a new log"):
        life.process().run_once()
    assert newest(life.log) == before


def test_another_table_is_none_of_the_log(life: Life) -> None:
    with_target(life, replace(NEW, table="memory://other"))
    with pytest.raises(PlanError, match="has no table yet"):
        life.process().change_target()


@pytest.mark.parametrize("target", [KEYED, NEW])
def test_the_target_of_a_restored_table_stays(life: Life, target: Target) -> None:
    life.table.restore(0)
    before = newest(life.log)
    with_target(life, target)
    with pytest.raises(ConfirmError, match="is a RESTORE"):
        life.process().change_target()
    assert newest(life.log) == before


def test_a_range_that_the_table_holds_is_done_by_the_former_target(life: Life) -> None:
    life.write(2)
    with dying_at(life.table, "written"), pytest.raises(Died):
        life.process().run_once()
    with_target(life, NEW)
    life.process().change_target()
    state = newest(life.log)
    assert state is not None and (state.k, state.is_open, state.target) == (2, False, NEW)
    assert life.table.rows == life.written


def test_a_refused_log_is_tried_at_once(life: Life) -> None:
    lives = Lives()
    with_target(lives, KEYED)
    for name in "ab":
        lives.write(name)
    lives.process().run_all()
    lives.write("b")
    bad = lives.written[-1]
    lives.write("a")
    lives.table.refuses = {bad}
    assert isinstance(lives.process().run_all()["b"], WriteError)
    lives.table.refuses = set()
    with_target(lives, NEW)
    lives.process(name="b").change_target()
    assert isinstance(lives.process().run_all()["b"], Run)
    assert lives.rows == lives.written


def test_a_target_changes_while_all_logs_are_at_rest() -> None:
    lives = Lives()
    with_target(lives, KEYED)
    for name in "ab":
        lives.write(name)
    lives.process().run_all()
    with_target(lives, NEW)
    lives.process(name="a").change_target()
    state = newest_record(lives.root)
    assert state is not None and state.tables[NEW.table].target == NEW
    lives.requests()
    assert all(isinstance(run, Run) for run in lives.process().run_all().values())
    assert lives.requests()["GET"] <= 4


@pytest.mark.parametrize("answered", [True, False])
def test_a_kill_at_every_store_call_is_survived(*, answered: bool) -> None:
    for calls in range(1, 80):
        life = Life()
        with_target(life, KEYED)
        life.write(2)
        life.process().run_once()
        life.write(2)
        with dying_at(life.table, "write"), pytest.raises(Died):
            life.process().run_once()
        with_target(life, NEW)
        try:
            life.process(Mortal(life.timed.store, calls, answered)).change_target()
        except Died:
            pass
        else:
            assert calls > 2
            return
        life.process().change_target()
        life.process().run_once()
        assert life.table.rows == life.written
    pytest.fail("it never ended")
