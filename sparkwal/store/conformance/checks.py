"""The lists of checks, and the checks that apply only to S3's protocol."""

import base64
import hashlib
import time
from contextlib import suppress
from datetime import UTC
from email.utils import parsedate_to_datetime
from functools import partial
from operator import methodcaller
from typing import Any

from sparkwal.errors import OptionError, SparkWalError, StoreUnavailableError
from sparkwal.store.azure import AzureStore
from sparkwal.store.base import NotFound, Transient
from sparkwal.store.config import RetryPolicy
from sparkwal.store.conformance import clouds, objects, races
from sparkwal.store.conformance.suite import (
    Check,
    Observation,
    StoreUnderTest,
    Wrong,
    content,
    must,
)
from sparkwal.store.google import GoogleStore
from sparkwal.store.retry import RetryingStore
from sparkwal.store.s3 import S3Store
from sparkwal.store.s3_errors import Denied

# AWS documents 15 minutes for S3, and 5 for most of its other services.
_SKEW_SECONDS = 5 * 60
_BLOBS = "Microsoft.Storage/storageAccounts/blobServices/containers/blobs"
# For each kind of store: its permissions to put, get, give up an upload, and delete.
_ACTIONS: dict[type, tuple[str, str, str, str]] = {
    S3Store: ("s3:PutObject", "s3:GetObject", "s3:AbortMultipartUpload", "s3:DeleteObject"),
    AzureStore: (f"{_BLOBS}/write", f"{_BLOBS}/read", f"{_BLOBS}/write", f"{_BLOBS}/delete"),
    GoogleStore: (
        "storage.objects.create",
        "storage.objects.get",
        "storage.objects.create",
        "storage.objects.delete",
    ),
}


def credentials(tested: StoreUnderTest) -> Observation:
    try:
        provider = tested.remote[0].credentials()
    except OptionError as error:
        raise Wrong(str(error)) from None
    must(provider, "none were found: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or a profile")
    return f"provider {provider!r}"


def bucket(tested: StoreUnderTest) -> Observation:
    """The bucket exists, its endpoints answer, and the credentials may list it."""
    for store in tested.remote:
        # Writers and readers list the records: a policy may allow no LIST of all objects.
        records = f"{tested.prefix}/batches/".lstrip("/")
        RetryingStore(store, RetryPolicy(), fail_fast=True).list(records, 1)
    return f"{store.bucket if isinstance(store, S3Store) else store.url} is there"


def permissions(tested: StoreUnderTest) -> Observation:
    """The credentials allow each action that a writer needs, with one small object."""
    store, key = tested.remote[0], tested.key("doctor")
    put, get, abort, delete = _ACTIONS[type(store)]
    denied, unclear = dict[str, None](), ""
    for action, act in (
        (put, partial(store.put, key, b"doctor")),
        (get, partial(store.get, key)),
        # Azure and Google have no uploads in parts here: these two send no request.
        (put, partial(tested.upload, store, key)),
        (abort, lambda: [*map(methodcaller("abort"), tested.uploads)]),
        (delete, partial(store.delete, key)),
    ):
        try:
            act()
        except Denied:
            denied[action] = None
        except (SparkWalError, Transient, NotFound) as error:
            unclear += f"; {action}: {error}"
    root = f"arn:aws:s3:::{store.bucket}" if isinstance(store, S3Store) else store.url
    allow = ", ".join(f"{action} on {root}/{tested.prefix}*" for action in denied)
    if denied.keys() >= {put, delete}:
        raise OptionError(f"enough for a reader; a writer needs {allow}")
    must(not denied, f"missing; allow {allow}")
    return f"no action that a writer needs is denied{unclear}"


def clock(tested: StoreUnderTest) -> Observation:
    """The store's Date agrees with this machine's clock."""
    server = ""
    for store in tested.remote:
        if isinstance(store, S3Store):
            with store.request("", finds=False) as client:
                reply = client.list_objects_v2(**store.at, Prefix=tested.folder, MaxKeys=1)
            headers = reply["ResponseMetadata"]["HTTPHeaders"]
            must("date" in headers, f"{store.url} answers without Date")
            date = headers["date"]
            server = f" (server: {headers.get('server', 'does not say')})"
        else:
            date = store.listed_at(tested.folder)
        ahead = parsedate_to_datetime(date).replace(tzinfo=UTC).timestamp() - time.time()
        difference = f"the store's clock is {ahead:+.0f} s from this machine's"
        must(abs(ahead) <= _SKEW_SECONDS, difference)
    return difference + server


