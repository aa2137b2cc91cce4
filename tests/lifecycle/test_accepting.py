"""A table that was restored or overwritten is accepted: each row is in it once afterwards."""

from __future__ import annotations

import pytest

from sparkwal.errors import ConfirmError, PlanError
from sparkwal.format.lifecycle_record import FLOOR
from tests.chains import Seen, newest, put_next
from tests.lifecycle.table import Died, dying_at
from tests.lifecycle.test_coordinator import Life, Mortal
from tests.lifecycle.test_restored import restore_log


@pytest.fixture
def life() -> Life:
    """A log whose range 2 is in version 2 of the table; the compactor died before it said so."""
    return with_open_range()


def with_open_range(step: str = "written") -> Life:
    found = Life()
    found.write(2)
    found.process().run_once()
    found.write(2)
    die_at(found, step)
    return found


def die_at(life: Life, step: str) -> None:
    with dying_at(life.table, step), pytest.raises(Died):
        life.process().run_once()


def check_all_once(life: Life) -> None:
    life.process().run_once()
    life.write(1)
    life.process().run_once()
    assert life.table.rows == life.written


@pytest.mark.proves("lost-range-new-k")
def test_an_open_range_that_a_restore_took_away_is_written_again(life: Life) -> None:
    life.table.restore(1)
    with pytest.raises(ConfirmError, match="is a RESTORE.*Restore it to version 1.*--accept-table"):
        life.process().run_once()
    state = Seen(life.process().accept_table())
    assert (state.kind, state.k, state.promise.confirmed_k) == ("intent", 3, 2)
    assert state.is_open
    check_all_once(life)
    assert life.table.ranges == [1, 2, 3, 4]


@pytest.mark.parametrize("accepts_between", [False, True])
def test_an_open_range_is_written_once_after_several_restores(
    life: Life, accepts_between: bool
) -> None:
    for _ in range(3):
        life.table.restore(1)
        if accepts_between:
            life.process().accept_table()
    life.process().accept_table()
    die_at(life, "written")
    life.table.restore(1)
    life.process().accept_table()
    check_all_once(life)


@pytest.mark.proves("kept-range-done")
@pytest.mark.parametrize("back", [False, True])
def test_a_restore_to_a_version_that_holds_the_open_range_keeps_it(life: Life, back: bool) -> None:
    if back:
        life.table.restore(1)
        life.process().accept_table()
        die_at(life, "written")
    life.table.restore(len(life.table.versions) - 1)
    assert life.process().accept_table().kind == "done"
    check_all_once(life)


def test_a_restore_that_another_undoes_keeps_the_open_range(life: Life) -> None:
    life.table.restore(0)
    life.table.restore(2)
    life.process().accept_table()
    check_all_once(life)


def test_a_range_that_comes_after_the_restore_counts() -> None:
    life = with_open_range("write")
    late = newest(life.log)
    assert late is not None
    life.table.restore(1)
    life.table.write(late.promise)
    assert life.process().accept_table().kind == "done"
    check_all_once(life)


def test_a_compactor_that_wakes_after_the_table_was_accepted_writes_nothing_twice() -> None:
    for written in (False, True):
        life = with_open_range("written" if written else "write")
        late = newest(life.log)
        assert late is not None
        life.table.restore(1)
        life.process().accept_table()
        life.table.write(late.promise)
        check_all_once(life)
        life.table.write(late.promise)
        check_all_once(life)


@pytest.mark.proves("restore-not-before")
def test_a_restore_to_before_what_was_confirmed_is_refused(life: Life) -> None:
    life.table.restore(0)
    with pytest.raises(PlanError, match="version 0, which is older.*Restore it to version 1"):
        life.process().accept_table()
    life.table.restore(1)
    life.process().accept_table()
    check_all_once(life)


def test_a_table_that_was_overwritten_gets_the_open_range_again(life: Life) -> None:
    life.table.overwrite(life.written[:2])
    life.process().accept_table()
    check_all_once(life)


def test_a_range_that_was_accepted_after_it_was_taken_away_does_not_count(life: Life) -> None:
    """As an older sparkwal did."""
    life.table.restore(1)
    state = newest(life.log)
    assert state is not None
    put_next(life.log, state, FLOOR, life.timed.clock, "here", table_version=3)
    with pytest.raises(ConfirmError, match="no version since 3 added that range"):
        life.process().run_once()
    life.process().accept_table()
    check_all_once(life)


def test_accepting_a_table_survives_a_kill_at_every_store_call() -> None:
    for answered in (True, False):
        for lives in range(1, 100):
            life = with_open_range()
            life.table.restore(1)
            try:
                process = life.process(Mortal(life.timed.store, lives, answered))
                process.accept_table()
                process.run_once()
            except Died:
                life.process().accept_table()
                check_all_once(life)
            else:
                assert lives > 10
                break


def test_a_history_that_does_not_reach_back_proves_no_open_range(life: Life) -> None:
    life.table.optimize()
    life.table.oldest = len(life.table.versions)
    with pytest.raises(PlanError, match="does not reach back to version 1"):
        life.process().accept_table()
    life.table.overwrite(life.written[:2])
    life.process().accept_table()
    check_all_once(life)


@pytest.mark.proves("log-after-table")
@pytest.mark.parametrize("open_range", [False, True])
def test_a_log_restored_with_its_lifecycle_continues_after_a_restore_of_the_table(
    open_range: bool,
) -> None:
    life = Life()
    life.write(2)
    life.process().run_once()
    life.write(1)
    if open_range:
        die_at(life, "write")
    copy, lost = dict(life.timed.store.objects), len(life.written)
    for _ in range(3):
        life.write(2)
        life.process().run_once()
    restore_log(life, copy)
    del life.written[lost:]
    life.write(1)
    with pytest.raises(ConfirmError, match="Restore it to version 1"):
        life.process().run_once()
    with pytest.raises(PlanError, match=r"holds the ranges \[2.*Restore it to version 1"):
        life.process().accept_table()
    life.table.restore(1)
    life.process().accept_table()
    check_all_once(life)
