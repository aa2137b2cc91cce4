"""Late requests are sent twice, and the first answer counts."""

from __future__ import annotations

import os
import pickle
import signal
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sparkwal import events
from sparkwal.errors import OptionError, StoreUnavailableError
from sparkwal.options.parsing import from_keywords
from sparkwal.options.store import StoreOptions
from sparkwal.store import threads as store_threads
from sparkwal.store.base import NotFound, Store, Transient
from sparkwal.store.conditional_put import prove_put_if_absent
from sparkwal.store.config import RetryPolicy
from sparkwal.store.hedge import Pace, Request, pace_of
from sparkwal.store.local import LocalStore
from sparkwal.store.open import open_store
from sparkwal.store.retry import RetryingStore
from tests.store.inside import has_idle_thread, take_task

GONE = Transient("reset by peer")
REFUSED = OptionError("AccessDenied")


class AlwaysLatePace(Pace):
    """Every request is late at once, and may be repeated."""

    def __init__(self, given_up: float = 30.0, spare: bool = True) -> None:
        super().__init__()
        self.given_up = given_up
        self.spare = spare

    def begin(self, kind: tuple[str, int]) -> tuple[float, float]:
        return 0.02, self.given_up

    def may_repeat(self, *, is_straggler: bool) -> bool:
        return self.spare


class Scripted(LocalStore):
    """A store with a script for each attempt.

    "before" and "after" block it until `release`, before or after it took effect. An exception is
    raised. None passes it on.
    """

    def __init__(self, root: Path, *script: str | Exception | None) -> None:
        super().__init__(root, fsync=False)
        self.script = list(script)
        self.attempts = 0
        self.ended = 0
        self.release = threading.Event()

    def _do(self, act: Any) -> Any:
        step = self.script[self.attempts] if self.attempts < len(self.script) else None
        self.attempts += 1
        try:
            if step == "before":
                self.release.wait(30)
            if isinstance(step, Exception):
                if step is GONE:
                    act()
                raise step
            done = act()
            if step == "after":
                self.release.wait(30)
            return done
        finally:
            self.ended += 1

    def put_if_absent(self, key: str, body: bytes) -> bool:
        put = super().put_if_absent
        return bool(self._do(lambda: put(key, body)))

    def get(self, key: str) -> bytes:
        get = super().get
        return bytes(self._do(lambda: get(key)))

    def put(self, key: str, body: bytes) -> None:
        put = super().put
        self._do(lambda: put(key, body))

    def delete(self, key: str) -> None:
        delete = super().delete
        self._do(lambda: delete(key))


def hedging(bare: Store, pace: Pace | None = None, retries: int = 0) -> RetryingStore:
    given = partial(pace_of, bare.identity) if pace is None else lambda: pace
    policy = RetryPolicy(max_retry_attempts=retries, base_delay_ms=1)
    return RetryingStore(bare, policy, pace=given)


@pytest.fixture
def caught() -> Iterator[list[events.Event]]:
    found: list[events.Event] = []
    unsubscribe = events.subscribe(found.append)
    yield found
    unsubscribe()


def test_a_held_request_is_answered_by_its_second_attempt(
    tmp_path: Path, caught: list[events.Event]
) -> None:
    bare = Scripted(tmp_path, "before")
    assert hedging(bare, AlwaysLatePace()).put_if_absent("a/key", b"mine")
    assert [str(each) for each in caught] == ["hedged operation=put key=a/key after_ms=20"]
    # The attempt that was held arrives late: the object is as the answer said.
    bare.release.set()
    _ends(bare, 2)
    assert bare.get("a/key") == b"mine"


def test_a_put_that_took_effect_and_is_not_answered_refuses_its_twin(tmp_path: Path) -> None:
    bare = Scripted(tmp_path, "after")
    store = hedging(bare, AlwaysLatePace(), 3)
    assert not store.put_if_absent("key", b"mine")
    assert store.get("key") == b"mine"
    bare.release.set()


def test_the_first_attempt_may_still_be_the_first_to_answer(tmp_path: Path) -> None:
    class SecondHeld(Scripted):
        def put_if_absent(self, key: str, body: bytes) -> bool:
            self.attempts += 1
            if self.attempts == 1:
                while self.attempts < 2:
                    time.sleep(0.001)
                return LocalStore.put_if_absent(self, key, body)
            return not self.release.wait(30)

    bare = SecondHeld(tmp_path)
    assert hedging(bare, AlwaysLatePace()).put_if_absent("key", b"mine")
    bare.release.set()


@pytest.mark.parametrize("failure", [GONE, REFUSED])
def test_while_the_other_attempt_may_succeed_a_failure_is_none(
    tmp_path: Path, failure: Exception
) -> None:
    bare = Scripted(tmp_path, "before", failure)
    threading.Timer(0.2, bare.release.set).start()
    store = hedging(bare, AlwaysLatePace())
    if failure is GONE:
        # It took effect without a reply.
        assert not store.put_if_absent("key", b"mine")
    else:
        assert store.put_if_absent("key", b"mine")


