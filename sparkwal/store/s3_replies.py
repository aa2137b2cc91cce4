"""What S3's replies say: the whole body, an age, the uploads that were begun."""

from __future__ import annotations

from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

from sparkwal.errors import OptionError
from sparkwal.store.base import Transient, Unfinished, UnfinishedPage


def whole(reply: Any) -> bytes:
    """The body of a GET. Raises Transient for one that broke off."""
    body: bytes = reply["Body"].read()
    wanted = reply.get("ContentLength")
    if wanted is not None and len(body) != wanted:
        raise Transient(f"{len(body)} of {wanted} bytes came")
    return body


def given(reply: Any, name: str, url: str) -> str:
    """What every S3 server's reply has."""
    if not reply.get(name):
        raise OptionError(f"{url} answers without {name}; check that it is an S3 endpoint")
    return str(reply[name])


def age_ms(reply: Any, since: datetime | None, url: str) -> int:
    """The time from `since` to the reply, both by the server's clock."""
    try:
        now = parsedate_to_datetime(reply["ResponseMetadata"]["HTTPHeaders"]["date"])
    except (KeyError, ValueError):
        now = None
    if now is None or since is None:
        raise OptionError(
            f"{url} answers without Date and Last-Modified, which show the age of an object; "
            "use a store that sends both"
        )
    # Both are cut to the second: up to one second less may have passed.
    return max(0, int((_aware(now) - _aware(since)).total_seconds() * 1000) - 1000)


def unfinished_page(reply: Any, asked: str, url: str) -> UnfinishedPage:
    """Of a ListMultipartUploads that was asked for what comes after `asked`."""
    uploads = [
        Unfinished(each["Key"], each["UploadId"], age_ms(reply, each.get("Initiated"), url))
        for each in reply.get("Uploads", [])
    ]
    if not reply.get("IsTruncated", False):
        return UnfinishedPage(uploads, "")
    key = reply.get("NextKeyMarker")
    # An upload's id holds no line break; a key may.
    after = f"{reply.get('NextUploadIdMarker', '')}\n{key}"
    if not key or after == asked:
        raise Transient("a truncated list of uploads that leads no further")
    return UnfinishedPage(uploads, after)


def markers(after: str) -> dict[str, str]:
    """What a ListMultipartUploads is asked with to go on after a page."""
    upload_id, _, key = after.partition("\n")
    found = {"KeyMarker": key, "UploadIdMarker": upload_id}
    return {name: value for name, value in found.items() if value}


def _aware(moment: datetime) -> datetime:
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
