"""The stores that a command tries, and how it says what each check found; what the doctor asks of
them."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import click

from sparkwal.cli.exits import Refused, plain
from sparkwal.errors import OptionError
from sparkwal.options.parsing import from_keywords
from sparkwal.options.reading import SourceOptions
from sparkwal.store.base import NotFound, Store, Transient
from sparkwal.store.local import LocalStore
from sparkwal.store.path import bucket_and_prefix, folder, is_local
from sparkwal.store.s3 import S3Store
from sparkwal.store.s3_replies import given
from sparkwal.testing.conformance import CHECKS, QUICK, Ground, Trial, prove
from sparkwal.testing.s3_checks import SKEW_SECONDS, skew_seconds

Outcome = Literal["ok", "to do", "unknown"]


@dataclass(frozen=True)
class Line:
    """One finding.

    Attributes:
        advice: what to do, "" where there is nothing.
    """

    outcome: Outcome
    about: str
    said: str
    advice: str = ""


def ok(about: str, said: str) -> Line:
    return Line("ok", about, said)


def to_do(about: str, said: str, advice: str = "") -> Line:
    return Line("to do", about, said, advice)


def unknown(about: str, said: str) -> Line:
    """Not found out, or nothing to find out: no error."""
    return Line("unknown", about, said)


_COLOURS = {"ok": "green", "wrong": "red", "to do": "red", "limit": "yellow", "unknown": "yellow"}

takes_endpoints = click.option(
    "--endpoint", "endpoints", multiple=True, metavar="URL",
    help="Of an S3-compatible store; repeatable: all its endpoints are tried together.",
)  # fmt: skip


def stores_at(
    path: str, given: Mapping[str, str], endpoints: Sequence[str]
) -> tuple[list[Store], str]:
    """One store for each endpoint, each call one attempt; and the prefix of the path in them.

    Raises OptionError, Refused.
    """
    if is_local(path):
        if endpoints:
            raise Refused(
                "a folder has no endpoint: remove --endpoint, or write s3://bucket/folder"
            )
        return [LocalStore(folder(path))], ""
    bucket, prefix = bucket_and_prefix(path)
    others = {name: value for name, value in given.items() if name.lower() != "endpoint"}
    asked = [{**others, "endpoint": each} for each in endpoints] or [dict(given)]
    return [S3Store(bucket, from_keywords(SourceOptions, path, each).s3) for each in asked], prefix


def told_line(outcome: str, name: str, said: str, more: str = "") -> None:
    """One finding on a line; what it means, or what to do, on the next one."""
    # Not a table: each line comes when it is known, and none is cut.
    mark = click.style(f"{outcome.upper() if outcome != 'ok' else 'ok':8}", _COLOURS.get(outcome))
    click.echo(f"{mark}{name}: {plain(said)}")
    if more:
        click.echo(f"        → {plain(more)}")


_TRIAL = (4, 8)
_KEYS = {"InvalidAccessKeyId", "SignatureDoesNotMatch", "InvalidToken", "ExpiredToken",
         "InvalidClientTokenId", "UnrecognizedClientException", "TokenRefreshRequired"}  # fmt: skip
_UNSET = {"NoSuchLifecycleConfiguration", "ObjectLockConfigurationNotFoundError",
          "ServerSideEncryptionConfigurationNotFoundError"}  # fmt: skip


class Answer(NamedTuple):
    """What a store said: its reply, or its refusal's status and code."""

    status: int
    code: str
    reply: Any = None


def look(stores: Sequence[Store], prefix: str) -> Iterator[Line]:
    """All lines of a store; of a folder only what applies."""
    for store in stores:
        if isinstance(store, S3Store):
            lines = list(_reach(store, prefix))
            yield from lines
            if any(line.outcome == "to do" for line in lines):
                return
    first = stores[0]
    if isinstance(first, S3Store):
        lines = list(_permissions(first, prefix))
        yield from lines
        if any(line.outcome == "to do" for line in lines):
            return
    yield from _conditional(stores, prefix)
    if isinstance(first, S3Store):
        yield _clock(first)
        yield from _features(first, prefix)


