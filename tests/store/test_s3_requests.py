"""Headers and parameters of requests to S3, as sent and as read back."""

from __future__ import annotations

import base64
import socket
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import sparkwal
from sparkwal.errors import OptionError
from sparkwal.options.open import open_log
from sparkwal.options.parsing import parse
from sparkwal.options.writing import SinkOptions
from sparkwal.store.base import Store
from sparkwal.store.s3 import S3Store
from sparkwal.testing.proxy import S3Proxy, Sent, kind_of
from sparkwal.testing.servers import log_options, s3_client

from .stub_s3 import CONFIG, Stub, error

KEY = "arn:aws:kms:us-east-1:111122223333:key/0f1e"
KMS = {"serverSideEncryption": "aws:kms", "kmsKeyId": KEY, "bucketKeyEnabled": "true"}
ON_ALL = {"requesterPays": "true", "expectedBucketOwner": "111122223333"}
NEW = {"PUT", "CREATE_MULTIPART"}
SENT = {"PUT", "UPLOAD_PART"}
EVERY = {
    "PUT",
    "GET",
    "HEAD",
    "LIST",
    "DELETE",
    "CREATE_MULTIPART",
    "UPLOAD_PART",
    "COMPLETE_MULTIPART",
    "ABORT_MULTIPART",
    "LIST_MULTIPART",
}
SSE = "x-amz-server-side-encryption"
# Options → the headers that they become, and the requests that carry them.
CASES: list[tuple[dict[str, str], dict[str, str], set[str]]] = [
    ({"serverSideEncryption": "AES256"}, {SSE: "AES256"}, NEW),
    (
        KMS,
        {SSE: "aws:kms", f"{SSE}-aws-kms-key-id": KEY, f"{SSE}-bucket-key-enabled": "true"},
        NEW,
    ),
    ({"serverSideEncryption": "aws:kms:dsse"}, {SSE: "aws:kms:dsse"}, NEW),
    ({"storageClass": "intelligent_tiering"}, {"x-amz-storage-class": "INTELLIGENT_TIERING"}, NEW),
    ({"checksum": "crc32"}, {"x-amz-checksum-algorithm": "CRC32"}, {"CREATE_MULTIPART"}),
    ({"requesterPays": "true"}, {"x-amz-request-payer": "requester"}, EVERY),
    (
        {"expectedBucketOwner": "111122223333"},
        {"x-amz-expected-bucket-owner": "111122223333"},
        EVERY,
    ),
]
ABOUT = (
    "x-amz-server-side",
    "x-amz-storage",
    "x-amz-checksum",
    "x-amz-request-payer",
    "x-amz-expected",
    "x-amz-acl",
    "x-amz-grant",
)


@pytest.fixture
def wire(s3_proxy: S3Proxy) -> Iterator[dict[str, list[tuple[dict[str, str], bytes]]]]:
    """Kind → the headers about the object or the bucket, and the body, of each request."""
    seen: dict[str, list[tuple[dict[str, str], bytes]]] = defaultdict(list)

    def watch(sent: Sent, status: int) -> None:
        headers = {name.lower(): x for name, x in sent.headers.items()}
        headers = {name: x for name, x in headers.items() if name.startswith(ABOUT)}
        seen[kind_of(sent.method, sent.target)[0]].append((headers, sent.body))

    s3_proxy.watch = watch
    yield seen


def do_all(store: Store) -> None:
    """Every request that a store makes."""
    assert store.put_if_absent("log/a", b"one")
    store.put("log/b", b"two")
    store.get("log/a")
    store.age_ms("log/b")
    store.put("log/empty", b"")
    store.age_ms("log/empty")
    store.list("log/")
    upload = store.upload("log/large")
    upload.part(1, 0, b"x" * 5 * 2**20)
    upload.part(2, 5 * 2**20, b"y")
    assert upload.complete()
    other = store.upload("log/other")
    other.part(1, 0, b"x")
    store.unfinished("log/")
    other.abort()
    store.delete("log/a")
    store.delete_many(["log/b"])


@pytest.fixture
def opened(s3_proxy: S3Proxy, s3_bucket: str) -> Callable[[dict[str, str]], Store]:
    def open_with(given: dict[str, str]) -> Store:
        path = {"path": f"s3://{s3_bucket}/log"}
        return open_log(parse(SinkOptions, {**path, **log_options(s3_proxy.url), **given})).store

    return open_with


@pytest.mark.parametrize(("given", "headers", "kinds"), CASES, ids=lambda x: ",".join(sorted(x)))
def test_an_option_is_a_header_of_the_requests_that_take_it(
    opened: Any, wire: Any, given: dict[str, str], headers: dict[str, str], kinds: set[str]
) -> None:
    try:
        do_all(opened(given))
    except sparkwal.OptionError as refused:
        # ministack asks for a key, and does not know the third way.
        assert "kms" in str(refused) and given["serverSideEncryption"].startswith("aws:kms:")
        assert wire["PUT"][0][0].items() >= headers.items()
        return
    assert set(wire) == EVERY
    for kind, requests in wire.items():
        for found, _ in requests:
            asked = {name: found.get(name) for name in headers}
            assert asked == (headers if kind in kinds else dict.fromkeys(headers)), kind


