"""TLS: the store's certificate is checked, and plain HTTP to another machine is reported."""

from __future__ import annotations

import uuid
from dataclasses import replace
from pathlib import Path

import pytest

import sparkwal
from sparkwal import events
from sparkwal.errors import OptionError, StoreUnavailableError
from sparkwal.store.config import RetryPolicy, S3Config
from sparkwal.store.retry import RetryingStore
from sparkwal.store.s3 import S3Store
from sparkwal.store.s3_client import s3_client
from sparkwal.testing.servers import log_options, make_bucket
from tests.logs import SCHEMA
from tests.store.certificates import ELSEWHERE, HERE, Authority, behind_tls

from .stub_s3 import CONFIG, Stub


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ours"), "ours")


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("theirs"), "theirs")


def write(path: str, url: str) -> None:
    options = {**log_options(url), "maxRetryAttempts": 0}
    with sparkwal.Appender(path, SCHEMA, producer_id="p", **options) as wal:
        wal.append([{"v": 1}]).result()


def test_a_log_is_read_over_tls_with_a_private_authority(
    ministack_url: str, ours: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket = f"tls-{uuid.uuid4().hex}"
    make_bucket(ministack_url, bucket)
    monkeypatch.setenv("AWS_CA_BUNDLE", str(ours.file))
    with behind_tls(ministack_url, ours.server(HERE)) as url:
        write(f"s3://{bucket}/log", url)
        assert sparkwal.Log(f"s3://{bucket}/log", **log_options(url)).to_pandas()["v"].sum() == 1


@pytest.mark.parametrize(
    ("trusted", "holder", "begins", "expected_message"),
    [
        ("theirs", HERE, 0, "point AWS_CA_BUNDLE at its certificate authority"),
        (None, HERE, 0, "point AWS_CA_BUNDLE at its certificate authority"),
        ("ours", HERE, -2, "has expired.*renew the certificate, or set this machine's clock"),
        ("ours", HERE, 2, "not yet valid.*set this machine's clock"),
        ("ours", ELSEWHERE, 0, "write a name in the endpoint that the certificate is made for"),
    ],
)
def test_a_certificate_that_proves_nothing_is_refused_at_once(
    ministack_url: str,
    ours: Authority,
    theirs: Authority,
    monkeypatch: pytest.MonkeyPatch,
    trusted: str | None,
    holder: object,
    begins: int,
    expected_message: str,
) -> None:
    bundles = {"ours": ours.file, "theirs": theirs.file, None: Path()}
    monkeypatch.delenv("AWS_CA_BUNDLE", raising=False)
    if trusted:
        monkeypatch.setenv("AWS_CA_BUNDLE", str(bundles[trusted]))
    with (
        behind_tls(ministack_url, ours.server(holder, begins=begins)) as url,  # type: ignore[arg-type]
        pytest.raises(OptionError, match=f"(?s){expected_message}") as refused,
    ):
        write("s3://bucket/log", url)
    assert f"{url}/bucket: the endpoint's certificate was not accepted" in str(refused.value)
    assert "\n" not in str(refused.value)


def test_https_unless_it_is_said_otherwise() -> None:
    for region in ("us-east-1", "eu-central-1"):
        made = s3_client(S3Config(region=region, access_key_id="a", secret_access_key="b"))
        assert made.meta.endpoint_url.startswith("https://")


def test_plain_http_to_another_machine_is_reported_once() -> None:
    seen: list[events.Event] = []
    forget = events.subscribe(seen.append)
    host = f"http://{uuid.uuid4().hex}.invalid:9000"
    options = {**log_options(host), "maxRetryAttempts": 0}
    for _ in range(2):
        with pytest.raises(StoreUnavailableError):
            sparkwal.Log("s3://bucket/log", **options).head()
    for loopback in ("http://127.0.0.1:1", "http://[::1]:1", "http://localhost:1"):
        sparkwal.Log("s3://bucket/log", **log_options(loopback))
    sparkwal.Log("s3://bucket/log", **log_options("https://store.example"))
    forget()
    assert [each for each in seen if isinstance(each, events.PlainHttp)] == [
        events.PlainHttp(endpoint=host)
    ]


def test_https_against_a_plain_server_is_said_at_once() -> None:
    plain = Stub()
    sleeps: list[float] = []
    config = replace(CONFIG, endpoint=plain.url.replace("http:", "https:"))
    store = RetryingStore(S3Store("bucket", config), RetryPolicy(), sleep=sleeps.append)
    with pytest.raises(OptionError, match="speaks no TLS: write http:// in the endpoint"):
        store.put_if_absent("key", b"")
    assert sleeps == []
    plain.close()


@pytest.mark.parametrize("answers", [False, True])
def test_http_to_a_tls_server_advises_https(ours: Authority, answers: bool) -> None:
    """It closes the connection, or answers 400 in words that are not S3's."""
    server = Stub()
    if answers:
        server.replies = [(400, {}, b"Client sent an HTTP request to an HTTPS server.\n")]
    else:
        tls = ours.server(HERE).wrap_socket(server.server.socket, server_side=True)
        server.server.socket = tls
        server.server.handle_error = lambda *_: None  # type: ignore[method-assign]
    store = RetryingStore(
        S3Store("bucket", replace(CONFIG, endpoint=server.url)), RetryPolicy(), sleep=lambda _: None
    )
    refused = OptionError if answers else StoreUnavailableError
    with pytest.raises(refused, match="if it speaks TLS, write https:// in the endpoint"):
        store.put_if_absent("key", b"")
    server.close()
