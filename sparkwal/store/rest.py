"""One HTTP request to a cloud's store, and the errors of a connection.

Azure and Google document their requests as plain HTTP, and a log needs seven of them.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from itertools import zip_longest
from typing import Any
from urllib.parse import urlencode, urlsplit

import urllib3
from urllib3 import exceptions as http

from sparkwal.errors import OptionError
from sparkwal.store import s3_private
from sparkwal.store.base import Entry, Folders, NotFound, Page, Transient
from sparkwal.store.config import S3Config
from sparkwal.store.s3_errors import KeyTaken
from sparkwal.store.s3_get import SentObject
from sparkwal.store.s3_replies import Unproven, check_order, folders_page

# What a store says about its own failure, and not about the request.
TEMPORARY = (408, 429, 500, 502, 503, 504)
_MOST_EMPTY_PAGES = 1000
_UNREACHABLE = (http.NewConnectionError, http.ConnectTimeoutError, http.ProxyError)


@dataclass(frozen=True)
class Request:
    """One request.

    Attributes:
        url: the address without a query.
        query: the parameters of the query.
    """

    method: str
    url: str
    query: Mapping[str, str] = field(repr=False)
    headers: Mapping[str, str] = field(repr=False)
    body: bytes = field(default=b"", repr=False)


@dataclass(frozen=True)
class Reply:
    status: int
    headers: Mapping[str, str]
    body: bytes

    def header(self, name: str) -> str:
        """A header that each reply of the store has.

        Raises:
            Unproven: the reply lacks it.
        """
        value = self.headers.get(name)
        if not value:
            raise Unproven(f"a reply of status {self.status} without {name}")
        return value

    def age_ms(self) -> int:
        """The milliseconds from Last-Modified to Date, by the store's clock, or fewer."""
        since, now = (parsedate_to_datetime(self.header(x)) for x in ("Last-Modified", "Date"))
        # Both times have whole seconds, so up to a second less may have passed.
        return max(0, int((now - since).total_seconds() * 1000) - 1000)


@dataclass(frozen=True)
class Listed:
    """One page of a LIST: its objects, its folders and the marker of the next page."""

    entries: list[Entry]
    folders: list[str]
    marker: str


def first_page(
    read: Callable[[str], Listed], prefix: str, limit: int, after: str, listed: Listed | None = None
) -> Page:
    """The first page that has a name after `after`.

    Args:
        read: reads the page at a marker; "" is the first one.
        prefix, limit, after: as for `Store.list`.
        listed: the first page, if it was read already.

    Raises:
        Transient: too many pages show no such name.
    """
    marker = ""
    for _ in range(_MOST_EMPTY_PAGES):
        listed = listed or read(marker)
        check_order(listed.entries, prefix, "")
        entries = [entry for entry in listed.entries if entry.key > after]
        if entries or not listed.marker:
            return Page(entries[:limit], bool(listed.marker) or len(entries) > limit)
        marker = listed.marker
        listed = None
    raise Transient(f"empty pages of the LIST of {prefix} that lead no further")


def first_folders(
    read: Callable[[str], Listed],
    prefix: str,
    after: str,
    delimiter: str,
    *,
    marker: str = "",
    skips: bool = False,
) -> tuple[Folders, str] | None:
    """The first page of folders that shows anything after `after`. See `Store.folders`.

    Args:
        read: reads the page at a marker; "" is the first one.
        prefix, after: as for `Store.folders`.
        delimiter: what ends the name of a folder.
        marker: the marker of the page to begin with.
        skips: `read` does not begin at `after`, so that what comes before it is skipped.

    Returns:
        The page, and the marker of the one behind it. None if the server lists no such folders.

    Raises:
        Transient: too many pages show nothing.
    """
    for _ in range(_MOST_EMPTY_PAGES):
        listed = read(marker)
        least = after if skips else ""
        keys = [entry.key for entry in listed.entries]
        rows = {
            "CommonPrefixes": [{"Prefix": name} for name in listed.folders if name > least],
            "Contents": [{"Key": key} for key in keys if key > least],
            "IsTruncated": bool(listed.marker),
        }
        page = folders_page(rows, prefix, after, delimiter)
        if page is None:
            return None
        if page.after or not listed.marker:
            return page, listed.marker
        marker = listed.marker
    raise Transient(f"empty pages of the LIST of folders in {prefix} that lead no further")


def delete_each(
    delete: Callable[[str, str], None], keys: Sequence[str], etags: Sequence[str]
) -> list[str]:
    """Delete objects one by one, and return those that the store kept.

    Args:
        delete: deletes a key if it has an ETag; "" is any.
        keys, etags: as for `Store.delete_many`.
    """
    refused = []
    for key, etag in zip_longest(keys, etags, fillvalue=""):
        try:
            delete(key, etag)
        except NotFound:
            continue
        except KeyTaken:
            refused.append(key)
    return refused


class WholeUpload:
    """Parts that stay in memory until one PUT sends them. The PUT may be repeated.

    Several threads may call `part` at once.
    """

    def __init__(self, put: Callable[[bytes], bool]) -> None:
        self._put = put
        self._parts: dict[int, bytes] = {}

    def part(self, number: int, offset: int, body: bytes) -> None:
        self._parts[number] = body

    def complete(self) -> bool:
        return self._put(b"".join(self._parts[number] for number in sorted(self._parts)))

    def abort(self) -> None:
        self._parts.clear()