def test_requests_have_no_unrequested_headers(opened: Any, wire: Any) -> None:
    do_all(opened({}))
    reported = {name for kind in wire for found, _ in wire[kind] for name in found}
    assert reported <= {"x-amz-checksum-crc32"}  # of a DeleteObjects' body
    assert not [found for kind in SENT for found, _ in wire[kind] if found]


def test_a_body_has_the_checksum_of_its_bytes(
    opened: Any, wire: Any, s3_bucket: str, ministack_url: str
) -> None:
    do_all(opened({"checksum": "crc32"}))
    for kind in SENT:
        for found, body in wire[kind]:
            crc = base64.b64encode(zlib.crc32(body).to_bytes(4, "big")).decode()
            assert found["x-amz-checksum-crc32"] == crc
    client = s3_client(ministack_url)
    kept = client.head_object(Bucket=s3_bucket, Key="log/empty", ChecksumMode="ENABLED")
    assert kept["ChecksumCRC32"] == "AAAAAA=="


def test_encryption_and_storage_class_are_those_of_the_options(
    ministack_url: str, s3_proxy: S3Proxy, s3_bucket: str
) -> None:
    schema = pa.schema([("v", pa.int64())])
    path, options = f"s3://{s3_bucket}/log", log_options(s3_proxy.url)
    given = {**KMS, **ON_ALL, "storageClass": "standard_ia", "checksum": "crc32"}
    before: dict[str, int] | None = None
    # The first write of a process proves the store.
    sparkwal.Appender(f"{path}-first", schema, producer_id="p", **options).close()
    for extra in ({}, given):
        s3_proxy.reset()
        where = f"{path}{len(extra)}"
        with sparkwal.Appender(where, schema, producer_id="p", **options, **extra) as wal:
            wal.append([{"v": 1}]).result()
        assert sparkwal.verify(where, **options, **extra).ok
        # Not a request more.
        before = before or dict(s3_proxy.counts())
        assert dict(s3_proxy.counts()) == before
    client = s3_client(ministack_url)
    listed = client.list_objects_v2(Bucket=s3_bucket, Prefix=f"log{len(given)}/")["Contents"]
    assert listed
    for each in listed:
        kept = client.head_object(Bucket=s3_bucket, Key=each["Key"], ChecksumMode="ENABLED")
        assert (kept["ServerSideEncryption"], kept["SSEKMSKeyId"]) == ("aws:kms", KEY)
        assert kept["StorageClass"] == "STANDARD_IA" and kept["ChecksumCRC32"]


def addressed(
    stub: Stub,
    monkeypatch: pytest.MonkeyPatch,
    style: str | None = None,
    region: str = "us-east-1",
) -> tuple[str, str]:
    """The host and the path of a PUT to an endpoint with a name."""
    found = socket.getaddrinfo
    monkeypatch.setattr(socket, "getaddrinfo", lambda host, *more: found("127.0.0.1", *more))
    endpoint = stub.url.replace("127.0.0.1", "store.test")
    stub.replies = [(200, {}, b"")]
    config = replace(CONFIG, endpoint=endpoint, addressing_style=style, region=region)
    store = S3Store("bucket", config)
    assert store.put_if_absent("a/1", b"")
    ((_, path, headers),) = stub.requests
    stub.requests.clear()
    return headers["host"].partition(":")[0], path


def test_the_option_sets_the_addressing_style(stub: Stub, monkeypatch: pytest.MonkeyPatch) -> None:
    assert addressed(stub, monkeypatch) == ("store.test", "/bucket/a/1")
    assert addressed(stub, monkeypatch, "path") == ("store.test", "/bucket/a/1")
    assert addressed(stub, monkeypatch, "virtual") == ("bucket.store.test", "/a/1")


def test_the_configuration_sets_the_addressing_style(
    stub: Stub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "config").write_text("[default]\ns3 =\n  addressing_style = virtual\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    # An unused region, so that no client of another test is reused.
    found = [addressed(stub, monkeypatch, style, "eu-west-3") for style in (None, "path")]
    assert found == [("bucket.store.test", "/a/1"), ("store.test", "/bucket/a/1")]


def test_a_store_that_wants_virtual_requests_is_named_with_the_option(
    stub: Stub, store: S3Store
) -> None:
    stub.replies = [error(403, "SecondLevelDomainForbidden", "Please use virtual hosted style.")]
    with pytest.raises(OptionError, match="addressingStyle to virtual"):
        store.get("a")
