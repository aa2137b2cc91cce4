"""A reply without proof is a lost reply: a proxy's page, another status, a list that is none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from sparkwal.errors import OptionError, StoreUnavailableError
from sparkwal.store.base import Entry, Store, Transient, all_entries
from sparkwal.store.config import RetryPolicy
from sparkwal.store.retry import RetryingStore
from sparkwal.store.s3 import S3Store
from sparkwal.store.s3_replies import Unproven

from . import inside
from .stub_s3 import CONFIG, Reply, Stub, error, listed

PAGE = b"<html>please wait</html>"
PAGES: list[Reply] = [(200, {}, PAGE), (200, {}, b""), (200, {}, b"<a/>"), (200, {}, b"text")]
NO_ETAG = {"ETag": ""}


def retrying(store: Store, attempts: int = 1) -> RetryingStore:
    policy = RetryPolicy(max_retry_attempts=attempts)
    return RetryingStore(store, policy, sleep=lambda _: None)


@pytest.fixture
def store(stub: Stub) -> S3Store:
    """A store of a new client, which has not checked the store's ETags yet."""
    inside.forget_clients()
    return S3Store("bucket", replace(CONFIG, endpoint=stub.url))


@pytest.mark.parametrize("status", [201, 202, 203, 204, 206])
def test_a_put_that_another_status_answers_is_sent_again(
    stub: Stub, store: S3Store, status: int
) -> None:
    stub.replies = [(status, {}, b""), error(412, "PreconditionFailed")]
    # The object may be there: the caller reads it back.
    assert not retrying(store).put_if_absent("key", b"body")
    stub.replies = [(status, {}, b"")] * 2
    with pytest.raises(StoreUnavailableError) as caught:
        retrying(store).put_if_absent("key", b"body")
    assert caught.value.maybe_applied


@pytest.mark.parametrize("body", [b"", PAGE])
def test_a_put_without_an_etag_is_sent_again(stub: Stub, store: S3Store, body: bytes) -> None:
    stub.replies = [(200, NO_ETAG, body), (200, {}, b"")]
    assert retrying(store).put_if_absent("key", b"body")
    assert len(stub.requests) == 2


@pytest.mark.parametrize("reply", [error(404, "NoSuchKey"), (200, {}, b"other"), (200, {}, b"")])
def test_a_put_whose_etag_is_of_other_bytes_is_sent_again(
    stub: Stub, store: S3Store, reply: Reply
) -> None:
    """Whether or not the store has shown before that it computes MD5."""
    for _ in range(2):
        stub.replies = [(200, {"ETag": '"0"'}, b""), reply]
        with pytest.raises(Unproven, match="other bytes"):
            store.put("key", b"body")
        stub.replies = [(200, {}, b"")]
        store.put("key", b"body")


def test_a_store_that_computes_no_md5_is_read_back_once(stub: Stub, store: S3Store) -> None:
    other = (200, {"ETag": '"0"'}, b"")
    stub.replies = [other, (200, {}, b"body"), other, other]
    for _ in range(3):
        assert store.put_if_absent("key", b"body")
    assert [method for method, _, _ in stub.requests] == ["PUT", "GET", "PUT", "PUT"]


def test_the_etag_of_an_object_that_kms_encrypts_is_no_md5(stub: Stub, store: S3Store) -> None:
    stub.replies = [(200, {}, b"")]
    store.put("key", b"body")
    # The bucket's default encryption was changed.
    stub.replies = [(200, {"ETag": '"0"', "x-amz-server-side-encryption": "aws:kms"}, b"")]
    store.put("key", b"body")
    assert [method for method, _, _ in stub.requests] == ["PUT", "PUT"]


CREATED: Reply = (
    200,
    {},
    b"<InitiateMultipartUploadResult><UploadId>u1</UploadId></InitiateMultipartUploadResult>",
)


@pytest.mark.parametrize("page", PAGES)
def test_an_upload_begins_only_with_a_reply_that_names_it(
    stub: Stub, store: S3Store, page: Reply
) -> None:
    stub.replies = [page, CREATED]
    retrying(store).upload("key")
    assert [path for _, path, _ in stub.requests] == ["/bucket/key?uploads"] * 2


