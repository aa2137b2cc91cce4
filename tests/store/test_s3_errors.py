"""Each way S3 can fail, and what is made of it. No secret is ever shown."""

from __future__ import annotations

import gc
import os
import pickle
import socket
import sys
import time
import traceback
import uuid
import weakref
from collections.abc import Callable
from dataclasses import replace
from email.utils import formatdate

import pytest

from sparkwal.errors import OptionError, StoreUnavailableError
from sparkwal.store import s3_client
from sparkwal.store.base import Entry, NotFound, Store, Transient, Unfinished
from sparkwal.store.config import RetryPolicy, S3Config
from sparkwal.store.open import open_store
from sparkwal.store.retry import RetryingStore
from sparkwal.store.s3 import S3Store

from . import inside
from .stub_s3 import CONFIG, SECRETS, Reply, Stub, error, listed


@pytest.fixture(params=["its first GET", "a later GET"])
def store(stub: Stub, request: pytest.FixtureRequest) -> S3Store:
    """botocore makes the first GET, and `s3_get` the others: no answer may mean another thing."""
    store = S3Store("bucket", replace(CONFIG, endpoint=stub.url))
    inside.forget_gets()
    if request.param == "a later GET":
        stub.replies = [(200, {}, b"")]
        assert store.get("a") == b""
        stub.requests.clear()
    return store


def put(store: Store) -> object:
    return store.put_if_absent("key", b"body")


def get(store: Store) -> object:
    return store.get("key")


def listing(store: Store) -> object:
    return store.list("a/")


PASSING: list[Reply] = [
    error(409, "ConditionalRequestConflict"),
    error(409, "OperationAborted"),
    error(429, "TooManyRequests"),
    error(503, "SlowDown"),
    error(500, "InternalError"),
    error(400, "RequestTimeout"),
    (502, {}, b"<html>Bad Gateway</html>"),
    (504, {}, b""),
    None,
]


@pytest.mark.parametrize("reply", PASSING)
@pytest.mark.parametrize("act", [put, get, listing])
def test_a_temporary_failure_raises_transient(
    stub: Stub, store: S3Store, reply: Reply, act: Callable[[Store], object]
) -> None:
    stub.replies = [reply]
    with pytest.raises(Transient) as caught:
        act(store)
    assert not caught.value.unreachable
    assert len(stub.requests) == 1


@pytest.mark.parametrize(
    ("reply", "expected_message"),
    [
        (error(404, "NoSuchBucket"), "create the bucket"),
        (error(403, "AccessDenied"), "a policy for each role"),
        (error(403, "InvalidAccessKeyId"), "accessKeyId"),
        (error(403, "SignatureDoesNotMatch"), "secretAccessKey"),
        (error(400, "ExpiredToken"), "renew"),
        (error(403, "RequestTimeTooSkewed"), "clock"),
        (error(307, "TemporaryRedirect"), "region"),
        (error(501, "NotImplemented"), "If-None-Match"),
        (error(400, "KeyTooLongError"), "shorter path"),
        (error(418, "Teapot"), "correct the path or the store's options"),
    ],
)
@pytest.mark.parametrize("act", [put, get, listing])
def test_permanent_errors_are_raised_at_once(
    stub: Stub, store: S3Store, reply: Reply, expected_message: str, act: Callable[[Store], object]
) -> None:
    stub.replies = [reply]
    retrying = RetryingStore(store, RetryPolicy(), sleep=lambda _: pytest.fail("repeated"))
    with pytest.raises(OptionError, match=expected_message) as caught:
        act(retrying)
    assert f"{stub.url}/bucket" in str(caught.value)
    assert len(stub.requests) == 1