def _reach(store: S3Store, prefix: str) -> Iterator[Line]:
    """Credentials, and whether the bucket is there."""
    provider = store.credentials()
    if provider is None:
        yield to_do("credentials", "none were found",
                    "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or a profile")  # fmt: skip
        return
    try:
        found = _ask(store, lambda client: client.list_objects_v2(
            **store.at, Prefix=prefix, MaxKeys=1))  # fmt: skip
    except Transient as error:
        yield to_do("endpoint", f"{store.url} does not answer ({error.reason})",
                    "check --endpoint, the network and the proxy")  # fmt: skip
        return
    where = f"provider {provider!r}"
    if found.code in _KEYS:
        yield to_do("credentials", f"{where}: {store.url} refused them ({found.code})",
                    "correct or renew them")  # fmt: skip
        return
    yield ok("credentials", f"{where}, accepted by {store.url}")
    yield _bucket(store, found)


def _bucket(store: S3Store, found: Answer) -> Line:
    if found.status == 200:
        headers = found.reply["ResponseMetadata"]["HTTPHeaders"]
        region = headers.get("x-amz-bucket-region")
        return ok("bucket", f"{store.bucket} is there" + (f", in {region}" if region else ""))
    said = f"{found.status} {found.code}"
    if found.status == 404:
        return to_do("bucket", f"there is no bucket {store.bucket} ({said})",
                     "create it, or correct the path or the endpoint")  # fmt: skip
    if found.status == 403:
        return to_do("bucket", f"{store.bucket} may not be listed ({said})",
                     f"allow s3:ListBucket on arn:aws:s3:::{store.bucket}")  # fmt: skip
    if found.status in (301, 307, 308) or found.code == "AuthorizationHeaderMalformed":
        return to_do("bucket", f"{store.bucket} is in another region ({said})",
                     "set the option region to the bucket's")  # fmt: skip
    return to_do("bucket", f"the LIST was refused: {said}")


def _permissions(store: S3Store, prefix: str) -> Iterator[Line]:
    """Each action that a writer needs, tried with one small object."""
    at = store.at
    with Ground((store,), prefix, Trial()) as ground:
        key = ground.key("doctor")
        upload: dict[str, str] = {}

        def begin(client: Any) -> Any:
            reply = client.create_multipart_upload(**at, Key=key)
            upload["UploadId"] = given(reply, "UploadId", store.url)
            return reply

        steps: list[tuple[str, Callable[[Any], Any]]] = [
            ("s3:PutObject", lambda client: client.put_object(**at, Key=key, Body=b"doctor")),
            ("s3:GetObject", lambda client: client.get_object(**at, Key=key)),
            ("s3:PutObject", begin),
            ("s3:ListBucketMultipartUploads",
             lambda client: client.list_multipart_uploads(**at, Prefix=ground.folder)),
            ("s3:AbortMultipartUpload",
             lambda client: client.abort_multipart_upload(**at, Key=key, **upload)),
            ("s3:DeleteObject", lambda client: client.delete_object(**at, Key=key)),
        ]  # fmt: skip
        granted: list[str] = []
        for action, ask in steps:
            if action == "s3:AbortMultipartUpload" and not upload:
                continue
            found = _ask(store, ask)
            if found.status == 403:
                yield to_do("permission", f"{action} is missing ({found.code})",
                            f"allow {action} on arn:aws:s3:::{store.bucket}/{prefix or ''}*"
                            if action != "s3:ListBucketMultipartUploads"
                            else f"allow {action} on arn:aws:s3:::{store.bucket}")  # fmt: skip
            elif found.status >= 300:
                yield unknown("permission", f"{action}: {found.status} {found.code}")
            elif action not in granted:
                granted.append(action)
        if granted:
            yield ok("permission", ", ".join(["s3:ListBucket", *granted]))
    if ground.left:
        yield unknown("permission", f"left behind: {ground.left}")


def _conditional(stores: Sequence[Store], prefix: str) -> Iterator[Line]:
    """The short form of prove-store, over every endpoint."""
    checks = [*QUICK, *(check for check in CHECKS if check.name in ("endpoints", "file system"))]
    report = prove(stores, prefix, Trial(*_TRIAL, random.randrange(2**32)), checks=checks)
    over = f" over {len(stores)} endpoints" if len(stores) > 1 else ""
    if report.verdict == "FIT":
        rounds, threads = _TRIAL
        yield ok("conditional writes", f"one winner each of {rounds} races of {threads}{over}")
        return
    for finding in report.findings:
        if finding.outcome != "ok":
            advice = finding.means and f"{finding.means}: use another store, or a newer version"
            yield to_do("conditional writes", f"{finding.check}{over}: {finding.found}", advice)


