"""Azure Blob Storage: what differs from S3. Azurite, Microsoft's test server, answers."""

from __future__ import annotations

import base64
import json
import logging
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner

import sparkwal
from sparkwal.cli.main import main
from sparkwal.errors import OptionError, StoreUnavailableError
from sparkwal.reading.listing import sequencer_names
from sparkwal.store import rest
from sparkwal.store.azure import AzureStore
from sparkwal.store.azure_account import account_of
from sparkwal.store.base import Folders, LogStore, NotFound, Page, Refusal, Transient
from sparkwal.store.config import RetryPolicy, S3Config
from sparkwal.store.conformance.checks import CHECKS
from sparkwal.store.conformance.suite import Report, Trial, prove
from sparkwal.store.open import open_store
from sparkwal.store.path import overlap
from sparkwal.store.rest import Reply, Request
from sparkwal.store.retry import RetryingStore
from sparkwal.store.s3_errors import Denied, KeyTaken
from sparkwal.store.s3_replies import Unproven
from sparkwal.testing.faults import Fault
from sparkwal.testing.proxy import S3Proxy
from tests.lifecycle.iceberg_table import configure

from . import azurite

HOST = "logs@acct.dfs.core.windows.net"
SECRET = base64.b64encode(b"the secret key of an account").decode()


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("CONNECTION_STRING", "ACCOUNT_NAME", "ACCOUNT", "ACCOUNT_KEY", "KEY", "SAS_TOKEN")
    for name in names:
        monkeypatch.delenv(f"AZURE_STORAGE_{name}", raising=False)


# -- paths and accounts


@pytest.mark.parametrize(
    ("path", "url", "prefix"),
    [
        (
            "abfss://logs@acct.dfs.core.windows.net/a/b",
            "abfss://logs@acct.dfs.core.windows.net",
            "a/b",
        ),
        ("abfs://logs@acct.blob.core.windows.net/", "abfss://logs@acct.dfs.core.windows.net", ""),
        ("az://logs/a", "abfss://logs@mine.dfs.core.windows.net", "a"),
        (
            "abfss://logs@acct.dfs.core.usgovcloudapi.net/a",
            "abfss://logs@acct.dfs.core.usgovcloudapi.net",
            "a",
        ),
    ],
)
def test_one_container_has_one_name(
    path: str, url: str, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "mine")
    store, root = open_store(path, None, RetryPolicy())
    assert (store.url, store.identity, root) == (url, url, prefix)


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("az://logs/a", "names no Azure account"),
        ("abfss://logs@evil.example.com/a", "none of Azure Blob Storage"),
        ("abfss://logs@acct.dfs.core.windows.net.evil.com/a", "none of Azure Blob Storage"),
        ("abfss://Logs@acct.dfs.core.windows.net/a", "no name of a container"),
        ("abfss://l:pw@acct.dfs.core.windows.net/a", "no credentials"),
        ("abfss://logs@acct.dfs.core.windows.net/a?sig=x", "no query"),
        ("az://logs@acct/a", "no credentials"),
        ("az://", "no bucket"),
        ("wasbs://logs@acct.blob.core.windows.net/a", "write abfss://"),
    ],
)
def test_a_wrong_path_is_refused_and_shows_no_secret(path: str, expected: str) -> None:
    with pytest.raises(OptionError, match=expected) as refused:
        open_store(path, None, RetryPolicy())
    assert "pw" not in str(refused.value)
    assert "sig=x" not in str(refused.value)


def test_a_table_in_the_same_container_overlaps_in_each_spelling() -> None:
    log = "abfss://c@acct.dfs.core.windows.net/wal"
    assert overlap(log, "az://c/wal/table")
    assert not overlap(log, "az://c/table")
    assert not overlap(log, "s3://c/wal")


