"""S3 and whatever speaks its protocol: one bucket as a `Store`."""

from __future__ import annotations

import os
import re
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from sparkwal.errors import OptionError, SparkWalError
from sparkwal.store.base import Entry, NotFound, Page, Transient
from sparkwal.store.config import S3Config, is_aws, normal_endpoint
from sparkwal.store.s3_client import renew, s3_client
from sparkwal.store.s3_errors import (
    BeyondEnd,
    KeyTaken,
    UploadGone,
    credentials_refused,
    not_http,
    translate,
)
from sparkwal.store.tls import speaks_tls

if TYPE_CHECKING:
    from mypy_boto3_s3.client import S3Client

_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,253}[A-Za-z0-9]")

# Endpoints that have answered, or were asked whether they speak TLS: none is asked twice.
_plain: set[str | None] = set()


def _needs_tls(endpoint: str) -> bool:
    if not endpoint.startswith("http:") or endpoint in _plain:
        return False
    if speaks_tls(endpoint):
        return True
    _plain.add(endpoint)
    return False


class S3Store:
    """One bucket. Holds no connection itself, so it survives a fork and a pickle.

    Raises OptionError for a bucket that cannot hold a log. Its methods make one
    attempt each; `RetryingStore` repeats them.
    """

    def __init__(self, bucket: str, config: S3Config) -> None:
        if not _BUCKET.fullmatch(bucket) or ".." in bucket:
            raise OptionError(f"{bucket!r} is no bucket name; paths look like s3://bucket/folder")
        if bucket.endswith("--x-s3"):
            raise OptionError(
                f"{bucket} is an S3 directory bucket: it does not list in order, which the log "
                "needs to find its newest record; use a general purpose bucket"
            )
        self._bucket = bucket
        self._config = config
        environment = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
        endpoint = config.endpoint or environment
        self._endpoint = normal_endpoint(endpoint) if endpoint else None

    @property
    def url(self) -> str:
        """s3://bucket, or endpoint/bucket where the endpoint tells the stores apart."""
        if self._endpoint:
            return f"{self._endpoint}/{self._bucket}"
        return f"s3://{self._bucket}"

    @property
    def identity(self) -> str:
        """As `url`. AWS's own endpoints share one set of buckets; a profile may name another."""
        if self._endpoint:
            return f"s3://{self._bucket}" if is_aws(self._endpoint) else self.url
        profile = self._config.profile or os.environ.get("AWS_PROFILE")
        return f"{self.url}@{profile}" if profile else self.url

    @property
    def concurrency(self) -> int:
        """As many requests as the pool has connections."""
        return self._config.max_pool_connections

    @contextmanager
    def request(self, key: str) -> Iterator[S3Client]:
        """The client for one request; what goes wrong inside comes out translated."""
        client = None
        try:
            client = s3_client(self._config, self._endpoint)
            yield client
        except (SparkWalError, Transient, NotFound):
            raise
        except ImportError as error:
            # On an executor, say, whose Python is not the driver's.
            library = (error.name or "botocore").partition(".")[0]
            raise OptionError(
                f"{library} is missing in {sys.executable} on "
                f"{socket.gethostname()}: pip install sparkwal there"
            ) from None
        except Exception as error:
            failure = self._failure(error, key, client)
            if failure is error:
                raise
            # Not chained: what the library below prints may hold a signed header.
            raise failure from None
        else:
            _plain.add(self._endpoint)

    def _failure(self, error: Exception, key: str, client: S3Client | None) -> Exception:
        """`error` as this library's, or itself where it is a programming error."""
        if client is not None and credentials_refused(error):
            try:
                if renew(self._config, self._endpoint, client):
                    return Transient("the credentials were refused; they were read again")
            except Exception as unreadable:
                error = unreadable
        if self._endpoint and not_http(error) and _needs_tls(self._endpoint):
            return OptionError(f"{self.url} speaks TLS: write https:// in the endpoint")
        return translate(error, key, self.url, self._config.secrets) or error

    def put_if_absent(self, key: str, body: bytes) -> bool:
        """Create the object with If-None-Match. Raises Transient, OptionError."""
        try:
            with self.request(key) as client:
                client.put_object(Bucket=self._bucket, Key=key, Body=body, IfNoneMatch="*")
        except KeyTaken:
            return False
        except NotFound:
            raise _not_s3(self.url) from None
        return True

    def get(self, key: str) -> bytes:
        """The whole object. Raises NotFound, Transient, OptionError."""
        with self.request(key) as client:
            return _whole(client.get_object(Bucket=self._bucket, Key=key))

    def get_range(self, key: str, offset: int, length: int) -> bytes:
        """Part of the object. Raises NotFound, Transient, OptionError."""
        if length <= 0:
            return b""
        span = f"bytes={offset}-{offset + length - 1}"
        try:
            with self.request(key) as client:
                reply = client.get_object(Bucket=self._bucket, Key=key, Range=span)
                body = _whole(reply)
        except BeyondEnd:
            return b""
        got = reply.get("ContentRange")
        if got is None:
            # A store may ignore Range and answer with everything.
            return body[offset : offset + length]
        match = re.match(r"bytes (\d+)-(\d+)/", got)
        if match is None or int(match[1]) != offset or len(body) > length:
            raise Transient(f"asked for {span}, got {got}")
        return body

    def list(self, prefix: str, limit: int = 1000, after: str = "") -> Page:
        """One ListObjectsV2; more where S3 cuts a page off before its first key.

        Raises Transient, OptionError.
        """
        at: Any = {"Bucket": self._bucket, "Prefix": prefix, "MaxKeys": limit, "StartAfter": after}
        while True:
            try:
                with self.request(prefix) as client:
                    reply = client.list_objects_v2(**at)
            except NotFound:
                raise _not_s3(self.url) from None
            entries = [Entry(each["Key"], each["Size"]) for each in reply.get("Contents", [])]
            more = reply.get("IsTruncated", len(entries) >= limit)
            if entries or not more:
                return Page(entries, more)
            # Without a key to go on after, only the store's token leads to the next page.
            token = reply.get("NextContinuationToken")
            if token is None or token == at.get("ContinuationToken"):
                raise Transient(f"an empty page of the LIST of {prefix} that leads no further")
            at["ContinuationToken"] = token

    def delete(self, key: str) -> None:
        """Remove the object. Raises Transient, OptionError."""
        with suppress(NotFound), self.request(key) as client:
            client.delete_object(Bucket=self._bucket, Key=key)

    def upload(self, key: str) -> S3Upload:
        """Begin a multipart upload; the first request goes out with the first part."""
        return S3Upload(self, self._bucket, key)


