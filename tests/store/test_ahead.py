"""GETs that one thread sends before it reads their replies."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from sparkwal import events
from sparkwal.errors import StoreUnavailableError
from sparkwal.store import hedge
from sparkwal.store.base import NotFound, Transient
from sparkwal.store.config import RetryPolicy, S3Config
from sparkwal.store.hedge import Pace
from sparkwal.store.local import LocalStore
from sparkwal.store.parallel import Range, get_many, run_parallel
from sparkwal.store.retry import RetryingStore, SentRange
from sparkwal.store.s3 import S3Store
from sparkwal.testing.faults import Fault
from sparkwal.testing.proxy import S3Proxy
from sparkwal.testing.servers import log_options

from .stub_s3 import CONFIG, Stub

POLICY = RetryPolicy(max_retry_attempts=3, base_delay_ms=1)
KEYS = [f"key-{n:03}" for n in range(40)]
FOUND = [(key, key.encode()) for key in KEYS]
# The delay of a slow store: longer than any test waits.
HELD = 60.0


class Pacing(Pace):
    """A request is late after 20 ms, and one may be repeated; notes the answers that count."""

    def __init__(self, given_up: float = 30.0, spare: bool = True) -> None:
        super().__init__()
        self.given_up = given_up
        self.spare = spare
        self.seen = 0

    def begin(self, kind: tuple[str, int]) -> tuple[float, float]:
        return 0.02, self.given_up

    def may_repeat(self, *, is_straggler: bool) -> bool:
        # On a busy machine the second request may be late too.
        spare, self.spare = self.spare, False
        return spare

    def answered(self, kind: tuple[str, int], seconds: float) -> None:
        self.seen += 1


class Reply:
    """A reply that comes after `comes` looks, and what it brings."""

    def __init__(self, found: bytes | None | Transient, comes: int = 0) -> None:
        self.found = found
        self.looks = comes
        self.closed = False

    def wait(self, seconds: float) -> bool:
        self.looks -= 1
        return self.looks < 0

    def read(self, seconds: float | None) -> bytes | None:
        if isinstance(self.found, Transient):
            raise self.found
        return self.found

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def caught() -> Iterator[list[str]]:
    found: list[str] = []
    unsubscribe = events.subscribe(lambda event: found.append(str(event)))
    yield found
    unsubscribe()


def sent(root: Path, reply: Reply, pace: Pace) -> SentRange:
    """A GET of bytes 1 and 2 of an object that the store below has."""
    store = LocalStore(root, fsync=False)
    store.put("key", b"abcd")
    return SentRange(RetryingStore(store, POLICY, pace=lambda: pace), reply, "key", 1, 2)


def test_a_reply_that_has_arrived_does_not_count_for_the_pace(
    tmp_path: Path, caught: list[str]
) -> None:
    pace = Pacing()
    assert sent(tmp_path, Reply(b"BC"), pace).result() == b"BC"
    assert sent(tmp_path, Reply(b"BC", comes=1), pace).result() == b"BC"
    assert pace.seen == 1 and not caught


def test_a_late_reply_is_given_up_for_a_second_request(tmp_path: Path, caught: list[str]) -> None:
    reply, pace = Reply(b"BC", comes=2), Pacing()
    assert sent(tmp_path, reply, pace).result() == b"bc"
    assert caught == ["hedged operation=get key=key after_ms=20"]
    assert reply.closed and pace.seen == 1  # the second request's


def test_without_a_budget_a_late_reply_is_waited_for_until_it_is_given_up(
    tmp_path: Path, caught: list[str]
) -> None:
    pace = Pacing(given_up=0.1, spare=False)
    assert sent(tmp_path, Reply(b"BC", comes=2), pace).result() == b"BC"
    assert not caught and pace.seen == 1
    assert sent(tmp_path, Reply(b"BC", comes=5), pace).result() == b"bc"
    assert caught == [
        "retried operation=get key=key attempt=1 delay_ms=0 reason=no answer in 0.1 s"
    ]


def test_a_reply_that_breaks_off_is_asked_for_again(tmp_path: Path, caught: list[str]) -> None:
    reply = Reply(Transient("reset by peer"))
    assert sent(tmp_path, reply, Pacing(spare=False)).result() == b"bc"
    assert reply.closed
    assert caught == ["retried operation=get key=key attempt=1 delay_ms=0 reason=reset by peer"]


def test_a_missing_object_raises_as_get_range_does(tmp_path: Path) -> None:
    assert sent(tmp_path, Reply(None), Pacing()).result() == b"bc"
    missing = sent(tmp_path, Reply(None), Pacing())
    (tmp_path / "key").unlink()
    with pytest.raises(NotFound):
        missing.result()


@pytest.mark.process
def test_a_forked_child_leaves_the_reply_to_its_parent(tmp_path: Path) -> None:
    ahead = sent(tmp_path, Reply(b"BC"), Pacing())
    child = os.fork()
    if child == 0:
        os._exit(0 if ahead.result() == b"bc" else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert ahead.result() == b"BC"


@pytest.fixture
def stub() -> Iterator[Stub]:
    stub = Stub()
    yield stub
    stub.close()


def on_stub(stub: Stub) -> S3Store:
    return S3Store("bucket", S3Config(**{**vars(CONFIG), "endpoint": stub.url}))


def part(body: bytes) -> tuple[int, dict[str, str], bytes]:
    return 206, {"Content-Range": f"bytes 1-{len(body)}/100"}, body


def open_connection(stub: Stub, store: S3Store) -> None:
    stub.replies = [part(b"xx")]
    assert store.send_range("key", 1, 2) is None  # no connection is open
    assert store.get_range("key", 1, 2) == b"xx"


def test_a_request_sent_ahead_equals_that_of_get_range(stub: Stub) -> None:
    store = on_stub(stub)
    open_connection(stub, store)
    (_, _, first), *_ = stub.requests
    stub.replies = [part(b"yy")]
    ahead = store.send_range("key", 1, 2)
    assert ahead is not None and store.send_range("key", 1, 2) is None  # its connection is taken
    assert ahead.wait(30) and ahead.read(30) == b"yy"
    (method, target, second) = stub.requests[-1]
    assert (method, target) == ("GET", "/bucket/key")
    for own in ("authorization", "x-amz-date", "amz-sdk-invocation-id", "amz-sdk-request"):
        assert own.startswith("amz-sdk") or own in second
        first.pop(own, None), second.pop(own, None)
    assert first == second
    # The connection is free again.
    stub.replies = [part(b"zz")]
    assert (again := store.send_range("key", 1, 2)) is not None and again.read(30) == b"zz"


def test_an_unread_reply_is_never_given_to_another_request(stub: Stub) -> None:
    store = on_stub(stub)
    open_connection(stub, store)
    stub.replies = [part(b"yy"), part(b"zz")]
    ahead = store.send_range("one", 1, 2)
    assert ahead is not None
    ahead.close()  # before the reply is read
    # The stub answers each connection in a separate thread, in the order of the requests.
    while "/bucket/one" not in [target for _, target, _ in stub.requests]:
        time.sleep(0.001)
    assert store.send_range("two", 1, 2) is None
    assert store.get_range("two", 1, 2) == b"zz"


def test_the_end_of_a_refusal_is_never_given_to_another_request(stub: Stub) -> None:
    store = on_stub(stub)
    open_connection(stub, store)
    stub.replies = [(503, {}, b"x" * 100_000), part(b"zz")]
    ahead = store.send_range("key", 1, 2)
    assert ahead is not None and ahead.read(30) is None
    assert store.send_range("key", 1, 2) is None  # its connection is closed
    assert store.get_range("key", 1, 2) == b"zz"


@pytest.mark.parametrize("reply", [None, (206, {"Content-Length": "9"}, b"yy")])
def test_a_connection_that_breaks_is_a_transient_failure(
    stub: Stub, reply: tuple[int, dict[str, str], bytes] | None
) -> None:
    store = on_stub(stub)
    open_connection(stub, store)
    stub.replies = [reply, part(b"zz")]
    ahead = store.send_range("key", 1, 2)
    assert ahead is not None
    with pytest.raises(Transient, match="the reply broke off"):
        ahead.read(30)
    assert store.get_range("key", 1, 2) == b"zz"


def test_another_range_than_was_asked_for_is_a_transient_failure(stub: Stub) -> None:
    store = on_stub(stub)
    open_connection(stub, store)
    stub.replies = [(206, {"Content-Range": "bytes 5-6/100"}, b"yy")]
    ahead = store.send_range("key", 1, 2)
    assert ahead is not None
    with pytest.raises(Transient, match="asked for bytes=1-2, got bytes 5-6"):
        ahead.read(30)


@pytest.fixture
def filled(s3_bucket: str, s3_proxy: S3Proxy) -> tuple[RetryingStore, S3Proxy]:
    """A store of 40 objects behind a proxy, with some open connections."""
    options = log_options(s3_proxy.url)
    config = S3Config(
        endpoint=s3_proxy.url,
        region="us-east-1",
        access_key_id=options["accessKeyId"],
        secret_access_key=options["secretAccessKey"],
        max_pool_connections=8,
    )
    bare = S3Store(s3_bucket, config)
    for key in KEYS:
        bare.put(key, key.encode())
    store = RetryingStore(bare, POLICY, pace=partial(_pace, Pace()))
    assert [*run_parallel(store, store.get, KEYS)] == [key.encode() for key in KEYS]
    return store, s3_proxy


def _pace(pace: Pace) -> Pace:
    return pace


def read_all(store: RetryingStore) -> Iterator[tuple[str, bytes | None]]:
    return get_many(store, [(key, Range(key, 0, 100)) for key in KEYS])


def test_with_open_connections_one_thread_makes_each_request_once(
    filled: tuple[RetryingStore, S3Proxy], monkeypatch: pytest.MonkeyPatch
) -> None:
    store, proxy = filled
    steady = RetryingStore(store.store, POLICY, pace=partial(_pace, Pacing(spare=False)))
    # Held back together, so each of them opens a connection.
    proxy.faults = [Fault("stall", kind="GET", times=store.concurrency, seconds=0.5)]
    assert len([*run_parallel(steady, steady.get, KEYS)]) == len(KEYS)
    before = len(proxy.requests)
    monkeypatch.setattr(hedge, "run_in_daemon", None)  # a thread would fail
    for _ in range(3):
        assert [*read_all(steady)] == FOUND
    assert len(proxy.requests) - before == 3 * len(KEYS)


@pytest.mark.parametrize(
    "faults",
    [
        [Fault("stall", kind="GET", times=1, seconds=HELD)],
        [Fault("lost_reply", kind="GET", probability=0.2)],
        [Fault("truncate", kind="GET", probability=0.2)],
        [Fault("error", kind="GET", probability=0.2, status=503)],
    ],
    ids=lambda faults: faults[0].action,
)
def test_every_reply_comes_once_and_in_order_through(
    filled: tuple[RetryingStore, S3Proxy], faults: list[Fault]
) -> None:
    store, proxy = filled
    proxy.faults = faults
    for _ in range(3):
        assert [*read_all(store)] == FOUND
    assert proxy.injected[faults[0].action]


def test_a_missing_object_and_an_error_come_in_their_places(
    filled: tuple[RetryingStore, S3Proxy],
) -> None:
    store, proxy = filled
    store.delete(KEYS[20])
    assert [*read_all(store)] == [*FOUND[:20], (KEYS[20], None), *FOUND[21:]]
    proxy.faults = [Fault("error", kind="GET", key_contains=KEYS[10], status=503)]
    some = read_all(store)
    assert [next(some) for _ in range(10)] == FOUND[:10]
    with pytest.raises(StoreUnavailableError, match=f"get of {KEYS[10]}"):
        next(some)


def test_a_reader_that_stops_early_leaves_no_reply_behind(
    filled: tuple[RetryingStore, S3Proxy],
) -> None:
    store, _ = filled
    for stop in (1, 9, 20):
        some = read_all(store)
        assert [next(some) for _ in range(stop)] == FOUND[:stop]
        some.close()  # type: ignore[attr-defined]
        assert [*read_all(store)] == FOUND
