"""The proxy counts a client's requests, and each fault has its documented effect."""

from __future__ import annotations

import http.client
import json
import signal
import socket
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit
from urllib.request import Request as HttpRequest
from urllib.request import urlopen

import pytest
from botocore.exceptions import (
    ClientError,
    ConnectionClosedError,
    HTTPClientError,
    IncompleteReadError,
    ResponseStreamingError,
)

from sparkwal.testing.proxy import Fault, S3Proxy, kind_of
from sparkwal.testing.servers import s3_client

PART = 5 << 20


@pytest.fixture
def client(s3_proxy: S3Proxy) -> Any:
    """A client that goes through the proxy and tries everything once."""
    return s3_client(s3_proxy.url)


@pytest.fixture
def direct(ministack_url: str) -> Any:
    """A client that the proxy does not see."""
    return s3_client(ministack_url)


def exists(client: Any, bucket: str, key: str) -> bool:
    listed = client.list_objects_v2(Bucket=bucket, Prefix=key).get("Contents", [])
    return key in [x["Key"] for x in listed]


def status_of(error: pytest.ExceptionInfo[ClientError]) -> int:
    return int(error.value.response["ResponseMetadata"]["HTTPStatusCode"])


def raw_request(
    url: str, method: str, target: str, body: Any = None, headers: dict[str, str] | None = None
) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(urlsplit(url).netloc)
    connection.request(method, target, body, headers or {}, encode_chunked=True)
    answer = connection.getresponse()
    status, content = answer.status, answer.read()
    connection.close()
    return status, content


# Counting


def test_counts_what_the_client_did(s3_proxy: S3Proxy, s3_bucket: str, client: Any) -> None:
    at = {"Bucket": s3_bucket}
    client.put_object(**at, Key="a", Body=b"one")
    client.put_object(**at, Key="b", Body=b"two", IfNoneMatch="*")
    with pytest.raises(ClientError) as taken:
        client.put_object(**at, Key="b", Body=b"three", IfNoneMatch="*")
    assert status_of(taken) == 412
    assert client.get_object(**at, Key="a")["Body"].read() == b"one"
    assert client.get_object(**at, Key="b", Range="bytes=1-2")["Body"].read() == b"wo"
    with pytest.raises(ClientError) as missing:
        client.get_object(**at, Key="none")
    assert status_of(missing) == 404
    assert client.head_object(**at, Key="a")["ContentLength"] == 3
    assert len(client.list_objects_v2(**at, MaxKeys=10)["Contents"]) == 2
    client.list_objects(**at, Prefix="a")
    client.delete_object(**at, Key="a")
    for end in ("complete", "abort"):
        upload = client.create_multipart_upload(**at, Key="big")["UploadId"]
        parts = [
            {
                "PartNumber": n,
                "ETag": client.upload_part(
                    **at, Key="big", UploadId=upload, PartNumber=n, Body=bytes([n]) * PART
                )["ETag"],
            }
            for n in (1, 2)
        ]
        if end == "abort":
            client.abort_multipart_upload(**at, Key="big", UploadId=upload)
        else:
            client.complete_multipart_upload(
                **at, Key="big", UploadId=upload, MultipartUpload={"Parts": parts}, IfNoneMatch="*"
            )
    assert len(client.get_object(**at, Key="big")["Body"].read()) == 2 * PART
    client.list_multipart_uploads(**at)

    assert s3_proxy.counts() == {
        "PUT": 3,
        "GET": 4,
        "HEAD": 1,
        "LIST": 2,
        "DELETE": 1,
        "CREATE_MULTIPART": 2,
        "UPLOAD_PART": 4,
        "COMPLETE_MULTIPART": 1,
        "ABORT_MULTIPART": 1,
        "LIST_MULTIPART": 1,
    }
    seen = s3_proxy.requests
    assert [(x.key, x.status, x.conditional, x.bytes_in) for x in seen if x.kind == "PUT"] == [
        ("a", 200, False, 3),
        ("b", 200, True, 3),
        ("b", 412, True, 5),
    ]
    assert [(x.key, x.status) for x in seen if x.kind == "GET"] == [
        ("a", 200),
        ("b", 206),
        ("none", 404),
        ("big", 200),
    ]
    assert [x.bytes_out for x in seen if x.kind == "GET" and x.key == "big"] == [2 * PART]
    assert [x.bytes_in for x in seen if x.kind == "UPLOAD_PART"] == [PART] * 4
    assert [x.conditional for x in seen if x.kind == "COMPLETE_MULTIPART"] == [True]
    assert all(x.status == x.upstream and x.fault is None for x in seen)

    s3_proxy.reset()
    assert s3_proxy.counts() == Counter() and s3_proxy.requests == []


