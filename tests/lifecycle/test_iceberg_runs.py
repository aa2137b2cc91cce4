"""The rules that only an Iceberg table needs, at each of the events of `iceberg_runs`."""

from __future__ import annotations

import pytest

from tests.lifecycle.iceberg_runs import (
    ANSWERS,
    EVENTS,
    run,
    run_answer,
    run_old_format,
    run_picked,
)


@pytest.mark.proves("onto-looked-snapshot")
@pytest.mark.proves("one-attempt")
@pytest.mark.proves("rollback-undoes")
@pytest.mark.proves("range-outlives-snapshot")
@pytest.mark.parametrize("between", [False, True], ids=["before the commit", "between"])
@pytest.mark.parametrize("event", EVENTS)
def test_each_row_is_there_once_or_its_loss_is_noticed(event: str, *, between: bool) -> None:
    run(event, between=between)


@pytest.mark.parametrize("answer", ANSWERS)
def test_a_range_that_the_catalog_took_is_found(answer: str) -> None:
    run_answer(answer)


@pytest.mark.proves("late-by-a-rollback")
def test_a_table_without_sequence_numbers_is_refused() -> None:
    run_old_format()


@pytest.mark.proves("picked-has-range")
@pytest.mark.parametrize("expires", [False, True], ids=["", "source expires"])
def test_a_range_that_was_picked_after_a_rollback_is_there_once(*, expires: bool) -> None:
    run_picked(expires=expires)