@pytest.mark.parametrize(
    ("act", "needed"),
    [
        (put, "s3:PutObject on key"),
        (get, "s3:GetObject on key, and s3:ListBucket with this prefix"),
        (listing, "s3:ListBucket with the prefix a/"),
        (lambda store: store.delete("key"), "s3:DeleteObject on key"),
        (lambda store: store.delete_many(["key"]), "s3:DeleteObject on key"),
        (lambda store: store.upload("key"), "s3:PutObject on key"),
        (lambda store: store.discard(Unfinished("key", "id", 0)), "s3:AbortMultipartUpload on key"),
        (lambda store: store.unfinished("a/"), "s3:ListBucketMultipartUploads on a/"),
    ],
)
def test_a_refusal_names_the_permission_that_is_missing(
    stub: Stub, store: S3Store, act: Callable[[Store], object], needed: str
) -> None:
    stub.replies = [error(403, "AccessDenied")]
    with pytest.raises(OptionError, match=f"allow {needed}"):
        act(store)
    # AWS names it itself: the encryption of an object may need another one than the request.
    user = "User: arn:aws:iam::1:user/u is not authorized to perform:"
    message = f"{user} kms:GenerateDataKey on resource: arn:aws:kms:k because"
    stub.replies = [error(403, "AccessDenied", message)]
    with pytest.raises(OptionError, match="allow kms:GenerateDataKey;"):
        act(store)


@pytest.mark.parametrize(
    "reply",
    [
        error(403, "AccessDenied"),
        error(403, "RequestTimeTooSkewed"),
        error(403, "InvalidAccessKeyId"),
        error(404, "NoSuchBucket"),
        (404, {}, b"<html>"),
    ],
)
@pytest.mark.parametrize("act", [put, get, listing])
def test_a_refusal_of_a_bucket_that_was_served_before_is_retried(
    stub: Stub, store: S3Store, reply: Reply, act: Callable[[Store], object]
) -> None:
    served: Reply = listed() if act is listing else (200, {}, b"")
    stub.replies = [served, reply, served]
    retrying = RetryingStore(store, RetryPolicy(), sleep=lambda _: None)
    act(retrying)
    act(retrying)
    assert len(stub.requests) == 3


@pytest.mark.parametrize("act", [put, get])
def test_a_retry_has_a_new_signature(
    stub: Stub, store: S3Store, act: Callable[[Store], object]
) -> None:
    stub.replies = [(200, {}, b""), error(403, "RequestTimeTooSkewed"), (200, {}, b"")]
    # A signature names the second.
    retrying = RetryingStore(store, RetryPolicy(), sleep=lambda _: time.sleep(1.1))
    act(retrying)
    act(retrying)
    refused, served = (headers["x-amz-date"] for _, _, headers in stub.requests[1:])
    assert refused < served


def test_stores_of_one_path_and_configuration_know_what_was_served(stub: Stub) -> None:
    def opened(config: S3Config) -> RetryingStore:
        store, _ = open_store("s3://bucket/wal", config, RetryPolicy(base_delay_ms=1))
        return store

    config = replace(CONFIG, endpoint=stub.url, hedge=False)
    stub.replies = [(200, {}, b""), error(403, "AccessDenied"), (200, {}, b"")]
    assert opened(config).put_if_absent("wal/1", b"")
    assert opened(config).put_if_absent("wal/2", b"")
    stub.replies = [error(403, "AccessDenied")]
    with pytest.raises(OptionError, match="AccessDenied"):
        opened(replace(config, access_key_id="other")).put_if_absent("wal/3", b"")


@pytest.mark.parametrize(
    "reply",
    [error(412, "PreconditionFailed"), error(416, "InvalidRange"), error(404, "NoSuchUpload")],
)
@pytest.mark.parametrize("act", [get, listing, lambda store: store.put("key", b"")])
def test_an_answer_to_what_was_not_asked_is_an_error(
    stub: Stub, store: S3Store, reply: Reply, act: Callable[[Store], object]
) -> None:
    stub.replies = [reply]
    with pytest.raises(OptionError, match="S3 endpoint"):
        act(store)


def test_wrong_region_names_the_right_one(stub: Stub, store: S3Store) -> None:
    stub.replies = [error(301, "PermanentRedirect", **{"x-amz-bucket-region": "eu-west-1"})]
    with pytest.raises(OptionError, match="set the option region .*eu-west-1"):
        store.get("key")
    assert len(stub.requests) == 1


