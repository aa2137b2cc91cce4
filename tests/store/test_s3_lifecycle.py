"""Answers of S3 to DeleteObjects, HEAD and ListMultipartUploads, and their meaning."""

from __future__ import annotations

import html
import re
import uuid
from base64 import b64encode
from collections.abc import Callable
from dataclasses import replace
from hashlib import md5

import pytest
from sortedcontainers import SortedDict

from sparkwal.errors import OptionError, StoreUnavailableError
from sparkwal.store.base import NotFound, Store, Transient, Unfinished
from sparkwal.store.config import RetryPolicy
from sparkwal.store.retry import RetryingStore
from sparkwal.store.s3 import S3Store
from sparkwal.testing.proxy import Fault, S3Proxy
from sparkwal.testing.servers import make_bucket
from tests.sorted_s3 import serve

from .stub_s3 import CONFIG, SECRETS, Reply, Stub, error

UPLOAD = Unfinished("key", "u1", 0)
FIRST_BYTE = {"Content-Range": "bytes 0-0/9"}


def retrying(store: Store) -> RetryingStore:
    return RetryingStore(store, RetryPolicy(), sleep=lambda _: None)


def kept(*failures: tuple[str, str], message: str = "said so", deleted: str = "") -> Reply:
    """The reply to a DeleteObjects; `deleted`: the keys that it names, with spaces between."""
    errors = "".join(
        f"<Error><Key>{key}</Key><Code>{code}</Code><Message>{message}</Message></Error>"
        for key, code in failures
    )
    gone = "".join(f"<Deleted><Key>{key}</Key></Deleted>" for key in deleted.split())
    return 200, {}, f"<DeleteResult>{gone}{errors}</DeleteResult>".encode()


GONE = kept(deleted="a/0 a/1 a/2 a/3")
ACTS: list[Callable[[Store], object]] = [
    lambda store: store.put("key", b"body"),
    lambda store: store.delete_many(["key", "other"]),
    lambda store: store.age_ms("key"),
    lambda store: store.unfinished("a/"),
    lambda store: store.discard(UPLOAD),
]


@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize(
    "reply", [error(503, "SlowDown"), error(500, "InternalError"), None, (502, {}, b"<html>")]
)
def test_a_temporary_failure_raises_transient(
    stub: Stub, store: S3Store, reply: Reply, act: Callable[[Store], object]
) -> None:
    stub.replies = [reply]
    with pytest.raises(Transient):
        act(store)
    assert len(stub.requests) == 1


@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize(
    ("reply", "expected_message"),
    [(error(403, "AccessDenied"), "for each role"), (error(404, "NoSuchBucket"), "create the")],
)
def test_a_refusal_is_raised_after_one_request(
    stub: Stub, store: S3Store, reply: Reply, expected_message: str, act: Callable[[Store], object]
) -> None:
    stub.replies = [reply]
    with pytest.raises(OptionError, match=expected_message):
        act(retrying(store))
    assert len(stub.requests) == 1


def test_an_overwriting_put_is_not_conditional(stub: Stub, store: S3Store) -> None:
    stub.replies = [(200, {}, b"")]
    store.put("key", b"body")
    (method, path, headers) = stub.requests[0]
    assert (method, path) == ("PUT", "/bucket/key")
    assert "if-none-match" not in headers


def test_a_thousand_keys_are_one_request_with_its_md5(stub: Stub, store: S3Store) -> None:
    keys = [f"a/{number}" for number in range(1000)]
    stub.replies = [kept(deleted=" ".join(keys))]
    store.delete_many(keys)
    ((method, path, headers),) = stub.requests
    assert (method, path) == ("POST", "/bucket?delete")
    # Older servers demand this one.
    assert headers["content-md5"] == b64encode(md5(stub.bodies[0]).digest()).decode()
    store.delete_many([])
    retrying(store).delete_many([])
    assert len(stub.requests) == 1


@pytest.mark.parametrize("code", ["InternalError", "SlowDown", "ServiceUnavailable"])
def test_one_key_that_fails_in_passing_is_sent_again(stub: Stub, store: S3Store, code: str) -> None:
    stub.replies = [kept(("a/2", code))]
    with pytest.raises(Transient, match="a/2.*" + code):
        store.delete_many(["a/1", "a/2"])
    stub.replies = [kept(("a/2", code)), kept(("a/2", code)), GONE]
    retrying(store).delete_many(["a/1", "a/2"])
    assert stub.replies == []
    stub.replies = [kept(("a/2", code))] * 4
    with pytest.raises(StoreUnavailableError, match="a/2.*" + code):
        retrying(store).delete_many(["a/1", "a/2"])


