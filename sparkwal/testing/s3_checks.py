"""What only S3's protocol has: suffix ranges, dates, checksums, what a server says of itself."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

from sparkwal.errors import OptionError
from sparkwal.store.base import Transient
from sparkwal.store.s3 import S3Store
from sparkwal.testing.ground import Found, Ground, Wrong

# AWS documents 15 minutes for S3, and 5 for most of its other services.
SKEW_SECONDS = 5 * 60


def suffix_ranges(ground: Ground) -> Found:
    """The last bytes of an object, by `bytes=-n`."""
    store = _s3(ground)
    if store is None:
        return None
    key, body = ground.key("suffix"), ground.body(1000)
    ground.store.put_if_absent(key, body)
    for length in (1, 100, 1000, 5000):
        reply = _ask(ground, store, key, _get(store, key, f"bytes=-{length}"))
        if reply["Body"].read() != body[-length:]:
            raise Wrong(f"bytes=-{length} gives other bytes than the last {min(length, 1000)}")
    return "the last bytes, and all where more are asked for"


def clock(ground: Ground) -> Found:
    """The store's Date beside this machine's clock."""
    store = _s3(ground)
    if store is None:
        return None
    skews = [skew_seconds(each) for each in ground.stores if isinstance(each, S3Store)]
    worst = max(skews, key=abs)
    if abs(worst) > SKEW_SECONDS:
        where = "behind" if worst > 0 else "ahead of"
        raise Wrong(f"this machine's clock is {abs(worst):.0f} s {where} the store's")
    return f"{abs(worst):.0f} s between the store's clock and this machine's"


def checksums(ground: Ground) -> Found:
    """A body that is not what its checksum says is refused."""
    store = _s3(ground)
    if store is None:
        return None
    key = ground.key("checksum")
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
        return headers(store).get("server", "")
    except (OptionError, Transient):
        return ""


def skew_seconds(store: S3Store) -> float:
    """How far the store's clock is ahead of this machine's; its Date is cut to the second.

    Raises OptionError, Transient.
    """
    before = datetime.now(UTC)
    date = headers(store).get("date")
    after = datetime.now(UTC)
    if date is None:
        raise OptionError(f"{store.url} answers without Date")
    told = parsedate_to_datetime(date).replace(tzinfo=UTC)
    if told > after:
        return (told - after).total_seconds()
    return min(0.0, (told - before).total_seconds() + 1)


def headers(store: S3Store) -> dict[str, str]:
    """Of the answer to a LIST of one key, names in lower case. Raises OptionError, Transient."""
    with store.request("") as client:
        reply = client.list_objects_v2(**store.at, MaxKeys=1)
    found: dict[str, str] = reply["ResponseMetadata"]["HTTPHeaders"]
    return found


def _s3(ground: Ground) -> S3Store | None:
    first = ground.stores[0]
    return first if isinstance(first, S3Store) else None


def _get(store: S3Store, key: str, span: str) -> Callable[[], Any]:
    def get() -> Any:
        with store.request(key) as client:
            return client.get_object(**store.at, Key=key, Range=span)

    return get


def _ask(ground: Ground, store: S3Store, key: str, request: Callable[[], Any]) -> Any:
    return ground.store.attempt("get", key, request)