def test_a_refusal_beside_a_lost_reply_may_have_been_applied(tmp_path: Path) -> None:
    class LostThenRefused(Scripted):
        def put_if_absent(self, key: str, body: bytes) -> bool:
            self.attempts += 1
            if self.attempts == 1:
                self.release.wait(30)
                LocalStore.put_if_absent(self, key, body)
                raise GONE
            self.release.set()
            raise REFUSED

    bare = LostThenRefused(tmp_path)
    store = hedging(bare, AlwaysLatePace(), 3)
    with pytest.raises(StoreUnavailableError, match="the next one was refused") as refused:
        store.put_if_absent("key", b"mine")
    assert refused.value.maybe_applied


def test_without_an_answer_a_request_is_given_up_and_may_have_been_applied(tmp_path: Path) -> None:
    bare = Scripted(tmp_path, *["before"] * 4)
    store = hedging(bare, AlwaysLatePace(0.05), 1)
    with pytest.raises(StoreUnavailableError, match="no answer in 0.1 s") as failed:
        store.put_if_absent("key", b"mine")
    assert failed.value.maybe_applied and bare.attempts == 4
    bare.release.set()


@pytest.mark.parametrize("spare", [False, True])
def test_a_request_that_was_given_up_may_still_answer(tmp_path: Path, spare: bool) -> None:
    class LaterOnesHeld(Scripted):
        def put_if_absent(self, key: str, body: bytes) -> bool:
            self.attempts += 1
            if self.attempts == 1:
                while self.attempts < (4 if spare else 2):
                    time.sleep(0.001)
                return LocalStore.put_if_absent(self, key, body)
            return not self.release.wait(30)

    bare = LaterOnesHeld(tmp_path)
    assert hedging(bare, AlwaysLatePace(0.05, spare), 1).put_if_absent("key", b"mine")
    bare.release.set()


def test_without_a_budget_a_late_request_is_waited_for(
    tmp_path: Path, caught: list[events.Event]
) -> None:
    bare = Scripted(tmp_path, "before")
    threading.Timer(0.2, bare.release.set).start()
    assert hedging(bare, AlwaysLatePace(spare=False)).put_if_absent("key", b"mine")
    assert bare.attempts == 1 and not caught


def test_a_straggler_is_sent_once_more_though_many_are_late() -> None:
    now = 0.0
    pace = Pace(lambda: now)
    requests = [Request(pace, "put", f"key-{n}", 0) for n in range(10)]
    now = 1.0
    assert [each.may_repeat() for each in requests] == [True] + [False] * 9
    # Nine of them are answered, and one is held.
    now = 2.0
    assert requests[9].seconds_left() == 0 and requests[9].may_repeat()
    now = 10.0
    with pytest.raises(Transient, match="no answer in 10.0 s"):
        requests[9].may_repeat()


def test_a_late_request_is_sent_once_more_when_the_budget_allows_it(
    tmp_path: Path, caught: list[events.Event]
) -> None:
    bare, pace = Scripted(tmp_path, "before"), AlwaysLatePace(spare=False)
    threading.Timer(0.2, lambda: setattr(pace, "spare", True)).start()
    assert hedging(bare, pace).put_if_absent("key", b"mine")
    bare.release.set()
    assert [str(each).split("=")[0] for each in caught] == ["hedged operation"]


def test_a_plain_put_and_a_delete_are_never_sent_twice(tmp_path: Path) -> None:
    bare = Scripted(tmp_path, "before", "before")
    store = hedging(bare, AlwaysLatePace())
    for act in (lambda: store.put("key", b"1"), lambda: store.delete("key")):
        bare.release.clear()
        threading.Timer(0.2, bare.release.set).start()
        act()
    assert bare.attempts == 2


def test_the_proof_of_a_store_does_not_wait_for_a_delete_that_is_held(tmp_path: Path) -> None:
    class Held(Scripted):
        def put_if_absent(self, key: str, body: bytes) -> bool:
            return LocalStore.put_if_absent(self, key, body)

        get = LocalStore.get

    bare = Held(tmp_path, "before")
    prove_put_if_absent(hedging(bare, AlwaysLatePace()), "log")
    assert (bare.attempts, bare.ended, len(bare.list("log/proof/").entries)) == (4, 3, 1)
    bare.release.set()
    _ends(bare, 4)
    assert bare.list("log/proof/").entries == []


