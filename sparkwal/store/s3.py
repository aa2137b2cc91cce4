"""A bucket of S3, or of a store with S3's protocol, as a `Store`."""

from __future__ import annotations

import html
import os
import re
import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from itertools import zip_longest
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from sparkwal.errors import OptionError, SparkWalError
from sparkwal.store import s3_errors, s3_replies
from sparkwal.store.base import (
    Entry,
    Folders,
    NotFound,
    Page,
    Refusal,
    Tagged,
    Transient,
    Unfinished,
    UnfinishedPage,
)
from sparkwal.store.config import S3Config, normal_endpoint, without_none
from sparkwal.store.s3_client import provider, renew, s3_client
from sparkwal.store.s3_errors import (
    MOST_PARTS,
    MOST_PARTS_ADVICE,
    BeyondEnd,
    KeyTaken,
    Unanswered,
    UploadGone,
)
from sparkwal.store.s3_get import (
    SentObject,
    get_object,
    range_of,
    read_botocore_body,
    send_object,
)
from sparkwal.store.s3_replies import Unproven, require

if TYPE_CHECKING:
    from mypy_boto3_s3.client import S3Client

# The codes of stores that do not support ETags in a DeleteObjects. AWS supports them since 2025.
_NO_ETAGS = ("NotImplemented", "MalformedXML", "InvalidArgument")
# A store may show pages without keys where many objects were deleted, but not without end.
_MOST_EMPTY_PAGES = 1000
# Hosts of AWS: a region, dual-stack, FIPS.
_AWS_HOST = re.compile(r"s3([.-][a-z0-9-]+)*\.amazonaws\.com")
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,253}[A-Za-z0-9]")