@pytest.mark.parametrize(
    ("method", "target", "expected"),
    [
        ("GET", "/b/a%20key/x?versionId=1", ("GET", "a key/x")),
        ("GET", "/b/k?response-content-type=x&X-Amz-Signature=y", ("GET", "k")),
        ("GET", "/b/k?acl", ("OTHER", "k")),
        ("GET", "/b/k?uploadId=1", ("OTHER", "k")),
        ("GET", "/b?list-type=2&prefix=log%2F", ("LIST", "log/")),
        ("GET", "/b/", ("LIST", "")),
        ("GET", "/b?uploads&prefix=log%2F", ("LIST_MULTIPART", "log/")),
        ("GET", "/b?versioning", ("OTHER", "")),
        ("GET", "/", ("OTHER", "")),
        ("PUT", "/b", ("OTHER", "")),
        ("PUT", "/b/k?tagging", ("OTHER", "k")),
        ("PUT", "/b/k?partNumber=3&uploadId=1", ("UPLOAD_PART", "k")),
        ("POST", "/b?delete", ("DELETE", "")),
        ("DELETE", "/b/k", ("DELETE", "k")),
        ("DELETE", "/b", ("OTHER", "")),
        ("HEAD", "/b", ("HEAD", "")),
    ],
)
def test_a_request_is_counted_by_its_kind(
    method: str, target: str, expected: tuple[str, str]
) -> None:
    assert kind_of(method, target) == expected


def test_concurrent_clients_are_all_counted(s3_proxy: S3Proxy, s3_bucket: str, direct: Any) -> None:
    client = s3_client(s3_proxy.url, max_pool_connections=16)

    def put(n: int) -> None:
        client.put_object(Bucket=s3_bucket, Key=f"k{n:03d}", Body=str(n).encode())

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(put, range(200)))
    assert s3_proxy.counts() == {"PUT": 200}
    assert direct.list_objects_v2(Bucket=s3_bucket)["KeyCount"] == 200


# Bodies on the wire


def test_chunked_body_arrives_whole(s3_proxy: S3Proxy, s3_bucket: str, direct: Any) -> None:
    status, _ = raw_request(s3_proxy.url, "PUT", f"/{s3_bucket}/k", iter([b"ab" * 40000, b"c"]))
    assert status == 200
    assert direct.get_object(Bucket=s3_bucket, Key="k")["Body"].read() == b"ab" * 40000 + b"c"


def test_one_connection_serves_many_requests(s3_proxy: S3Proxy, s3_bucket: str) -> None:
    """No byte of one message is taken for the next."""
    connection = http.client.HTTPConnection(urlsplit(s3_proxy.url).netloc)
    connection.connect()
    sock = connection.sock
    s3_proxy.faults = [Fault("error", kind="HEAD", status=503, times=1)]

    def ask(method: str, body: Any = None) -> tuple[int, bytes]:
        connection.request(method, f"/{s3_bucket}/k", body, encode_chunked=True)
        answer = connection.getresponse()
        return answer.status, answer.read()

    assert ask("PUT", iter([b"a", b"b"]))[0] == 200
    assert ask("GET") == (200, b"ab")
    assert ask("HEAD") == (503, b"")
    assert ask("HEAD") == (200, b"")
    assert ask("DELETE")[0] == 204
    assert ask("GET")[0] == 404
    assert connection.sock is sock
    connection.close()


@pytest.mark.parametrize("framing", ["length", "chunked"])
def test_aws_chunked_body_arrives_whole(
    s3_proxy: S3Proxy, s3_bucket: str, direct: Any, framing: str
) -> None:
    body = b"5\r\nhello\r\n0\r\nx-amz-checksum-crc32:NhCmhg==\r\n\r\n"
    headers = {
        "Content-Encoding": "aws-chunked",
        "x-amz-content-sha256": "STREAMING-UNSIGNED-PAYLOAD-TRAILER",
        "x-amz-decoded-content-length": "5",
        "x-amz-trailer": "x-amz-checksum-crc32",
    }
    sent: Any = iter([body[:20], body[20:]]) if framing == "chunked" else body
    status, _ = raw_request(s3_proxy.url, "PUT", f"/{s3_bucket}/k", sent, headers)
    assert status == 200
    assert direct.get_object(Bucket=s3_bucket, Key="k")["Body"].read() == b"hello"


