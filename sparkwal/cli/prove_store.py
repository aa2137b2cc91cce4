"""`sparkwal prove-store`: is a store fit for a log? And what the doctor asks of one."""

from __future__ import annotations

import platform
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from typing import Any, Literal, NamedTuple

import click

from sparkwal.console.exit_codes import Refused
from sparkwal.console.options import as_json, takes_log_options, with_flags
from sparkwal.console.output import escape, facts, print_json
from sparkwal.options.parsing import from_keywords
from sparkwal.options.reading import SourceOptions
from sparkwal.store.base import NotFound, Store, Transient
from sparkwal.store.conformance.s3 import server
from sparkwal.store.conformance.store_under_test import StoreUnderTest, Trial
from sparkwal.store.conformance.suite import CHECKS, QUICK, Finding, prove
from sparkwal.store.local import LocalStore
from sparkwal.store.path import bucket_and_prefix, folder, is_local
from sparkwal.store.s3 import S3Store, given


@dataclass(frozen=True)
class Line:
    outcome: Literal["ok", "to do", "unknown"]
    about: str
    said: str
    advice: str = ""


# "unknown" is no error: the question was not asked, or got no answer.
ok, to_do, unknown = partial(Line, "ok"), partial(Line, "to do"), partial(Line, "unknown")
_COLOURS = {"ok": "green", "wrong": "red", "to do": "red", "limit": "yellow", "unknown": "yellow"}

takes_endpoints = click.option(
    "--endpoint", "endpoints", multiple=True, metavar="URL",
    help="Of an S3-compatible store; repeatable: all its endpoints are tried together.",
)  # fmt: skip


def stores_at(
    path: str, given: dict[str, str], endpoints: Sequence[str]
) -> tuple[list[Store], str]:
    """One store for each endpoint, each call one attempt; and the prefix of the path in them."""
    if is_local(path) and endpoints:
        raise Refused("a folder has no endpoint: remove --endpoint, or write s3://bucket/folder")
    if is_local(path):
        return [LocalStore(folder(path))], ""
    bucket, prefix = bucket_and_prefix(path)
    asked = [with_flags(given, endpoint=each) for each in endpoints] or [given]
    return [S3Store(bucket, from_keywords(SourceOptions, path, each).s3) for each in asked], prefix


def print_line(outcome: str, name: str, said: str, more: str = "") -> None:
    """One finding on a line; what it means, or what to do, on the next one."""
    # Not a table: each line comes when it is known, and none is cut.
    mark = click.style(f"{outcome.upper() if outcome != 'ok' else 'ok':8}", _COLOURS.get(outcome))
    click.echo(f"{mark}{name}: {escape(said)}")
    if more:
        click.echo(f"        → {escape(more)}")


@click.command()
@click.argument("url")
@takes_endpoints
@takes_log_options(endpoint=False)
@click.option("--rounds", default=12, show_default=True, type=click.IntRange(1, 10_000),
              help="Keys that are raced for, of each kind of race.")  # fmt: skip
@click.option("--threads", default=16, show_default=True, type=click.IntRange(2, 100),
              help="Writers that race for one key.")  # fmt: skip
