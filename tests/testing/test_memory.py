"""The store in memory: its clock, its uploads, what it counts."""

from __future__ import annotations

import pytest

from sparkwal.store.base import NotFound, Unfinished
from sparkwal.testing.memory import MemoryStore


def test_ages_are_those_of_the_clock_that_a_test_moves() -> None:
    store = MemoryStore()
    now = 1_000
    store.now_ms = lambda: now
    store.put_if_absent("a", b"1")
    upload = store.upload("b")
    now = 5_000
    upload.part(1, 0, b"x")
    now = 7_000
    assert store.age_ms("a") == 6_000
    assert store.unfinished("b") == ([Unfinished("b", "00000001", 2_000)], "")
    store.put("a", b"2")
    assert store.age_ms("a") == 0
    store.modified["a"] = 0
    assert store.age_ms("a") == 7_000
    store.delete_many(["a"])
    with pytest.raises(NotFound):
        store.age_ms("a")
    # Put there by a test, behind the store's back.
    store.objects["c"] = b""
    assert store.age_ms("c") == 0


def test_requests_of_a_collection_are_counted_as_by_the_proxy() -> None:
    store = MemoryStore()
    store.put("a", b"1")
    store.age_ms("a")
    store.delete_many([])
    store.delete_many(["a", "b"])
    store.upload("b").part(1, 0, b"x")
    store.discard(*store.unfinished("").uploads)
    assert store.counts == {
        "PUT": 1,
        "GET": 1,
        "DELETE": 1,
        "PART": 1,
        "LIST_MULTIPART": 1,
        "ABORT_MULTIPART": 1,
    }
    with pytest.raises(AssertionError):
        store.delete_many([str(number) for number in range(1001)])


def test_a_discarded_upload_publishes_nothing() -> None:
    store = MemoryStore()
    upload = store.upload("a")
    upload.part(1, 0, b"x")
    store.discard(*store.unfinished("").uploads)
    assert not upload.complete()
    assert store.objects == {}
