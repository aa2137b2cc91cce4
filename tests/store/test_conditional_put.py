"""A store that does not keep the first of two puts is refused before anything is written."""

from __future__ import annotations

import os
import signal
import threading
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sparkwal import events
from sparkwal.errors import OptionError, StoreUnavailableError
from sparkwal.store.base import Entry, NotFound, Page, Transient, Upload
from sparkwal.store.conditional_put import prove_put_if_absent
from sparkwal.store.local import LocalStore
from sparkwal.testing.memory import MemoryStore


class Memory:
    """A correct store; subclasses break it."""

    concurrency = 8

    def __init__(self) -> None:
        self.url = self.identity = f"memory:{uuid.uuid4()}"
        self.objects: dict[str, bytes] = {}
        self.lock = threading.Lock()
        self.puts = 0

    def put_if_absent(self, key: str, body: bytes) -> bool:
        self.puts += 1
        with self.lock:
            return self.objects.setdefault(key, body) is body

    def get(self, key: str) -> bytes:
        try:
            return self.objects[key]
        except KeyError:
            raise NotFound(key) from None

    def get_range(self, key: str, offset: int, length: int) -> bytes:
        return self.get(key)[offset : offset + length]

    def list(self, prefix: str, limit: int = 1000, after: str = "") -> Page:
        keys = sorted(key for key in self.objects if key.startswith(prefix))
        entries = [Entry(key, len(self.objects[key])) for key in keys[:limit]]
        return Page(entries, len(keys) > limit)

    def folders(self, prefix: str, inside: str, after: str = "") -> None:
        return None

    def delete(self, key: str) -> None:
        self.objects.pop(key, None)

    def upload(self, key: str) -> Upload:
        raise AssertionError("the proof needs no upload")


class Overwriting(Memory):
    def put_if_absent(self, key: str, body: bytes) -> bool:
        self.objects[key] = body
        return True


class RefusingButOverwriting(Memory):
    def put_if_absent(self, key: str, body: bytes) -> bool:
        free = key not in self.objects
        self.objects[key] = body
        return free


class LooksThenWrites(Memory):
    """A store without a lock: no racing PUT writes before all have checked the key."""

    def __init__(self) -> None:
        super().__init__()
        self.looked = threading.Barrier(8)

    def put_if_absent(self, key: str, body: bytes) -> bool:
        if key in self.objects:
            return False
        if key.endswith("race"):
            self.looked.wait(60)
        self.objects[key] = body
        return True


class Swallowing(Memory):
    def put_if_absent(self, key: str, body: bytes) -> bool:
        return key not in self.objects


class LosesReplies(Memory):
    def put_if_absent(self, key: str, body: bytes) -> bool:
        super().put_if_absent(key, body)
        return False


@pytest.mark.parametrize(
    ("broken", "expected_message"),
    [
        (Overwriting, "second put at a taken key"),
        (RefusingButOverwriting, "changed the object"),
        (LooksThenWrites, "raced for one key"),
        (Swallowing, "second put at a taken key"),
    ],
)
def test_broken_store_is_refused(broken: Callable[[], Memory], expected_message: str) -> None:
    store = broken()
    for _ in range(2):  # a refusal is not remembered as a proof
        with pytest.raises(OptionError, match=expected_message) as caught:
            prove_put_if_absent(store, "log")
        assert store.url in str(caught.value)
        assert "another store" in str(caught.value)
        assert store.objects == {}


@pytest.mark.parametrize("correct", [Memory, LosesReplies])
def test_correct_store_is_proven_once(correct: Callable[[], Memory]) -> None:
    store = correct()
    prove_put_if_absent(store, "log")
    assert store.objects == {}
    puts = store.puts
    assert puts or correct is LosesReplies
    prove_put_if_absent(store, "log")
    assert store.puts == puts
    prove_put_if_absent(store, "other")
    assert store.puts == puts


def test_one_at_a_time_is_not_raced() -> None:
    store = LooksThenWrites()
    store.concurrency = 1
    prove_put_if_absent(store, "")
    assert store.objects == {}


def test_local_disk_is_proven(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "log")
    prove_put_if_absent(store, "")
    assert store.list("").entries == []
    assert not list((tmp_path / "log/proof").iterdir())


def test_failure_in_the_race_is_no_verdict() -> None:
    class Shaky(Memory):
        def put_if_absent(self, key: str, body: bytes) -> bool:
            if key.endswith("race") and self.puts == 5:
                raise Transient("reset")
            return super().put_if_absent(key, body)

    store = Shaky()
    with pytest.raises(StoreUnavailableError):
        prove_put_if_absent(store, "log")
    assert store.objects == {}


def test_writer_that_may_not_delete_is_proven() -> None:
    class Keeping(Memory):
        def delete(self, key: str) -> None:
            raise OptionError("AccessDenied")

    seen: list[events.Event] = []
    unsubscribe = events.subscribe(seen.append)
    try:
        store = Keeping()
        prove_put_if_absent(store, "log")
    finally:
        unsubscribe()
    assert [event.name for event in seen] == ["proof_left_behind"] * 4
    assert all(key.startswith("log/proof/") for key in store.objects)


def test_a_store_that_kept_nothing_is_left_unchanged() -> None:
    class Forbidding(Memory):
        def put_if_absent(self, key: str, body: bytes) -> bool:
            raise OptionError("AccessDenied")

        def delete(self, key: str) -> None:
            raise OptionError("AccessDenied")

    class Losing(Memory):
        def delete(self, key: str) -> None:
            super().delete(key)
            raise Transient("the reply was lost")

    seen: list[events.Event] = []
    unsubscribe = events.subscribe(seen.append)
    try:
        with pytest.raises(OptionError, match="AccessDenied"):
            prove_put_if_absent(Forbidding(), "log")
        prove_put_if_absent(Losing(), "log")
    finally:
        unsubscribe()
    assert seen == []


@pytest.mark.process
def test_the_objects_of_a_killed_proof_disturb_no_later_one(tmp_path: Path) -> None:
    child = os.fork()
    if child == 0:
        LocalStore.delete = lambda *_: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[assignment,method-assign]
        prove_put_if_absent(LocalStore(tmp_path / "log"), "")
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    store = LocalStore(tmp_path / "log")
    left = store.list("proof/").entries
    assert left
    prove_put_if_absent(store, "")
    assert store.list("proof/").entries == left
    assert store.list("batches/").entries == []


def test_two_writers_prove_one_store_at_once() -> None:
    store = MemoryStore("memory://proven-twice", concurrency=8)
    both = threading.Barrier(2)

    def prove(_: int) -> None:
        both.wait(timeout=60)
        prove_put_if_absent(store, "log")

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(prove, range(2)))
    assert store.objects == {}


def test_a_proof_costs_34_requests() -> None:
    store = MemoryStore("memory://counted", concurrency=8)
    prove_put_if_absent(store, "log")
    assert store.counts == {"PUT": 26, "GET": 4, "DELETE": 4}
