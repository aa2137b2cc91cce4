"""A log restored to a state before its lifecycle or its table: every run detects it."""

from __future__ import annotations

from typing import Any

import pytest

from sparkwal.errors import ConfirmError, OptionError, PlanError
from sparkwal.format import keys
from sparkwal.lifecycle.policy import LifecycleOptions, Policy
from sparkwal.options.parsing import parse
from sparkwal.protocol.recovery import find_head
from tests.chains import newest
from tests.lifecycle.test_coordinator import GRACE_MS, Life


def restore_log(life: Life, copy: dict[str, bytes], folder: str = "") -> None:
    """Restore the log, or one folder of it, from a copy."""
    store = life.timed.store
    for key in [key for key in store.objects if folder in key]:
        store.delete(key)
    for key, body in copy.items():
        if folder in key:
            store.put(key, body)


def test_a_range_of_before_the_restore_is_not_taken_for_the_one_that_is_promised() -> None:
    life = Life()
    life.write(3)
    life.process().run_once()
    copy = dict(life.timed.store.objects)
    life.write(2)
    life.process().run_once()
    restore_log(life, copy)
    life.write(4)
    for _ in range(2):
        with pytest.raises(ConfirmError, match=r"holds the ranges \[2\].*older copy"):
            life.process().run_once()
    state = newest(life.log)
    assert state is not None and state.k == 1 and state.floor <= state.cut


def test_a_log_that_ends_before_its_floor_is_not_collected() -> None:
    life = Life()
    life.write(3)
    copy = dict(life.timed.store.objects)
    life.write(5)
    alone: dict[str, Any] = {"policy": Policy(retain_seconds=0), "table": None}
    life.later(1000)
    life.process(**alone).run_once()
    restore_log(life, copy, "/batches/")
    life.later(2 * GRACE_MS)
    for work in (
        lambda: life.process(**alone).run_once(),
        lambda: life.process(**alone).collect(dry_run=False),
    ):
        with pytest.raises(PlanError, match="before its floor.*lifecycle/"):
            work()
    assert find_head(life.log).gap < 8


def test_a_floor_is_found_without_older_records_of_the_lifecycle() -> None:
    for gone in range(4):
        life = Life()
        alone: dict[str, Any] = {"policy": Policy(retain_seconds=0), "table": None}
        for _ in range(4):
            life.write(2)
            life.later(1000)
            life.process(**alone).run_once()
        life.later(2 * GRACE_MS)
        floor = find_head(life.log).gap
        life.write(2)
        life.process(**alone, collects=False).run_once()
        life.timed.store.delete(keys.lifecycle_key(life.log.prefix, keys.MAX - gone))
        found = life.process(**alone).collect(dry_run=True)
        assert found is not None and found.bound <= floor
        assert found.bound > 0


def test_a_grace_that_no_record_can_hold_is_refused() -> None:
    with pytest.raises(OptionError, match="at most 36500d"):
        parse(LifecycleOptions, {"path": "/tmp/wal", "gcGrace": "99999999999999d"})