def test_expect_continue_is_answered(s3_proxy: S3Proxy, s3_bucket: str, direct: Any) -> None:
    address = urlsplit(s3_proxy.url)
    with socket.create_connection((address.hostname, address.port), timeout=60) as sock:
        head = f"PUT /{s3_bucket}/k HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n"
        sock.sendall(head.encode() + b"Expect: 100-continue\r\n\r\n")
        assert sock.recv(1000).startswith(b"HTTP/1.1 100 ")  # before any byte of the body
        sock.sendall(b"ok")
        assert sock.recv(1000).startswith(b"HTTP/1.1 200 ")
    assert direct.get_object(Bucket=s3_bucket, Key="k")["Body"].read() == b"ok"


def test_works_in_front_of_moto(moto_url: str) -> None:
    with S3Proxy(moto_url) as proxy:
        client = s3_client(proxy.url)
        client.create_bucket(Bucket="proxied")
        client.put_object(Bucket="proxied", Key="k", Body=b"x" * 100_000)
        assert client.head_object(Bucket="proxied", Key="k")["ContentLength"] == 100_000
        assert len(client.get_object(Bucket="proxied", Key="k")["Body"].read()) == 100_000
        client.delete_object(Bucket="proxied", Key="k")
        assert proxy.counts() == {"OTHER": 1, "PUT": 1, "HEAD": 1, "GET": 1, "DELETE": 1}


# Faults


def test_lost_reply_takes_effect(
    s3_proxy: S3Proxy, s3_bucket: str, client: Any, direct: Any
) -> None:
    s3_proxy.faults = [Fault("lost_reply", kind="PUT", times=1)]
    with pytest.raises(ConnectionClosedError):
        client.put_object(Bucket=s3_bucket, Key="k", Body=b"x", IfNoneMatch="*")
    assert exists(direct, s3_bucket, "k")
    with pytest.raises(ClientError) as taken:  # by the first attempt
        client.put_object(Bucket=s3_bucket, Key="k", Body=b"x", IfNoneMatch="*")
    assert status_of(taken) == 412
    assert [(x.status, x.upstream, x.fault) for x in s3_proxy.requests] == [
        (0, 200, "lost_reply"),
        (412, 412, None),
    ]
    assert s3_proxy.injected == {"lost_reply": 1}


def test_lost_reply_of_complete_publishes(
    s3_proxy: S3Proxy, s3_bucket: str, client: Any, direct: Any
) -> None:
    s3_proxy.faults = [Fault("lost_reply", kind="COMPLETE_MULTIPART")]
    with pytest.raises(ConnectionClosedError):
        upload_and_complete(client, s3_bucket, "k", b"body")
    assert direct.get_object(Bucket=s3_bucket, Key="k")["Body"].read() == b"body"


@pytest.mark.parametrize("size", [10, 6 << 20])
def test_reset_has_no_effect(
    s3_proxy: S3Proxy, s3_bucket: str, client: Any, direct: Any, size: int
) -> None:
    s3_proxy.faults = [Fault("reset", kind="PUT")]
    with pytest.raises(HTTPClientError):
        client.put_object(Bucket=s3_bucket, Key="k", Body=bytes(size))
    assert not exists(direct, s3_bucket, "k")
    assert [(x.status, x.upstream, x.bytes_in) for x in s3_proxy.requests] == [(0, 0, size // 2)]


def test_reset_is_a_reset(s3_proxy: S3Proxy) -> None:
    s3_proxy.faults = [Fault("reset")]
    with pytest.raises(ConnectionResetError) as reset:
        raw_request(s3_proxy.url, "GET", "/b/k")
    assert reset.type is ConnectionResetError  # RemoteDisconnected, an orderly end, is one too
    s3_proxy.faults = [Fault("lost_reply")]
    with pytest.raises(http.client.RemoteDisconnected):
        raw_request(s3_proxy.url, "GET", "/b/k")


def test_reset_of_a_read(s3_proxy: S3Proxy, s3_bucket: str, client: Any) -> None:
    client.put_object(Bucket=s3_bucket, Key="k", Body=b"x")
    s3_proxy.faults = [Fault("reset", kind="GET", times=1)]
    with pytest.raises(HTTPClientError):
        client.get_object(Bucket=s3_bucket, Key="k")
    assert client.get_object(Bucket=s3_bucket, Key="k")["Body"].read() == b"x"


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (500, "InternalError"),
        (503, "SlowDown"),
        (409, "ConditionalRequestConflict"),
        (429, "TooManyRequests"),
    ],
)
def test_error_has_no_effect(
    s3_proxy: S3Proxy, s3_bucket: str, client: Any, direct: Any, status: int, code: str
) -> None:
    s3_proxy.faults = [Fault("error", kind="PUT", status=status, retry_after=7)]
    with pytest.raises(ClientError) as error:
        client.put_object(Bucket=s3_bucket, Key="k", Body=b"x")
    assert status_of(error) == status
    assert error.value.response["Error"]["Code"] == code
    assert error.value.response["ResponseMetadata"]["HTTPHeaders"]["retry-after"] == "7"
    assert not exists(direct, s3_bucket, "k")
    assert [(x.status, x.upstream) for x in s3_proxy.requests] == [(status, 0)]


