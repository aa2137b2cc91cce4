"""A log without commits while others write its table: the confirmed version follows them."""

from __future__ import annotations

import pytest

from sparkwal.errors import ConfirmError
from tests.chains import newest
from tests.lifecycle.test_coordinator import Life

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS


@pytest.fixture
def life() -> Life:
    found = Life()
    found.write(2)
    found.process().run_once()
    return found


def confirmed(life: Life) -> int:
    life.process().run_once()
    state = newest(life.log)
    assert state is not None
    return state.table_version


def records(life: Life) -> int:
    return sum("/lifecycle/" in key for key in life.timed.store.objects)


def test_many_versions_of_others_are_confirmed_at_once_and_few_after_a_day(life: Life) -> None:
    for _ in range(3):
        life.table.optimize()
    before = records(life)
    assert confirmed(life) == 1 and records(life) == before
    life.later(DAY_MS)
    # One notes that the rows in the records below the floor were erased.
    assert confirmed(life) == 4 and records(life) == before + 2
    before += 1
    for _ in range(100):
        life.table.optimize()
    life.later(HOUR_MS)
    assert confirmed(life) == 104 and records(life) == before + 2
    life.later(9 * DAY_MS)
    assert confirmed(life) == 104 and records(life) == before + 2


def test_a_log_without_new_rows_in_a_busy_table_gets_a_record_an_hour_and_not_one_in_each_cycle(
    life: Life,
) -> None:
    before = records(life)
    for _ in range(60):
        for _ in range(25):
            life.table.optimize()
        life.later(HOUR_MS // 60)
        life.process().run_once()
    assert records(life) == before + 1


def test_a_table_whose_old_history_is_deleted_takes_ranges_of_a_log_that_was_quiet(
    life: Life,
) -> None:
    for _ in range(30):
        for _ in range(3):
            life.table.optimize()
        life.table.oldest = max(0, len(life.table.versions) - 30)
        life.later(DAY_MS)
        life.process().run_once()
    life.write(1)
    life.process().run_once()
    assert life.table.rows == life.written


def test_a_restore_is_not_confirmed_by_a_run_that_has_nothing_to_bring(life: Life) -> None:
    life.table.restore(0)
    for _ in range(100):
        life.table.optimize()
    with pytest.raises(ConfirmError, match="is a RESTORE"):
        life.process().run_once()
    state = newest(life.log)
    assert state is not None and state.table_version == 1
