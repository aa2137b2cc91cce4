"""What only S3's protocol has: dates, checksums, what a server says of itself."""

from __future__ import annotations

import base64
import hashlib
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

from sparkwal.errors import OptionError
from sparkwal.store.base import Transient
from sparkwal.store.conformance.store_under_test import Found, StoreUnderTest, Wrong
from sparkwal.store.s3 import S3Store

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
    """What the server calls itself, or "" where it does not say; never raises for a refusal."""
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
    """Of the answer to a LIST of one key, names in lower case. Raises OptionError, Transient."""
    with store.request("") as client:
        reply = client.list_objects_v2(**store.at, MaxKeys=1)
    found: dict[str, str] = reply["ResponseMetadata"]["HTTPHeaders"]
    return found
