"""GETs of objects at the price of a signed request.

botocore takes 0.97 ms of CPU time for a GET, of which the signature and urllib3 are 0.4
(`tests/benchmark.sh small-commits` measures both). So it makes the first GET of a bucket, and the
next ones are made as that one was: the same URL, headers, signer and session, with its connections,
proxies, certificates and timeouts. A reply that is no success it reads itself.

Threads that wait for replies wait for Python's lock too, which doubles the price again. So one
thread can send many GETs on open connections (`send_object`) and read the replies one by one.
"""

from __future__ import annotations

import re
import threading
from dataclasses import dataclass
from http.client import HTTPException
from queue import Empty
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit
from weakref import WeakKeyDictionary

from sparkwal.store.base import NotFound
from sparkwal.store.s3_replies import Unproven, check_status

if TYPE_CHECKING:
    from mypy_boto3_s3.client import S3Client

# Of an object: offset and length.
Part = tuple[int, int]
# Each request has its own; the signer adds those that it needs.
_OWN = {
    "amz-sdk-invocation-id",
    "amz-sdk-request",
    "authorization",
    "range",
    "x-amz-content-sha256",
    "x-amz-date",
    "x-amz-security-token",
    "x-amzn-trace-id",
}


@dataclass(frozen=True)
class _Form:
    """What a client's GETs of one bucket share; `url` up to the key, and what is signed. `pool` are
    urllib3's connections to its host; None behind a proxy."""

    url: str
    headers: dict[str, str]
    service: str
    region: str
    pool: Any


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


def get_object(client: Any, at: dict[str, Any], key: str, part: Part | None = None) -> bytes:
    """An object's bytes; `at` is what every request says. Raises what botocore raises, NotFound,
    Unproven."""
    forms, bucket = _forms.setdefault(client, {}), at["Bucket"]
    form = forms.get(bucket)
    if form is None:
        body = _by_botocore(client, at, key, part)
        if bucket not in forms:
            forms[bucket] = _form_of(client, _here.sent, key)
        _here.sent = None
        return body
    reply = client._endpoint.http_session.send(_signed(client, form, key, part))
    if reply.status_code < 300:
        check_status("GetObject", reply.status_code)
        return whole(reply.raw, reply.headers, part)
    if reply.status_code == 404 and b"<Code>NoSuchKey</Code>" in reply.content:
        raise NotFound(key)
    _here.reply = reply
    try:
        return _by_botocore(client, at, key, part)
    finally:
        _here.reply = None


class SentObject:
    """A GET on its way, whose reply nobody has read yet."""

    def __init__(self, pool: Any, connection: Any, part: Part) -> None:
        self._pool = pool
        self._connection = connection
        self._part = part

    def wait(self, seconds: float) -> bool:
        """Whether the reply begins to come within so many seconds."""
        from urllib3.util.wait import wait_for_read

        return wait_for_read(self._connection.sock, seconds)

    def read(self, seconds: float | None) -> bytes | None:
        """The bytes, once; None for any other reply, which `get_range` gets again and reports.
        Raises Unproven for a reply that breaks off, or stands still for so many seconds."""
        from urllib3.exceptions import HTTPError

        connection = self._connection
        self._connection = None
        is_whole = False
        try:
            connection.sock.settimeout(seconds or self._pool.timeout.read_timeout)
            reply = connection.getresponse()
            if reply.status >= 300:
                return None
            check_status("GetObject", reply.status)
            body = whole(reply, reply.headers, self._part)
            is_whole = True
            return body
        except (OSError, HTTPException, HTTPError) as error:
            raise Unproven(f"the reply broke off ({type(error).__name__})") from None
        finally:
            # The next request on a connection would read what is left of this reply.
            if is_whole:
                self._pool._put_conn(connection)
            else:
                connection.close()

    def close(self) -> None:
        """Give it up: nobody reads the reply. No effect after `read`."""
        if self._connection is not None:
            self._connection.close()


