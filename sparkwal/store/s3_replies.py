"""What proves that a reply comes from S3, and that S3 did what was asked.

A balancer, a proxy or a login page answers 200 too, with a page of its own. A reply without proof
is `Unproven`: it is treated as a lost reply.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote
from weakref import WeakKeyDictionary

from sparkwal.store.base import Entry, Transient

if TYPE_CHECKING:
    from mypy_boto3_s3.client import S3Client

# Operation → the status of its success, and the root of its XML: "" for no body, None for any.
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
    "PutObject": ((200,), None),
    "UploadPart": ((200,), None),
}
_ROOT = re.compile(rb"(?:\xef\xbb\xbf)?\s*(?:<\?xml[^>]*\?>\s*)?<(?:[\w.-]+:)?([\w.-]+)")
# S3's own list under the name of an access point shows the name of the bucket.
_ALIAS = "-s3alias"
# Client → bucket → whether an ETag is the MD5 of the bytes.
_etags_are_md5: WeakKeyDictionary[S3Client, dict[str, bool]] = WeakKeyDictionary()


class Unproven(Transient):
    """A reply that does not prove itself. What was asked may have happened or not."""


def listen(client: S3Client) -> None:
    # This pattern runs before botocore parses the body, and before it looks for an error in it.
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
    found = match[1].decode() if match else ""
    # botocore takes an error inside of a 200 for the error that it is.
    if found not in (root, "Error") or (body and not match):
        raise Unproven(f"{name} was answered by {_shown(body)} instead of {root or 'no body'}")


def check_status(operation: str, status: int) -> None:
    """Raises Unproven for a status that S3 never answers to `operation` when it succeeds."""
    if status not in _SUCCESS[operation][0]:
        raise Unproven(f"{operation} was answered by status {status}, which S3 never sends")


def _shown(body: bytes) -> str:
    return repr(body[:40].decode(errors="replace")) if body else "an empty body"


def named(reply: Mapping[str, Any], name: str, operation: str) -> str:
    """What the reply of every S3 server names. Raises Unproven."""
    if not reply.get(name):
        raise Unproven(f"{operation} was answered without {name}")
    return str(reply[name])


def proves(client: S3Client, bucket: str, reply: Mapping[str, Any], body: bytes) -> bool | None:
    """Whether the ETag of a PUT's reply is that of these bytes; None where that is not known.
    Raises Unproven for a reply without an ETag.

    An ETag is the MD5 of the bytes where the store computes it and no KMS encrypts them. One PUT
    shows that a store computes it.
    """
    etag = named(reply, "ETag", "PUT").strip('"').lower()
    known = _etags_are_md5.setdefault(client, {})
    if known.get(bucket) is False or "kms" in str(reply.get("ServerSideEncryption", "")):
        return True
    if etag == hashlib.md5(body, usedforsecurity=False).hexdigest():
        known[bucket] = True
        return True
    return False if bucket in known else None


def note_other_etags(client: S3Client, bucket: str) -> None:
    """Note that an object of the bucket is intact, and its ETag is not the MD5 of its bytes."""
    _etags_are_md5.setdefault(client, {})[bucket] = False


def check_list(reply: Mapping[str, Any], bucket: str, prefix: str) -> None:
    """Raises Unproven for the list of another bucket or prefix."""
    name = named(reply, "Name", "LIST")
    if name != bucket and not bucket.endswith(_ALIAS):
        raise Unproven(f"LIST was answered by the list of another bucket, {name}")
    # Some servers leave it out, and some do not encode it though they say so.
    if unquote(reply.get("Prefix", prefix)) != unquote(prefix):
        raise Unproven(f"LIST of {prefix} was answered by the list of {reply['Prefix']}")


def check_order(entries: list[Entry], prefix: str, after: str) -> None:
    """Raises Unproven unless the keys begin with `prefix`, come after `after` and ascend: a store
    that ignores `start-after` would show its first keys again and again."""
    last = after
    for entry in entries:
        if not entry.key.startswith(prefix):
            raise Unproven(f"LIST of {prefix} shows {entry.key}")
        if entry.key <= last:
            raise Unproven(f"LIST of {prefix} shows {entry.key} after {last}")
        last = entry.key
