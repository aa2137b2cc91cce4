"""Google Cloud Storage: what differs from S3. fake-gcs-server, which is not Google's, answers."""

from __future__ import annotations

import base64
import hashlib
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner

import sparkwal
from sparkwal.cli.main import main
from sparkwal.errors import OptionError
from sparkwal.reading.listing import sequencer_names
from sparkwal.store import google, rest
from sparkwal.store.base import LogStore, NotFound, Page, Refusal, Transient
from sparkwal.store.config import RetryPolicy, S3Config
from sparkwal.store.conformance.checks import CHECKS
from sparkwal.store.conformance.suite import Report, Trial, prove
from sparkwal.store.google import GoogleStore
from sparkwal.store.open import open_store
from sparkwal.store.rest import Reply, Request
from sparkwal.store.retry import RetryingStore
from sparkwal.store.s3_errors import Denied, KeyTaken
from sparkwal.store.s3_replies import Unproven
from sparkwal.testing.faults import Fault
from sparkwal.testing.proxy import S3Proxy

from . import fake_gcs
from .test_azure import put, race


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STORAGE_EMULATOR_HOST", raising=False)


def test_a_bucket_is_named_by_its_path() -> None:
    store, prefix = open_store("gs://logs/a/b", None, RetryPolicy())
    assert (store.url, store.identity, prefix) == ("gs://logs", "gs://logs", "a/b")


def test_credentials_and_options_of_s3_are_refused() -> None:
    config = S3Config(access_key_id="k", secret_access_key="hush-hush")
    with pytest.raises(OptionError, match="GOOGLE_APPLICATION_CREDENTIALS") as refused:
        open_store("gs://logs/a", config, RetryPolicy())
    assert "hush" not in str(refused.value)
    with pytest.raises(OptionError, match="region is for a path on S3"):
        sparkwal.Log("gs://logs/wal", region="x")


def test_a_missing_library_of_tokens_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "google.auth", None)
    google.TOKEN.forget()
    with pytest.raises(OptionError, match=r"google-auth is missing.*\.\[clouds\]"):
        GoogleStore("logs", S3Config()).get("k")
    with pytest.raises(OptionError, match="has no TLS"):
        GoogleStore("logs", S3Config(endpoint="http://10.0.0.1:1")).get("k")


# -- replies, as Google's documents have them


