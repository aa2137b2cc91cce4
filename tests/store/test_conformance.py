"""The contract of a store, checked for each store in the same way."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from sparkwal.store import parallel
from sparkwal.store.base import NotFound, Store, Unfinished, Upload
from sparkwal.store.conditional_put import prove_put_if_absent
from sparkwal.store.config import RetryPolicy, S3Config
from sparkwal.store.conformance.checks import CHECKS
from sparkwal.store.conformance.suite import Check, StoreUnderTest, Trial
from sparkwal.store.local import LocalStore
from sparkwal.store.open import open_store
from sparkwal.store.parallel import Range, get_many, run_parallel
from sparkwal.store.retry import RetryingStore
from sparkwal.store.s3 import S3Store
from sparkwal.testing.memory import MemoryStore
from sparkwal.testing.servers import make_bucket

from . import azurite, fake_gcs

PART = 5 * 1024 * 1024


def s3_store(endpoint: str) -> S3Store:
    """An own, empty bucket, read over connections of its own.

    Stores with equal credentials share connections. The server may close an idle one while a
    request is sent over it, which a store without retries raises. No server checks the secret.
    """
    bucket = f"log-{uuid.uuid4().hex}"
    config = S3Config(
        endpoint=endpoint, region="us-east-1", access_key_id="test", secret_access_key=bucket
    )
    make_bucket(endpoint, bucket)
    return S3Store(bucket, config)


def bare_store(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    if kind == "memory":
        return MemoryStore()
    if kind == "local":
        return LocalStore(tmp_path / "log")
    if kind == "azurite":
        return azurite.new_store(request.getfixturevalue("azurite_url"))
    if kind == "fake_gcs":
        return fake_gcs.new_store(request.getfixturevalue("fake_gcs_url"))
    return s3_store(request.getfixturevalue(f"{kind}_url"))


@pytest.fixture(
    params=[
        "memory",
        "local",
        pytest.param("ministack", marks=pytest.mark.s3),
        pytest.param("moto", marks=[pytest.mark.s3, pytest.mark.slow]),
        pytest.param("azurite", marks=pytest.mark.process),
        pytest.param("fake_gcs", marks=pytest.mark.process),
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


# The checks that a user may run; the races, which moto loses, are in test_prove_store.py.
SUITE = [
    check
    for check in CHECKS
    if check.name
    in (
        "put-if-absent",
        "replace by ETag (If-Match)",
        "GET and LIST after write",
        "LIST order",
        "LIST pages",
        "deletes",
        "ranges",
        "age",
        "key characters",
        "big object",
    )
]


@pytest.mark.parametrize("check", SUITE, ids=lambda check: check.name)
def test_a_store_passes_each_check_of_the_suite(kind: str, store: Store, check: Check) -> None:
    if kind == "moto" and "If-Match" in check.name:
        pytest.skip("moto checks and writes without a lock")
    with StoreUnderTest((store,), "log", Trial(seed=1, thorough=check.name == "deletes")) as tested:
        assert check.ask(tested)
    assert store.list("").entries == []


def test_a_range_of_no_bytes_is_empty(store: Store) -> None:
    store.put_if_absent("r", b"x" * 9)
    assert store.get_range("r", 5, 0) == b""


def test_a_missing_object_raises_not_found(store: Store) -> None:
    with pytest.raises(NotFound):
        store.get("not/here")
    with pytest.raises(NotFound):
        store.get_range("not/here", 0, 1)
    assert store.list("not/").entries == []
    store.delete("not/here")
    store.delete_many([])


def begin(store: Store, key: str) -> Upload:
    """An upload that the store knows: a part may be sent in the background."""
    before = len(store.unfinished(key).uploads)
    upload = store.upload(key)
    upload.part(1, 0, b"x")
    while len(store.unfinished(key).uploads) == before:
        time.sleep(0.001)
    return upload


def test_unfinished_uploads_are_found_and_discarded(kind: str, store: Store) -> None:
    if kind in ("azurite", "fake_gcs"):
        pytest.skip("an upload is in the memory of its writer")
    begun = {key: begin(store, key) for key in ("a/2", "a/1", "b/1")}
    page = store.unfinished("a/")
    assert page.after == ""
    assert sorted(each.key for each in page.uploads) == ["a/1", "a/2"]
    assert all(each.age_ms >= 0 for each in page.uploads)
    first, second = sorted(page.uploads, key=lambda each: each.key)
    store.discard(first)
    store.discard(first)
    assert store.unfinished("a/").uploads[0].upload_id == second.upload_id
    assert {each.key for each in store.unfinished("").uploads} == {"a/2", "b/1"}
    begun["b/1"].abort()
    assert [each.key for each in store.unfinished("").uploads] == ["a/2"]
    assert store.list("").entries == []
    assert store.unfinished("c").uploads == []


def test_a_finished_upload_is_not_unfinished_and_not_discarded(kind: str, store: Store) -> None:
    if kind in ("azurite", "fake_gcs"):
        pytest.skip("an upload is in the memory of its writer")
    upload = begin(store, "k")
    (unfinished,) = store.unfinished("k").uploads
    assert upload.complete()
    assert store.unfinished("").uploads == []
    store.discard(unfinished)
    assert store.get("k") == b"x"


def test_unfinished_uploads_come_in_pages(kind: str, store: Store) -> None:
    if kind == "moto":
        pytest.skip("moto shows all uploads on one page")
    if kind == "local":
        pytest.skip("and so does a local disk")
    if kind in ("azurite", "fake_gcs"):
        pytest.skip("an upload is in the memory of its writer")
    begun = [begin(store, key) for key in ("a/2", "a/1", "a/1", "a/1", "a/é", "b/1")]
    found: list[Unfinished] = []
    after, pages = "", 0
    while pages == 0 or after:
        page = store.unfinished("a/", after, limit=2)
        found += page.uploads
        after, pages = page.after, pages + 1
    assert [each.key for each in found] == ["a/1", "a/1", "a/1", "a/2", "a/é"]
    assert len({each.upload_id for each in found}) == 5
    assert pages == 3
    for upload in begun:
        upload.abort()


def test_upload_loses_to_an_existing_object(kind: str, store: Store) -> None:
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


def test_parallel_reads_return_in_order(store: Store) -> None:
    for n in range(10):
        store.put_if_absent(f"p/{n}", b"%d" % n)
    assert list(run_parallel(store, store.get, [f"p/{n}" for n in range(10)])) == [
        b"%d" % n for n in range(10)
    ]


def test_a_correct_store_is_proven_and_left_empty(kind: str, store: Store) -> None:
    if kind == "moto":
        pytest.skip("moto checks and writes without a lock, so a race may go either way")
    prove_put_if_absent(store, "logs/a")
    assert store.list("").entries == []


def test_open_store_opens_the_bucket_of_an_s3a_path(ministack_url: str) -> None:
    bare = s3_store(ministack_url)
    bucket = bare.url.rsplit("/", 1)[-1]
    config = S3Config(endpoint=ministack_url, access_key_id="t", secret_access_key="t")
    store, prefix = open_store(f"s3a://{bucket}/a/b/", config, RetryPolicy())
    assert prefix == "a/b"
    assert store.url == f"{ministack_url.rstrip('/')}/{bucket}"
    assert store.put_if_absent("a/b/x", b"1")
    assert bare.get("a/b/x") == b"1"


@pytest.mark.parametrize(("length", "is_front"), [(4, False), (16, True)])
def test_fetching_ahead_is_bounded_by_bytes(
    monkeypatch: pytest.MonkeyPatch, length: int, is_front: bool
) -> None:
    monkeypatch.setattr(parallel, "AHEAD", 10)
    store = MemoryStore(concurrency=8)
    store.objects = {f"{item}": bytes(length) for item in range(10)}
    wanted = [(item, Range(f"{item}", 0, length, is_front)) for item in range(10)]
    for item, body in get_many(store, wanted):
        assert body == bytes(length)
        # Two weigh 8; a third would be too much until one is consumed.
        assert item < store.counts["GET"] <= item + 2
    assert store.counts == {"GET": 10}
