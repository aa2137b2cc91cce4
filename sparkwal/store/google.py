"""A bucket of Google Cloud Storage, as a `Store`. Its requests are those of the JSON API."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import partial
from typing import Any
from urllib.parse import quote

from sparkwal.errors import OptionError
from sparkwal.store import rest
from sparkwal.store.base import (
    Entry,
    Folders,
    Front,
    NotFound,
    Page,
    Refusal,
    Tagged,
    Transient,
    Unfinished,
    UnfinishedPage,
)
from sparkwal.store.config import S3Config, is_unencrypted, normal_endpoint
from sparkwal.store.rest import Listed, Reply, Request
from sparkwal.store.s3_errors import BeyondEnd, Denied, KeyTaken, Unanswered
from sparkwal.store.s3_get import SentObject
from sparkwal.store.s3_replies import Unproven
from sparkwal.store.tokens import Token

_GOOGLE = "https://storage.googleapis.com"
_SCOPE = "https://www.googleapis.com/auth/devstorage.read_write"
_BUCKET = re.compile(r"[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]")
_NO_OBJECT = b"No such object"
_ROLE = "give the role Storage Object User (a reader: Storage Object Viewer) at the bucket"
_FILE = "GOOGLE_APPLICATION_CREDENTIALS"
_ABSENT = "create the bucket, or correct the path"


class GoogleStore:
    """One bucket; each method makes one attempt. The ETag of an object is its generation.

    The store holds no connection itself, so it can be forked and pickled.

    Args:
        bucket: its name.
        config: the endpoint of another server, the timeouts and the number of connections.

    Raises:
        OptionError: the bucket cannot hold a log.
    """

    def __init__(self, bucket: str, config: S3Config) -> None:
        if not _BUCKET.fullmatch(bucket):
            raise OptionError(f"{bucket!r} is no bucket name; paths look like gs://bucket/folder")
        if config.access_key_id is not None:
            raise OptionError(
                "accessKeyId is no credential of Google: let GOOGLE_APPLICATION_CREDENTIALS name a "
                "service account's file, or use the account of the machine"
            )
        self.bucket = bucket
        self.config = config
        endpoint = config.endpoint or os.environ.get("STORAGE_EMULATOR_HOST")
        self.endpoint = normal_endpoint(endpoint) if endpoint else None
        self._base = self.endpoint or _GOOGLE
        self.url = self.identity = f"{self.endpoint}/{bucket}" if endpoint else f"gs://{bucket}"
        self.concurrency = config.max_pool_connections
        self.retries = 0

    def credentials(self) -> str:
        """Where the credentials come from. It shows no secret.

        Raises:
            OptionError: none were found.
            Transient: the service of tokens did not answer.
        """
        self._sign(Request("GET", self._base, {}, {}))
        if self._base.startswith("http:"):
            return "none: a server of tests takes none"
        # In this order google-auth looks for them.
        if os.environ.get(_FILE):
            return f"the file that {_FILE} names"
        folder = os.environ.get("CLOUDSDK_CONFIG") or os.path.expanduser("~/.config/gcloud")
        if os.path.exists(os.path.join(folder, "application_default_credentials.json")):
            return "gcloud auth application-default login"
        return "the account of the machine"

    def _sign(self, request: Request) -> Request:
        # A server of tests on this machine takes no credentials.
        if self._base.startswith("http:"):
            if is_unencrypted(self._base):
                raise OptionError(f"{self._base} has no TLS, and a token needs it: write https://")
            return request
        headers = {**request.headers, "Authorization": f"Bearer {TOKEN.text()}"}
        return replace(request, headers=headers)

    def _send(
        self,
        method: str,
        path: str,
        key: str | None = "",
        query: Mapping[str, str] = {},
        headers: Mapping[str, str] = {},
        body: bytes = b"",
    ) -> Reply:
        """Send one request to `{path}/b/{bucket}/o`, and perhaps to an object below it.

        The key None stands for the bucket itself.

        Returns:
            The reply, if its status is below 300.

        Raises:
            KeyTaken: the condition of a write does not hold.
            NotFound: there is no such object.
            BeyondEnd: the range begins after the object's end.
        """
        url = f"{self._base}{path}/b/{self.bucket}{'' if key is None else '/o'}"
        # Other writes need no object, so none of theirs is missing.
        replaces = query.get("ifGenerationMatch", "0") != "0"
        name = query.get("name", "") if replaces and not key else key or ""
        if key:
            url += f"/{quote(key, safe='')}"
        reply = rest.send(Request(method, url, query, headers, body), self.config, self._sign)
        if reply.status >= 300:
            raise self._failure(reply, name)
        return reply

    def _failure(self, reply: Reply, key: str) -> Exception:
        error = _json(reply.body).get("error")
        error = error if isinstance(error, dict) else {}
        detail = " ".join(str(error.get("message", "")).split())[:300]
        errors = error.get("errors") or [{}]
        reason = errors[0].get("reason", "") if isinstance(errors[0], dict) else ""
        message = f"{reply.status} {detail}".strip()
        unexpected = f"{self.url} answers {message} where Google never does; check the endpoint"
        if reply.status == 412:
            return KeyTaken(unexpected)
        if reply.status == 416:
            return BeyondEnd(unexpected)
        if reply.status == 404:
            if "bucket" in detail.lower() and "object" not in detail.lower():
                return Refusal(f"{self.url} refused the request ({message}); {_ABSENT}")
            if reason == "notFound" or _NO_OBJECT in reply.body:
                absent = Refusal(f"{self.url} refused the request ({message}); {_ABSENT}")
                return NotFound(key) if key else absent
            return Unanswered(f"a 404 that does not name the object; {unexpected}")
        # A 429 may answer a write that took effect, as a lost reply does.
        if reply.status in rest.TEMPORARY or reply.status == 409:
            return Transient(message, retry_after=rest.retry_after(reply))
        if reply.status == 401:
            TOKEN.forget()
        advice = _ROLE if reply.status == 403 else "correct the path or the endpoint"
        refusal: type[OptionError] = OptionError
        if reply.status == 403:
            refusal = Denied
        elif reply.status == 401 or reply.status < 400 or not error:
            refusal = Refusal
        return refusal(f"{self.url} refused the request ({message}); {advice}")

    def put_if_absent(self, key: str, body: bytes) -> bool:
        try:
            self._put(key, body, {"ifGenerationMatch": "0"})
        except KeyTaken:
            return False
        return True

    def put(self, key: str, body: bytes) -> None:
        self._put(key, body, {})

    def replace(self, key: str, body: bytes, etag: str) -> bool:
        if not etag.isdecimal():
            # No object has such a generation.
            return False
        try:
            self._put(key, body, {"ifGenerationMatch": etag})
        except (KeyTaken, NotFound):
            return False
        return True

    def _put(self, key: str, body: bytes, condition: Mapping[str, str]) -> None:
        query = {"uploadType": "media", "name": key, **condition}
        headers = {"Content-Type": "application/octet-stream"}
        reply = self._send("POST", "/upload/storage/v1", "", query, headers, body)
        stored = _json(reply.body)
        if stored.get("name") != key or not stored.get("generation"):
            raise Unproven("a write was answered without the object's name and generation")
        md5 = base64.b64encode(hashlib.md5(body, usedforsecurity=False).digest()).decode()
        if stored.get("md5Hash", md5) != md5 or stored.get("size") != str(len(body)):
            raise Unproven("a write was answered with the MD5 or the size of other bytes")

    def get(self, key: str) -> bytes:
        return self.get_tagged(key).body

    def get_tagged(self, key: str, length: int | None = None) -> Tagged:
        headers = {} if length is None else rest.range_header(0, length)
        try:
            reply = self._media(key, headers)
        except BeyondEnd:
            # An empty object; the reply is an error.
            return Tagged(b"", "")
        body = reply.body if length is None else rest.ranged(reply, 0, length)[0]
        return Tagged(body, reply.header("x-goog-generation"))

    def get_range(self, key: str, offset: int, length: int) -> bytes:
        if length <= 0:
            return b""
        try:
            reply = self._media(key, rest.range_header(offset, length))
        except BeyondEnd:
            return b""
        return self._range_of(offset, length, reply)

    def send_range(self, key: str, offset: int, length: int) -> SentObject | None:
        """Send a `get_range`, whose reply is read later. Returns None if it would have to wait."""
        if length <= 0:
            return None
        url = f"{self._base}/storage/v1/b/{self.bucket}/o/{quote(key, safe='')}"
        headers = rest.range_header(offset, length)
        request = Request("GET", url, {"alt": "media"}, headers)
        try:
            body = partial(self._range_of, offset, length)
            return rest.send_ahead(request, self.config, self._sign, body)
        except Exception:
            # The caller uses `get_range` instead, which reports such an error.
            return None

    def _range_of(self, offset: int, length: int, reply: Reply) -> bytes:
        reply.header("x-goog-generation")
        body, total = rest.ranged(reply, offset, length)
        return Front.of(body, offset, length, total)

    def _media(self, key: str, headers: Mapping[str, str]) -> Reply:
        """GET the bytes. If a 404 does not name the object, a second request asks for it."""
        try:
            reply = self._send("GET", "/storage/v1", key, {"alt": "media"}, headers)
        except Unanswered:
            # Its 404 is JSON.
            self._send("GET", "/storage/v1", key)
            raise
        reply.header("x-goog-generation")
        return reply

    def list(self, prefix: str, limit: int = 1000, after: str = "") -> Page:
        """Make one LIST, and one more for each page that Google ends before its first key."""
        # The LIST begins with the name itself.
        read = partial(self._page, prefix, limit + bool(after), start=after)
        return rest.first_page(read, prefix, limit, after)

    def _page(
        self, prefix: str, size: int, token: str, start: str = "", delimiter: str = ""
    ) -> Listed:
        query = {
            "prefix": prefix,
            "maxResults": str(min(size, 1000)),
            "pageToken": token,
            "startOffset": start,
            "delimiter": delimiter,
            "fields": "kind,prefixes,nextPageToken,items(name,size,generation)",
        }
        query = {name: value for name, value in query.items() if value}
        reply = _json(self._send("GET", "/storage/v1", "", query).body)
        if reply.get("kind") != "storage#objects":
            raise Unproven("LIST was answered by something else")
        entries = [_entry(item) for item in reply.get("items") or []]
        return Listed(entries, reply.get("prefixes") or [], reply.get("nextPageToken") or "")

    def folders(self, prefix: str, inside: str, after: str = "") -> Folders | None:
        """Make one LIST, and one more for an empty page."""
        delimiter = f"/{inside}/"
        read = partial(self._page, prefix, 1000, start=after, delimiter=delimiter)
        folders = rest.first_folders(read, prefix, after, delimiter)
        return folders and folders[0]

    def delete(self, key: str) -> None:
        with suppress(NotFound):
            self._delete(key, "")

    def _delete(self, key: str, generation: str) -> None:
        condition = {"ifGenerationMatch": generation} if generation else {}
        self._send("DELETE", "/storage/v1", key, condition)

    def delete_many(self, keys: Sequence[str], etags: Sequence[str] = ()) -> Sequence[str]:
        """Make one DELETE for each object: Google takes no money for it."""
        return rest.delete_each(self._delete, keys, etags)

    def age_ms(self, key: str) -> int:
        reply = self._send("GET", "/storage/v1", key)
        try:
            updated = datetime.fromisoformat(_json(reply.body)["updated"])
        except (KeyError, TypeError, ValueError):
            raise Unproven("an object without the time of its last write") from None
        # The Date has whole seconds.
        now = parsedate_to_datetime(reply.header("Date"))
        return max(0, int((now - updated.astimezone(UTC)).total_seconds() * 1000))

    def settings(self) -> dict[str, Any]:
        """The bucket's own metadata."""
        return _json(self._send("GET", "/storage/v1", None).body)

    def listed_at(self, prefix: str) -> str:
        """The Date of the reply to a LIST."""
        query = {"prefix": prefix, "maxResults": "1"}
        return self._send("GET", "/storage/v1", "", query).header("Date")

    def upload(self, key: str) -> rest.WholeUpload:
        """Begin an upload that sends one PUT: Google's parts know no condition."""
        return rest.WholeUpload(partial(self.put_if_absent, key))

    def unfinished(self, prefix: str, after: str = "", limit: int = 1000) -> UnfinishedPage:
        """Return an empty page: an upload is in the memory of its writer."""
        return UnfinishedPage([], "")

    def discard(self, upload: Unfinished) -> None:
        """Do nothing: there is no such upload."""


