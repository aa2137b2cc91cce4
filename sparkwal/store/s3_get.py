"""GETs of objects that cost little more CPU time than their signature.

botocore takes 0.97 ms of CPU time for a GET; its signature and urllib3 take 0.4 ms of these
(`tests/benchmark.sh small-commits` measures both). So botocore makes the first GET of a bucket, and
this module makes the next ones alike: with the same URL, headers and signer, and with botocore's
session, which has the connections, proxies, certificates and timeouts. If a reply is no success,
botocore parses it. If botocore or urllib3 lacks a private name (`s3_private`), botocore makes all
GETs.

Threads that wait for replies also wait for Python's lock, which doubles the CPU time. So one thread
can send many GETs on open connections (`send_object`), and read the replies one by one.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from http.client import HTTPException
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit
from weakref import WeakKeyDictionary

from sparkwal.store import s3_private
from sparkwal.store.base import Front, NotFound
from sparkwal.store.s3_replies import Unproven, check_status

if TYPE_CHECKING:
    from mypy_boto3_s3.client import S3Client

# The offset and the length of a part of an object.
Part = tuple[int, int]
# Headers that differ in each request. The signer adds those that a request needs.
_HEADERS_OF_ONE_REQUEST = {
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
    """The common parts of a client's GETs of one bucket. It must hold no reference to the client.

    Attributes:
        url: the URL up to the key.
        service: the service's name in the signature.
        region: the region in the signature.
        pool: urllib3's connections to the host, or None if requests cannot be sent ahead.
    """

    url: str
    headers: dict[str, str]
    service: str
    region: str
    pool: Any | None


class _BotocoreCall(threading.local):
    """The state of one thread's call of botocore.

    Attributes:
        request: the request that botocore sent last.
        reply: if set, botocore takes this reply and sends no request.
    """

    request: Any = None
    reply: Any = None


_botocore_call = _BotocoreCall()
# The form for each client and bucket, or None if botocore must make these GETs.
_forms: WeakKeyDictionary[S3Client, dict[str, _Form | None]] = WeakKeyDictionary()


def listen(client: S3Client) -> None:
    """Register the hook that notes botocore's requests, and hands over replies."""
    client.meta.events.register_last("before-send.s3.GetObject", _before_send)


def _before_send(request: Any, **_: object) -> Any:
    _botocore_call.request = request
    return _botocore_call.reply


def get_object(
    client: Any, parameters: dict[str, Any], key: str, part: Part | None = None
) -> bytes:
    """Read an object or a part of it. Raises botocore's errors too.

    Args:
        parameters: the bucket and the other parameters that every request has.

    Raises:
        NotFound: no object has this key.
        Unproven: the reply broke off, or does not prove itself.
    """
    forms = _forms.setdefault(client, {})
    bucket = parameters["Bucket"]
    form = forms.get(bucket)
    if form is None:
        body = _get_by_botocore(client, parameters, key, part)
        if bucket not in forms:
            forms[bucket] = _form_of(client, _botocore_call.request, key)
        _botocore_call.request = None
        return body
    reply = s3_private.send(client, _signed(client, form, key, part))
    if reply.status_code < 300:
        check_status("GetObject", reply.status_code)
        return read_body(reply.raw, reply.status_code, reply.headers, part)
    if reply.status_code == 404 and b"<Code>NoSuchKey</Code>" in reply.content:
        raise NotFound(key)
    _botocore_call.reply = reply
    try:
        return _get_by_botocore(client, parameters, key, part)
    finally:
        _botocore_call.reply = None


class SentObject:
    """A GET in flight, whose reply is still to be read.

    Args:
        pool: where the connection belongs.
        connection: has sent the request.
        body: reads the bytes of a reply that is a success.
    """

    def __init__(self, pool: Any, connection: Any, body: Callable[[Any], bytes]) -> None:
        self._pool = pool
        self._connection = connection
        self._body = body

    def wait(self, seconds: float) -> bool:
        """Whether the reply begins to arrive within so many seconds."""
        from urllib3.util.wait import wait_for_read

        return wait_for_read(self._connection.sock, seconds)

    def read(self, seconds: float | None) -> bytes | None:
        """Read the reply, once.

        Args:
            seconds: the longest pause between two bytes, by default the pool's timeout.

        Returns:
            The bytes, or None if the reply is no success: make the same `get_range`, and report
            its error.

        Raises:
            Unproven: the reply broke off or paused for too long.
        """
        from urllib3.exceptions import HTTPError

        connection = self._connection
        self._connection = None
        is_complete = False
        try:
            connection.sock.settimeout(seconds or self._pool.timeout.read_timeout)
            reply = connection.getresponse()
            if reply.status >= 300:
                return None
            body = self._body(reply)
            is_complete = True
            return body
        except (OSError, HTTPException, HTTPError) as error:
            raise Unproven(f"the reply broke off ({type(error).__name__})") from None
        finally:
            # The next request on this connection would read the bytes that are left of this reply.
            if is_complete:
                s3_private.put_back(self._pool, connection)
            else:
                connection.close()

    def close(self) -> None:
        """Give up the reply. No effect after `read`."""
        if self._connection is not None:
            self._connection.close()