def test_one_key_that_is_refused_is_not_lost(stub: Stub, store: S3Store) -> None:
    stub.replies = [kept(("a/1", "SlowDown"), ("a/2", "AccessDenied"), ("a/3", "AccessDenied"))]
    with pytest.raises(OptionError, match="delete of a/2: AccessDenied.*s3:DeleteObject"):
        retrying(store).delete_many(["a/1", "a/2", "a/3"])
    assert len(stub.requests) == 1


def test_a_key_that_a_store_reports_as_absent_counts_as_deleted(stub: Stub, store: S3Store) -> None:
    stub.replies = [kept(("a/1", "NoSuchKey"))]
    store.delete_many(["a/1"])
    assert len(stub.requests) == 1


@pytest.mark.s3
@pytest.mark.parametrize("server", ["ministack", "moto"])
def test_an_object_recreated_since_the_list_stays_if_the_store_compares_etags(
    request: pytest.FixtureRequest, server: str
) -> None:
    url, bucket = request.getfixturevalue(f"{server}_url"), f"log-{uuid.uuid4().hex}"
    make_bucket(url, bucket)
    with S3Proxy(url) as proxy:
        store = retrying(S3Store(bucket, replace(CONFIG, endpoint=proxy.url)))
        for key in ("a/1", "a/2", "a/3"):
            store.put(key, b"old")
        listed = store.list("a/").entries
        store.put("a/2", b"new")
        store.delete("a/3")
        store.delete_many([each.key for each in listed], [each.etag for each in listed])
        # ministack enforces the condition, moto does not.
        stays = ["a/2"] if server == "ministack" else []
        assert [each.key for each in store.list("a/").entries] == stays
        listed = store.list("a/").entries
        store.delete_many([each.key for each in listed], [each.etag for each in listed])
        assert store.list("a/").entries == []
        # The second one of nothing is none.
        assert proxy.counts()["DELETE"] == 2 + (server == "ministack")


def test_etags_are_sent_as_the_list_shows_them(stub: Stub, store: S3Store) -> None:
    def entry(key: str, etag: str) -> str:
        return f"<Contents><Key>{key}</Key>{etag}<Size>1</Size></Contents>"

    etags = ("<ETag>&quot;a1&quot;</ETag>", "<ETag>&#34;b-2&#34;</ETag>", '<ETag>"c"</ETag>', "")
    entries = "".join(entry(f"a/{number}", etag) for number, etag in enumerate(etags))
    listing = f"<ListBucketResult><Name>bucket</Name>{entries}</ListBucketResult>".encode()
    # The last one is in another form, so that botocore reads it.
    for page in (listing, listing.replace(b"<Contents>", b"<Contents >")):
        stub.replies, stub.bodies = [(200, {}, page), GONE], []
        listed = store.list("a/").entries
        store.delete_many([each.key for each in listed], [each.etag for each in listed])
        sent = re.findall("<Key>([^<]*)</Key>(?:<ETag>([^<]*)</ETag>)?", stub.bodies[1].decode())
        shown = [(key, html.unescape(etag)) for key, etag in sent]
        assert shown == [("a/0", '"a1"'), ("a/1", '"b-2"'), ("a/2", '"c"'), ("a/3", "")]


def test_an_object_that_somebody_put_meanwhile_stays(stub: Stub, store: S3Store) -> None:
    stub.replies = [kept(("a/1", "PreconditionFailed"), ("a/2", "NoSuchKey"))]
    assert store.delete_many(["a/1", "a/2"], ["e1", "e2"]) == ["a/1"]
    stub.replies = [kept(("a/1", "PreconditionFailed"), ("a/2", "AccessDenied"))]
    with pytest.raises(OptionError, match="delete of a/2: AccessDenied"):
        store.delete_many(["a/1", "a/2"], ["e1", "e2"])


