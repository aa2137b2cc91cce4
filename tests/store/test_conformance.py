"""What the protocol asks of any store, asked of each store the same way."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sparkwal.store.base import Entry, NotFound, Store
from sparkwal.store.conditional_put import prove_put_if_absent
from sparkwal.store.config import RetryPolicy, S3Config
from sparkwal.store.local import LocalStore
from sparkwal.store.open import open_store
from sparkwal.store.parallel import run_parallel
from sparkwal.store.retry import RetryingStore
from sparkwal.store.s3 import S3Store
from sparkwal.testing.servers import make_bucket

PART = 5 * 1024 * 1024


def s3_store(endpoint: str) -> S3Store:
    """An own, empty bucket."""
    bucket = f"log-{uuid.uuid4().hex}"
    config = S3Config(
        endpoint=endpoint, region="us-east-1", access_key_id="test", secret_access_key="test"
    )
    make_bucket(endpoint, bucket)
    return S3Store(bucket, config)


def bare_store(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    if kind == "local":
        return LocalStore(tmp_path / "log")
    return s3_store(request.getfixturevalue(f"{kind}_url"))


@pytest.fixture(
    params=[
        "local",
        pytest.param("moto", marks=pytest.mark.s3),
        pytest.param("ministack", marks=pytest.mark.s3),
    ]
)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=["bare", "retrying"])
def store(request: pytest.FixtureRequest, kind: str, tmp_path: Path) -> Iterator[Store]:
    bare = bare_store(kind, request, tmp_path)
    if request.param == "bare":
        yield bare
    else:
        yield RetryingStore(bare, RetryPolicy(base_delay_ms=1), parts_in_flight=3)


def test_first_put_wins_and_stays(store: Store) -> None:
    assert store.put_if_absent("a/b", b"first")
    assert not store.put_if_absent("a/b", b"second")
    assert not store.put_if_absent("a/b", b"first")
    assert store.get("a/b") == b"first"


def test_empty_object(store: Store) -> None:
    assert store.put_if_absent("empty", b"")
    assert store.get("empty") == b""
    assert store.list("").entries == [Entry("empty", 0)]


def test_missing_object(store: Store) -> None:
    with pytest.raises(NotFound):
        store.get("not/here")
    with pytest.raises(NotFound):
        store.get_range("not/here", 0, 1)
    assert store.list("not/").entries == []
    store.delete("not/here")


def test_ranges(store: Store) -> None:
    body = bytes(range(256))
    store.put_if_absent("r", body)
    assert store.get_range("r", 0, 256) == body
    assert store.get_range("r", 10, 20) == body[10:30]
    assert store.get_range("r", 250, 100) == body[250:]
    assert store.get_range("r", 256, 5) == b""
    assert store.get_range("r", 999, 5) == b""
    assert store.get_range("r", 5, 0) == b""


def test_list_is_in_byte_order_with_sizes(store: Store) -> None:
    keys = ["b/2", "b/10", "b-x", "b.x", "b/1/z", "b/1", "bb", "a", "b/é", "b/Z", "c/d/e/f"]
    keys.remove("b/1")  # a disk cannot hold both a file and a folder of one name
    for size, key in enumerate(keys):
        store.put_if_absent(key, b"x" * size)
    ordered = sorted(keys, key=str.encode)
    assert [entry.key for entry in store.list("").entries] == ordered
    assert {entry.key: entry.size for entry in store.list("").entries} == {
        key: size for size, key in enumerate(keys)
    }
    assert [e.key for e in store.list("b").entries] == [k for k in ordered if k.startswith("b")]
    assert [e.key for e in store.list("b/").entries] == [k for k in ordered if k.startswith("b/")]
    assert [e.key for e in store.list("b/1").entries] == ["b/1/z", "b/10"]
    for limit in range(1, len(keys) + 2):
        page = store.list("", limit)
        assert [e.key for e in page.entries] == ordered[:limit]
        assert page.more == (limit < len(ordered))
    for after in [*ordered, "b/0", "b/1", "b0", "zzz"]:
        greater = [key for key in ordered if key > after]
        assert [e.key for e in store.list("", 3, after).entries] == greater[:3]


def test_list_of_one_folder_with_a_limit(store: Store) -> None:
    for number in range(30):
        store.put_if_absent(f"log/batches/{2**64 - 1 - number:020d}", b"x")
    store.put_if_absent("log/other", b"x")
    newest = store.list("log/batches/", 7).entries
    assert [int(e.key.rsplit("/")[-1]) for e in newest] == [2**64 - 30 + n for n in range(7)]


def test_delete_frees_the_key(store: Store) -> None:
    store.put_if_absent("k", b"1")
    store.delete("k")
    with pytest.raises(NotFound):
        store.get("k")
    store.delete("k")
    assert store.put_if_absent("k", b"2")


def test_upload_appears_whole_at_complete(store: Store) -> None:
    parts = [bytes([n]) * PART for n in range(3)] + [b"tail"]
    upload = store.upload("big/object")
    for number, part in enumerate(parts):
        upload.part(number + 1, number * PART, part)
        assert store.list("big/").entries == []
    assert upload.complete()
    assert store.get("big/object") == b"".join(parts)
    assert store.list("").entries == [Entry("big/object", 3 * PART + 4)]
    assert store.get_range("big/object", 2 * PART - 1, 2) == b"\x01\x02"


def test_upload_of_parts_in_any_order(store: Store) -> None:
    upload = store.upload("o")
    upload.part(2, PART, b"b")
    upload.part(1, 0, b"a" * PART)
    assert upload.complete()
    assert store.get("o") == b"a" * PART + b"b"


def test_upload_loses_to_an_object_that_is_there(kind: str, store: Store) -> None:
    if kind == "moto":
        pytest.skip("moto's CompleteMultipartUpload ignores If-None-Match")
    upload = store.upload("taken")
    upload.part(1, 0, b"late")
    store.put_if_absent("taken", b"early")
    assert not upload.complete()
    assert store.get("taken") == b"early"
    upload.abort()
    assert store.get("taken") == b"early"


def test_aborted_upload_leaves_nothing(store: Store) -> None:
    upload = store.upload("gone")
    upload.part(1, 0, b"x")
    upload.abort()
    upload.abort()
    assert store.list("").entries == []
    store.upload("never begun").abort()


def test_concurrent_puts_have_one_winner(kind: str, store: Store) -> None:
    if kind == "moto":
        pytest.skip("moto looks first and writes later: two racing puts may both win")
    with ThreadPoolExecutor(8) as pool:
        won = list(pool.map(lambda n: store.put_if_absent("race", b"%d" % n), range(8)))
    assert won.count(True) == 1
    assert store.get("race") == b"%d" % won.index(True)


def test_parallel_reads(store: Store) -> None:
    for n in range(10):
        store.put_if_absent(f"p/{n}", b"%d" % n)
    assert list(run_parallel(store, store.get, [f"p/{n}" for n in range(10)])) == [
        b"%d" % n for n in range(10)
    ]


def test_proof(kind: str, store: Store) -> None:
    if kind == "moto":
        pytest.skip("moto checks and writes without a lock, so a race may go either way")
    prove_put_if_absent(store, "logs/a")
    assert store.list("").entries == []


@pytest.mark.s3
def test_open_store_on_s3(ministack_url: str) -> None:
    bare = s3_store(ministack_url)
    bucket = bare.url.rsplit("/", 1)[-1]
    config = S3Config(endpoint=ministack_url, access_key_id="t", secret_access_key="t")
    store, prefix = open_store(f"s3a://{bucket}/a/b/", config, RetryPolicy())
    assert prefix == "a/b"
    assert store.url == f"{ministack_url.rstrip('/')}/{bucket}"
    assert store.put_if_absent("a/b/x", b"1")
    assert bare.get("a/b/x") == b"1"


def test_what_is_fetched_ahead_is_bounded_by_its_weight() -> None:
    class Wide:
        concurrency = 8

    begun: list[int] = []
    work = run_parallel(
        Wide(),  # type: ignore[arg-type]
        lambda item: begun.append(item) or item,
        range(10),
        weigh=lambda _: 4,
        capacity=10,
    )
    for item in work:
        # Two weigh 8; a third would be too much until one is consumed.
        assert max(begun) <= item + 2
        assert item in begun
    assert sorted(begun) == list(range(10))
