"""Checks that prove that a reply comes from S3, and that S3 carried out the request.

A load balancer, a proxy or a login page also answers 200, with its own page. A reply without proof
raises `Unproven`, and is treated as a lost reply.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote
from weakref import WeakKeyDictionary

from sparkwal.store.base import Entry, Folders, Transient

if TYPE_CHECKING:
    from mypy_boto3_s3.client import S3Client

# For each operation: the statuses of success, and the root of the XML ("": no body, None: any).
_SUCCESS: dict[str, tuple[tuple[int, ...], str | None]] = {
    "AbortMultipartUpload": ((200, 204), ""),
    "CompleteMultipartUpload": ((200,), "CompleteMultipartUploadResult"),
    "CreateMultipartUpload": ((200,), "InitiateMultipartUploadResult"),
    "DeleteObject": ((200, 204), ""),
    "DeleteObjects": ((200,), "DeleteResult"),
    "GetObject": ((200, 206), None),
    "HeadObject": ((200,), None),
    "ListMultipartUploads": ((200,), "ListMultipartUploadsResult"),
    "ListObjectsV2": ((200,), "ListBucketResult"),
    "PutObject": ((200,), ""),
    "UploadPart": ((200,), ""),
}
_ROOT = re.compile(rb"(?:\xef\xbb\xbf)?\s*(?:<\?xml[^>]*\?>\s*)?<(?:[\w.-]+:)?([\w.-]+)")
# The end of an access point's alias. A LIST under an alias shows the bucket's name.
_ALIAS = "-s3alias"
# For each client and bucket: whether an ETag is the MD5 of the bytes.
_etags_are_md5: WeakKeyDictionary[S3Client, dict[str, bool]] = WeakKeyDictionary()


class Unproven(Transient):
    """A reply without proof. The request may have taken effect or not."""


class Interim(Unproven):
    """An interim reply (1xx). The real reply is still to come on the connection."""


def listen(client: S3Client) -> None:
    """Register the hook that checks botocore's replies."""
    # This pattern runs before botocore parses the body and looks for an error in it.
    client.meta.events.register_first("before-parse.*.*", _check)


def _check(operation_model: Any, response_dict: Any, **_: object) -> None:
    name = operation_model.name
    if name not in _SUCCESS or response_dict["status_code"] >= 300:
        return
    check_status(name, response_dict["status_code"])
    root = _SUCCESS[name][1]
    if root is None:
        return
    body = response_dict["body"]
    match = _ROOT.match(body)
    actual = match[1].decode() if match else ""
    # S3 may put an error into a reply with status 200. botocore raises that error.
    if actual not in (root, "Error") or (body and not match):
        raise Unproven(f"{name} was answered by {_shown(body)} instead of {root or 'no body'}")


def check_status(operation: str, status: int) -> None:
    """Check the status of a successful reply.

    Raises:
        Unproven: S3 never answers this status to this operation.
    """
    if status not in _SUCCESS[operation][0]:
        error = Interim if status < 200 else Unproven
        raise error(f"{operation} was answered by status {status}, which S3 never sends")


def _shown(body: bytes) -> str:
    return repr(body[:40].decode(errors="replace")) if body else "an empty body"


def require(reply: Mapping[str, Any], name: str, operation: str) -> str:
    """A value that the reply of every S3 server has.

    Raises:
        Unproven: the reply lacks it.
    """
    if not reply.get(name):
        raise Unproven(f"{operation} was answered without {name}")
    return str(reply[name])


def proves(client: S3Client, bucket: str, reply: Mapping[str, Any], body: bytes) -> bool | None:
    """Whether the ETag of a PUT's reply is that of these bytes, or None if that is unknown.

    An ETag is the MD5 of the bytes if the store computes one and does not encrypt by KMS. One PUT
    with such an ETag shows that the store computes them.

    Raises:
        Unproven: the reply has no ETag.
    """
    etag = require(reply, "ETag", "PUT").strip('"').lower()
    is_md5 = _etags_are_md5.setdefault(client, {})
    if is_md5.get(bucket) is False or "kms" in str(reply.get("ServerSideEncryption", "")):
        return True
    if etag == hashlib.md5(body, usedforsecurity=False).hexdigest():
        is_md5[bucket] = True
        return True
    return False if bucket in is_md5 else None