def test_put_is_conditional_and_answers_412_with_false(stub: Stub, store: S3Store) -> None:
    stub.replies = [(200, {}, b""), error(412, "PreconditionFailed")]
    assert store.put_if_absent("key", b"body")
    assert not store.put_if_absent("key", b"body")
    for method, path, headers in stub.requests:
        assert (method, path) == ("PUT", "/bucket/key")
        assert headers["if-none-match"] == "*"
        assert "expect" not in headers


def test_a_missing_object_raises_not_found(stub: Stub, store: S3Store) -> None:
    stub.replies = [error(404, "NoSuchKey")]
    with pytest.raises(NotFound):
        store.get("key")


@pytest.mark.parametrize("act", [put, listing])
def test_an_endpoint_that_is_no_s3_is_refused(
    stub: Stub, store: S3Store, act: Callable[[Store], object]
) -> None:
    stub.replies = [(404, {}, b"<html>not here</html>")]
    with pytest.raises(OptionError, match="check the endpoint"):
        act(store)


@pytest.mark.parametrize(
    ("value", "low", "high"),
    [
        ("7", 7, 7),
        ("inf", None, None),
        (formatdate(4102444800, usegmt=True), 1e4, 1e12),
        ("soon", None, None),
    ],
)
def test_the_retry_after_header_is_read(
    stub: Stub, store: S3Store, value: str, low: float | None, high: float | None
) -> None:
    stub.replies = [error(503, "SlowDown", **{"Retry-After": value})]
    with pytest.raises(Transient) as caught:
        put(store)
    if low is None or high is None:
        assert caught.value.retry_after is None
    else:
        assert caught.value.retry_after is not None
        assert low <= caught.value.retry_after <= high


def test_short_body_is_no_object(stub: Stub, store: S3Store) -> None:
    stub.replies = [(200, {"Content-Length": "10"}, b"half")]
    with pytest.raises(Transient):
        get(store)


def test_a_list_that_was_cut_off_is_transient(stub: Stub, store: S3Store) -> None:
    stub.replies = [(200, {"Content-Length": "5000"}, b"<ListBucketResult>")]
    with pytest.raises(Transient):
        listing(store)
    stub.replies = [(200, {}, b"<ListBucketResult><Cont")]
    with pytest.raises(Transient):
        listing(store)


def test_list_ignores_unknown_elements(stub: Stub, store: S3Store) -> None:
    space = 'xmlns="http://s3.amazonaws.com/doc/2006-03-01/"'
    owner = "<Owner><ID>7</ID></Owner><LastModified>no date at all</LastModified>"
    entry = f"<Contents>{owner}<Key>a%2Fb%26%20%C3%A9</Key><Size>3</Size></Contents>"
    encoded = f"<Name>bucket</Name><EncodingType>url</EncodingType>{entry}"
    for root in ("ListBucketResult", f"ListBucketResult {space}"):
        stub.replies = [(200, {}, f"<{root}>{encoded}</ListBucketResult>".encode())]
        assert store.list("a").entries == [Entry("a/b& é", 3)]
    stub.replies = [listed(prefix="a")]
    assert store.list("a").entries == []


@pytest.mark.parametrize(
    "body",
    [
        '<s:ListBucketResult xmlns:s="x"><s:Name>bucket</s:Name><s:Contents><s:Key>a/1</s:Key>'
        "<s:Size>3</s:Size></s:Contents></s:ListBucketResult>",
        "<ListBucketResult><Name>bucket</Name><Contents ><Key>a/1</Key><Size>3</Size></Contents>"
        "</ListBucketResult>",
        "<ListBucketResult><Name>bucket</Name><Contents><Key><![CDATA[a/1]]></Key><Size>3</Size>"
        "</Contents></ListBucketResult>",
    ],
)
def test_list_in_other_words_is_no_empty_log(stub: Stub, store: S3Store, body: str) -> None:
    stub.replies = [(200, {}, body.encode())]
    assert store.list("a").entries == [Entry("a/1", 3)]