def send_object(
    client: S3Client, parameters: dict[str, Any], key: str, part: Part
) -> SentObject | None:
    """Send the request of `get_object` on an idle connection, or None if no open one is idle.

    A new connection would take several round trips, and delay all replies that are read later.
    """
    form = _forms.get(client, {}).get(parameters["Bucket"])
    if form is None or form.pool is None:
        return None
    connection = s3_private.take_open_connection(form.pool)
    if connection is None:
        return None
    try:
        request = _signed(client, form, key, part)
        target = "/" + request.url.split("/", 3)[3]
        s3_private.send_get(connection, target, request.headers)
    except BaseException:
        connection.close()
        raise
    return SentObject(form.pool, connection, partial(_sent_body, part))


def _sent_body(part: Part, reply: Any) -> bytes:
    check_status("GetObject", reply.status)
    return read_body(reply, reply.status, reply.headers, part)


def read_botocore_body(reply: Any, part: Part | None) -> bytes:
    """As `read_body`, of botocore's reply."""
    about = reply["ResponseMetadata"]
    return read_body(reply["Body"], about["HTTPStatusCode"], about["HTTPHeaders"], part)


def read_body(reader: Any, status: int, headers: Any, part: Part | None = None) -> bytes:
    """Read the bytes of a GET's reply, and check that they are the requested ones.

    Raises:
        Unproven: the reply broke off, is that of another part, or comes from no S3 store.
    """
    body: bytes = reader.read()
    content_length = headers.get("content-length", "")
    if content_length.isdigit() and len(body) != int(content_length):
        raise Unproven(f"{len(body)} of {content_length} bytes came")
    if not content_length and "chunked" not in headers.get("transfer-encoding", ""):
        raise Unproven("GET was answered without Content-Length: it may have broken off")
    # The request accepts no encoding. S3 may show this one of an upload.
    if headers.get("content-encoding", "identity").lower() not in ("identity", "aws-chunked", ""):
        raise Unproven(f"GET was answered with the bytes as {headers['content-encoding']}")
    content_range = headers.get("content-range")
    if content_range is None and status == 206:
        raise Unproven("GET was answered by a part of the object without Content-Range")
    if content_range is None:
        # The page of another server has none of these headers.
        if not (headers.get("etag") or headers.get("last-modified")):
            raise Unproven("GET was answered without ETag and Last-Modified, which S3 sends")
        # A store may ignore Range and send the complete object.
        return body if part is None else _front(body[part[0] : part[0] + part[1]], part, len(body))
    match = re.fullmatch(r"bytes (\d+)-(\d+)/(\d+|\*)", content_range)
    first, last = (int(match[1]), int(match[2])) if match else (-1, -1)
    offset, length = part or (0, len(body))
    is_end = match is not None and match[3] == str(last + 1)
    is_complete = len(body) == length or (is_end and len(body) < length)
    if first != offset or len(body) != last + 1 - first or not is_complete:
        raise Unproven(f"asked for {range_of(part).get('Range', 'all')}, got {content_range}")
    return _front(body, part, int(match[3]) if match and match[3] != "*" else None)


def _front(body: bytes, part: Part | None, total: int | None) -> bytes:
    return body if part is None else Front.of(body, *part, total)


def range_of(part: Part | None) -> dict[str, str]:
    return {"Range": f"bytes={part[0]}-{part[0] + part[1] - 1}"} if part else {}


def _get_by_botocore(client: Any, parameters: dict[str, Any], key: str, part: Part | None) -> bytes:
    reply = client.get_object(**parameters, Key=key, **range_of(part))
    return read_botocore_body(reply, part)


def _signed(client: Any, form: _Form, key: str, part: Part | None) -> Any:
    from botocore.awsrequest import AWSRequest

    headers = form.headers | range_of(part)
    request = AWSRequest("GET", form.url + _quoted(key), headers, stream_output=True)
    s3_private.sign(client, request, form.service, form.region)
    return request.prepare()


def _form_of(client: Any, request: Any, key: str) -> _Form | None:
    """The form of botocore's GET of a key, or None if the form or a private name is unknown."""
    if not (s3_private.can_send(client) and s3_private.can_sign(client)):
        return None
    headers = {
        name: value.decode() if isinstance(value, bytes) else value
        for name, value in request.headers.items()
    }
    scheme, _, credential = headers.get("Authorization", "").partition(" Credential=")
    scope = credential.partition(",")[0].split("/")
    if scheme != "AWS4-HMAC-SHA256" or len(scope) < 5:
        return None
    # The session of a directory bucket has another token, which expires.
    if "x-amz-s3session-token" in map(str.lower, headers):
        return None
    url = str(request.url).removesuffix(_quoted(key))
    if "?" in url or not url.endswith("/"):
        return None
    common = {
        name: value
        for name, value in headers.items()
        if name.lower() not in _HEADERS_OF_ONE_REQUEST
    }
    # Without this header the signer would parse the URL, twice.
    common["Host"] = urlsplit(url).netloc
    return _Form(
        url,
        common,
        service=scope[-2],
        region=scope[-3],
        pool=s3_private.connection_pool(client, url),
    )


def _quoted(key: str) -> str:
    return quote(key, safe="/~")
