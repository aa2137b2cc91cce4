"""What only S3's protocol has: dates, checksums, a PUT whose last byte is held back."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from io import BytesIO
from typing import Any

from sparkwal.errors import OptionError
from sparkwal.store.base import NotFound, Transient
from sparkwal.store.conformance.store_under_test import Found, StoreUnderTest, Wrong
from sparkwal.store.s3 import S3Store
from sparkwal.store.s3_errors import KeyTaken

# AWS documents 15 minutes for S3, and 5 for most of its other services.
_SKEW_SECONDS = 5 * 60


def clock(tested: StoreUnderTest) -> Found:
    """The store's Date beside this machine's clock."""
    if not tested.s3:
        return None
    worst = max(map(_skew_seconds, tested.s3), key=abs)
    if abs(worst) > _SKEW_SECONDS:
        where = "behind" if worst > 0 else "ahead of"
        raise Wrong(f"this machine's clock is {abs(worst):.0f} s {where} the store's")
    return f"{abs(worst):.0f} s between the store's clock and this machine's"


def checksums(tested: StoreUnderTest) -> Found:
    """A body that is not what its checksum says is refused."""
    if not tested.s3:
        return None
    store, key = tested.s3[0], tested.key("checksum")
    wrong = {
        "Content-MD5": {"ContentMD5": base64.b64encode(hashlib.md5(b"other").digest()).decode()},
        "x-amz-checksum-crc32": {"ChecksumCRC32": "AAAAAQ=="},
    }
    for name, header in wrong.items():
        try:
            with store.request(key) as client:
                parameters: Any = {**store.at, "Key": key, "Body": b"body", **header}
                client.put_object(**parameters)
        except (Transient, OptionError):
            continue
        raise Wrong(f"it stored a body with a wrong {name}")
    return "a wrong Content-MD5 and a wrong CRC-32 are refused"


def server(store: S3Store) -> str:
    """What the server calls itself, or "" where it does not say or refuses."""
    try:
        return _headers(store).get("server", "")
    except (OptionError, Transient):
        return ""


def _skew_seconds(store: S3Store) -> float:
    """How far the store's clock is ahead of this machine's; its Date is cut to the second."""
    before = datetime.now(UTC)
    date = _headers(store).get("date")
    after = datetime.now(UTC)
    if date is None:
        raise OptionError(f"{store.url} answers without Date")
    theirs = parsedate_to_datetime(date).replace(tzinfo=UTC)
    if theirs > after:
        return (theirs - after).total_seconds()
    return min(0.0, (theirs - before).total_seconds() + 1)


def _headers(store: S3Store) -> dict[str, str]:
    """Of the answer to a LIST of one key, names in lower case."""
    with store.request("") as client:
        reply = client.list_objects_v2(**store.at, MaxKeys=1)
    found: dict[str, str] = reply["ResponseMetadata"]["HTTPHeaders"]
    return found


class _DelayedBody(BytesIO):
    """A body that calls `wait` before its last byte, once it is sent: `sending` is set when the
    signature, which reads it too, is made."""

    def __init__(self, body: bytes, wait: Callable[[], None]) -> None:
        super().__init__(body)
        self._wait, self._size = wait, len(body)
        self.sending = False

    def __len__(self) -> int:
        return self._size

    def read(self, size: int | None = -1) -> bytes:
        left = self._size - self.tell()
        wanted = left if size is None or size < 0 else min(size, left)
        if self.sending and left > 1:
            wanted = min(wanted, left - 1)
        elif self.sending and left == 1:
            self._wait()
        return super().read(wanted)


def delayed_put(store: S3Store, key: str, body: bytes, wait: Callable[[], None]) -> bool:
    """As `store.put_if_absent`, with `wait` called when only the last byte is not yet sent."""
    try:
        with store.request(key) as client:
            client.meta.events.register(
                "before-send.s3.PutObject", _sending, unique_id="sparkwal-delayed"
            )
            sent = {**store.sent(key, body), "Body": _DelayedBody(body, wait)}
            client.put_object(**sent, IfNoneMatch="*")
    except KeyTaken:
        return False
    except NotFound:
        raise Transient("404 to a PUT") from None
    return True


def _sending(request: Any, **_: object) -> None:
    if isinstance(request.body, _DelayedBody):
        request.body.sending = True