def test_a_list_that_failed_inside_a_200_is_transient(stub: Stub, store: S3Store) -> None:
    """That is no empty log."""
    stub.replies = [(200, {}, b"<Error><Code>SlowDown</Code></Error>")]
    with pytest.raises(Transient):
        store.list("a")


def test_list_is_one_request_even_when_truncated(stub: Stub, store: S3Store) -> None:
    stub.replies = [listed(("a/1", 3), more="here")]
    assert [(e.key, e.size) for e in store.list("a/", 1).entries] == [("a/1", 3)]
    assert len(stub.requests) == 1
    assert "max-keys=1&" in stub.requests[0][1] + "&"


def test_an_empty_page_that_is_truncated_is_no_empty_log(stub: Stub, store: S3Store) -> None:
    """S3 may look through many keys and show none of them yet."""
    stub.replies = [listed(more="here+on"), listed(("a/1", 3))]
    assert store.list("a/") == ([Entry("a/1", 3)], False)
    assert "continuation-token=here%2Bon" in stub.requests[1][1]


def test_empty_pages_that_lead_nowhere_are_no_empty_log(stub: Stub, store: S3Store) -> None:
    page = b"<Name>bucket</Name><IsTruncated>true</IsTruncated>"
    stub.replies = [(200, {}, b"<ListBucketResult>%s</ListBucketResult>" % page)]
    with pytest.raises(Transient, match="leads no further"):
        store.list("a/")


def test_store_that_ignores_ranges(stub: Stub, store: S3Store) -> None:
    stub.replies = [(200, {}, b"0123456789")]
    assert store.get_range("key", 3, 4) == b"3456"


def test_another_range_than_asked_for(stub: Stub, store: S3Store) -> None:
    stub.replies = [(206, {"Content-Range": "bytes 0-3/10"}, b"0123")]
    with pytest.raises(Transient):
        store.get_range("key", 3, 4)


CREATED: Reply = (
    200,
    {},
    b"<InitiateMultipartUploadResult><UploadId>u1</UploadId></InitiateMultipartUploadResult>",
)
STORED: Reply = (200, {}, b"")
COMPLETED: Reply = (
    200,
    {},
    b"<CompleteMultipartUploadResult><ETag>t</ETag></CompleteMultipartUploadResult>",
)


def test_upload_repeats_each_request_alone(stub: Stub, store: S3Store) -> None:
    slow = error(503, "SlowDown")
    stub.replies = [slow, CREATED, slow, STORED, None, STORED, slow, COMPLETED]
    upload = RetryingStore(store, RetryPolicy(), sleep=lambda _: None).upload("key")
    upload.part(1, 0, b"a")
    upload.part(2, 1, b"b")
    assert upload.complete()
    lines = [(method, sorted(path.split("?")[1].split("&"))) for method, path, _ in stub.requests]
    assert lines == (
        [("POST", ["uploads"])] * 2
        + [("PUT", ["partNumber=1", "uploadId=u1"])] * 2
        + [("PUT", ["partNumber=2", "uploadId=u1"])] * 2
        + [("POST", ["uploadId=u1"])] * 2
    )
    assert stub.requests[-1][2]["if-none-match"] == "*"


def test_more_parts_than_a_store_takes_are_refused_with_advice(stub: Stub, store: S3Store) -> None:
    stub.replies = [CREATED, error(400, "InvalidArgument", "Part number must be at most 20")]
    upload = store.upload("key")
    with pytest.raises(OptionError, match="at most 20.*smaller partitions"):
        upload.part(21, 0, b"a")
    with pytest.raises(OptionError, match="part 10,001 of key: .* at most 10,000 parts"):
        upload.part(10_001, 0, b"a")
    assert len(stub.requests) == 2