_pools: dict[tuple[str, S3Config], urllib3.PoolManager] = {}
_lock = threading.Lock()


def _forget_parent() -> None:
    """Begin without connections after a fork: two processes would read each other's replies."""
    global _lock
    _lock = threading.Lock()
    _pools.clear()


os.register_at_fork(after_in_child=_forget_parent)


def send(request: Request, config: S3Config, sign: Callable[[Request], Request]) -> Reply:
    """Send a request once, and read its reply.

    Args:
        config: the timeouts, and the number of connections that stay open.
        sign: adds the credentials.

    Raises:
        Transient: no reply came. The reason has no part of the query, which may be a secret.
        OptionError: the server's certificate was not accepted.
    """
    signed = sign(request)
    query = f"?{urlencode(signed.query)}" if signed.query else ""
    try:
        # Only RetryingStore retries: after a lost reply a refusal may be caused by the write.
        reply: Any = _pool(request.url, config).request(
            signed.method,
            signed.url + query,
            body=signed.body or None,
            headers=dict(signed.headers),
            retries=False,
            redirect=False,
            decode_content=False,
        )
    except http.SSLError as error:
        message = " ".join(str(error.args[0] if error.args else error).split())
        if "certificate" not in message.lower():
            raise Transient(f"TLS failed: {message[:200]}") from None
        raise OptionError(
            f"{_host(request)}: the certificate was not accepted ({message[:200]}); correct the "
            "endpoint, or let SSL_CERT_FILE name its certificate authority"
        ) from None
    except (http.HTTPError, OSError) as error:
        # urllib3 shows the URL with its query in some messages.
        raise Transient(
            f"{type(error).__name__} at {_host(request)}",
            unreachable=isinstance(error, _UNREACHABLE),
        ) from None
    return Reply(reply.status, reply.headers, reply.data)


def send_ahead(
    request: Request,
    config: S3Config,
    sign: Callable[[Request], Request],
    body: Callable[[Reply], bytes],
) -> SentObject | None:
    """Send a GET on an idle connection, whose reply is read later.

    Args:
        config, sign: as for `send`.
        body: the bytes of a reply whose status is below 300.

    Returns:
        The request, or None if no open connection is idle, or a proxy is in between.
    """
    manager = _pool(request.url, config)
    if isinstance(manager, urllib3.ProxyManager):
        return None
    pool: Any = manager.connection_from_url(request.url)
    if not (hasattr(pool, "pool") and hasattr(pool, "_put_conn")):
        return None
    connection = s3_private.take_open_connection(pool)
    if connection is None:
        return None
    try:
        signed = sign(request)
        parts = urlsplit(signed.url)
        target = f"{parts.path}?{urlencode(signed.query)}" if signed.query else parts.path
        s3_private.send_get(connection, target, dict(signed.headers))
    except BaseException:
        connection.close()
        raise

    def read(reply: Any) -> bytes:
        return body(Reply(reply.status, reply.headers, reply.read()))

    return SentObject(pool, connection, read)


def _host(request: Request) -> str:
    return urlsplit(request.url).netloc


def retry_after(reply: Reply) -> float | None:
    value = reply.headers.get("Retry-After", "")
    return float(value) if value.isdecimal() else None


def range_header(offset: int, length: int) -> dict[str, str]:
    return {"Range": f"bytes={offset}-{offset + length - 1}"}


def ranged(reply: Reply, offset: int, length: int) -> tuple[bytes, int]:
    """The bytes of a reply to a GET of a range, and the size of the object.

    Raises:
        Unproven: it is the reply to another request.
    """
    if reply.status == 200:
        return reply.body[offset : offset + length], len(reply.body)
    unit, _, shown = reply.header("Content-Range").partition(" ")
    part, _, total = shown.partition("/")
    begin, _, end = part.partition("-")
    if unit != "bytes" or not all(x.isdecimal() for x in (begin, end, total)):
        raise Unproven(f"a Content-Range that is none: {shown[:40]!r}")
    expected = min(length, int(total) - offset)
    if int(begin) != offset or len(reply.body) != expected:
        raise Unproven(f"GET of {length} bytes from {offset} was answered by {shown}")
    return reply.body, int(total)


def _pool(url: str, config: S3Config) -> urllib3.PoolManager:
    """This process's connections to a server."""
    parts = urlsplit(url)
    at = parts.scheme, config
    pool = _pools.get(at)
    if pool is None:
        with _lock:
            pool = _pools.get(at) or _pools.setdefault(at, _new_pool(url, config))
    return pool


def _new_pool(url: str, config: S3Config) -> urllib3.PoolManager:
    from urllib.request import getproxies, proxy_bypass

    parts = urlsplit(url)
    timeout = urllib3.Timeout(connect=config.connect_timeout, read=config.read_timeout)
    common: Any = {"maxsize": config.max_pool_connections, "timeout": timeout}
    proxy = getproxies().get(parts.scheme)
    if proxy is None or proxy_bypass(parts.hostname or ""):
        return urllib3.PoolManager(**common)
    return urllib3.ProxyManager(proxy, **common)