class Server:
    """Replies in place of a server, each to one request."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.replies: list[Reply] = []
        self.requests: list[Request] = []
        monkeypatch.setattr(rest, "send", self.send)
        self.store = GoogleStore("logs", S3Config())

    def send(self, request: Request, config: S3Config, sign: Callable[[Request], Request]) -> Reply:
        self.requests.append(request)
        return self.replies.pop(0)

    def answers(self, status: int, body: object = None, **headers: str) -> None:
        text = body if isinstance(body, str) else json.dumps(body)
        self.replies.append(Reply(status, headers, text.encode()))

    def fails(self, status: int, reason: str, message: str) -> None:
        error = {"code": status, "message": message, "errors": [{"reason": reason}]}
        self.answers(status, {"error": error})

    def lists(self, *names: str, token: str = "", folders: Sequence[str] = ()) -> None:
        items = [{"name": name, "size": "1", "generation": "7"} for name in names]
        page = {"kind": "storage#objects", "items": items, "prefixes": [*folders]}
        self.answers(200, {**page, "nextPageToken": token})


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Server:
    return Server(monkeypatch)


def shown(page: Page) -> tuple[list[str], bool]:
    return [entry.key for entry in page.entries], page.more


def written(name: str, body: bytes, **other: str) -> dict[str, str]:
    md5 = base64.b64encode(hashlib.md5(body).digest()).decode()
    return {"name": name, "generation": "1", "size": str(len(body)), "md5Hash": md5} | other


def test_a_create_demands_that_there_is_no_generation(server: Server) -> None:
    server.answers(200, written("a/k", b"x"))
    assert server.store.put_if_absent("a/k", b"x")
    (request,) = server.requests
    expected = {"uploadType": "media", "name": "a/k", "ifGenerationMatch": "0"}
    assert (request.method, request.query) == ("POST", expected)
    server.fails(412, "conditionNotMet", "At least one of the pre-conditions did not hold.")
    assert not server.store.put_if_absent("a/k", b"x")


def test_a_429_to_a_create_may_have_taken_effect(server: Server) -> None:
    server.fails(429, "rateLimitExceeded", "The object exceeded the rate limit")
    server.fails(412, "conditionNotMet", "did not hold")
    with pytest.raises(Transient, match="429") as unknown:
        server.store.put_if_absent("k", b"x")
    assert not unknown.value.unreachable
    # So the retry that finds the key taken is no proof of another writer: the caller reads it.
    assert not server.store.put_if_absent("k", b"x")


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (200, "<html>log in</html>"),
        (200, written("other", b"x")),
        (200, written("k", b"other")),
        (200, written("k", b"x", md5Hash="AAAA")),
        (200, {"name": "k"}),
    ],
)
def test_another_reply_creates_no_object(server: Server, status: int, body: object) -> None:
    server.answers(status, body)
    with pytest.raises(Unproven):
        server.store.put_if_absent("k", b"x")


@pytest.mark.parametrize(
    ("status", "reason", "message", "error", "text"),
    [
        (404, "notFound", "The specified bucket does not exist.", Refusal, "create the bucket"),
        (403, "forbidden", "no storage.objects.create access", Denied, "Storage Object User"),
        (409, "conflict", "a conflict", Transient, "a conflict"),
        (503, "backendError", "later", Transient, "later"),
        (400, "invalid", "Invalid bucket name", OptionError, "Invalid bucket name"),
    ],
)
def test_a_refusal_is_no_taken_key(
    server: Server, status: int, reason: str, message: str, error: type[Exception], text: str
) -> None:
    server.fails(status, reason, message)
    with pytest.raises(error, match=text) as refused:
        server.store.put_if_absent("k", b"x")
    assert not isinstance(refused.value, KeyTaken)


def test_a_404_to_a_request_that_needs_no_object_is_no_missing_object(store: GoogleStore) -> None:
    absent = GoogleStore("absent-bucket", store.config)
    requests: list[Callable[[], object]] = [
        lambda: absent.list("a"),
        lambda: absent.put("a", b""),
        lambda: absent.put_if_absent("a", b""),
    ]
    for request in requests:
        with pytest.raises(Refusal, match="create the bucket"):
            request()


def test_a_404_counts_only_if_it_names_the_object(server: Server) -> None:
    server.answers(404, "No such object: logs/k")
    with pytest.raises(NotFound):
        server.store.get("k")
    assert len(server.requests) == 1
    server.answers(404, "<html>a proxy</html>")
    server.answers(404, "<html>a proxy</html>")
    with pytest.raises(Transient):
        server.store.get("k")


def test_a_list_begins_after_the_name(server: Server) -> None:
    server.lists("p/2", "p/3", "p/4", token="t")
    assert shown(server.store.list("p/", 2, "p/2")) == (["p/3", "p/4"], True)
    (request,) = server.requests
    assert (request.query["startOffset"], request.query["maxResults"]) == ("p/2", "3")
    server.lists("p/2", token="t")
    server.lists("p/3")
    assert shown(server.store.list("p/", 1, "p/2")) == (["p/3"], False)


def test_each_page_of_folders_is_one_request_that_begins_after_the_last(server: Server) -> None:
    pages = [("a", "b"), ("c",), ("d",)]
    for number, names in enumerate(pages):
        folders = [f"wal/sequencers/{name}/batches/" for name in names]
        server.lists(folders=folders, token="t" * (number < 2))
    store = RetryingStore(server.store, RetryPolicy())
    assert sequencer_names(LogStore(store, "wal")) == ["a", "b", "c", "d"]
    starts = [request.query.get("startOffset") for request in server.requests]
    assert starts == [None, "wal/sequencers/b0", "wal/sequencers/c0"]


def test_a_delete_of_an_object_that_changed_keeps_it(server: Server) -> None:
    server.answers(204, "")
    server.fails(412, "conditionNotMet", "did not hold")
    server.fails(404, "notFound", "No such object: logs/c")
    assert server.store.delete_many(["a", "b", "c"], ["1", "2", ""]) == ["b"]
    conditions = [request.query.get("ifGenerationMatch") for request in server.requests]
    assert conditions == ["1", "2", None]


# -- fake-gcs-server


@pytest.fixture
def store(fake_gcs_url: str) -> GoogleStore:
    return fake_gcs.new_store(fake_gcs_url)


def test_the_server_is_fit_and_nothing_is_left(store: GoogleStore) -> None:
    report = Report(tuple(prove([store], "log", Trial(rounds=4, threads=8, seed=7), CHECKS)))
    assert report.verdict == "FIT", report.sentence
    assert store.list("").entries == []


def test_of_16_creators_one_wins_200_times(store: GoogleStore) -> None:
    for number in range(200):
        assert len(race(store, f"race/{number}", put)) == 1


@pytest.fixture
def proxy(fake_gcs_url: str) -> Iterator[S3Proxy]:
    with S3Proxy(fake_gcs_url) as proxy:
        yield proxy


@pytest.mark.parametrize(("action", "status"), [("lost_reply", 0), ("error_after", 429)])
def test_a_lost_reply_to_a_create_is_no_second_object(
    proxy: S3Proxy, action: Any, status: int
) -> None:
    store = RetryingStore(fake_gcs.new_store(proxy.url), RetryPolicy(base_delay_ms=1))
    proxy.reset()
    proxy.faults = [Fault(action, kind="PUT", times=1, status=status)]
    # The second attempt finds the object of the first; the caller reads it back.
    assert not store.put_if_absent("k", b"mine")
    assert store.get("k") == b"mine"
    assert proxy.counts() == Counter(PUT=2, GET=1)


SCHEMA = pa.schema([("id", pa.int64())])


def flags(options: dict[str, str]) -> Sequence[str]:
    return ["--endpoint", options["endpoint"], "--log-option=hedge=false"]


def test_a_log_is_written_read_verified_and_collected(proxy: S3Proxy) -> None:
    path = f"gs://{fake_gcs.new_bucket(proxy.url)}/wal"
    options: Any = fake_gcs.options(proxy.url)
    for term in range(2):
        with sparkwal.Appender(path, SCHEMA, producer_id="p", **options) as wal:
            wal.append([{"id": term * 5}]).result()
            proxy.reset()
            for number in range(1, 5):
                wal.append([{"id": term * 5 + number}]).result()
            assert proxy.counts() == Counter(PUT=4)
    proxy.reset()
    opened = sparkwal.Log(path, **options)
    assert opened.head() is not None
    assert proxy.counts() == Counter(LIST=1, GET=1)
    assert sorted(opened.scan().read_all()["id"].to_pylist()) == list(range(10))
    assert sparkwal.verify(path, **options).ok
    for command in ("status", "log", "cat", "collect"):
        result = CliRunner().invoke(main, [command, path, *flags(options)])
        assert result.exit_code == 0, result.output
