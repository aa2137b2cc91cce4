"""A GET that is made as botocore made the one before is the same request."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from sparkwal.store import s3
from sparkwal.store.config import S3Config
from sparkwal.store.s3 import S3Store
from sparkwal.store.s3_client import s3_client

from . import inside
from .stub_s3 import Stub

KEYS = ["log/batches/18446744073709551615", "a b+c/ü%20~.-_*'()!&=?#;:@,$", "./x//y/../z", "/lead"]
OPTIONS = [
    S3Config(session_token="t0ken", access_key_id="AKIDKEY", secret_access_key="secret"),
    S3Config(access_key_id="AKIDKEY", secret_access_key="secret", region="eu-north-1"),
    S3Config(
        access_key_id="AKIDKEY",
        secret_access_key="secret",
        requester_pays=True,
        bucket_owner="111122223333",
        checksum=True,
    ),
]


@pytest.fixture
def stub() -> Iterator[Stub]:
    stub = Stub()
    yield stub
    stub.close()


def opened(config: S3Config, endpoint: str) -> S3Store:
    parameters = {"region": "us-east-1", **{k: v for k, v in vars(config).items() if v is not None}}
    return S3Store("bucket", S3Config(**{**parameters, "endpoint": endpoint}))


def asked(stub: Stub, store: S3Store, key: str) -> tuple[str, dict[str, str]]:
    """The target and the headers of one GET of part of an object."""
    stub.replies = [(206, {"Content-Range": "bytes 5-8/100"}, b"body")]
    assert store.get_range(key, 5, 4) == b"body"
    ((method, target, headers),) = stub.requests
    stub.requests.clear()
    assert method == "GET"
    # botocore's own headers; no test depends on them.
    return target, {k: v for k, v in headers.items() if not k.startswith("amz-sdk-")}


@pytest.mark.parametrize("config", OPTIONS)
@pytest.mark.parametrize("key", KEYS)
def test_a_later_get_is_the_first_ones_twin(stub: Stub, config: S3Config, key: str) -> None:
    store = opened(config, stub.url)
    asked(stub, store, "another")
    for _ in range(5):
        # A signature names the second.
        known = asked(stub, store, key)
        with inside.first_gets():
            first = asked(stub, store, key)
        if first[1]["x-amz-date"] == known[1]["x-amz-date"]:
            break
    assert known == first
    assert inside.form(store, key) is not None


def test_a_get_takes_the_proxy_that_the_environment_names(
    stub: Stub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", stub.url)
    monkeypatch.delenv("no_proxy", raising=False)
    store = opened(OPTIONS[0], "http://s3.example.invalid")
    targets = {asked(stub, store, "key")[0] for _ in range(3)}
    assert targets == {"http://s3.example.invalid/bucket/key"}


def test_one_bucket_of_a_client_is_not_taken_for_another(stub: Stub) -> None:
    one = opened(OPTIONS[0], stub.url)
    two = S3Store("other-bucket", one.config)
    assert [asked(stub, store, "key")[0] for store in (one, two, one, two)] == [
        "/bucket/key",
        "/other-bucket/key",
    ] * 2


def test_a_client_whose_requests_look_otherwise_is_left_to_botocore(stub: Stub) -> None:
    store = opened(OPTIONS[0], stub.url)
    with store.request("key") as client:
        client.meta.events.register_last(
            "before-sign.s3.GetObject",
            lambda request, **_: setattr(request, "url", f"{request.url}?x-id=GetObject"),
        )
        assert [asked(stub, store, "key")[0] for _ in range(2)] == [
            "/bucket/key?x-id=GetObject"
        ] * 2
    assert inside.form(store, "key") is None


def test_a_reply_that_botocore_reads_stays_in_its_thread(stub: Stub) -> None:
    """Two threads at once: one gets an error, the other an object."""
    store = opened(OPTIONS[0], stub.url)
    asked(stub, store, "key")
    failed: list[Exception] = []

    def refused() -> None:
        with pytest.raises(Exception, match="AccessDenied") as caught:
            store.get("key")
        failed.append(caught.value)

    body = b"<Error><Code>AccessDenied</Code></Error>"
    stub.replies = [(403, {}, body)]
    thread = threading.Thread(target=refused)
    thread.start()
    thread.join()
    assert failed and inside.reply_in_botocore() is None
    stub.requests.clear()
    asked(stub, store, "key")


class Without:
    """An object of botocore without one private name, which lies at the end of a path of names."""

    def __init__(self, original: Any, path: tuple[str, ...]) -> None:
        self._original = original
        self._path = path

    def __getattr__(self, name: str) -> Any:
        if name != self._path[0]:
            return getattr(self._original, name)
        if len(self._path) == 1:
            raise AttributeError(name)
        return Without(getattr(self._original, name), self._path[1:])

    def __call__(self, *arguments: Any) -> Any:
        return Without(self._original(*arguments), self._path)


def opened_without(monkeypatch: pytest.MonkeyPatch, endpoint: str, path: str) -> S3Store:
    """A store whose client lacks a private name."""
    store = opened(OPTIONS[0], endpoint)
    client = Without(s3_client(store.config), tuple(path.split(".")))
    monkeypatch.setattr(s3, "s3_client", lambda _: client)
    return store


@pytest.mark.parametrize("path", ["_endpoint", "_endpoint.http_session", "_request_signer"])
def test_without_a_private_name_botocore_reads_by_its_public_get_object(
    stub: Stub, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    usual = opened(OPTIONS[0], stub.url)
    expected = [asked(stub, usual, "key")[1].keys() for _ in range(3)]
    store = opened_without(monkeypatch, stub.url, path)
    assert [asked(stub, store, "key")[1].keys() for _ in range(3)] == expected
    assert store.send_range("key", 5, 4) is None
    assert inside.form(store, "key") is None


@pytest.mark.parametrize(
    "path",
    [
        "_proxy_config",
        "_get_connection_manager",
        "_get_connection_manager.connection_from_url.pool",
        "_get_connection_manager.connection_from_url._put_conn",
    ],
)
def test_without_a_private_name_of_the_connections_no_request_is_sent_ahead(
    stub: Stub, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    store = opened_without(monkeypatch, stub.url, f"_endpoint.http_session.{path}")
    for _ in range(3):
        asked(stub, store, "key")
        assert store.send_range("key", 5, 4) is None
    form = inside.form(store, "key")
    assert form is not None and form.pool is None
