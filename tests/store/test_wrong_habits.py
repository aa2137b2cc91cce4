"""The suite finds each wrong habit of a server of Azure or Google."""

from __future__ import annotations

import pytest

from sparkwal.errors import StoreUnavailableError
from sparkwal.store import rest
from sparkwal.store.base import Store
from sparkwal.store.conformance.checks import CHECKS
from sparkwal.store.conformance.suite import Report, Trial, prove
from tests.store import azurite, fake_gcs
from tests.store.habits import HABITS, Habit

each_habit = pytest.mark.parametrize("habit", HABITS, ids=lambda habit: habit.__name__)


def is_found(store: Store, habit: Habit, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether the check for a habit passes without it, and not with it."""
    trial = Trial(rounds=4, threads=8, seed=7)
    checks = [check for check in CHECKS if check.name == HABITS[habit]]
    assert Report(tuple(prove([store], "log", trial, checks))).fit
    monkeypatch.setattr(rest, "send", habit(rest.send))
    try:
        return not Report(tuple(prove([store], "log", trial, checks))).fit
    except StoreUnavailableError:
        # A reply that proves nothing is asked again, in vain.
        return True


@each_habit
def test_a_wrong_habit_on_azure_is_found(
    azurite_url: str, habit: Habit, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert is_found(azurite.new_store(azurite_url), habit, monkeypatch)


@each_habit
def test_a_wrong_habit_on_google_is_found(
    fake_gcs_url: str, habit: Habit, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert is_found(fake_gcs.new_store(fake_gcs_url), habit, monkeypatch)