def test_error_of_a_head_has_no_body(s3_proxy: S3Proxy) -> None:
    s3_proxy.faults = [Fault("error", status=503)]
    address = urlsplit(s3_proxy.url)
    with socket.create_connection((address.hostname, address.port), timeout=60) as sock:
        sock.sendall(b"HEAD /b/k HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        answer = b"".join(iter(lambda: sock.recv(1000), b""))
    assert answer.startswith(b"HTTP/1.1 503 ") and answer.endswith(b"\r\n\r\n")


def test_error_after_takes_effect(
    s3_proxy: S3Proxy, s3_bucket: str, client: Any, direct: Any
) -> None:
    s3_proxy.faults = [Fault("error_after", kind="PUT")]
    with pytest.raises(ClientError) as error:
        client.put_object(Bucket=s3_bucket, Key="k", Body=b"x")
    assert status_of(error) == 500
    assert exists(direct, s3_bucket, "k")
    assert [(x.status, x.upstream) for x in s3_proxy.requests] == [(500, 200)]


def test_truncate_is_noticed(s3_proxy: S3Proxy, s3_bucket: str, client: Any) -> None:
    client.put_object(Bucket=s3_bucket, Key="k", Body=b"x" * 1000)
    s3_proxy.faults = [Fault("truncate", times=1)]
    client.head_object(Bucket=s3_bucket, Key="k")  # only a GET can be cut
    answer = client.get_object(Bucket=s3_bucket, Key="k")
    assert answer["ContentLength"] == 1000
    with pytest.raises((IncompleteReadError, ResponseStreamingError)):
        answer["Body"].read()
    assert client.get_object(Bucket=s3_bucket, Key="k")["Body"].read() == b"x" * 1000
    assert [x.bytes_out for x in s3_proxy.requests if x.kind == "GET"] == [500, 1000]


def test_delay_and_latency_are_waited_for(s3_proxy: S3Proxy, s3_bucket: str, client: Any) -> None:
    s3_proxy.latency_ms = 20
    s3_proxy.faults = [Fault("delay", kind="PUT", seconds=0.05)]
    client.put_object(Bucket=s3_bucket, Key="k", Body=b"x")
    client.get_object(Bucket=s3_bucket, Key="k")
    put, get = s3_proxy.requests
    # Lower bounds only: sleeping longer is no failure.
    assert put.seconds >= 0.07 and put.status == 200
    assert get.seconds >= 0.02 and get.fault is None


def test_faults_choose_by_key_and_times(s3_proxy: S3Proxy, s3_bucket: str, client: Any) -> None:
    s3_proxy.faults = [
        Fault("error", key_contains="/batches/", times=2, status=503),
        Fault("error", kind="LIST", key_contains="log/", status=500),
    ]

    def put(key: str) -> int:
        try:
            answer = client.put_object(Bucket=s3_bucket, Key=key, Body=b"x")
        except ClientError as error:
            answer = error.response
        return int(answer["ResponseMetadata"]["HTTPStatusCode"])

    assert [put(x) for x in ["log/other", *["log/batches/1"] * 3]] == [200, 503, 503, 200]
    with pytest.raises(ClientError):
        client.list_objects_v2(Bucket=s3_bucket, Prefix="log/")
    client.list_objects_v2(Bucket=s3_bucket, Prefix="else/")
    s3_proxy.faults.clear()
    client.list_objects_v2(Bucket=s3_bucket, Prefix="log/")
    assert s3_proxy.injected == {"error": 3}


def faulted(ministack_url: str, bucket: str, seed: int, threads: int) -> Counter[tuple[str, int]]:
    """Which of 60 keys, each put twice, met a fault under `seed`."""
    with S3Proxy(ministack_url, seed=seed) as proxy:
        proxy.faults = [
            Fault("error", probability=0.2, status=503),
            Fault("error", probability=0.2, status=500),
        ]
        client = s3_client(proxy.url, max_pool_connections=threads)

        def put(n: int) -> None:
            for _ in range(2):
                try:
                    client.put_object(Bucket=bucket, Key=f"k{n}", Body=b"x")
                except ClientError:
                    continue

        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(put, range(60)))
        return Counter((x.key, x.status) for x in proxy.requests if x.fault)