def note_other_etags(client: S3Client, bucket: str) -> None:
    """Note that the bucket's ETags are no MD5: one intact object has another ETag."""
    _etags_are_md5.setdefault(client, {})[bucket] = False


def check_list(
    reply: Mapping[str, Any], bucket: str, prefix: str, after: str, *, folders: bool = False
) -> None:
    """Check that a LIST is that of this bucket and prefix, and begins after a key.

    Raises:
        Unproven: it is another list.
    """
    name = require(reply, "Name", "LIST")
    if name != bucket and not bucket.endswith(_ALIAS):
        raise Unproven(f"LIST was answered by the list of another bucket, {name}")
    # Some servers leave the prefix out, and some claim to encode it and do not.
    if unquote(reply.get("Prefix", prefix)) != unquote(prefix):
        raise Unproven(f"LIST of {prefix} was answered by the list of {reply['Prefix']}")
    # A cache may return the reply to another LIST of this prefix.
    start = reply.get("StartAfter", after)
    if unquote(start) != unquote(after):
        raise Unproven(f"LIST of {prefix} after {after!r} was answered by the list after {start!r}")
    if folders:
        return
    if reply.get("Delimiter") or reply.get("CommonPrefixes"):
        raise Unproven(f"LIST of {prefix} was answered by a list of folders")
    if reply.get("KeyCount") and not reply.get("Contents"):
        raise Unproven(f"LIST of {prefix} counts {reply['KeyCount']} keys and shows none")


def folders_page(
    reply: Mapping[str, Any], prefix: str, after: str, delimiter: str
) -> Folders | None:
    """Read the LIST of the folders below a prefix.

    Args:
        reply: the LIST with a delimiter, which ends each folder.
        prefix: the prefix, which ends with "/".
        after: the key after which the LIST begins.
        delimiter: the delimiter: "/", a name and "/".

    Returns:
        The page. None if the store ignored the delimiter or used a part of it.

    Raises:
        Unproven: a key is outside of the LIST.
    """
    folders = [folder["Prefix"] for folder in reply.get("CommonPrefixes", [])]
    others = [content["Key"] for content in reply.get("Contents", [])]
    # Some stores list `after` itself again.
    rows = sorted({*folders, *others} - {after})
    for row in rows:
        if not row.startswith(prefix) or row <= after:
            raise Unproven(f"LIST of {prefix} after {after!r} shows {row}")
    if not all(folder.endswith(delimiter) for folder in folders):
        return None
    if any(delimiter in other.removeprefix(prefix) for other in others):
        return None
    ends = len(prefix), -len(delimiter)
    names = [row[slice(*ends)] for row in rows if row.endswith(delimiter)]
    next_after = ""
    if rows and reply.get("IsTruncated"):
        name = rows[-1].removeprefix(prefix).partition("/")[0]
        # "0" is the character after "/", so that key is after every key of the name.
        is_shown = rows[-1] >= f"{prefix}{name}{delimiter}"
        next_after = f"{prefix}{name}0" if is_shown else rows[-1]
    # A folder of another folder, such as a log inside of a log, is none of these.
    return Folders([name for name in names if "/" not in name], next_after)


def check_order(entries: list[Entry], prefix: str, after: str) -> None:
    """Check that the keys begin with `prefix`, come after `after` and ascend.

    A store that ignores `start-after` would list its first keys in every page.

    Raises:
        Unproven: the keys do not.
    """
    last = after
    for entry in entries:
        if not entry.key.startswith(prefix):
            raise Unproven(f"LIST of {prefix} shows {entry.key}")
        if entry.key <= last:
            raise Unproven(f"LIST of {prefix} shows {entry.key} after {last}")
        last = entry.key