def checksums(tested: StoreUnderTest) -> Observation:
    """The store refuses a body with a wrong checksum."""
    store, key = tested.s3[0], tested.key("checksum")
    other = base64.b64encode(hashlib.md5(b"other").digest()).decode()
    wrong: Any
    for wrong in ({"ContentMD5": other}, {"ChecksumCRC32": "AAAAAQ=="}):
        with suppress(Transient, OptionError), store.request(key) as client:
            client.put_object(**store.at, Key=key, Body=b"body", **wrong)
            raise Wrong(f"it stored a body with a wrong {', '.join(wrong)}")
    return "a wrong Content-MD5 and a wrong CRC-32 are refused"


def replies(tested: StoreUnderTest) -> Observation:
    """Each reply has the store's own form, which distinguishes it from the page of a proxy."""
    store = tested.remote[0]
    key = tested.key("reply")
    parts = tested.key("parts")
    absent = tested.key("absent")

    def upload() -> None:
        upload = tested.upload(store, parts)
        upload.part(1, 0, b"part")
        upload.complete()

    for name, act in (
        ("PUT", partial(store.put, key, b"reply")),
        ("GET", partial(store.get, key)),
        ("GET of no object", partial(content, store, absent)),
        ("multipart upload", upload),
        ("LIST", partial(store.list, tested.folder)),
        ("LIST of uploads", partial(store.unfinished, tested.folder)),
        ("LIST after a key", partial(store.list, tested.folder, after=key)),
        ("DELETE", partial(store.delete, parts)),
        ("DELETE of several", partial(store.delete_many, [key, absent])),
    ):
        try:
            tested.store.attempt(name, key, act)
        except StoreUnavailableError as error:
            raise Wrong(f"{name}: {error}") from None
    own = "S3's" if tested.s3 else "the cloud's"
    return f"each of PUT, GET, LIST, DELETE and uploads has {own} own reply"


def lifecycle_rules(tested: StoreUnderTest) -> Observation:
    """No lifecycle rule deletes or archives objects of the log.

    A filter by tag or size counts as one that may match them.
    """
    folder = f"{tested.prefix}/".lstrip("/")
    rules = _setting(tested, "get_bucket_lifecycle_configuration").get("Rules", [])
    harms = []
    for number, rule in enumerate(rules, 1):
        only = rule.get("Filter", {})
        prefix = rule.get("Prefix") or only.get("Prefix") or only.get("And", {}).get("Prefix", "")
        overlaps = folder.startswith(prefix) or prefix.startswith(folder)
        if rule.get("Status") != "Enabled" or not overlaps:
            continue
        name = rule.get("ID") or f"number {number}"
        for action, harm in (("Expiration", "deletes"), ("Transitions", "archives")):
            if rule.get(action) and rule[action] != {"ExpiredObjectDeleteMarker": True}:
                harms.append(f"the rule {name} {harm} objects of the log")
    advice = f"exclude {folder or 'the log'}: only sparkwal may delete its objects"
    must(not harms, f"{', '.join(harms)}; {advice}")
    return "none deletes or archives objects of the log"


def versioning(tested: StoreUnderTest) -> Observation:
    status = str(_setting(tested, "get_bucket_versioning").get("Status", "off")).lower()
    stays = ": objects that a collection deletes stay as versions, and cost money"
    return status + stays * (status == "enabled")


def object_lock(tested: StoreUnderTest) -> Observation:
    lock = _setting(tested, "get_object_lock_configuration").get("ObjectLockConfiguration", {})
    stays = "a default retention: collected objects stay until it ends"
    return stays if lock.get("Rule") else "no default retention"