class S3Store:
    """One bucket; each method makes one attempt.

    The store holds no connection itself, so it can be forked and pickled.

    Raises:
        OptionError: the bucket cannot hold a log.
    """

    def __init__(self, bucket: str, config: S3Config) -> None:
        if not _BUCKET.fullmatch(bucket) or ".." in bucket:
            raise OptionError(f"{bucket!r} is no bucket name; paths look like s3://bucket/folder")
        if bucket.endswith("--x-s3"):
            raise OptionError(
                f"{bucket} is an S3 directory bucket: it does not list in order, which the log "
                "needs to find its newest record; use a general purpose bucket"
            )
        self.bucket = bucket
        self._supports_etags = True
        # The parameters of every request.
        self.at: Any = {"Bucket": bucket, **config.common_parameters}
        environment = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
        if os.environ.get("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "").lower() == "true":
            environment = None
        endpoint = config.endpoint or environment
        self.endpoint = normal_endpoint(endpoint) if endpoint else None
        self.config = replace(config, endpoint=self.endpoint)
        # Different endpoints may be different stores, so the endpoint is a part of the name.
        self.url = f"{self.endpoint}/{bucket}" if self.endpoint else f"s3://{bucket}"
        self.concurrency = config.max_pool_connections
        self.retries = 0

    @property
    def identity(self) -> str:
        """The `url`, normalized: AWS's endpoints share their buckets, a profile may name others."""
        if self.endpoint:
            is_aws = _AWS_HOST.fullmatch(urlsplit(self.endpoint).hostname or "")
            return f"s3://{self.bucket}" if is_aws else self.url
        profile = self.config.profile or os.environ.get("AWS_PROFILE")
        return f"{self.url}@{profile}" if profile else self.url

    def credentials(self) -> str | None:
        """The provider of the credentials, or None without credentials.

        Raises:
            OptionError: the configuration is unusable.
        """
        with self.request(""):
            return provider(self.config)

    @contextmanager
    def request(self, key: str, *, finds: bool = True) -> Iterator[S3Client]:
        """A context with the client for one request, which translates the errors of botocore.

        Args:
            finds: whether 404 is a possible answer. Otherwise it means that the server is no S3
                store, or that the bucket is missing.
        """
        client = None
        try:
            client = s3_client(self.config)
            yield client
        except s3_replies.Interim:
            # The next request on this connection would read the reply that is still to come.
            if client is not None:
                client.close()
            raise
        except (SparkWalError, Transient, NotFound):
            raise
        except ImportError as error:
            # This happens on an executor whose Python differs from the driver's.
            library = (error.name or "botocore").partition(".")[0]
            raise OptionError(
                f"{library} is missing in {sys.executable} on "
                f"{socket.gethostname()}: install the same sparkwal there"
            ) from None
        except Exception as error:
            failure = self._failure(error, key, client)
            if isinstance(failure, NotFound | Unanswered) and not finds:
                failure = Refusal(
                    f"{self.url} answers 404 to what S3 accepts; check the endpoint and the bucket"
                )
            if failure is error:
                raise
            # Without the cause, whose text may show a signed header.
            raise failure from None

    def _failure(self, error: Exception, key: str, client: S3Client | None) -> Exception:
        """This library's error for `error`. A programming error is returned unchanged."""
        if client is not None and s3_errors.credentials_refused(error):
            try:
                if renew(self.config, client):
                    return Transient("the credentials were refused; they were read again")
            except Exception as unreadable:
                error = unreadable
        return s3_errors.translate(error, key, self.url, self.config.secrets) or error

    def put_if_absent(self, key: str, body: bytes) -> bool:
        try:
            self.put(key, body, IfNoneMatch="*")
        except KeyTaken:
            return False
        return True

    def put(self, key: str, body: bytes, **condition: Any) -> None:
        parameters: Any = (
            self.config.creation_parameters | self.config.checksum_parameters(body) | condition
        )
        # Only a PUT with If-Match may find no object.
        with self.request(key, finds="IfMatch" in condition) as client:
            reply = client.put_object(Bucket=self.bucket, Key=key, Body=body, **parameters)
        if not s3_replies.proves(client, self.bucket, reply, body):
            self._check_stored(client, key, body)

    def replace(self, key: str, body: bytes, etag: str) -> bool:
        try:
            self.put(key, body, IfMatch=etag)
        except (KeyTaken, NotFound):
            return False
        return True

    def _check_stored(self, client: S3Client, key: str, body: bytes) -> None:
        """Read back an object whose ETag does not prove its bytes: 1 GET.

        Raises:
            Unproven: the object is missing or has other bytes.
        """
        try:
            stored = self.get_range(key, 0, len(body) + 1) == body
        except NotFound:
            stored = False
        if not stored:
            raise Unproven("PUT was answered with an ETag of other bytes")
        s3_replies.note_other_etags(client, self.bucket)

    def get(self, key: str) -> bytes:
        with self.request(key) as client:
            return get_object(client, self.at, key)

    def get_tagged(self, key: str, length: int | None = None) -> Tagged:
        part = None if length is None else (0, length)
        parameters: Any = self.at | range_of(part)
        try:
            with self.request(key) as client:
                reply: Any = client.get_object(Key=key, **parameters)
                return Tagged(read_botocore_body(reply, part), require(reply, "ETag", "GET"))
        except BeyondEnd:
            # An empty object; the reply names no ETag.
            return Tagged(b"", "")

    def get_range(self, key: str, offset: int, length: int) -> bytes:
        if length <= 0:
            return b""
        try:
            with self.request(key) as client:
                return get_object(client, self.at, key, (offset, length))
        except BeyondEnd:
            return b""

    def send_range(self, key: str, offset: int, length: int) -> SentObject | None:
        """Send a `get_range`, whose reply is read later. Returns None if it would have to wait."""
        if length <= 0:
            return None
        try:
            return send_object(s3_client(self.config), self.at, key, (offset, length))
        except Exception:
            # The caller uses `get_range` instead, which reports such an error.
            return None

    def list(self, prefix: str, limit: int = 1000, after: str = "") -> Page:
        """Make one ListObjectsV2, and one more for each page that S3 ends before its first key."""
        at: Any = {**self.at, "Prefix": prefix, "MaxKeys": limit, "StartAfter": after}
        tokens: set[str | None] = {None}
        while True:
            with self.request(prefix, finds=False) as client:
                reply = client.list_objects_v2(**at)
            s3_replies.check_list(reply, self.bucket, prefix, after)
            entries = [
                Entry(content["Key"], content["Size"], content.get("ETag", ""))
                for content in reply.get("Contents", [])
            ]
            # Some stores list `after` itself again.
            if entries and entries[0].key == after:
                del entries[0]
            s3_replies.check_order(entries, prefix, after)
            more = reply.get("IsTruncated", len(entries) >= limit)
            if entries or not more:
                return Page(entries, more)
            # An empty page has no key to continue after; only the store's token leads further.
            token = reply.get("NextContinuationToken")
            if token in tokens or len(tokens) > _MOST_EMPTY_PAGES:
                raise Transient(f"an empty page of the LIST of {prefix} that leads no further")
            tokens.add(token)
            at["ContinuationToken"] = token

    def folders(self, prefix: str, inside: str, after: str = "") -> Folders | None:
        """Make one ListObjectsV2 with `/inside/` as the delimiter, and one more for an empty page.

        A store that takes only "/" as a delimiter, or none, gives None.
        """
        delimiter = f"/{inside}/"
        at: Any = {**self.at, "Prefix": prefix, "StartAfter": after, "Delimiter": delimiter}
        for _ in range(_MOST_EMPTY_PAGES):
            with self.request(prefix, finds=False) as client:
                reply = client.list_objects_v2(**at)
            s3_replies.check_list(reply, self.bucket, prefix, after, folders=True)
            page = s3_replies.folders_page(reply, prefix, after, delimiter)
            if page is None or page.after or not reply.get("IsTruncated"):
                return page
            at["ContinuationToken"] = s3_replies.require(reply, "NextContinuationToken", "LIST")
        raise Transient(f"empty pages of the LIST of folders in {prefix} that lead no further")

    def delete(self, key: str) -> None:
        with suppress(NotFound), self.request(key) as client:
            client.delete_object(**self.at, Key=key)

    def delete_many(self, keys: Sequence[str], etags: Sequence[str] = ()) -> Sequence[str]:
        """Make one DeleteObjects, and one without ETags if the store does not support them."""
        if not keys:
            return []
        # The XML of a LIST escapes the quotes of an ETag.
        tags = [html.unescape(etag) for etag in etags] if self._supports_etags else []
        objects = [
            without_none(Key=key, ETag=etag or None) for key, etag in zip_longest(keys, tags)
        ]
        # Quiet=False: the reply names each key.
        delete: Any = {"Objects": objects, "Quiet": False}
        with self.request(keys[0], finds=False) as client:
            try:
                reply: Any = client.delete_objects(**self.at, Delete=delete)
            except client.exceptions.ClientError as refused:
                reply = {"Errors": [refused.response["Error"]]}
                if not tags or reply["Errors"][0].get("Code") not in _NO_ETAGS:
                    raise
        errors = reply.get("Errors", [])
        if tags and any(error.get("Code") in _NO_ETAGS for error in errors):
            self._supports_etags = False
            return self.delete_many(keys)
        failure = s3_errors.not_deleted(errors, self.url, self.config.secrets)
        if failure is not None:
            raise failure
        keys_in_reply = {item.get("Key") for item in (*reply.get("Deleted", []), *errors)}
        # Some stores are quiet even so. Check each key that the reply does not name.
        left = next((key for key in keys if key not in keys_in_reply and self._holds(key)), None)
        if left is not None:
            raise Unproven(f"DeleteObjects was answered, and {left} is still there")
        return [error["Key"] for error in errors if s3_errors.is_kept(error)]

    def _holds(self, key: str) -> bool:
        try:
            self.get_range(key, 0, 1)
        except NotFound:
            return False
        return True

    def age_ms(self, key: str) -> int:
        """The reply's Date minus its Last-Modified."""
        # A GET, because the refusal of a HEAD has no body with the reason. Only an empty object,
        # which has no first byte, needs the HEAD.
        try:
            with self.request(key) as client:
                reply: Any = client.get_object(**self.at, Key=key, Range="bytes=0-0")
                read_botocore_body(reply, (0, 1))
        except BeyondEnd:
            with self.request(key) as client:
                reply = client.head_object(**self.at, Key=key)
        return _age_ms(reply, reply.get("LastModified"), self.url)

    def upload(self, key: str) -> S3Upload:
        checksum = "CRC32" if self.config.checksum else None
        parameters: Any = (
            self.at
            | self.config.creation_parameters
            | without_none(Key=key, ChecksumAlgorithm=checksum)
        )
        with self.request(key, finds=False) as client:
            reply = client.create_multipart_upload(**parameters)
        return S3Upload(self, key, require(reply, "UploadId", "CreateMultipartUpload"))

    def unfinished(self, prefix: str, after: str = "", limit: int = 1000) -> UnfinishedPage:
        # The id of an upload has no line break, so it comes first: a key may have one.
        upload_id, _, key = after.partition("\n")
        marks = without_none(KeyMarker=key or None, UploadIdMarker=upload_id or None)
        at: Any = {**self.at, "Prefix": prefix, "MaxUploads": limit, **marks}
        with self.request(prefix, finds=False) as client:
            reply = client.list_multipart_uploads(**at)
        before = key
        uploads = [
            Unfinished(up["Key"], up["UploadId"], _age_ms(reply, up.get("Initiated"), self.url))
            for up in reply.get("Uploads", [])
        ]
        # One key may have several uploads, so the first key may be the previous page's last.
        if any(not upload.key.startswith(prefix) or upload.key < before for upload in uploads):
            raise Unproven(f"the list of uploads under {prefix} shows others, or begins again")
        if not reply.get("IsTruncated", False):
            return UnfinishedPage(uploads, "")
        key = reply.get("NextKeyMarker", "")
        last = f"{reply.get('NextUploadIdMarker', '')}\n{key}"
        if not key or key < before or last == after:
            raise Transient("a truncated list of uploads that leads no further")
        return UnfinishedPage(uploads, last)

    def discard(self, upload: Unfinished) -> None:
        with suppress(NotFound, UploadGone), self.request(upload.key) as client:
            client.abort_multipart_upload(**self.at, Key=upload.key, UploadId=upload.upload_id)


class S3Upload:
    """A multipart upload. Each method makes one attempt, and may be repeated.

    Several threads may call `part` at once. It returns when the store has the bytes.
    """

    def __init__(self, store: S3Store, key: str, upload_id: str) -> None:
        self._store = store
        self._at: Any = {**store.at, "Key": key, "UploadId": upload_id}
        self._key, self._id = key, upload_id
        self._parts: dict[int, dict[str, str]] = {}

    def part(self, number: int, offset: int, body: bytes) -> None:
        if number > MOST_PARTS:
            raise OptionError(f"part {number:,} of {self._key}: {MOST_PARTS_ADVICE}")
        checksum: Any = self._store.config.checksum_parameters(body)
        try:
            with self._store.request(self._key, finds=False) as client:
                reply: Any = client.upload_part(
                    **self._at, PartNumber=number, Body=body, **checksum
                )
        except UploadGone:
            raise OptionError(
                f"{self._store.url}: the upload of {self._key} was removed while it ran; "
                "a lifecycle rule that aborts uploads must leave them a day"
            ) from None
        # An unknown ETag passes: a part cannot be read back.
        if s3_replies.proves(client, self._store.bucket, reply, body) is False:
            raise Unproven("UploadPart was answered with an ETag of other bytes")
        self._parts[number] = {"ETag": reply["ETag"], **checksum}

    def complete(self) -> bool:
        parts: Any = [
            {"PartNumber": number, **part} for number, part in sorted(self._parts.items())
        ]
        try:
            with self._store.request(self._key) as client:
                # After a 409 S3 may have dropped the upload; the repeat then finds it gone.
                reply = client.complete_multipart_upload(
                    **self._at, IfNoneMatch="*", MultipartUpload={"Parts": parts}
                )
        except KeyTaken:
            with suppress(Transient, SparkWalError):
                self.abort()
            return False
        except (UploadGone, NotFound):
            # The upload is missing too if the reply to an earlier Complete was lost, so the caller
            # reads the object back.
            return False
        require(reply, "ETag", "CompleteMultipartUpload")
        if unquote(reply.get("Key", self._key)) != unquote(self._key):
            raise Unproven(f"the upload of {self._key} was answered by that of {reply['Key']}")
        return True

    def abort(self) -> None:
        self._store.discard(Unfinished(self._key, self._id, 0))


def _age_ms(reply: Any, since: datetime | None, url: str) -> int:
    """The milliseconds from `since` to the reply, both by the server's clock, or fewer."""
    try:
        now = parsedate_to_datetime(reply["ResponseMetadata"]["HTTPHeaders"]["date"])
    except (KeyError, ValueError):
        now = None
    if now is None or since is None:
        raise OptionError(
            f"{url} answers without Date and Last-Modified, which show the age of an object; "
            "use a store that sends both"
        )
    # Both times have whole seconds, so up to a second less may have passed.
    passed = now.replace(tzinfo=now.tzinfo or UTC) - since.replace(tzinfo=since.tzinfo or UTC)
    return max(0, int(passed.total_seconds() * 1000) - 1000)
