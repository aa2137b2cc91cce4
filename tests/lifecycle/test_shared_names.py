"""Readers on several machines that publish under one name at the same time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sparkwal.errors import InvalidLogError, OptionError
from sparkwal.lifecycle.consumers.objects import forget
from sparkwal.store.base import LogStore, Tagged
from sparkwal.store.local import LocalStore
from sparkwal.testing.memory import MemoryStore
from tests.lifecycle.test_publishing import MINUTE, OfAll

KEY = "wal/consumers/daily.all"


@pytest.fixture
def of_all(tmp_path: Path) -> OfAll:
    return OfAll(tmp_path)


def between(of_all: OfAll, monkeypatch: pytest.MonkeyPatch, work: Callable[[], object]) -> None:
    """Do something once, after the next GET of a reader and before its PUT."""
    read = of_all.store.get_tagged
    remaining = [work]

    def read_and_work(*arguments: Any) -> Tagged:
        try:
            return read(*arguments)
        finally:
            if remaining:
                remaining.pop()()

    monkeypatch.setattr(of_all.store, "get_tagged", read_and_work)


def test_a_position_that_is_published_between_a_get_and_a_put_is_not_lost(
    of_all: OfAll, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = of_all.begin(a=10, b=10)
    fast = of_all.begin(machine="m", a=10, b=10)
    between(of_all, monkeypatch, lambda: slow.committed({"a": 11, "b": 12}))
    fast.committed({"a": 200, "b": 200})
    # The slow one kept the positions at which the other began.
    assert of_all.positions == {"a": 10, "b": 10}


def test_a_reader_that_joins_between_a_get_and_a_put_is_protected(
    of_all: OfAll, monkeypatch: pytest.MonkeyPatch
) -> None:
    fast = of_all.begin(machine="m", a=100)
    fast.committed({"a": 100})
    of_all.pass_ms(MINUTE)
    between(of_all, monkeypatch, lambda: of_all.begin(a=3))
    fast.committed({"a": 200})
    assert of_all.positions == {"a": 3}


def test_two_readers_that_join_a_new_name_at_once_are_both_protected(
    of_all: OfAll, monkeypatch: pytest.MonkeyPatch
) -> None:
    between(of_all, monkeypatch, lambda: of_all.begin(a=3))
    of_all.begin(machine="m", a=100)
    assert of_all.positions == {"a": 3}


def test_a_reader_that_is_forgotten_between_a_get_and_a_put_registers_again(
    of_all: OfAll, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = of_all.begin(a=1)
    run.committed({"a": 2})
    of_all.pass_ms(MINUTE)
    between(of_all, monkeypatch, lambda: forget(of_all.stored))
    run.committed({"a": 5})
    assert of_all.positions == {"a": 5}


def test_a_lost_reply_costs_a_get_and_a_put(of_all: OfAll, monkeypatch: pytest.MonkeyPatch) -> None:
    run = of_all.begin(a=1)
    replace = of_all.store.replace
    lost = [True]

    def replace_and_lose(key: str, body: bytes, etag: str) -> bool:
        return replace(key, body, etag) and not (lost and lost.pop())

    monkeypatch.setattr(of_all.store, "replace", replace_and_lose)
    run.committed({"a": 5})
    assert dict(of_all.store.counts) == {"GET": 2, "PUT": 2}
    assert of_all.positions == {"a": 5}


def test_a_part_of_a_put_that_the_store_kept_is_replaced(
    of_all: OfAll, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = of_all.begin(a=1)
    replace = of_all.store.replace
    torn = [True]

    def replace_and_tear(key: str, body: bytes, etag: str) -> bool:
        if torn:
            torn.pop()
            of_all.store.put(key, body[:40])
            return False
        return replace(key, body, etag)

    monkeypatch.setattr(of_all.store, "replace", replace_and_tear)
    run.committed({"a": 5})
    assert of_all.positions == {"a": 5}


def refuse(key: str, body: bytes, etag: str) -> bool:
    raise OptionError("501 NotImplemented")


@pytest.mark.parametrize("replace", [refuse, lambda *_: False], ids=["refused", "never"])
def test_a_store_without_if_match_takes_the_last_put(
    of_all: OfAll, monkeypatch: pytest.MonkeyPatch, replace: Callable[..., bool]
) -> None:
    run = of_all.begin(a=1)
    monkeypatch.setattr(of_all.store, "replace", replace)
    run.committed({"a": 5})
    assert of_all.positions == {"a": 5}


@pytest.mark.parametrize("body", [b"", b"?" * 2**26], ids=["empty", "large"])
def test_no_more_of_an_object_is_read_than_a_reader_takes(
    tmp_path: Path, body: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    for store in (MemoryStore(), LocalStore(tmp_path / "store", fsync=False)):
        of_all = OfAll(tmp_path)
        of_all.log = LogStore(store, "wal")
        store.put(KEY, body)
        with pytest.raises(InvalidLogError, match="daily.all"):
            of_all.begin(a=1)
        assert len(store.get_tagged(KEY, 7).body) == min(len(body), 7)