@pytest.mark.parametrize(
    "reply", [(200, NO_ETAG, PAGE), (202, {}, b""), (200, {"ETag": '"0"'}, b"")]
)
def test_a_part_without_proof_is_sent_again(stub: Stub, store: S3Store, reply: Reply) -> None:
    stub.replies = [(200, {}, b""), CREATED, reply]
    store.put("key", b"body")
    upload = store.upload("key")
    with pytest.raises(Unproven):
        upload.part(1, 0, b"a")


@pytest.mark.parametrize(
    "page", [*PAGES, (200, {}, b"<CompleteMultipartUploadResult/>"), (204, {}, b"")]
)
def test_a_complete_without_proof_is_sent_again(stub: Stub, store: S3Store, page: Reply) -> None:
    stub.replies = [CREATED, (200, {}, b""), page, error(404, "NoSuchUpload")]
    upload = retrying(store).upload("key")
    upload.part(1, 0, b"a")
    # The first may have completed it: the caller reads it back.
    assert not upload.complete()


@pytest.mark.parametrize(
    "page",
    [
        *PAGES,
        (200, {}, b"<ListBucketResult/>"),
        (200, {}, b"<ListBucketResult><Name>another</Name></ListBucketResult>"),
        (200, {}, b"<Other><Name>bucket</Name></Other>"),
        (202, {}, listed()[2]),  # type: ignore[index]
        listed(prefix="b/"),
        listed(("b/1", 3)),
        listed(("a/2", 3), ("a/1", 3)),
        listed(("a/1", 3), ("a/1", 3)),
    ],
)
def test_a_list_without_proof_is_no_empty_log(stub: Stub, store: S3Store, page: Reply) -> None:
    stub.replies = [page]
    with pytest.raises(Transient):
        store.list("a/")
    stub.replies = [page, page]
    with pytest.raises(StoreUnavailableError):
        retrying(store).list("a/")


def test_a_list_under_the_alias_of_an_access_point_has_the_name_of_the_bucket(stub: Stub) -> None:
    store = S3Store("point-0123456789-s3alias", replace(CONFIG, endpoint=stub.url))
    stub.replies = [listed(("a/1", 3))]
    assert store.list("a/").entries == [Entry("a/1", 3)]


def test_a_store_that_ignores_start_after_is_an_error_and_no_endless_list(
    stub: Stub, store: S3Store
) -> None:
    page = listed(("a/1", 3), ("a/2", 3), more="t")
    stub.replies = [page] * 9
    with pytest.raises(StoreUnavailableError, match="shows a/1 after a/2"):
        list(all_entries(retrying(store), "a/", limit=2))
    assert len(stub.requests) == 3


def test_a_store_that_begins_with_start_after_itself_shows_each_key_once(
    stub: Stub, store: S3Store
) -> None:
    stub.replies = [listed(("a/1", 3), ("a/2", 3), more="t"), listed(("a/2", 3), ("a/3", 3))]
    assert [each.key for each in all_entries(store, "a/")] == ["a/1", "a/2", "a/3"]


@pytest.mark.parametrize("page", [*PAGES, (200, {}, b"<DeleteResult/>")])
def test_a_key_that_a_delete_of_many_leaves_out_is_looked_for(
    stub: Stub, store: S3Store, page: Reply
) -> None:
    gone: Reply = error(404, "NoSuchKey")
    here: Reply = (206, {"Content-Range": "bytes 0-0/9"}, b"x")
    stub.replies = [page, gone, here] if page == (200, {}, b"<DeleteResult/>") else [page]
    with pytest.raises(Unproven):
        store.delete_many(["a/1", "a/2"])
    stub.replies = [(200, {}, b"<DeleteResult/>"), gone, gone]
    store.delete_many(["a/1", "a/2"])


@pytest.mark.parametrize("act", [lambda s: s.delete("key"), lambda s: s.upload("key").abort()])
def test_a_page_is_no_answer_to_a_delete(
    stub: Stub, store: S3Store, act: Callable[[Store], object]
) -> None:
    stub.replies = [(200, {}, PAGE)]
    with pytest.raises(Unproven):
        act(store)


@pytest.mark.parametrize("page", PAGES)
def test_a_list_of_uploads_without_proof_is_sent_again(
    stub: Stub, store: S3Store, page: Reply
) -> None:
    stub.replies = [page]
    with pytest.raises(Unproven):
        store.unfinished("a/")