def send_object(client: S3Client, at: dict[str, Any], key: str, part: Part) -> SentObject | None:
    """Send what `get_object` sends on a connection that is open and idle; None where none is."""
    form = _forms.get(client, {}).get(at["Bucket"])
    idle = form and form.pool and form.pool.pool
    if not form or not idle:
        return None
    try:
        connection = idle.get(block=False)
    except Empty:
        return None
    # To open a connection takes several round trips, which would delay all replies after it.
    if not getattr(connection, "is_connected", False):
        form.pool._put_conn(connection)
        return None
    try:
        request = _signed(client, form, key, part)
        target = "/" + request.url.split("/", 3)[3]
        connection.request(
            "GET", target, headers=request.headers, preload_content=False, decode_content=False
        )
    except BaseException:
        connection.close()
        raise
    return SentObject(form.pool, connection, part)


def whole(reader: Any, headers: Any, part: Part | None = None) -> bytes:
    """The bytes asked for, of a GET's reply. Raises Unproven for one that broke off, that is of
    another part, or that no S3 store sends."""
    body: bytes = reader.read()
    wanted = headers.get("content-length", "")
    if wanted.isdigit() and len(body) != int(wanted):
        raise Unproven(f"{len(body)} of {wanted} bytes came")
    if not wanted and "chunked" not in headers.get("transfer-encoding", ""):
        raise Unproven("GET was answered without Content-Length: it may have broken off")
    got = headers.get("content-range")
    if got is None:
        # A page of another server has neither.
        if not (headers.get("etag") or headers.get("last-modified")):
            raise Unproven("GET was answered without ETag and Last-Modified, which S3 sends")
        # A store may ignore Range and answer with everything.
        return body if part is None else body[part[0] : part[0] + part[1]]
    match = re.fullmatch(r"bytes (\d+)-(\d+)/(\d+|\*)", got)
    first, last = (int(match[1]), int(match[2])) if match else (-1, -1)
    offset, length = part or (0, len(body))
    is_end = match is not None and match[3] == str(last + 1)
    is_whole = len(body) == length or (is_end and len(body) < length)
    if first != offset or len(body) != last + 1 - first or not is_whole:
        raise Unproven(f"asked for {_range(part).get('Range', 'all')}, got {got}")
    return body


def _range(part: Part | None) -> dict[str, str]:
    return {"Range": f"bytes={part[0]}-{part[0] + part[1] - 1}"} if part else {}


def _by_botocore(client: Any, at: dict[str, Any], key: str, part: Part | None) -> bytes:
    reply = client.get_object(**at, Key=key, **_range(part))
    return whole(reply["Body"], reply["ResponseMetadata"]["HTTPHeaders"], part)


def _signed(client: Any, form: _Form, key: str, part: Part | None) -> Any:
    from botocore.awsrequest import AWSRequest

    headers = form.headers | _range(part)
    request = AWSRequest("GET", form.url + _quoted(key), headers, stream_output=True)
    # Every time: it has credentials refreshed that are about to expire.
    signer = client._request_signer.get_auth_instance(form.service, form.region, "s3v4")
    signer.add_auth(request)
    return request.prepare()


def _form_of(client: Any, sent: Any, key: str) -> _Form | None:
    """The form of a GET of this key; None where botocore is not as it is known here."""
    headers = {
        name: value.decode() if isinstance(value, bytes) else value
        for name, value in sent.headers.items()
    }
    scheme, _, rest = headers.get("Authorization", "").partition(" Credential=")
    scope = rest.partition(",")[0].split("/")
    url = str(sent.url).removesuffix(_quoted(key))
    known = scheme == "AWS4-HMAC-SHA256" and len(scope) >= 5 and hasattr(client, "_request_signer")
    # A directory bucket's session has a token of its own, which expires.
    if not known or "x-amz-s3session-token" in map(str.lower, headers):
        return None
    if "?" in url or not url.endswith("/"):
        return None
    common = {name: value for name, value in headers.items() if name.lower() not in _OWN}
    # The signer would work it out of the URL, twice.
    common["Host"] = urlsplit(url).netloc
    try:
        session = client._endpoint.http_session
        proxy = session._proxy_config.proxy_url_for(url)
        pool = None if proxy else session._get_connection_manager(url).connection_from_url(url)
    except AttributeError:
        return None
    return _Form(url, common, service=scope[-2], region=scope[-3], pool=pool)


def _quoted(key: str) -> str:
    return quote(key, safe="/~")
