"""Retries on a clock that only moves when somebody sleeps."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from sparkwal import events
from sparkwal.errors import OptionError, StoreUnavailableError
from sparkwal.store.base import NotFound, Page, Refusal, Transient, Unfinished, UnfinishedPage
from sparkwal.store.config import RetryPolicy
from sparkwal.store.local import LocalStore
from sparkwal.store.retry import RetryingStore

RESET = Transient("reset by peer")
NOBODY = Transient("connection refused", unreachable=True)


class Scripted:
    """Fails as asked, request by request, then does what a real store does."""

    def __init__(self, store: LocalStore, *script: Exception | str | None) -> None:
        self.store = store
        self.script = list(script)
        self.uploads: list[ScriptedUpload] = []
        self.requests = 0
        self.url = self.identity = "test://store"
        self.concurrency = 8
        self.lock = threading.Lock()

    def step(self) -> str | None:
        with self.lock:
            self.requests += 1
            step = self.script.pop(0) if self.script else None
        if isinstance(step, Exception):
            raise step
        return step

    def put_if_absent(self, key: str, body: bytes) -> bool:
        step = self.step()
        done = self.store.put_if_absent(key, body)
        if step == "lost":
            raise Transient("no reply")
        return done

    def put(self, key: str, body: bytes) -> None:
        step = self.step()
        self.store.put(key, body)
        if step == "lost":
            raise Transient("no reply")

    def get(self, key: str) -> bytes:
        self.step()
        return self.store.get(key)

    def get_range(self, key: str, offset: int, length: int) -> bytes:
        self.step()
        return self.store.get_range(key, offset, length)

    def list(self, prefix: str, limit: int = 1000, after: str = "") -> Page:
        self.step()
        return self.store.list(prefix, limit, after)

    def folders(self, prefix: str, inside: str, after: str = "") -> None:
        return None

    def delete(self, key: str) -> None:
        self.step()
        self.store.delete(key)

    def delete_many(self, keys: Sequence[str], etags: Sequence[str] = ()) -> Sequence[str]:
        step = self.step()
        # Some keys were deleted, and the reply lists the others as errors.
        self.store.delete_many(keys[:1] if step == "partly" else keys)
        if step == "partly":
            raise Transient(f"delete of {keys[1]}: SlowDown")
        return []

    def age_ms(self, key: str) -> int:
        self.step()
        return self.store.age_ms(key)

    def upload(self, key: str) -> ScriptedUpload:
        self.uploads.append(ScriptedUpload(self, key))
        return self.uploads[-1]

    def unfinished(self, prefix: str, after: str = "", limit: int = 1000) -> UnfinishedPage:
        self.step()
        return self.store.unfinished(prefix, after, limit)

    def discard(self, upload: Unfinished) -> None:
        self.step()
        self.store.discard(upload)


class ScriptedUpload:
    def __init__(self, scripted: Scripted, key: str) -> None:
        self.scripted = scripted
        self.inner = scripted.store.upload(key)
        self.lock = threading.Lock()
        self.running = self.most = 0
        self.gate: threading.Event | None = None

    def part(self, number: int, offset: int, body: bytes) -> None:
        with self.lock:
            self.running += 1
            self.most = max(self.most, self.running)
        try:
            if self.gate:
                self.gate.wait()
            self.scripted.step()
            with self.lock:
                self.inner.part(number, offset, body)
        finally:
            with self.lock:
                self.running -= 1

    def complete(self) -> bool:
        self.scripted.step()
        return self.inner.complete()

    def abort(self) -> None:
        self.scripted.step()
        self.inner.abort()


class Bench:
    def __init__(self, root: Path) -> None:
        self.local = LocalStore(root, fsync=False)
        self.slept: list[float] = []
        self.scripted = Scripted(self.local)

    def store(
        self,
        *script: Exception | str | None,
        policy: RetryPolicy | None = None,
        jitter: float = 1.0,
        fail_fast: bool = False,
        parts_in_flight: int = 1,
    ) -> RetryingStore:
        self.scripted = Scripted(self.local, *script)
        return RetryingStore(
            self.scripted,
            policy or RetryPolicy(),
            sleep=self.slept.append,
            rng=lambda: jitter,
            fail_fast=fail_fast,
            parts_in_flight=parts_in_flight,
        )


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path / "log")


def test_repeats_until_it_works(bench: Bench, seen: list[events.Event]) -> None:
    assert bench.store(RESET, RESET).put_if_absent("k", b"x")
    assert bench.slept == [0.1, 0.2]
    assert seen == [
        events.Retried("put", "k", attempt, delay, "reset by peer")
        for attempt, delay in ((1, 100), (2, 200))
    ]


def test_each_request_has_its_own_backoff(bench: Bench) -> None:
    store = bench.store(RESET, RESET, None, RESET, None)
    store.put_if_absent("k", b"x")
    store.get("k")
    assert bench.slept == [0.1, 0.2, 0.1]


def test_jitter_is_full_and_the_delay_capped() -> None:
    policy = RetryPolicy(max_retry_attempts=99, base_delay_ms=100, max_delay_ms=1000)
    assert [policy.delay(n, lambda: 0.5, None) for n in (1, 2, 3, 4, 5, 5000)] == [
        0.05,
        0.1,
        0.2,
        0.4,
        0.5,
        0.5,
    ]
    assert policy.delay(3, lambda: 0.0, None) == 0.0
    assert policy.delay(3, lambda: 0.0, 7.5) == 7.5
    assert policy.delay(3, lambda: 1.0, 0.1) == 0.4


def test_retry_after_is_a_lower_bound(bench: Bench) -> None:
    bench.store(Transient("slow down", retry_after=30.0), jitter=0.0).put_if_absent("k", b"x")
    assert bench.slept == [30.0]


def test_a_retry_after_of_a_day_is_capped(bench: Bench) -> None:
    bench.store(Transient("slow down", retry_after=86_400.0)).put_if_absent("k", b"x")
    assert bench.slept == [60.0]


@pytest.mark.parametrize(("attempts", "requests"), [(0, 1), (1, 2), (3, 4)])
def test_an_exhausted_request_raises_and_names_its_attempts(
    bench: Bench, attempts: int, requests: int
) -> None:
    store = bench.store(*[RESET] * 9, policy=RetryPolicy(max_retry_attempts=attempts))
    with pytest.raises(StoreUnavailableError) as caught:
        store.get("some/key")
    assert bench.scripted.requests == requests
    for part in ("get", "some/key", "test://store", f"{requests} attempt", "reset by peer"):
        assert part in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__
    assert not caught.value.maybe_applied


@pytest.mark.parametrize(
    ("script", "maybe"),
    [
        ([NOBODY] * 4, False),
        ([NOBODY, RESET, NOBODY, NOBODY], True),
        (["lost", NOBODY, NOBODY, NOBODY], True),
        ([RESET, OptionError("expired")], True),
        ([RESET, StoreUnavailableError("disk full")], True),
        ([NOBODY, StoreUnavailableError("disk full")], False),
    ],
)
def test_an_exhausted_put_reports_whether_it_may_be_stored(
    bench: Bench, script: list[Exception | str | None], maybe: bool
) -> None:
    with pytest.raises(StoreUnavailableError) as caught:
        bench.store(*script).put_if_absent("k", b"x")
    assert caught.value.maybe_applied is maybe
    assert pickle.loads(pickle.dumps(caught.value)).maybe_applied is maybe


def test_refusal_without_an_unanswered_attempt_stays_what_it_is(bench: Bench) -> None:
    with pytest.raises(OptionError, match="expired"):
        bench.store(NOBODY, OptionError("expired")).put_if_absent("k", b"x")


DENIED = Refusal("AccessDenied")


def test_a_refusal_of_what_was_served_before_is_tried_again(
    bench: Bench, seen: list[events.Event]
) -> None:
    store = bench.store(None, DENIED, DENIED)
    assert store.put_if_absent("wal/batches/1", b"1")
    assert store.put_if_absent("wal/batches/2", b"2")
    assert bench.scripted.requests == 4
    assert [str(event.reason) for event in seen] == ["AccessDenied"] * 2  # type: ignore[attr-defined]


def test_a_refusal_at_the_first_request_of_its_kind_is_an_error_at_once(bench: Bench) -> None:
    store = bench.store(None, DENIED, DENIED)
    assert store.put_if_absent("wal/batches/1", b"1")
    with pytest.raises(Refusal):
        store.put_if_absent("wal/proof/1", b"1")
    with pytest.raises(Refusal):
        store.get("wal/batches/1")
    assert bench.scripted.requests == 3


def test_a_refusal_that_lasts_stays_what_it_is(bench: Bench) -> None:
    store = bench.store(None, *[DENIED] * 9)
    assert store.put_if_absent("wal/batches/1", b"1")
    with pytest.raises(Refusal, match="^AccessDenied$"):
        store.put_if_absent("wal/batches/2", b"2")
    assert bench.scripted.requests == 1 + 4


def test_a_refusal_after_a_lost_reply_leaves_the_outcome_unknown(bench: Bench) -> None:
    store = bench.store(None, "lost", *[DENIED] * 9)
    assert store.put_if_absent("wal/batches/1", b"1")
    with pytest.raises(StoreUnavailableError, match="AccessDenied") as caught:
        store.put_if_absent("wal/batches/2", b"2")
    assert caught.value.maybe_applied


def test_lost_reply_looks_like_a_taken_key(bench: Bench) -> None:
    store = bench.store("lost")
    assert not store.put_if_absent("k", b"mine")
    assert store.get("k") == b"mine"


def test_an_overwriting_put_whose_reply_was_lost_is_sent_again(bench: Bench) -> None:
    bench.store("lost").put("k", b"mine")
    assert bench.local.get("k") == b"mine"
    assert bench.scripted.requests == 2
    with pytest.raises(StoreUnavailableError, match="put of k") as caught:
        bench.store("lost", NOBODY, NOBODY, NOBODY).put("k", b"mine")
    assert caught.value.maybe_applied


def test_all_keys_are_sent_again_while_one_is_left(bench: Bench) -> None:
    for key in ("a", "b", "c"):
        bench.local.put(key, b"x")
    bench.store("partly", RESET).delete_many(["a", "b", "c"])
    assert bench.local.list("").entries == []
    assert bench.scripted.requests == 3
    with pytest.raises(StoreUnavailableError, match="delete of b: SlowDown"):
        bench.store(*["partly"] * 4).delete_many(["a", "b"])


def test_ages_and_unfinished_uploads_are_asked_for_again(bench: Bench) -> None:
    bench.local.put("a", b"x")
    bench.local.upload("b").part(1, 0, b"x")
    assert bench.store(RESET).age_ms("a") >= 0
    with pytest.raises(NotFound):
        bench.store(RESET).age_ms("absent")
    (begun,) = bench.store(RESET).unfinished("").uploads
    bench.store(RESET).discard(begun)
    assert bench.store(RESET).unfinished("").uploads == []
    assert bench.slept == [0.1] * 5


def test_missing_object_is_an_answer(bench: Bench) -> None:
    with pytest.raises(NotFound):
        bench.store().get("k")
    assert bench.slept == []


def test_fail_fast_without_an_answer(bench: Bench) -> None:
    store = bench.store(NOBODY, fail_fast=True)
    with pytest.raises(StoreUnavailableError, match="nothing answers at test://store") as caught:
        store.list("")
    assert bench.slept == []
    assert not caught.value.maybe_applied


@pytest.mark.parametrize("first", [None, RESET])
def test_fail_fast_ends_with_the_first_answer(bench: Bench, first: Exception | None) -> None:
    store = bench.store(first, NOBODY, NOBODY, fail_fast=True)
    store.list("")
    store.list("")
    assert bench.scripted.requests >= 4


def test_fail_fast_ends_with_a_404(bench: Bench) -> None:
    store = bench.store(None, NOBODY, fail_fast=True)
    with pytest.raises(NotFound):
        store.get("k")
    assert store.list("").entries == []


@pytest.mark.parametrize("in_flight", [1, 3])
def test_each_part_is_repeated_on_its_own(bench: Bench, in_flight: int) -> None:
    upload = bench.store(RESET, None, RESET, RESET, parts_in_flight=in_flight).upload("k")
    for number in range(5):
        upload.part(number + 1, number, b"%d" % number)
    assert upload.complete()
    assert bench.local.get("k") == b"01234"
    assert len(bench.slept) == 3


@pytest.mark.parametrize("in_flight", [1, 3])
def test_failed_part_fails_the_upload(bench: Bench, in_flight: int) -> None:
    upload = bench.store(*[RESET] * 4 * in_flight, parts_in_flight=in_flight).upload("k")
    with pytest.raises(StoreUnavailableError, match="part of k"):
        for number in range(50):
            upload.part(number + 1, number, b"x")
    with pytest.raises(StoreUnavailableError, match="part of k"):
        upload.complete()
    upload.abort()
    assert bench.local.list("").entries == []


def test_parts_in_flight_are_bounded(bench: Bench) -> None:
    upload = bench.store(parts_in_flight=3).upload("k")
    (inner,) = bench.scripted.uploads
    inner.gate = threading.Event()
    handed: list[int] = []

    def hand_over() -> None:
        for number in range(9):
            upload.part(number + 1, number, b"%d" % number)
            handed.append(number)

    caller = threading.Thread(target=hand_over)
    caller.start()
    while len(handed) < 3:
        caller.join(0.001)
    caller.join(0.05)
    assert len(handed) == 3  # the fourth waits
    inner.gate.set()
    caller.join()
    assert upload.complete()
    assert inner.most <= 3
    assert bench.local.get("k") == b"012345678"


def test_complete_is_repeated_and_may_have_been_applied(bench: Bench) -> None:
    upload = bench.store(None, RESET).upload("k")
    upload.part(1, 0, b"x")
    assert upload.complete()
    upload = bench.store(None, *[RESET] * 4).upload("k2")
    upload.part(1, 0, b"x")
    with pytest.raises(StoreUnavailableError, match="complete of k2") as caught:
        upload.complete()
    assert caught.value.maybe_applied
    upload.abort()


def test_a_failing_abort_only_emits_an_event(bench: Bench, seen: list[events.Event]) -> None:
    upload = bench.store(None, *[RESET] * 4).upload("k")
    upload.part(1, 0, b"x")
    upload.abort()
    assert isinstance(seen[-1], events.UploadLeftBehind)