@pytest.mark.parametrize(("key", "after"), [("b/1", ""), ("a/1", "u1\na/2")])
def test_a_list_of_uploads_that_begins_again_is_an_error(
    stub: Stub, store: S3Store, key: str, after: str
) -> None:
    root = "ListMultipartUploadsResult"
    one = f"<Key>{key}</Key><UploadId>u</UploadId><Initiated>2026-11-01T11:00:00Z</Initiated>"
    stub.replies = [(200, {}, f"<{root}><Upload>{one}</Upload></{root}>".encode())]
    with pytest.raises(Unproven):
        store.unfinished("a/", after)


@pytest.mark.parametrize("opened", [False, True], ids=["its first GET", "a later GET"])
@pytest.mark.parametrize(
    "reply",
    [
        (200, NO_ETAG, PAGE),
        (202, {}, b"0123456789"),
        (204, {}, b""),
        (206, {"Content-Range": "bytes 0-9/99"}, b"01234"),
        (206, {"Content-Range": "bytes 0-4/99"}, b"01234"),
        (206, {"Content-Range": "soon"}, b"0123456789"),
        (404, {}, b""),
        (404, {}, PAGE),
    ],
)
def test_a_get_without_proof_is_sent_again(
    stub: Stub, store: S3Store, reply: Reply, opened: bool
) -> None:
    if opened:
        stub.replies = [(200, {}, b"x")]
        store.get("key")
    stub.replies = [reply, (200, {}, b"0123456789")]
    assert retrying(store).get_range("key", 0, 10) == b"0123456789"


def test_a_range_that_ends_with_the_object_is_whole(stub: Stub, store: S3Store) -> None:
    stub.replies = [(206, {"Content-Range": "bytes 5-9/10"}, b"56789")]
    assert store.get_range("key", 5, 100) == b"56789"


# A static page of a server such as nginx has headers that an object has too.
DRESSED = {"ETag": '"5f3a-64"', "Last-Modified": "Fri, 27 Nov 2026 10:00:00 GMT"}


def test_a_page_with_an_etag_is_no_answer_to_a_put(stub: Stub, store: S3Store) -> None:
    """If ETags are no MD5, only the missing body shows that S3 answered."""
    stub.replies = [(200, {"ETag": '"0"'}, b""), (200, {}, b"body"), (200, DRESSED, PAGE)]
    store.put("key", b"body")
    with pytest.raises(Unproven):
        store.put("key", b"body")


def test_a_page_with_an_etag_is_no_answer_to_a_part(stub: Stub, store: S3Store) -> None:
    stub.replies = [CREATED, (200, DRESSED, PAGE)]
    upload = store.upload("key")
    with pytest.raises(Unproven):
        upload.part(1, 0, b"a")


def test_a_complete_of_another_object_is_sent_again(stub: Stub, store: S3Store) -> None:
    other = (
        b"<CompleteMultipartUploadResult><Key>b</Key><ETag>x</ETag></CompleteMultipartUploadResult>"
    )
    stub.replies = [CREATED, (200, {}, b""), (200, {}, other)]
    upload = store.upload("key")
    upload.part(1, 0, b"a")
    with pytest.raises(Unproven):
        upload.complete()


@pytest.mark.parametrize("opened", [False, True], ids=["its first GET", "a later GET"])
@pytest.mark.parametrize(
    "reply",
    [
        # The bytes are those of the range already, or of several ranges.
        (206, {}, b"56789"),
        (206, {"Content-Type": "multipart/byteranges; boundary=x"}, b"--x\r\n56789"),
        (200, {"Content-Encoding": "gzip"}, b"\x1f\x8b0123456789"),
        (206, {"Content-Encoding": "br", "Content-Range": "bytes 5-9/10"}, b"01234"),
    ],
)
def test_bytes_in_another_form_are_asked_for_again(
    stub: Stub, store: S3Store, reply: Reply, opened: bool
) -> None:
    if opened:
        stub.replies = [(200, {}, b"x")]
        store.get("key")
    stub.replies = [reply, (206, {"Content-Range": "bytes 5-9/10"}, b"56789")]
    assert retrying(store).get_range("key", 5, 5) == b"56789"