@pytest.mark.parametrize("code", ["NotImplemented", "MalformedXML", "InvalidArgument"])
def test_a_store_that_refuses_etags_is_asked_without(stub: Stub, code: str) -> None:
    for refusal in (error(400, code), kept(("a/1", code), ("a/2", code))):
        store = S3Store("bucket", replace(CONFIG, endpoint=stub.url))
        stub.replies, stub.bodies = [refusal, GONE, GONE], []
        for _ in range(2):
            store.delete_many(["a/1", "a/2"], ["e1", "e2"])
        assert [body.count(b"<ETag>") for body in stub.bodies] == [2, 0, 0]


def test_a_refusal_that_is_not_about_etags_stays_one(stub: Stub, store: S3Store) -> None:
    for refusal, etags in ((error(400, "MalformedXML"), []), (error(403, "AccessDenied"), ["e1"])):
        stub.replies = [refusal, GONE]
        with pytest.raises(OptionError):
            store.delete_many(["a/1"], etags)
        assert stub.replies == [GONE]


def test_a_delete_that_began_as_200_and_failed(stub: Stub, store: S3Store) -> None:
    stub.replies = [(200, {}, b"<Error><Code>SlowDown</Code></Error>")]
    with pytest.raises(Transient):
        store.delete_many(["a/1"])
    stub.replies = [(200, {}, b"<DeleteResult><Error><Key>a/1</K")]
    with pytest.raises(Transient):
        store.delete_many(["a/1"])


def test_secrets_are_in_no_refusal_of_a_key(stub: Stub, store: S3Store) -> None:
    for code in ("SlowDown", "AccessDenied"):
        stub.replies = [kept(("a/1", code), message=" ".join(SECRETS))]
        with pytest.raises((Transient, OptionError), match=r"\*\*\* \*\*\*") as caught:
            store.delete_many(["a/1"])
        assert not [secret for secret in SECRETS if secret in repr(caught.value)]


@pytest.mark.parametrize(
    ("modified", "age_ms"),
    [
        ("Sun, 01 Nov 2026 11:59:00 GMT", 59_000),
        ("Sun, 01 Nov 2026 11:59:59 GMT", 0),
        ("Sun, 01 Nov 2026 12:00:00 GMT", 0),
        ("Sun, 01 Nov 2026 12:00:07 GMT", 0),
        ("Sat, 31 Oct 2026 12:00:00 GMT", 86_399_000),
    ],
)
def test_an_age_is_the_servers_and_rounded_down(
    stub: Stub, store: S3Store, monkeypatch: pytest.MonkeyPatch, modified: str, age_ms: int
) -> None:
    handler = stub.server.RequestHandlerClass
    monkeypatch.setattr(
        handler, "date_time_string", lambda *_: "Sun, 01 Nov 2026 12:00:00 GMT", raising=False
    )
    stub.replies = [(206, {**FIRST_BYTE, "Last-Modified": modified}, b"x")]
    assert store.age_ms("key") == age_ms
    assert stub.requests[0][2]["range"] == "bytes=0-0"
    empty = (200, {"Last-Modified": modified}, b"")
    stub.replies = [error(416, "InvalidRange"), empty]
    assert store.age_ms("key") == age_ms
    assert [method for method, _, _ in stub.requests] == ["GET", "GET", "HEAD"]