def test_a_key_of_another_account_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "other")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", SECRET)
    place = "c@acct.dfs.core.windows.net"
    assert account_of(place, S3Config())[0].key is None
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "acct")
    assert account_of(place, S3Config())[0].key == base64.b64decode(SECRET)
    config = S3Config(access_key_id="other", secret_access_key=SECRET)
    with pytest.raises(OptionError, match="another account"):
        account_of(place, config)


@pytest.mark.parametrize("path", ["az://logs/a", "abfss://logs@acct.dfs.core.windows.net/a"])
def test_a_connection_string_gives_account_key_and_address(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = f"AccountName=acct;AccountKey={SECRET};BlobEndpoint=http://127.0.0.1:1/acct;"
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", text)
    assert open_store(path, None, RetryPolicy())[0].url == "http://127.0.0.1:1/acct/logs"
    account, _ = account_of("logs", S3Config())
    assert account.key == base64.b64decode(SECRET)


def test_secrets_are_in_no_repr_and_no_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_STORAGE_SAS_TOKEN", "?sv=2023&sig=very%2Bsecret")
    account, _ = account_of("c@acct.dfs.core.windows.net", S3Config())
    assert dict(account.sas)["sig"] == "very+secret"
    assert "secret" not in repr(account)
    for name, value in (("SAS_TOKEN", "sv=hush"), ("ACCOUNT_KEY", "hush!")):
        monkeypatch.setenv(f"AZURE_STORAGE_{name}", value)
        with pytest.raises(OptionError, match="not shown") as refused:
            account_of("c@acct.dfs.core.windows.net", S3Config())
        assert "hush" not in str(refused.value)


def test_a_signature_is_sent_and_not_logged(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AZURE_STORAGE_SAS_TOKEN", "sv=2023&sig=very%2Bsecret")
    caplog.set_level(logging.DEBUG)
    config = S3Config(endpoint="http://127.0.0.1:1", connect_timeout=0.2)
    store = RetryingStore(AzureStore("logs@acct.dfs.core.windows.net", config), RetryPolicy(0))
    with pytest.raises(StoreUnavailableError) as failed:
        store.get("k")
    logging.getLogger("urllib3.connectionpool").debug('"GET /c?sv=2023&sig=very%2Bsecret HTTP/1.1"')
    assert "very" not in caplog.text + str(failed.value)


def test_no_token_is_sent_without_tls() -> None:
    config = S3Config(endpoint="http://10.0.0.1:1")
    with pytest.raises(OptionError, match="has no TLS"):
        AzureStore("logs@acct.dfs.core.windows.net", config).get("k")


def test_options_of_s3_are_refused() -> None:
    with pytest.raises(OptionError, match="region is for a path on S3"):
        sparkwal.Log("abfss://c@acct.dfs.core.windows.net/wal", region="x")


# -- replies


class Server:
    """Replies in place of a server, each to one request."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.replies: list[Reply] = []
        self.requests: list[Request] = []
        monkeypatch.setattr(rest, "send", self.send)
        config = S3Config(access_key_id="acct", secret_access_key=SECRET)
        self.store = AzureStore("logs", config)

    def send(self, request: Request, config: S3Config, sign: Callable[[Request], Request]) -> Reply:
        self.requests.append(sign(request))
        return self.replies.pop(0)

    def answers(self, status: int, body: str = "", **headers: str) -> None:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        self.replies.append(Reply(status, {"x-ms-request-id": "1", **named}, body.encode()))

    def lists(
        self,
        *names: str,
        folders: Sequence[str] = (),
        marker: str = "",
        prefix: str = "p/",
        directory: str = "",
    ) -> None:
        kind = "<ResourceType>directory</ResourceType>"
        blobs = "".join(
            f"<Blob><Name>{name}</Name><Properties><Content-Length>1</Content-Length>"
            f"<Etag>e</Etag>{kind * (name == directory)}</Properties></Blob>"
            for name in names
        )
        blobs += "".join(f"<BlobPrefix><Name>{name}</Name></BlobPrefix>" for name in folders)
        self.answers(
            200,
            f'<EnumerationResults ContainerName="logs"><Prefix>{prefix}</Prefix>'
            f"<Blobs>{blobs}</Blobs><NextMarker>{marker}</NextMarker></EnumerationResults>",
        )


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Server:
    return Server(monkeypatch)


def shown(page: Page) -> tuple[list[str], bool]:
    return [entry.key for entry in page.entries], page.more


def test_a_list_that_begins_at_a_name_costs_one_request(server: Server) -> None:
    server.lists("p/2", "p/3", "p/4")
    assert shown(server.store.list("p/", 2, "p/2")) == (["p/3", "p/4"], False)
    (request,) = server.requests
    assert request.query["startFrom"] == "p/2"
    assert request.headers["x-ms-version"] == "2026-02-06"
    # It is certain from now on, also if the object is gone.
    server.lists("p/9", marker="m")
    assert shown(server.store.list("p/", 2, "p/5")) == (["p/9"], True)


def test_names_are_skipped_where_the_server_ignores_the_begin(server: Server) -> None:
    server.lists("p/1", "p/2", "p/3")
    server.lists("p/1", "p/2", marker="m")
    server.lists("p/3", "p/4", "p/5")
    assert shown(server.store.list("p/", 2, "p/2")) == (["p/3", "p/4"], True)
    assert [x.query.get("marker") for x in server.requests] == [None, None, "m"]
    # It is not asked again.
    server.lists("p/1", "p/2", "p/3")
    assert shown(server.store.list("p/", 2, "p/2")) == (["p/3"], False)


def test_no_name_is_lost_where_the_begin_is_not_certain(server: Server) -> None:
    # A server that took the name for another one begins too late.
    server.lists("p/4")
    server.lists("p/1", "p/3", "p/4")
    assert shown(server.store.list("p/", 9, "p/2")) == (["p/3", "p/4"], False)


def test_a_server_without_such_a_version_is_asked_once(server: Server) -> None:
    server.answers(400, "<Error><Code>InvalidHeaderValue</Code></Error>")
    server.lists("p/1", "p/2")
    assert shown(server.store.list("p/", 9, "p/1")) == (["p/2"], False)


def test_an_empty_page_is_continued(server: Server) -> None:
    server.lists(marker="m")
    server.lists("p/1")
    assert shown(server.store.list("p/", 1)) == (["p/1"], False)


def test_folders_of_a_hierarchical_namespace_are_no_objects(server: Server) -> None:
    server.lists("p/a", "p/a/1", directory="p/a")
    assert shown(server.store.list("p/")) == (["p/a/1"], False)


def batches(*names: str) -> list[str]:
    return [f"wal/sequencers/{name}/batches/" for name in names]


def lists_folders(server: Server, *names: str, marker: str = "") -> None:
    server.lists(folders=batches(*names), marker=marker, prefix="wal/sequencers/")


def test_each_page_of_folders_is_one_request_that_is_repeated_alone(server: Server) -> None:
    lists_folders(server, "a", "b", marker="m1")
    server.answers(503, "<Error><Code>ServerBusy</Code></Error>")
    lists_folders(server, "c", marker="m2")
    lists_folders(server, "d")
    store = RetryingStore(server.store, RetryPolicy(base_delay_ms=1))
    assert sequencer_names(LogStore(store, "wal")) == ["a", "b", "c", "d"]
    markers = [request.query.get("marker") for request in server.requests]
    assert markers == [None, "m1", "m1", "m2"]


def test_one_call_reads_one_page_of_folders(server: Server) -> None:
    lists_folders(server, "a", "b", marker="m")
    lists_folders(server, "c")
    found = server.store.folders("wal/sequencers/", "batches")
    assert found is not None and found.names == ["a", "b"]
    assert len(server.requests) == 1
    assert server.store.folders("wal/sequencers/", "batches", found.after) == Folders(["c"], "")


def test_folders_after_a_key_are_found_without_those_before_it(server: Server) -> None:
    lists_folders(server, "a", "b", marker="m")
    lists_folders(server, "c", "d")
    found = server.store.folders("wal/sequencers/", "batches", "wal/sequencers/b0")
    assert found == Folders(["c", "d"], "")


def test_pages_of_folders_that_show_nothing_or_begin_again_end(server: Server) -> None:
    for _ in range(1000):
        lists_folders(server, marker="m")
    with pytest.raises(Transient, match="lead no further"):
        server.store.folders("wal/sequencers/", "batches")
    lists_folders(server, "a", "b", marker="m")
    found = server.store.folders("wal/sequencers/", "batches")
    assert found is not None
    lists_folders(server, "a", "b", marker="m")
    with pytest.raises(Unproven, match="shows"):
        server.store.folders("wal/sequencers/", "batches", found.after)


def test_a_list_out_of_order_is_an_error(server: Server) -> None:
    server.lists("p/a/1", "p/a-b")
    with pytest.raises(Unproven, match="shows p/a-b after p/a/1"):
        server.store.list("p/")


@pytest.mark.parametrize(
    "reply",
    [
        (200, "<html>log in</html>", "1"),
        (201, "", ""),
    ],
)
def test_another_servers_page_creates_no_object(
    server: Server, reply: tuple[int, str, str]
) -> None:
    status, body, request_id = reply
    server.answers(status, body, x_ms_request_id=request_id)
    with pytest.raises(Unproven):
        server.store.put_if_absent("k", b"x")


def test_a_write_with_the_md5_of_other_bytes_is_not_believed(server: Server) -> None:
    server.answers(201, Content_MD5=base64.b64encode(b"0" * 16).decode())
    with pytest.raises(Unproven, match="other bytes"):
        server.store.put("k", b"x")


@pytest.mark.parametrize(
    ("status", "code", "error", "text"),
    [
        (404, "ContainerNotFound", Refusal, "create the container"),
        (404, "", Transient, "without a code"),
        (403, "AuthorizationPermissionMismatch", Denied, "Storage Blob Data Contributor"),
        (403, "AuthenticationFailed", Denied, "check the account's key"),
        (409, "OperationInProgress", Transient, "OperationInProgress"),
        (409, "BlobImmutableDueToPolicy", OptionError, "immutability policy"),
        (412, "LeaseIdMissing", OptionError, "LeaseIdMissing"),
        (503, "ServerBusy", Transient, "ServerBusy"),
        (400, "Md5Mismatch", Transient, "Md5Mismatch"),
        (302, "", Refusal, "302"),
    ],
)
def test_a_refusal_is_no_taken_key(
    server: Server, status: int, code: str, error: type[Exception], text: str
) -> None:
    named = f"<Error><Code>{code}</Code><Message>said\nnot shown</Message></Error>" if code else ""
    server.answers(status, named)
    with pytest.raises(error, match=text) as refused:
        server.store.put_if_absent("k", b"x")
    assert not isinstance(refused.value, KeyTaken)
    assert "not shown" not in str(refused.value)


def test_a_delete_of_an_object_that_changed_keeps_it(server: Server) -> None:
    server.answers(202)
    server.answers(412, "<Error><Code>ConditionNotMet</Code></Error>")
    server.answers(404, "<Error><Code>BlobNotFound</Code></Error>")
    assert server.store.delete_many(["a", "b", "c"], ["0x1", '"0x2"', ""]) == ["b"]
    conditions = [request.headers.get("If-Match") for request in server.requests]
    assert conditions == ['"0x1"', '"0x2"', None]


# -- Azurite


@pytest.fixture
def store(azurite_url: str) -> AzureStore:
    return azurite.new_store(azurite_url)


def test_azurite_is_fit_and_nothing_is_left(store: AzureStore) -> None:
    report = Report(tuple(prove([store], "log", Trial(rounds=4, threads=8, seed=7), CHECKS)))
    assert report.verdict == "FIT", report.sentence
    assert store.list("").entries == []


def put(store: Any, key: str, body: bytes, meet: Callable[[], object]) -> bool:
    meet()
    return bool(store.put_if_absent(key, body))


def upload(store: AzureStore, key: str, body: bytes, meet: Callable[[], object]) -> bool:
    """In three parts, which are sent before the others create anything."""
    parts = store.upload(key)
    for number in (3, 1, 2):
        parts.part(number, number - 1, body[number - 1 :: 3])
    meet()
    return parts.complete()


def race(store: Any, key: str, *kinds: Callable[..., bool]) -> list[bytes]:
    """The bodies of those that created the object; 16 race, of each kind as many."""
    barrier = threading.Barrier(16)
    won: list[bytes] = []

    def run(number: int) -> None:
        body = b"%06d" % number
        if kinds[number % len(kinds)](store, key, body, barrier.wait):
            won.append(body)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return won


def in_parts(body: bytes) -> bytes:
    return body[::3] + body[1::3] + body[2::3]


def test_of_16_creators_one_wins_200_times(store: AzureStore) -> None:
    for number in range(200):
        assert len(race(store, f"race/{number}", put)) == 1
    assert len(store.list("race/").entries) == 200


def test_of_16_uploads_in_blocks_one_wins_50_times(store: AzureStore) -> None:
    for number in range(50):
        (winner,) = race(store, f"race/{number}", upload)
        assert store.get(f"race/{number}") == in_parts(winner)
    assert len(store.list("race/").entries) == 50


def test_of_uploads_in_blocks_and_puts_one_wins_50_times(store: AzureStore) -> None:
    for number in range(50):
        (winner,) = race(store, f"race/{number}", upload, put)
        stored = store.get(f"race/{number}")
        assert stored == (winner if int(winner) % 2 else in_parts(winner))


def test_an_upload_is_visible_only_when_it_is_complete(store: AzureStore) -> None:
    first, second = store.upload("k"), store.upload("k")
    # Both have a part 1 of the same key.
    for upload_, body in ((first, b"first"), (second, b"other")):
        upload_.part(1, 0, body)
    with pytest.raises(NotFound):
        store.get("k")
    assert store.list("").entries == []
    assert first.complete()
    assert not second.complete()
    assert store.get("k") == b"first"
    # Its blocks went with the first list.
    store.delete("k")
    assert not second.complete()
    with pytest.raises(NotFound):
        store.get("k")


@pytest.mark.parametrize("again", [put, upload])
def test_the_key_of_a_killed_upload_is_free(store: AzureStore, again: Callable[..., bool]) -> None:
    store.upload("k").part(1, 0, b"killed")
    assert again(store, "k", b"123456", lambda: None)
    assert store.get("k") in (b"123456", in_parts(b"123456"))
    assert not put(store, "k", b"another", lambda: None)


@pytest.mark.parametrize("action", ["lost_reply", "error_after"])
def test_a_lost_reply_to_the_list_of_blocks_is_no_second_object(
    azurite_proxy: S3Proxy, action: Any
) -> None:
    store = RetryingStore(azurite.new_store(azurite_proxy.url), RetryPolicy(base_delay_ms=1))
    azurite_proxy.reset()
    azurite_proxy.faults = [Fault(action, kind="COMPLETE_MULTIPART", times=1, status=503)]
    parts = store.upload("k")
    parts.part(1, 0, b"mine")
    # The second attempt finds the object of the first; the caller reads it back.
    assert not parts.complete()
    assert store.get("k") == b"mine"
    assert azurite_proxy.counts() == Counter(UPLOAD_PART=1, COMPLETE_MULTIPART=2, GET=1)


@pytest.mark.parametrize("action", ["lost_reply", "error_after"])
def test_a_lost_reply_to_a_create_is_no_second_object(azurite_proxy: S3Proxy, action: Any) -> None:
    store = RetryingStore(azurite.new_store(azurite_proxy.url), RetryPolicy(base_delay_ms=1))
    azurite_proxy.reset()
    azurite_proxy.faults = [Fault(action, kind="PUT", times=1, status=503)]
    # The second attempt finds the object of the first; the caller reads it back.
    assert not store.put_if_absent("k", b"mine")
    assert store.get("k") == b"mine"
    assert azurite_proxy.counts() == Counter(PUT=2, HEAD=1, GET=1)


def test_a_list_after_a_name_goes_through_all_pages(store: AzureStore) -> None:
    names = [f"p/{number:03d}" for number in range(30)]
    for name in names:
        store.put(name, b"x")
    for after in (9, 28, 29):
        page = store.list("p/", 5, names[after])
        expected = names[after + 1 : after + 6]
        assert shown(page) == (expected, after + 6 < 30)
    assert store.list("p/", 5, "p/0095").entries[0].key == "p/010"


def test_logs_below_a_path_are_found_by_folders(store: AzureStore) -> None:
    for name in ("a", "a-b", "b"):
        store.put(f"wal/sequencers/{name}/batches/1", b"x")
    store.put("wal/sequencers/x/proof/1", b"x")
    found = store.folders("wal/sequencers/", "batches")
    # Azurite takes a delimiter of one character; Azure's documents name no such limit.
    assert found is None or found == Folders(["a-b", "a", "b"], "")
    names = sequencer_names(LogStore(store, "wal"))
    assert names is None or sorted(names) == ["a", "a-b", "b"]


def test_an_object_that_changed_is_not_deleted(store: AzureStore) -> None:
    store.put("k", b"1")
    (first,) = store.list("k").entries
    store.put("k", b"2")
    assert store.delete_many(["k"], [first.etag]) == ["k"]
    (second,) = store.list("k").entries
    assert store.delete_many(["k"], [second.etag]) == []
    with pytest.raises(NotFound):
        store.get("k")


def test_no_container_is_named(azurite_url: str) -> None:
    store = AzureStore("absent-container", azurite.config(azurite_url))
    for request in (lambda: store.list("a"), lambda: store.get("a"), lambda: store.age_ms("a")):
        with pytest.raises(OptionError, match="create the container"):
            request()


def test_a_wrong_key_is_refused_and_not_shown(azurite_url: str) -> None:
    config = S3Config(
        endpoint=f"{azurite_url}/{azurite.ACCOUNT}",
        access_key_id=azurite.ACCOUNT,
        secret_access_key=SECRET,
    )
    with pytest.raises(Denied, match="refused the request") as refused:
        AzureStore("logs", config).list("")
    assert SECRET not in str(refused.value)


@pytest.fixture
def log(azurite_proxy: S3Proxy) -> Iterator[tuple[str, dict[str, Any]]]:
    container = azurite.new_container(azurite_proxy.url)
    azurite_proxy.reset()
    path = f"abfss://{container}@{azurite.ACCOUNT}.dfs.core.windows.net/wal"
    yield path, azurite.options(azurite_proxy.url)


SCHEMA = pa.schema([("id", pa.int64())])


def test_an_appender_writes_a_log_and_verify_finds_no_fault(
    log: tuple[str, dict[str, Any]], azurite_proxy: S3Proxy
) -> None:
    path, options = log
    for term in range(2):
        with sparkwal.Appender(path, SCHEMA, producer_id="p", **options) as wal:
            for number in range(5):
                wal.append([{"id": term * 5 + number}]).result()
    azurite_proxy.reset()
    opened = sparkwal.Log(path, **options)
    head = opened.head()
    assert head is not None
    # The start of a reader: 1 LIST and 1 GET.
    assert azurite_proxy.counts() == Counter(LIST=1, GET=1)
    assert sorted(opened.scan().read_all()["id"].to_pylist()) == list(range(10))
    assert sparkwal.verify(path, **options).ok


def test_a_log_is_compacted_into_iceberg(
    log: tuple[str, dict[str, Any]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path, options = log
    table = configure(monkeypatch, tmp_path)
    life = sparkwal.Lifecycle(path, table=table, keys=["id"], **options)
    with sparkwal.Appender(path, SCHEMA, producer_id="p", **options) as wal:
        for number in range(4):
            wal.append([{"id": number % 2}]).result()
            assert life.run_once(whole=True).cut == number + 2
        wal.append([{"id": 7}]).result()
    collected = CliRunner().invoke(main, ["collect", path, *flags(options), "--delete"])
    assert collected.exit_code == 0, collected.output
    current = sparkwal.Log(path, **options).current().to_arrow()
    assert sorted(current["id"].to_pylist()) == [0, 1, 7]
    assert sparkwal.verify(path, **options).ok


def with_folders(send: Callable[..., Reply], folders: set[str]) -> Callable[..., Reply]:
    """A hierarchical namespace: a LIST shows folders too, and takes only "/" as a delimiter.

    Args:
        folders: takes the names of the folders that it has shown.
    """

    def changed(request: Request, *rest: Any) -> Reply:
        if request.query.get("delimiter", "/") != "/":
            code = b"<Error><Code>InvalidQueryParameterValue</Code></Error>"
            return Reply(400, {"x-ms-request-id": "1"}, code)
        reply = send(request, *rest)
        if request.query.get("comp") != "list":
            return reply
        shown: set[str] = set()

        def after_its_folders(match: re.Match[bytes]) -> bytes:
            *above, _ = match[1].decode().split("/")
            names = ["/".join(above[: end + 1]) for end in range(len(above))]
            new = [x for x in names if x.startswith(request.query["prefix"]) and x not in shown]
            shown.update(new)
            blobs = "".join(
                f"<Blob><Name>{name}</Name><Properties><Content-Length>0</Content-Length>"
                "<ResourceType>directory</ResourceType></Properties></Blob>"
                for name in new
            )
            return blobs.encode() + match[0]

        body = re.sub(rb"<Blob><Name>([^<]+)</Name>", after_its_folders, reply.body)
        folders.update(shown)
        return replace(reply, body=body)

    return changed


def test_folders_of_a_hierarchical_namespace_are_no_damage(
    log: tuple[str, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, options = log
    folders: set[str] = set()
    monkeypatch.setattr(rest, "send", with_folders(rest.send, folders))
    for name in ("default", "a", "b"):
        with sparkwal.Appender(path, SCHEMA, producer_id="p", sequencer=name, **options) as wal:
            for number in range(3):
                wal.append([{"id": number}]).result()
    assert sparkwal.verify(path, **options).ok
    assert sparkwal.verify(path, sequencer="a", **options).ok
    assert sorted(sparkwal.list_sequencers(path, **options)) == ["a", "b", "default"]
    life = sparkwal.Lifecycle(path, retainBytes=1, **options)
    life.run_once()
    for command in (["erased", "--value", "nowhere"], ["collect"], ["audit"], ["cost"]):
        result = CliRunner().invoke(main, [command[0], path, *command[1:], *flags(options)])
        assert result.exit_code == 0, result.output
    assert sparkwal.verify(path, **options).ok
    # There were some.
    assert {"wal/sequencers/a", "wal/sequencers/a/batches"} <= folders


def flags(options: dict[str, Any]) -> list[str]:
    own = [f"--log-option={name}={text}" for name, text in options.items() if name != "endpoint"]
    return [*own, "--endpoint", options["endpoint"]]


def test_the_commands_read_it_and_print_no_secret(log: tuple[str, dict[str, Any]]) -> None:
    path, options = log
    with sparkwal.Appender(path, SCHEMA, producer_id="p", **options) as wal:
        wal.append([{"id": 1}]).result()
    for command in (["status"], ["log"], ["cat"], ["verify"], ["doctor"]):
        result = CliRunner().invoke(main, [*command, path, *flags(options)])
        assert azurite.KEY not in result.output
        assert command == ["doctor"] or result.exit_code == 0, result.output
    result = CliRunner().invoke(
        main, ["prove-store", path, *flags(options), "--rounds=2", "--json"]
    )
    report = json.loads(result.output)
    assert (report["verdict"], azurite.KEY in result.output) == ("FIT", False)