def test_a_missing_object_is_an_answer(tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        hedging(LocalStore(tmp_path), AlwaysLatePace()).get("nothing")


def test_a_part_and_a_complete_are_sent_twice(tmp_path: Path) -> None:
    held = threading.Event()
    calls: list[str] = []

    class Held(LocalStore):
        def upload(self, key: str) -> Any:
            upload = super().upload(key)
            part, complete = upload.part, upload.complete

            def first(name: str, act: Any) -> Any:
                calls.append(name)
                if calls.count(name) == 1:
                    held.wait(30)
                return act()

            upload.part = lambda *given: first("part", lambda: part(*given))  # type: ignore[method-assign]
            upload.complete = lambda: first("complete", complete)  # type: ignore[method-assign]
            return upload

    store = hedging(Held(tmp_path, fsync=False), AlwaysLatePace())
    upload = store.upload("key")
    upload.part(1, 0, b"body")
    assert upload.complete()
    assert calls == ["part", "part", "complete", "complete"]
    assert store.get("key") == b"body"
    held.set()


def test_late_is_what_is_slow_for_its_kind_and_size() -> None:
    pace = Pace()
    assert pace.begin(("put", 0)) == (1.0, 10.0)
    assert pace.begin(("put", 4**11)) == pytest.approx((1.42, 14.2), rel=0.01)
    # The first GETs of a record ask for 16 MiB at any size.
    assert pace.begin(("get", 4**12))[0] < 3
    for _ in range(100):
        pace.answered(("put", 0), 0.2)
        pace.answered(("get", 0), 0.001)
    assert pace.begin(("put", 0)) == pytest.approx((0.24, 5.0))
    assert pace.begin(("get", 0)) == pytest.approx((0.1, 5.0))


def test_few_answers_are_given_more_time_and_a_straggler_among_them_does_not_count() -> None:
    pace, late = Pace(), []
    for seconds in [0.1] * 4 + [10.0] + [0.1] * 6 + [0.1] * 40:
        pace.answered(("put", 0), seconds)
        late.append(round(pace.begin(("put", 0))[0], 3))
    assert late == [1.0] * 9 + [0.24] * 40 + [0.12] * 2


def test_a_store_that_slows_down_is_not_taken_for_stragglers() -> None:
    pace, repeats = Pace(), 0
    for seconds in [0.03] * 1000 + [0.3] * 2400:
        late, _ = pace.begin(("put", 0))
        repeats += seconds > late and pace.may_repeat(is_straggler=True)
        pace.answered(("put", 0), seconds)
    assert 0 < repeats <= 10


def test_an_overloaded_store_gets_two_percent_more_requests_and_a_burst() -> None:
    pace, repeats = Pace(), 0
    for _ in range(1000):
        pace.begin(("put", 0))
        repeats += pace.may_repeat(is_straggler=True)
    assert 20 <= repeats <= 24


def test_a_store_that_stands_still_is_given_ever_more_time() -> None:
    pace = Pace()
    patience = []
    for _ in range(5):
        patience.append(pace.begin(("put", 0))[1])
        pace.gave_up()
    assert patience == [10, 20, 40, 60, 60]
    pace.answered(("put", 0), 0.01)
    assert pace.begin(("put", 0))[1] == 10


def test_an_idle_thread_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_threads, "_IDLE", 0.05)

    class Noting(LocalStore):
        thread = threading.current_thread()

        def get(self, key: str) -> bytes:
            Noting.thread = threading.current_thread()
            return b""

    hedging(Noting(tmp_path), Pace()).get("key")
    assert Noting.thread is not threading.current_thread()
    Noting.thread.join(30)
    assert not Noting.thread.is_alive()


@pytest.mark.process
def test_a_thread_that_can_not_begin_leaves_its_task_to_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ran: list[str] = []

    class Refused:
        def __init__(self, **_: object) -> None:
            pass

        def start(self) -> None:
            # A thread that ended its task just now takes this one.
            take_task()
            raise RuntimeError("can't start new thread")

    child = os.fork()  # without the threads of other tests
    if child == 0:
        signal.alarm(30)
        try:
            monkeypatch.setattr(store_threads, "threading", SimpleNamespace(Thread=Refused))
            store_threads.run_in_daemon(lambda: ran.append("once"))
        finally:
            os._exit(0 if ran == ["once"] and not has_idle_thread() else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.process
def test_a_forked_child_has_new_threads_and_a_new_pace(tmp_path: Path) -> None:
    store = hedging(LocalStore(tmp_path, fsync=False))
    store.put_if_absent("key", b"mine")
    child = os.fork()
    if child == 0:
        os._exit(0 if store.get("key") == b"mine" else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_it_travels_to_other_processes(tmp_path: Path) -> None:
    store = hedging(LocalStore(tmp_path, fsync=False))
    store.put_if_absent("key", b"mine")
    assert pickle.loads(pickle.dumps(store)).get("key") == b"mine"


@pytest.mark.parametrize("hedge", ["true", "false"])
def test_an_option_turns_it_on(hedge: str) -> None:
    options = from_keywords(StoreOptions, "s3://bucket/wal", {"hedge": hedge})
    store, _ = open_store(options.path, options.s3, options.retry)
    assert (vars(store)["pace"] is not None) == (hedge == "true")


def _ends(bare: Scripted, attempts: int) -> None:
    while bare.ended < attempts:
        time.sleep(0.001)
