"""A store that ignores If-Match is found out before a record is replaced."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from sparkwal.errors import OptionError
from sparkwal.store.base import Transient
from sparkwal.store.conditional_replace import replace_fault
from sparkwal.store.config import RetryPolicy
from sparkwal.store.retry import RetryingStore
from sparkwal.store.s3 import S3Store
from sparkwal.testing.memory import MemoryStore
from tests.store.stub_s3 import Stub


class Ignoring(MemoryStore):
    def replace(self, key: str, body: bytes, etag: str) -> bool:
        self.put(key, body)
        return True


class RefusingButReplacing(MemoryStore):
    def replace(self, key: str, body: bytes, etag: str) -> bool:
        is_same = super().replace(key, body, etag)
        self.put(key, body)
        return is_same


class Creating(MemoryStore):
    def replace(self, key: str, body: bytes, etag: str) -> bool:
        if key not in self.objects:
            self.put(key, body)
            return True
        return super().replace(key, body, etag)


class Lacking(MemoryStore):
    def replace(self, key: str, body: bytes, etag: str) -> bool:
        raise OptionError("501 NotImplemented")


@pytest.mark.parametrize("kind", [Ignoring, RefusingButReplacing, Creating, Lacking])
def test_a_store_without_the_condition_is_found_out(kind: Callable[[str], MemoryStore]) -> None:
    store = kind(f"memory://{kind.__name__}")
    assert "If-Match" in replace_fault(store, "log") or "501" in replace_fault(store, "log")
    assert store.objects == {}


def test_the_proof_is_made_once() -> None:
    store = MemoryStore("memory://proven")
    assert replace_fault(store, "log") == ""
    counts = store.counts.copy()
    assert replace_fault(store, "log") == ""
    assert store.counts == counts
    assert counts == {"PUT": 8, "GET": 6, "DELETE": 2}
    assert store.objects == {}


def test_a_replacement_has_the_etag_that_was_read(stub: Stub, store: S3Store) -> None:
    stub.replies = [(200, {}, b"body"), (200, {}, b"")]
    body, etag = store.get_tagged("key")
    assert body == b"body"
    assert store.replace("key", b"other", etag)
    method, _, headers = stub.requests[1]
    assert (method, headers["if-match"]) == ("PUT", etag)
    assert "if-none-match" not in headers


def test_the_first_bytes_of_an_object_come_with_its_etag(stub: Stub, store: S3Store) -> None:
    part = {"Content-Range": "bytes 0-3/9"}
    stub.replies = [(206, part, b"body"), (416, {}, b"<Error><Code>InvalidRange</Code></Error>")]
    body, etag = store.get_tagged("key", 4)
    assert body == b"body" and etag
    _, _, headers = stub.requests[0]
    assert headers["range"] == "bytes=0-3"
    # Of an empty object.
    assert store.get_tagged("key", 4) == (b"", "")


@pytest.mark.parametrize(
    "reply",
    [
        (412, {}, b"<Error><Code>PreconditionFailed</Code></Error>"),
        (404, {}, b"<Error><Code>NoSuchKey</Code></Error>"),
    ],
)
def test_a_missing_or_another_object_is_not_replaced(
    stub: Stub, store: S3Store, reply: tuple[int, dict[str, str], bytes]
) -> None:
    stub.replies = [reply]
    assert not store.replace("key", b"other", '"0"')


def test_a_replacement_without_proof_counts_as_lost(stub: Stub, store: S3Store) -> None:
    stub.replies = [(200, {"ETag": ""}, b"<html>welcome</html>")]
    with pytest.raises(Transient):
        store.replace("key", b"other", '"0"')


def test_a_lost_reply_looks_like_another_object() -> None:
    class Losing(MemoryStore):
        def replace(self, key: str, body: bytes, etag: str) -> bool:
            is_first = not self.counts["PUT"]
            replaced = super().replace(key, body, etag)
            if is_first:
                raise Transient("no reply")
            return replaced

    bare = Losing()
    bare.objects["key"] = b"first"
    store = RetryingStore(bare, RetryPolicy(base_delay_ms=1))
    assert not store.replace("key", b"second", store.get_tagged("key").etag)
    assert store.get("key") == b"second"


class Slow(MemoryStore):
    def put_if_absent(self, key: str, body: bytes) -> bool:
        time.sleep(0.01)
        return super().put_if_absent(key, body)


def test_threads_that_erase_at_once_prove_the_store_once() -> None:
    store = Slow("memory://slow")
    with ThreadPoolExecutor(8) as pool:
        faults = list(pool.map(lambda _: replace_fault(store, "log"), range(8)))
    assert faults == [""] * 8
    assert store.counts == {"PUT": 8, "GET": 6, "DELETE": 2}