def test_same_seed_same_faults(ministack_url: str, s3_bucket: str) -> None:
    first = faulted(ministack_url, s3_bucket, seed=1, threads=1)
    assert 0 < first.total() < 120
    assert {status for _, status in first} == {500, 503}
    # The order of concurrent requests does not matter.
    assert faulted(ministack_url, s3_bucket, seed=1, threads=8) == first
    assert faulted(ministack_url, s3_bucket, seed=2, threads=1) != first


def test_unknown_action_is_refused() -> None:
    with pytest.raises(ValueError, match="lost_reply"):
        Fault("lose")  # type: ignore[arg-type]


def test_an_absent_store_is_a_broken_connection() -> None:
    with S3Proxy("http://127.0.0.1:1") as proxy, pytest.raises(ConnectionClosedError):
        s3_client(proxy.url).get_object(Bucket="b", Key="k")


# As a process


def test_runs_as_a_process(ministack_url: str, s3_bucket: str) -> None:
    command = [sys.executable, "-m", "sparkwal.testing.proxy", "--upstream", ministack_url]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        url = process.stderr.readline().strip()

        def get(name: str) -> Any:
            with urlopen(f"{url}/__{name}") as answer:
                return json.load(answer)

        client = s3_client(url)
        client.put_object(Bucket=s3_bucket, Key="k", Body=b"x")
        assert get("counts") == {"PUT": 1}
        assert [x["status"] for x in get("requests")] == [200]
        assert raw_request(url, "POST", "/__nothing")[0] == 404
        with urlopen(HttpRequest(f"{url}/__reset", b"null")) as answer:
            assert answer.status == 200
        client.get_object(Bucket=s3_bucket, Key="k")
        process.send_signal(signal.SIGTERM)
        output, _ = process.communicate(timeout=60)
        assert json.loads(output) == {"GET": 1}
        assert process.returncode == 0
    finally:
        process.kill()
        process.wait()


# The tests of the log rely on this: put-if-absent is atomic on ministack


def upload_and_complete(
    client: Any, bucket: str, key: str, body: bytes, ready: Callable[[], object] = lambda: None
) -> None:
    at = {"Bucket": bucket, "Key": key}
    upload = client.create_multipart_upload(**at)["UploadId"]
    tag = client.upload_part(**at, UploadId=upload, PartNumber=1, Body=body)["ETag"]
    ready()
    parts = {"Parts": [{"PartNumber": 1, "ETag": tag}]}
    client.complete_multipart_upload(**at, UploadId=upload, MultipartUpload=parts, IfNoneMatch="*")


@pytest.mark.parametrize("way", ["put", "multipart"])
def test_one_of_many_racing_writers_wins(ministack_url: str, s3_bucket: str, way: str) -> None:
    writers, rounds = 16, 10
    client = s3_client(ministack_url, max_pool_connections=writers)
    barrier = threading.Barrier(writers, timeout=60)

    def write(key: str, body: bytes) -> int:
        try:
            if way == "multipart":
                upload_and_complete(client, s3_bucket, key, body, barrier.wait)
            else:
                barrier.wait()
                client.put_object(Bucket=s3_bucket, Key=key, Body=body, IfNoneMatch="*")
        except ClientError as error:
            return int(error.response["ResponseMetadata"]["HTTPStatusCode"])
        return 200

    bodies = [f"writer {n}".encode() for n in range(writers)]
    with ThreadPoolExecutor(writers) as pool:
        for key in map(str, range(rounds)):
            statuses = list(pool.map(write, [key] * writers, bodies))
            assert Counter(statuses) == {200: 1, 412: writers - 1}
            winner = bodies[statuses.index(200)]
            assert client.get_object(Bucket=s3_bucket, Key=key)["Body"].read() == winner