def _json(body: bytes) -> dict[str, Any]:
    """The object of a reply; an empty one for anything else."""
    try:
        value = json.loads(body)
    except ValueError:
        value = None
    return value if isinstance(value, dict) else {}


def _entry(item: Any) -> Entry:
    try:
        return Entry(item["name"], int(item["size"]), str(item.get("generation", "")))
    except (KeyError, TypeError, ValueError):
        raise Unproven("a LIST shows an object without a name or size") from None


def _new_token() -> tuple[str, float]:
    """A token of the service account, of the machine or of gcloud, and its end."""
    try:
        import google.auth
        from google.auth.exceptions import DefaultCredentialsError, GoogleAuthError
        from google.auth.transport import urllib3 as transports
    except ImportError:
        raise OptionError(
            "google-auth is missing, which gets Google's tokens: pip install '.[clouds]' here and "
            "on each executor"
        ) from None
    import urllib3

    timeout = urllib3.Timeout(connect=5, read=30)
    make: Any = transports.Request
    transport = make(urllib3.PoolManager(timeout=timeout))
    credentials: Any
    # Messages of these libraries show parts of requests, so none is passed on.
    try:
        credentials, _ = google.auth.default(scopes=[_SCOPE])
        credentials.refresh(transport)
    except DefaultCredentialsError:
        raise OptionError(
            "no credentials for Google were found: let GOOGLE_APPLICATION_CREDENTIALS name a "
            "service account's file, give the machine an account, or run gcloud auth "
            "application-default login"
        ) from None
    except GoogleAuthError as error:
        raise Transient(
            f"the service of Google's tokens: {type(error).__name__}", unreachable=True
        ) from None
    return str(credentials.token), float(credentials.expiry.replace(tzinfo=UTC).timestamp())


TOKEN = Token(_new_token)