def test_lost_reply_to_complete_sends_the_caller_to_read_back(stub: Stub, store: S3Store) -> None:
    stub.replies = [CREATED, STORED, None, error(404, "NoSuchUpload")]
    upload = RetryingStore(store, RetryPolicy(), sleep=lambda _: None).upload("key")
    upload.part(1, 0, b"a")
    assert not upload.complete()


def test_complete_that_fails_inside_a_200_is_repeated(stub: Stub, store: S3Store) -> None:
    inside: Reply = (200, {}, b"<Error><Code>InternalError</Code><Message>x</Message></Error>")
    stub.replies = [CREATED, STORED, inside, COMPLETED]
    upload = RetryingStore(store, RetryPolicy(), sleep=lambda _: None).upload("key")
    upload.part(1, 0, b"a")
    assert upload.complete()


def test_a_complete_with_an_etag_of_another_attempt_is_repeated_with_the_newest(
    stub: Stub, store: S3Store
) -> None:
    kms = {"ETag": '"other"', "x-amz-server-side-encryption": "aws:kms"}
    other: Reply = (200, kms, b"")
    stub.replies = [CREATED, STORED, error(400, "InvalidPart"), other, COMPLETED]
    upload = store.upload("key")
    upload.part(1, 0, b"a")
    with pytest.raises(Transient, match="InvalidPart"):
        upload.complete()
    # The answer of the part's other attempt, under a key of KMS.
    upload.part(1, 0, b"a")
    assert upload.complete()
    assert b"other" in stub.bodies[-1]


def test_taken_key_at_complete_frees_the_parts(stub: Stub, store: S3Store) -> None:
    stub.replies = [CREATED, STORED, error(412, "PreconditionFailed"), (204, {}, b"")]
    upload = store.upload("key")
    upload.part(1, 0, b"a")
    assert not upload.complete()
    assert stub.requests[-1][0] == "DELETE"


def test_parts_that_are_too_small_are_refused(stub: Stub, store: S3Store) -> None:
    stub.replies = [CREATED, STORED, error(400, "EntityTooSmall")]
    upload = store.upload("key")
    upload.part(1, 0, b"a")
    with pytest.raises(OptionError, match="5 MiB"):
        upload.complete()


def unused_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_an_endpoint_without_a_server_fails_fast() -> None:
    endpoint = f"http://127.0.0.1:{unused_port()}"
    config = replace(CONFIG, endpoint=endpoint)
    with pytest.raises(Transient) as refused:
        put(S3Store("bucket", config))
    assert refused.value.unreachable
    store, _ = open_store("s3://bucket/a", config, RetryPolicy(), fail_fast=True)
    with pytest.raises(StoreUnavailableError, match="nothing answers") as caught:
        listing(store)
    assert endpoint in str(caught.value)
    assert not caught.value.maybe_applied


def test_a_host_that_does_not_exist_is_unreachable() -> None:
    config = replace(CONFIG, endpoint="http://no-such-host.invalid")
    with pytest.raises(Transient) as caught:
        put(S3Store("bucket", config))
    assert caught.value.unreachable


def test_a_missing_bucket_is_refused_with_advice(ministack_url: str) -> None:
    bucket = f"missing-{uuid.uuid4().hex}"
    store = S3Store(bucket, replace(CONFIG, endpoint=ministack_url, session_token=None))
    for act in (put, get, listing, lambda s: s.upload("k").part(1, 0, b"x")):
        with pytest.raises(OptionError, match="create the bucket"):
            act(store)


def test_missing_credentials_are_named(monkeypatch: pytest.MonkeyPatch, stub: Stub) -> None:
    for name in list(os.environ):
        if name.startswith("AWS_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", os.devnull)
    monkeypatch.setenv("AWS_CONFIG_FILE", os.devnull)
    with pytest.raises(OptionError, match="no credentials"):
        put(S3Store("bucket", S3Config(endpoint=stub.url)))
    assert stub.requests == []


def test_an_unknown_profile_is_named(monkeypatch: pytest.MonkeyPatch, stub: Stub) -> None:
    monkeypatch.setenv("AWS_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", os.devnull)
    with pytest.raises(OptionError, match="nobody"):
        put(S3Store("bucket", S3Config(endpoint=stub.url, profile="nobody")))