def encryption(tested: StoreUnderTest) -> Observation:
    setting = _setting(tested, "get_bucket_encryption").get("ServerSideEncryptionConfiguration", {})
    default = setting.get("Rules", [{}])[0].get("ApplyServerSideEncryptionByDefault", {})
    kind = str(default.get("SSEAlgorithm", "no default"))
    return kind + ": writers and readers need the key's permissions too" * ("kms" in kind)


def _setting(tested: StoreUnderTest, name: str) -> dict[str, Any]:
    """A setting of the bucket, or an empty one if it is not set."""
    store = tested.s3[0]
    with store.request("") as client:
        try:
            return dict(getattr(client, name)(**store.at))
        except client.exceptions.ClientError as error:
            status = error.response["ResponseMetadata"]["HTTPStatusCode"]
            if status == 404:
                return {}
            reason = "no permission to ask" if status == 403 else "the store does not say"
            raise OptionError(f"{reason} ({error.response['Error'].get('Code')})") from None


# The consequences for a log if a store fails a check.
_OVERWRITE = "two writers overwrite each other's commits, and rows that were acknowledged are lost"
_BROKEN_OFF = "half a record may take a position: a writer stops there, and the next one continues"
_KEEPS_ROWS = "rows stay in the last 1,000 records below the floor"
_NOT_FOUND = "the newest record is not found"
_limit = partial(Check, fatal=False)
_REMOTE: Any = {"s3": True, "cloud": True}
QUICK = (
    Check("put-if-absent", objects.first_put_wins, _OVERWRITE),
    Check("put-if-absent, raced", races.put_if_absent, _OVERWRITE),
    Check("a slow put and a fast one", races.slow_and_fast, _OVERWRITE, s3=True),
)
# For `prove-store`.
CHECKS = (
    *QUICK,
    Check("endpoints", races.endpoints, "writers at different endpoints have two logs, not one"),
    Check("replies", replies, "a proxy's answer is taken for the store's", **_REMOTE),
    _limit("a put that breaks off", races.broken_off, _BROKEN_OFF, s3=True),
    Check("multipart, raced", races.multipart, "writers of large records overwrite each other"),
    Check("put-if-absent and a delete", races.against_delete, "two writers could own one position"),
    _limit("conflicts (409)", races.conflicts),
    _limit("replace by ETag (If-Match)", objects.replace_tagged, _KEEPS_ROWS),
    Check("GET and LIST after write", objects.after_write, "acknowledged records are overlooked"),
    Check("LIST order", objects.list_order, _NOT_FOUND),
    Check("LIST pages", objects.list_pages, _NOT_FOUND),
    Check("deletes", objects.deletes, "collected objects stay, and cost money"),
    Check("ranges", objects.ranges, "readers get other bytes than they asked for"),
    Check("age", objects.age, "collection could delete what a writer still needs"),
    _limit("clock", clock, "15 minutes, or less, and requests are refused: set it", **_REMOTE),
    _limit("checksums", checksums, "damage in transit is stored, and found by a read", s3=True),
    _limit("key characters", objects.key_characters, "keep to letters, digits, - and _ in names"),
    Check("big object", objects.big_object, "large records change between write and read"),
    _limit("file system", objects.file_system, "only one machine's local disk may hold a log"),
)
# For `doctor`: a stream's store.
MACHINE = (
    Check("credentials", credentials, ends=True, **_REMOTE),
    Check("bucket", bucket, ends=True, **_REMOTE),
    _limit("permission", permissions, ends=True, **_REMOTE),
    *QUICK,
    *(check for check in CHECKS if check.name in ("endpoints", "clock", "file system")),
    _limit("lifecycle rules", lifecycle_rules, s3=True),
    _limit("versioning", versioning, s3=True),
    _limit("Object Lock", object_lock, s3=True),
    _limit("encryption", encryption, s3=True),
    _limit("lifecycle rules", clouds.lifecycle_rules, cloud=True),
    _limit("versioning", clouds.versioning, cloud=True),
    _limit("soft delete", clouds.soft_delete, cloud=True),
    _limit("immutability", clouds.immutability, cloud=True),
    _limit("namespace", clouds.namespace, cloud=True),
)