@click.option("--seed", type=int, help="Repeats what was left to chance.")
@click.option("--thorough", is_flag=True, help="Also with more than a thousand objects.")
@as_json
def command(
    url: str, endpoints: tuple[str, ...], given: dict[str, str], rounds: int, threads: int,
    seed: int | None, thorough: bool, as_json: bool,
) -> None:  # fmt: skip
    """URL is s3://bucket, s3://bucket/folder or a folder. Writes objects of up to 8 MiB under
    {URL}/proof/, with a name of its own, and deletes them; a log at URL is not touched, and its
    writer is not fenced. Some 3,000 requests. Ctrl-C stops it and deletes them too.

    Exit code 0 only for a store that is fit. What it prints can be pasted into an issue: it
    holds no secret.
    """
    stores, prefix = stores_at(url, given, endpoints)
    trial = Trial(rounds, threads, random.randrange(2**32) if seed is None else seed, thorough)
    remote = [store for store in stores if isinstance(store, S3Store)]
    about = {
        "store": url,
        **({"endpoints": ", ".join(store.url for store in remote)} if remote else {}),
        **({"server": server(remote[0]) or "does not say"} if remote else {}),
        "date": datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
        "versions": f"sparkwal {version('sparkwal')}, botocore {version('botocore')}, "
                    f"Python {platform.python_version()}, {platform.system()}",
        "trial": f"{trial.rounds} rounds, {trial.threads} threads, seed {trial.seed}"
                 + (", thorough" if trial.thorough else ""),
    }  # fmt: skip
    if not as_json:
        facts(about)
        click.echo()

    def on_finding(each: Finding) -> None:
        if not as_json:
            print_line(each.outcome, each.check, each.found, each.means)

    report = prove(stores, prefix, trial, on_finding=on_finding)
    if as_json:
        print_json({
            **about, "seed": report.seed, "verdict": report.verdict, "fit": report.fit,
            "sentence": report.sentence, "checks": [asdict(each) for each in report.findings],
        })  # fmt: skip
    else:
        click.echo()
        colour = "green" if report.fit else "red"
        click.echo(click.style(escape(report.sentence), bold=True, fg=colour))
    if not report.fit:
        raise click.exceptions.Exit(1)


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
    """All checks of a store; a folder has fewer. The first that must be mended ends them."""
    remote = [store for store in stores if isinstance(store, S3Store)]
    asked = [_reach(store, prefix) for store in remote]
    asked += [_permissions(store, prefix) for store in remote[:1]]
    for lines in asked:
        ends = False
        for line in lines:
            yield line
            ends = ends or line.outcome == "to do"
        if ends:
            return
    yield from _conditional(stores, prefix)
    for store in remote[:1]:
        yield from _features(store, prefix)


def _reach(store: S3Store, prefix: str) -> Iterator[Line]:
    provider = store.credentials()
    if provider is None:
        yield to_do("credentials", "none were found",
                    "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or a profile")  # fmt: skip
        return
    asked = {**store.at, "Prefix": prefix, "MaxKeys": 1}
    try:
        found = _ask(store, lambda client: client.list_objects_v2(**asked))
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
        region = found.reply["ResponseMetadata"]["HTTPHeaders"].get("x-amz-bucket-region")
        return ok("bucket", f"{store.bucket} is there" + (f", in {region}" if region else ""))
    said, advice = "the LIST was refused", ""
    if found.status == 404:
        said = f"there is no bucket {store.bucket}"
        advice = "create it, or correct the path or the endpoint"
    elif found.status == 403:
        said = f"{store.bucket} may not be listed"
        advice = f"allow s3:ListBucket on arn:aws:s3:::{store.bucket}"
    elif found.status in (301, 307, 308) or found.code == "AuthorizationHeaderMalformed":
        said = f"{store.bucket} is in another region"
        advice = "set the option region to the bucket's"
    return to_do("bucket", f"{said} ({found.status} {found.code})", advice)


def _permissions(store: S3Store, prefix: str) -> Iterator[Line]:
    """Each action that a writer needs, tried with one small object."""
    bucket = f"arn:aws:s3:::{store.bucket}"
    with StoreUnderTest((store,), prefix, Trial()) as tested:
        at = {**store.at, "Key": tested.key("doctor")}
        upload: dict[str, str] = {}

        def begin(client: Any) -> Any:
            reply = client.create_multipart_upload(**at)
            upload["UploadId"] = given(reply, "UploadId", store.url)
            return reply

        steps: list[tuple[str, Callable[[Any], Any]]] = [
            ("s3:PutObject", lambda client: client.put_object(**at, Body=b"doctor")),
            ("s3:GetObject", lambda client: client.get_object(**at)),
            ("s3:PutObject", begin),
            ("s3:ListBucketMultipartUploads",
             lambda client: client.list_multipart_uploads(**store.at, Prefix=tested.folder)),
            ("s3:AbortMultipartUpload",
             lambda client: client.abort_multipart_upload(**at, **upload)),
            ("s3:DeleteObject", lambda client: client.delete_object(**at)),
        ]  # fmt: skip
        granted = {"s3:ListBucket": None}
        for action, ask in steps:
            if action == "s3:AbortMultipartUpload" and not upload:
                continue
            found = _ask(store, ask)
            if found.status == 403:
                on = bucket if action.startswith("s3:List") else f"{bucket}/{prefix}*"
                yield to_do("permission", f"{action} is missing ({found.code})",
                            f"allow {action} on {on}")  # fmt: skip
            elif found.status >= 300:
                yield unknown("permission", f"{action}: {found.status} {found.code}")
            else:
                granted[action] = None
        if len(granted) > 1:
            yield ok("permission", ", ".join(granted))
    if tested.left:
        yield unknown("permission", f"left behind: {tested.left}")