class S3Upload:
    """A multipart upload whose methods are one attempt each and safe to repeat.

    `part` returns when its bytes are stored and may be called from many threads:
    `RetryingStore` sends parts in the background and repeats each on its own.
    """

    def __init__(self, store: S3Store, bucket: str, key: str) -> None:
        self._store = store
        self._at: Any = {"Bucket": bucket, "Key": key}
        self._key = key
        self._id: str | None = None
        self._tags: dict[int, str] = {}
        self._lock = threading.Lock()

    def part(self, number: int, offset: int, body: bytes) -> None:
        """Store one part; a repeat replaces it. Raises Transient, OptionError."""
        try:
            with self._store.request(self._key) as client:
                # A repeated part must not begin a second upload next to the first.
                with self._lock:
                    if self._id is None:
                        self._id = client.create_multipart_upload(**self._at)["UploadId"]
                reply = client.upload_part(
                    **self._at, UploadId=self._id, PartNumber=number, Body=body
                )
        except NotFound:
            raise _not_s3(self._store.url) from None
        except UploadGone:
            raise OptionError(
                f"{self._store.url}: the upload of {self._key} was removed while it ran; "
                "a lifecycle rule that aborts uploads must leave them a day"
            ) from None
        self._tags[number] = reply["ETag"]

    def complete(self) -> bool:
        """Publish with If-None-Match. Raises Transient, OptionError."""
        if self._id is None:
            return self._store.put_if_absent(self._key, b"")
        parts: Any = [
            {"PartNumber": number, "ETag": tag} for number, tag in sorted(self._tags.items())
        ]
        try:
            with self._store.request(self._key) as client:
                # After a 409 S3 may have dropped the upload; the repeat then finds it gone.
                client.complete_multipart_upload(
                    **self._at,
                    UploadId=self._id,
                    IfNoneMatch="*",
                    MultipartUpload={"Parts": parts},
                )
        except KeyTaken:
            with suppress(Transient, SparkWalError):
                self.abort()
            return False
        except (UploadGone, NotFound):
            # A lost reply to an earlier Complete looks like this: the object may be
            # there, and ours. The caller reads it back.
            return False
        return True

    def abort(self) -> None:
        """Free the parts. Raises Transient, OptionError."""
        if self._id is None:
            return
        with suppress(NotFound, UploadGone), self._store.request(self._key) as client:
            client.abort_multipart_upload(**self._at, UploadId=self._id)


def _whole(reply: Any) -> bytes:
    body: bytes = reply["Body"].read()
    wanted = reply.get("ContentLength")
    if wanted is not None and len(body) != wanted:
        raise Transient(f"{len(body)} of {wanted} bytes came")
    return body


def _not_s3(url: str) -> OptionError:
    return OptionError(f"{url} answers 404 to what S3 accepts; check the endpoint and the bucket")