def _page(inner: str) -> Reply:
    body = f"<ListBucketResult><Name>bucket</Name><Prefix>a/</Prefix>{inner}</ListBucketResult>"
    return 200, {}, body.encode()


@pytest.mark.parametrize(
    "inner",
    [
        "<KeyCount>2</KeyCount>",
        "<StartAfter>a/9</StartAfter>",
        "<Delimiter>/</Delimiter><CommonPrefixes><Prefix>a/b/</Prefix></CommonPrefixes>",
    ],
    ids=["it counts keys that are not there", "it begins elsewhere", "it has folders"],
)
def test_a_list_that_answers_another_question_is_no_empty_log(
    stub: Stub, store: S3Store, inner: str
) -> None:
    stub.replies = [_page(inner)]
    with pytest.raises(Unproven):
        store.list("a/")


def test_a_list_may_repeat_its_question(stub: Stub, store: S3Store) -> None:
    same = "<StartAfter>a/1%2B</StartAfter><Delimiter></Delimiter><KeyCount>0</KeyCount>"
    stub.replies = [_page(same)]
    assert store.list("a/", after="a/1+").entries == []


def test_empty_pages_whose_tokens_go_round_are_an_error(stub: Stub, store: S3Store) -> None:
    stub.replies = [listed(more=token) for token in "xyxyxyxy"]
    with pytest.raises(Transient, match="leads no further"):
        store.list("a/")
    assert len(stub.requests) == 3


def test_a_list_of_uploads_that_goes_back_is_an_error(stub: Stub, store: S3Store) -> None:
    root = "ListMultipartUploadsResult"
    page = f"<{root}><IsTruncated>true</IsTruncated><NextKeyMarker>a/1</NextKeyMarker></{root}>"
    stub.replies = [(200, {}, page.encode())]
    with pytest.raises(Transient):
        store.unfinished("a/", "u1\na/2")


@pytest.mark.parametrize(
    "reply",
    [
        (301, {}, PAGE),
        (302, {"Location": "http://portal/login"}, PAGE),
        (307, {"Location": "http://portal/login"}, b""),
        (400, {}, PAGE),
        (405, {}, PAGE),
        (407, {}, PAGE),
        (413, {}, PAGE),
        (451, {}, PAGE),
        error(307, "TemporaryRedirect"),
    ],
)
def test_a_refusal_by_another_server_is_tried_again(
    stub: Stub, store: S3Store, reply: Reply
) -> None:
    """It is an error at once if the store has not answered such a request before."""
    many = retrying(store)
    stub.replies = [reply]
    with pytest.raises(OptionError):
        many.put_if_absent("a/1", b"body")
    stub.replies = [(200, {}, b"")]
    many.put_if_absent("a/1", b"body")
    stub.replies = [reply, (200, {}, b"")]
    assert many.put_if_absent("a/2", b"body")


@pytest.mark.parametrize("reply", [(412, {}, PAGE), error(412, "PreconditionFailed")])
def test_a_refused_condition_is_no_answer_to_a_request_without_one(
    stub: Stub, store: S3Store, reply: Reply
) -> None:
    many = retrying(store)
    stub.replies = [(200, {}, b"x"), reply, (200, {}, b"y")]
    assert [many.get("a"), many.get("a")] == [b"x", b"y"]


def test_a_page_with_the_status_of_a_wrong_range_is_no_answer(stub: Stub, store: S3Store) -> None:
    stub.replies = [(416, {}, PAGE), (200, {}, b"0123456789")]
    assert retrying(store).get_range("key", 5, 5) == b"56789"


@pytest.mark.parametrize("status", [102, 103, 199])
@pytest.mark.parametrize("act", [lambda s: s.get("a"), lambda s: s.put("a", b"a")])
def test_an_interim_reply_leaves_no_reply_for_the_next_request(
    stub: Stub, store: S3Store, status: int, act: Callable[[S3Store], object]
) -> None:
    stub.replies = [(200, {}, b"x"), (200, {}, b"of a"), (200, {}, b"of b")]
    store.get("x")
    stub.interim = status
    with pytest.raises(Unproven):
        act(store)
    assert store.get("b") == b"of b"
