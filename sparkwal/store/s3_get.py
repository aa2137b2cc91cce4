"""GETs of objects at the price of a signed request.

botocore takes 0.97 ms of CPU time for a GET, of which the signature and urllib3 are 0.4
(`tests/benchmark.sh small-commits` measures both). So it makes the first GET of a bucket, and the
next ones are made as that one was: the same URL, headers, signer and session, with its connections,
proxies, certificates and timeouts. A reply that is no success it reads itself.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit
from weakref import WeakKeyDictionary

from sparkwal.store.base import NotFound, Transient

if TYPE_CHECKING:
    from mypy_boto3_s3.client import S3Client

# Each request has its own; the signer adds those that it needs.
_OWN = {
    "amz-sdk-invocation-id", "amz-sdk-request", "authorization", "range", "x-amz-content-sha256",
    "x-amz-date", "x-amz-security-token", "x-amzn-trace-id",
}  # fmt: skip


@dataclass(frozen=True)
class _Form:
    """What a client's GETs of one bucket share; `url` up to the key, and what is signed."""

    url: str
    headers: dict[str, str]
    service: str
    region: str


class _Here(threading.local):
    """Of one thread: the request that botocore sent last, and the reply that it is to take."""

    sent: Any = None
    reply: Any = None


_here = _Here()
# None: of a form that is not known here.
_forms: WeakKeyDictionary[S3Client, dict[str, _Form | None]] = WeakKeyDictionary()


def listen(client: S3Client) -> None:
    client.meta.events.register_last("before-send.s3.GetObject", _sending)


def _sending(request: Any, **_: object) -> Any:
    _here.sent = request
    return _here.reply


def get_object(
    client: S3Client, at: dict[str, Any], key: str, span: str = ""
) -> tuple[bytes, str | None]:
    """An object's bytes, and which they are as Content-Range says; `at` is what every request says,
    `span` is as Range says. Raises what botocore raises, NotFound, Transient."""
    forms, bucket = _forms.setdefault(client, {}), at["Bucket"]
    form = forms.get(bucket)
    if form is None:
        got = _by_botocore(client, at, key, span)
        if bucket not in forms:
            forms[bucket] = _form_of(client, _here.sent, key)
        _here.sent = None
        return got
    reply = _send(client, form, key, span)
    headers = reply.headers
    if reply.status_code < 300:
        length = headers.get("Content-Length", "")
        found = {"Body": reply.raw, "ContentLength": int(length) if length.isdigit() else None}
        return whole(found), headers.get("Content-Range")
    if reply.status_code == 404 and b"<Code>NoSuchKey</Code>" in reply.content:
        raise NotFound(key)
    _here.reply = reply
    try:
        return _by_botocore(client, at, key, span)
    finally:
        _here.reply = None


def whole(reply: Any) -> bytes:
    """The body of a GET. Raises Transient for one that broke off."""
    body: bytes = reply["Body"].read()
    wanted = reply.get("ContentLength")
    if wanted is not None and len(body) != wanted:
        raise Transient(f"{len(body)} of {wanted} bytes came")
    return body


def _by_botocore(
    client: S3Client, at: dict[str, Any], key: str, span: str
) -> tuple[bytes, str | None]:
    part: Any = {"Range": span} if span else {}
    reply = client.get_object(**at, Key=key, **part)
    return whole(reply), reply.get("ContentRange")


def _send(client: Any, form: _Form, key: str, span: str) -> Any:
    from botocore.awsrequest import AWSRequest

    headers = {**form.headers, "Range": span} if span else form.headers
    request = AWSRequest("GET", form.url + _quoted(key), headers, stream_output=True)
    # Every time: it has credentials refreshed that are about to expire.
    signer = client._request_signer.get_auth_instance(form.service, form.region, "s3v4")
    signer.add_auth(request)
    return client._endpoint.http_session.send(request.prepare())


def _form_of(client: Any, sent: Any, key: str) -> _Form | None:
    """The form of a GET of this key; None where botocore is not as it is known here."""
    endpoint = getattr(client, "_endpoint", None)
    if not hasattr(client, "_request_signer") or not hasattr(endpoint, "http_session"):
        return None
    headers = {
        name: value.decode() if isinstance(value, bytes) else value
        for name, value in sent.headers.items()
    }
    scheme, _, rest = headers.get("Authorization", "").partition(" Credential=")
    scope = rest.partition(",")[0].split("/")
    url = str(sent.url).removesuffix(_quoted(key))
    known = scheme == "AWS4-HMAC-SHA256" and len(scope) >= 5
    # A directory bucket's session has a token of its own, which expires.
    if not known or "x-amz-s3session-token" in map(str.lower, headers):
        return None
    if "?" in url or not url.endswith("/"):
        return None
    common = {name: value for name, value in headers.items() if name.lower() not in _OWN}
    # The signer would work it out of the URL, twice.
    common["Host"] = urlsplit(url).netloc
    return _Form(url, common, service=scope[-2], region=scope[-3])


def _quoted(key: str) -> str:
    return quote(key, safe="/~")