def test_a_store_without_a_date_header_is_refused(
    stub: Stub, store: S3Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    stub.replies = [(206, FIRST_BYTE, b"x")]
    with pytest.raises(OptionError, match="without Date and Last-Modified"):
        store.age_ms("key")
    for date in ("", "soon"):
        monkeypatch.setattr(
            stub.server.RequestHandlerClass, "date_time_string", lambda *_, said=date: said
        )
        modified = {"Last-Modified": "Sun, 01 Nov 2026 12:00:00 GMT"}
        stub.replies = [(206, FIRST_BYTE | modified, b"x")]
        with pytest.raises(OptionError, match="without Date and Last-Modified"):
            store.age_ms("key")


def test_an_object_without_an_age_is_absent(stub: Stub, store: S3Store) -> None:
    stub.replies = [error(404, "NoSuchKey"), error(416, "InvalidRange"), (404, {}, b"")]
    for _ in range(2):
        with pytest.raises(NotFound):
            store.age_ms("key")


def uploads(*begun: tuple[str, str, str], after: tuple[str, str] | None = None) -> Reply:
    entries = "".join(
        f"<Upload><Key>{key}</Key><UploadId>{upload_id}</UploadId>"
        f"<Initiated>{time}</Initiated></Upload>"
        for key, upload_id, time in begun
    )
    more = "<IsTruncated>false</IsTruncated>"
    if after is not None:
        more = (
            f"<IsTruncated>true</IsTruncated><NextKeyMarker>{after[0]}</NextKeyMarker>"
            f"<NextUploadIdMarker>{after[1]}</NextUploadIdMarker>"
        )
    root = "ListMultipartUploadsResult"
    return 200, {}, f"<{root}>{more}{entries}</{root}>".encode()


def test_uploads_are_listed_page_by_page(
    stub: Stub, store: S3Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        stub.server.RequestHandlerClass,
        "date_time_string",
        lambda *_: "Sun, 01 Nov 2026 12:00:00 GMT",
    )
    stub.replies = [
        uploads(("a/&amp;1", "u+/=", "2026-11-01T11:00:00.250Z"), after=("a/&amp;1", "u+/=")),
        # S3 may look through many and show none of them yet.
        uploads(after=("a/2", "")),
        uploads(("a/3", "u3", "2026-11-01T12:00:00.000Z")),
    ]
    found, after = [], ""
    for _ in range(3):
        page = store.unfinished("a/", after)
        found += page.uploads
        after = page.after
    assert after == ""
    assert found == [Unfinished("a/&1", "u+/=", 3_598_750), Unfinished("a/3", "u3", 0)]
    asked = [path.split("?")[1] for _, path, _ in stub.requests]
    assert "marker" not in asked[0]
    assert "key-marker=a%2F%261" in asked[1] and "upload-id-marker=u%2B%2F%3D" in asked[1]
    assert "key-marker=a%2F2" in asked[2] and "upload-id-marker" not in asked[2]


def test_pages_of_uploads_that_lead_nowhere_are_no_end(stub: Stub, store: S3Store) -> None:
    stub.replies = [uploads(after=("", "")), uploads(after=("a/1", "u1"))]
    with pytest.raises(Transient, match="leads no further"):
        store.unfinished("a/")
    with pytest.raises(Transient, match="leads no further"):
        store.unfinished("a/", "u1\na/1")


def test_discarding_a_missing_upload_is_no_error(stub: Stub, store: S3Store) -> None:
    stub.replies = [error(404, "NoSuchUpload"), (204, {}, b"")]
    store.discard(UPLOAD)
    store.discard(UPLOAD)
    assert [method for method, _, _ in stub.requests] == ["DELETE", "DELETE"]
    assert all("uploadId=u1" in path for _, path, _ in stub.requests)


@pytest.mark.parametrize("action", ["lost_reply", "error", "error_after", "reset"])
def test_requests_of_a_collection_are_repeated(ministack_url: str, action: str) -> None:
    bucket = f"log-{uuid.uuid4().hex}"
    make_bucket(ministack_url, bucket)
    with S3Proxy(ministack_url) as proxy:
        store = retrying(S3Store(bucket, replace(CONFIG, endpoint=proxy.url)))
        upload = store.upload("a/big")
        upload.part(1, 0, b"x")
        kinds = ("PUT", "DELETE", "GET", "LIST_MULTIPART", "ABORT_MULTIPART")
        proxy.faults = [Fault(action, kind=kind, times=1, status=503) for kind in kinds]  # type: ignore[arg-type]
        store.put("a/1", b"one")
        store.put("a/1", b"two")
        assert store.age_ms("a/1") >= 0
        assert store.get("a/1") == b"two"
        store.delete_many(["a/1", "a/2"])
        (begun,) = store.unfinished("a/").uploads
        store.discard(begun)
        assert store.unfinished("").uploads == []
        assert store.list("").entries == []
        assert proxy.injected == {action: 5}


@pytest.mark.s3
def test_the_sorted_server_knows_what_a_collection_asks() -> None:
    objects = SortedDict({"bucket/a/&1": b"1", "bucket/a/2": b"2", "bucket/b": b"3"})
    with serve(objects) as url:
        store = retrying(S3Store("bucket", replace(CONFIG, endpoint=url)))
        store.put("a/3", b"4")
        store.put("a/3", b"5")
        assert store.get("a/3") == b"5"
        assert store.age_ms("b") >= 0 and store.age_ms("a/3") >= 0
        with pytest.raises(NotFound):
            store.age_ms("absent")
        store.delete_many(["a/&1", "a/3", "absent"])
        assert list(objects) == ["bucket/a/2", "bucket/b"]
        assert store.unfinished("") == ([], "")
