"""A large object on S3: sent in parts, published at once."""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager, suppress
from typing import TYPE_CHECKING, Any, Protocol

from sparkwal.errors import OptionError, SparkWalError
from sparkwal.store.base import NotFound, Transient
from sparkwal.store.config import S3Requests
from sparkwal.store.s3_errors import KeyTaken, UploadGone, not_s3
from sparkwal.store.s3_replies import given

if TYPE_CHECKING:
    from mypy_boto3_s3.client import S3Client


class Bucket(Protocol):
    """What an upload needs of its store."""

    requests: S3Requests

    @property
    def url(self) -> str:
        """For people."""

    def request(self, key: str) -> AbstractContextManager[S3Client]:
        """The client for one request."""

    def put_if_absent(self, key: str, body: bytes) -> bool:
        """Create an object that has no part."""


class S3Upload:
    """A multipart upload whose methods are one attempt each and safe to repeat.

    `part` returns when its bytes are stored and may be called from many threads:
    `RetryingStore` sends parts in the background and repeats each on its own.
    """

    def __init__(self, store: Bucket, bucket: str, key: str) -> None:
        self._store = store
        self._requests = store.requests
        self._at: Any = {"Bucket": bucket, "Key": key, **store.requests.on_all}
        self._key = key
        self._id: str | None = None
        self._parts: dict[int, dict[str, str]] = {}
        self._lock = threading.Lock()

    def part(self, number: int, offset: int, body: bytes) -> None:
        """Store one part; a repeat replaces it. Raises Transient, OptionError."""
        checksum: Any = self._requests.checksum_of(body)
        try:
            with self._store.request(self._key) as client:
                # A repeated part must not begin a second upload next to the first.
                with self._lock:
                    if self._id is None:
                        begun = client.create_multipart_upload(**self._new())
                        self._id = given(begun, "UploadId", self._store.url)
                reply = client.upload_part(
                    **self._at, UploadId=self._id, PartNumber=number, Body=body, **checksum
                )
        except NotFound:
            raise not_s3(self._store.url) from None
        except UploadGone:
            raise OptionError(
                f"{self._store.url}: the upload of {self._key} was removed while it ran; "
                "a lifecycle rule that aborts uploads must leave them a day"
            ) from None
        self._parts[number] = {"ETag": given(reply, "ETag", self._store.url), **checksum}

    def _new(self) -> Any:
        algorithm = {"ChecksumAlgorithm": "CRC32"} if self._requests.checksum else {}
        return {**self._at, **self._requests.on_new, **algorithm}

    def complete(self) -> bool:
        """Publish with If-None-Match. Raises Transient, OptionError."""
        if self._id is None:
            return self._store.put_if_absent(self._key, b"")
        parts: Any = [
            {"PartNumber": number, **part} for number, part in sorted(self._parts.items())
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