def _clock(store: S3Store) -> Line:
    try:
        skew = skew_seconds(store)
    except (OptionError, Transient) as error:
        return unknown("clock", str(error))
    if abs(skew) > SKEW_SECONDS:
        where = "behind" if skew > 0 else "ahead of"
        return to_do("clock", f"this machine's clock is {abs(skew):.0f} s {where} the store's",
                     "set it: stores refuse signatures of another time")  # fmt: skip
    return ok("clock", f"{abs(skew):.0f} s from the store's")


def _features(store: S3Store, prefix: str) -> Iterator[Line]:
    """What the bucket does by itself to the log's objects."""
    at = store.at
    found = _ask(store, lambda client: client.get_bucket_lifecycle_configuration(**at))
    if found.status == 200:
        yield from _rules(found.reply.get("Rules", []), prefix)
    else:
        yield _unset("lifecycle rules", found, "none: nothing but sparkwal deletes objects")
    found = _ask(store, lambda client: client.get_bucket_versioning(**at))
    if found.status == 200:
        status = found.reply.get("Status", "off")
        more = ": what a collection deletes stays as a version, and is paid for" * (
            status == "Enabled"
        )
        yield ok("versioning", f"{status.lower()}{more}")
    else:
        yield _unset("versioning", found, "off")
    found = _ask(store, lambda client: client.get_object_lock_configuration(**at))
    rule = (found.reply or {}).get("ObjectLockConfiguration", {}).get("Rule")
    if found.status == 200 and rule:
        yield ok("Object Lock", "a default retention: collected objects stay as long as it says")
    else:
        yield _unset("Object Lock", found, "no default retention")
    found = _ask(store, lambda client: client.get_bucket_encryption(**at))
    if found.status == 200:
        rules = found.reply["ServerSideEncryptionConfiguration"].get("Rules", [{}])
        kind = rules[0].get("ApplyServerSideEncryptionByDefault", {}).get("SSEAlgorithm", "on")
        more = ": writers and readers need the key's permissions too" * ("kms" in str(kind))
        yield ok("encryption", f"{kind}{more}")
    else:
        yield _unset("encryption", found, "no default")


def _rules(rules: Sequence[Any], prefix: str) -> Iterator[Line]:
    """The rules that reach objects of the log; a filter by tag or size may reach them."""
    harmful = 0
    for place, rule in enumerate(rules, 1):
        given = rule.get("Filter", {})
        of = rule.get("Prefix") or given.get("Prefix") or given.get("And", {}).get("Prefix", "")
        mine = f"{prefix}/" if prefix else ""
        if rule.get("Status") != "Enabled" or not (mine.startswith(of) or of.startswith(mine)):
            continue
        name = rule.get("ID") or f"number {place}"
        aborted = rule.get("AbortIncompleteMultipartUpload", {}).get("DaysAfterInitiation")
        for what, harm in (("Expiration", "deletes"), ("Transitions", "archives")):
            action = rule.get(what)
            if action and action != {"ExpiredObjectDeleteMarker": True}:
                harmful += 1
                advice = f"exclude {mine or 'the log'}: only sparkwal may delete its objects"
                yield to_do("lifecycle rules", f"the rule {name} {harm} objects of the log", advice)
        if aborted is not None:
            yield ok("lifecycle rules", f"the rule {name} aborts uploads after {aborted} days")
    if not harmful:
        yield ok("lifecycle rules", "none deletes or archives objects of the log")


def _unset(about: str, found: Answer, said: str) -> Line:
    if found.status == 200 or found.code in _UNSET:
        return ok(about, said)
    reason = "no permission to ask" if found.status == 403 else "the store does not tell"
    return unknown(about, f"{reason} ({found.status} {found.code})")


def _ask(store: S3Store, ask: Callable[[Any], Any]) -> Answer:
    """One request. Raises Transient where no answer came, OptionError for what is no answer."""
    try:
        with store.request("") as client:
            try:
                reply: Any = ask(client)
            except client.exceptions.ClientError as error:
                status = int(error.response["ResponseMetadata"]["HTTPStatusCode"])
                return Answer(status, str(error.response["Error"].get("Code", "")))
    except NotFound:
        return Answer(404, "NoSuchKey")
    return Answer(200, "", reply)