@pytest.mark.parametrize(
    "wrong",
    [
        {"endpoint": "localhost:9000"},
        {"endpoint": "ftp://host"},
        {"endpoint": "http://"},
        {"endpoint": "http://host:port"},
        {"endpoint": "http://host?x=1"},
        {"endpoint": "http://me:wJalrXsecretKEY@host"},
        {"access_key_id": None},
        {"secret_access_key": None},
        {"access_key_id": None, "secret_access_key": None},
    ],
)
def test_a_wrong_configuration_is_refused_without_a_secret(wrong: dict[str, object]) -> None:
    with pytest.raises(OptionError) as caught:
        replace(CONFIG, **wrong)  # type: ignore[arg-type]
    assert all(secret not in str(caught.value) for secret in SECRETS)


@pytest.mark.parametrize("bucket", ["logs--use1-az4--x-s3", "", "a", "a b", "a/b", "-a-", "a..b"])
def test_a_wrong_bucket_name_is_refused(bucket: str) -> None:
    with pytest.raises(OptionError):
        S3Store(bucket, CONFIG)


def test_secrets_are_in_no_text(stub: Stub) -> None:
    config = replace(CONFIG, endpoint=stub.url)
    store = S3Store("bucket", config)
    message = f"{SECRETS[0]} {SECRETS[1]} {SECRETS[2]} are wrong"
    texts = [repr(config), str(config), repr(store), store.url]
    for reply in (error(403, "InvalidAccessKeyId", message), error(503, "SlowDown", message)):
        stub.replies = [reply]
        try:
            put(store)
        except (OptionError, Transient) as failure:
            texts += [str(failure), repr(failure), "".join(traceback.format_exception(failure))]
    assert len(texts) == 10
    for text in texts:
        assert not [secret for secret in SECRETS if secret in text]
    assert "***" in texts[-1]


@pytest.mark.process
def test_clients_are_shared_within_a_process_and_never_across_a_fork(stub: Stub) -> None:
    store = S3Store("bucket", replace(CONFIG, endpoint=stub.url))
    with store.request("k") as one, pickle.loads(pickle.dumps(store)).request("k") as two:
        assert one is two
    child = os.fork()
    if child == 0:
        try:
            with store.request("k") as other:
                os._exit(0 if other is not one and inside.clients() == 1 else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_client_whose_keys_were_replaced_is_closed_and_dropped(stub: Stub) -> None:
    closed: list[int] = []

    def client(number: int) -> weakref.ref[object]:
        config = replace(CONFIG, endpoint=stub.url, session_token=f"hour-{number}")
        with S3Store("bucket", config).request("k") as found:
            found.close = lambda: closed.append(number)  # type: ignore[method-assign]
            return weakref.ref(found)

    made = [client(number) for number in range(s3_client.MOST_CLIENTS + 1)]
    gc.collect()
    assert [each() is None for each in made] == [True] + [False] * s3_client.MOST_CLIENTS
    assert closed == [0]


def test_a_client_that_was_closed_connects_again(stub: Stub) -> None:
    store = S3Store("bucket", replace(CONFIG, endpoint=stub.url))
    stub.replies = [(200, {}, body) for body in (b"one", b"two", b"three")]
    assert store.get("k") == b"one"
    with store.request("k") as client:
        client.close()
        assert [store.get("k"), store.get("k")] == [b"two", b"three"]


def test_botocore_missing_on_an_executor_is_one_sentence(
    stub: Stub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "botocore.session", None)
    store = S3Store("bucket", replace(CONFIG, endpoint=stub.url, read_timeout=59.0))
    with pytest.raises(OptionError) as refused:
        put(store)
    message = str(refused.value)
    assert "botocore is missing in " + sys.executable in message
    assert message.endswith("install the same sparkwal there")
    assert "\n" not in message and refused.value.__suppress_context__