def _conditional(stores: Sequence[Store], prefix: str) -> Iterator[Line]:
    checks = [*QUICK, *(x for x in CHECKS if x.name in ("endpoints", "file system", "clock"))]
    report = prove(stores, prefix, Trial(*_TRIAL, random.randrange(2**32)), checks=checks)
    over = f" over {len(stores)} endpoints" if len(stores) > 1 else ""
    clocks = [each for each in report.findings if each.check == "clock"]
    bad = [each for each in report.findings if each.outcome != "ok" and each not in clocks]
    for each in bad:
        advice = each.means and f"{each.means}: use another store, or a newer version"
        yield to_do("conditional writes", f"{each.check}{over}: {each.found}", advice)
    if not bad:
        rounds, threads = _TRIAL
        yield ok("conditional writes", f"one winner each of {rounds} races of {threads}{over}")
    for each in clocks:
        line = to_do if each.means else ok if each.outcome == "ok" else unknown
        yield line("clock", each.found, each.means)


def _features(store: S3Store, prefix: str) -> Iterator[Line]:
    at = store.at
    found = _ask(store, lambda client: client.get_bucket_lifecycle_configuration(**at))
    if found.status == 200:
        yield from _rules(found.reply.get("Rules", []), prefix)
    else:
        yield _unset("lifecycle rules", found, "none: nothing but sparkwal deletes objects")
    found = _ask(store, lambda client: client.get_bucket_versioning(**at))
    if found.status == 200:
        status = found.reply.get("Status", "off").lower()
        more = ": what a collection deletes stays as a version, and is paid for"
        yield ok("versioning", status + more * (status == "enabled"))
    else:
        yield _unset("versioning", found, "off")
    found = _ask(store, lambda client: client.get_object_lock_configuration(**at))
    if found.status == 200 and found.reply.get("ObjectLockConfiguration", {}).get("Rule"):
        yield ok("Object Lock", "a default retention: collected objects stay as long as it says")
    else:
        yield _unset("Object Lock", found, "no default retention")
    found = _ask(store, lambda client: client.get_bucket_encryption(**at))
    if found.status == 200:
        rule = found.reply["ServerSideEncryptionConfiguration"].get("Rules", [{}])[0]
        kind = str(rule.get("ApplyServerSideEncryptionByDefault", {}).get("SSEAlgorithm", "on"))
        more = ": writers and readers need the key's permissions too"
        yield ok("encryption", kind + more * ("kms" in kind))
    else:
        yield _unset("encryption", found, "no default")


def _rules(rules: Sequence[Any], prefix: str) -> Iterator[Line]:
    """The rules that reach objects of the log; a filter by tag or size may reach them."""
    harmful = False
    mine = f"{prefix}/" if prefix else ""
    for place, rule in enumerate(rules, 1):
        only = rule.get("Filter", {})
        of = rule.get("Prefix") or only.get("Prefix") or only.get("And", {}).get("Prefix", "")
        if rule.get("Status") != "Enabled" or not (mine.startswith(of) or of.startswith(mine)):
            continue
        name = rule.get("ID") or f"number {place}"
        for what, harm in (("Expiration", "deletes"), ("Transitions", "archives")):
            if rule.get(what) and rule[what] != {"ExpiredObjectDeleteMarker": True}:
                harmful = True
                advice = f"exclude {mine or 'the log'}: only sparkwal may delete its objects"
                yield to_do("lifecycle rules", f"the rule {name} {harm} objects of the log", advice)
        aborted = rule.get("AbortIncompleteMultipartUpload", {}).get("DaysAfterInitiation")
        if aborted is not None:
            yield ok("lifecycle rules", f"the rule {name} aborts uploads after {aborted} days")
    if not harmful:
        yield ok("lifecycle rules", "none deletes or archives objects of the log")


def _unset(about: str, found: Answer, said: str) -> Line:
    if found.status == 200 or found.code in _UNSET:
        return ok(about, said)
    reason = "no permission to ask" if found.status == 403 else "the store does not say"
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
