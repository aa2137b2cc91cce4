"""What only S3's protocol has: credentials, permissions, dates, checksums, a bucket's settings."""

import base64
import hashlib
import time
from datetime import UTC
from email.utils import parsedate_to_datetime
from functools import partial
from typing import Any

from sparkwal.errors import OptionError, SparkWalError
from sparkwal.store.base import NotFound, Transient
from sparkwal.store.conformance.suite import Found, StoreUnderTest, Wrong, must
from sparkwal.store.s3 import S3Store
from sparkwal.store.s3_errors import Denied

# AWS documents 15 minutes for S3, and 5 for most of its other services.
_SKEW_SECONDS = 5 * 60
_UNSET = {"NoSuchLifecycleConfiguration", "ObjectLockConfigurationNotFoundError",
          "ServerSideEncryptionConfigurationNotFoundError"}  # fmt: skip


def headers(store: S3Store, prefix: str = "") -> dict[str, str]:
    """Of the answer to a LIST of one key, names in lower case."""
    with store.request("", finds=False) as client:
        reply = client.list_objects_v2(**store.at, Prefix=prefix, MaxKeys=1)
    found: dict[str, str] = reply["ResponseMetadata"]["HTTPHeaders"]
    return found


def credentials(tested: StoreUnderTest) -> Found:
    provider = tested.s3[0].credentials()
    advice = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or a profile"
    must(provider is not None, f"none were found: {advice}")
    return f"provider {provider!r}"


def bucket(tested: StoreUnderTest) -> Found:
    """It is there, its endpoints answer, and the credentials may list it."""
    for store in tested.s3:
        try:
            region = headers(store, tested.prefix).get("x-amz-bucket-region")
        except Transient as error:
            advice = "check --endpoint, the network and the proxy"
            raise Wrong(f"{store.url} does not answer ({error.reason}): {advice}") from None
        except OptionError as error:
            raise Wrong(str(error)) from None
    return f"{store.bucket} is there" + (f", in {region}" if region else "")


def permissions(tested: StoreUnderTest) -> Found:
    """Each action that a writer needs, tried with one small object."""
    store, key = tested.s3[0], tested.key("doctor")
    upload = tested.upload(store, key)
    granted, denied, unclear = {"s3:ListBucket": ""}, {}, ""
    for action, ask in (
        ("s3:PutObject", partial(store.put, key, b"doctor")),
        ("s3:GetObject", partial(store.get, key)),
        ("s3:PutObject", partial(upload.part, 1, 0, b"doctor")),
        ("s3:ListBucketMultipartUploads", partial(store.unfinished, key)),
        ("s3:AbortMultipartUpload", upload.abort),
        ("s3:DeleteObject", partial(store.delete, key)),
    ):
        try:
            ask()
            granted[action] = ""
        except Denied:
            denied[action] = "" if action.startswith("s3:List") else f"/{tested.prefix}*"
        except (SparkWalError, Transient, NotFound) as error:
            unclear += f"; {action}: {error}"
    allow = ", ".join(f"{each} on arn:aws:s3:::{store.bucket}{on}" for each, on in denied.items())
    must(not denied, f"missing; allow {allow}")
    return ", ".join(granted) + unclear


def clock(tested: StoreUnderTest) -> Found:
    """The store's Date beside this machine's clock, and what the server calls itself."""
    for store in tested.s3:
        told = headers(store)
        must("date" in told, f"{store.url} answers without Date")
        ahead = parsedate_to_datetime(told["date"]).replace(tzinfo=UTC).timestamp() - time.time()
        where = "ahead of" if ahead > 0 else "behind"
        said = f"the store's clock is {abs(ahead):.0f} s {where} this machine's"
        must(abs(ahead) <= _SKEW_SECONDS, said)
    return f"{said} (server: {told.get('server', 'does not say')})"


def checksums(tested: StoreUnderTest) -> Found:
    """A body that is not what its checksum says is refused."""
    store, key = tested.s3[0], tested.key("checksum")
    other = base64.b64encode(hashlib.md5(b"other").digest()).decode()
    wrong: Any
    for wrong in ({"ContentMD5": other}, {"ChecksumCRC32": "AAAAAQ=="}):
        try:
            with store.request(key) as client:
                client.put_object(**store.at, Key=key, Body=b"body", **wrong)
        except (Transient, OptionError):
            continue
        raise Wrong(f"it stored a body with a wrong {', '.join(wrong)}")
    return "a wrong Content-MD5 and a wrong CRC-32 are refused"


def lifecycle_rules(tested: StoreUnderTest) -> Found:
    """Those that reach objects of the log; a filter by tag or size may reach them."""
    mine = f"{tested.prefix}/".lstrip("/")
    rules = _setting(tested, "get_bucket_lifecycle_configuration").get("Rules", [])
    harms, told = [], "none deletes or archives objects of the log"
    for place, rule in enumerate(rules, 1):
        only = rule.get("Filter", {})
        of = rule.get("Prefix") or only.get("Prefix") or only.get("And", {}).get("Prefix", "")
        if rule.get("Status") != "Enabled" or not (mine.startswith(of) or of.startswith(mine)):
            continue
        name = rule.get("ID") or f"number {place}"
        for what, harm in (("Expiration", "deletes"), ("Transitions", "archives")):
            if rule.get(what) and rule[what] != {"ExpiredObjectDeleteMarker": True}:
                harms.append(f"the rule {name} {harm} objects of the log")
        days = rule.get("AbortIncompleteMultipartUpload", {}).get("DaysAfterInitiation")
        if days is not None:
            told += f"; the rule {name} aborts uploads after {days} days"
    advice = f"exclude {mine or 'the log'}: only sparkwal may delete its objects"
    must(not harms, f"{', '.join(harms)}; {advice}")
    return told


def versioning(tested: StoreUnderTest) -> Found:
    status = str(_setting(tested, "get_bucket_versioning").get("Status", "off")).lower()
    stays = ": what a collection deletes stays as a version, and is paid for"
    return status + stays * (status == "enabled")


def object_lock(tested: StoreUnderTest) -> Found:
    lock = _setting(tested, "get_object_lock_configuration").get("ObjectLockConfiguration", {})
    stays = "a default retention: collected objects stay as long as it says"
    return stays if lock.get("Rule") else "no default retention"


def encryption(tested: StoreUnderTest) -> Found:
    asked = _setting(tested, "get_bucket_encryption").get("ServerSideEncryptionConfiguration", {})
    default = asked.get("Rules", [{}])[0].get("ApplyServerSideEncryptionByDefault", {})
    kind = str(default.get("SSEAlgorithm", "no default"))
    return kind + ": writers and readers need the key's permissions too" * ("kms" in kind)


def _setting(tested: StoreUnderTest, name: str) -> dict[str, Any]:
    """A setting of the bucket; empty where it has none."""
    store = tested.s3[0]
    with store.request("") as client:
        try:
            reply: dict[str, Any] = getattr(client, name)(**store.at)
            return reply
        except client.exceptions.ClientError as error:
            code = error.response["Error"].get("Code")
            if code in _UNSET:
                return {}
            denied = error.response["ResponseMetadata"]["HTTPStatusCode"] == 403
            said = "no permission to ask" if denied else "the store does not say"
            raise OptionError(f"{said} ({code})") from None
