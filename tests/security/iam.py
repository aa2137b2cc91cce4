"""The actions that S3 checks for each request, and the answer of a policy."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from email.utils import format_datetime, parsedate_to_datetime
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from xml.etree import ElementTree

from urllib3 import BaseHTTPResponse, HTTPConnectionPool, HTTPResponse

from sparkwal.testing.proxy import Sent
from tests.docs.pages import ROOT

FOLDER = ROOT / "conf" / "iam"
Policy = dict[str, Any]


def policy(name: str, **places: str) -> Policy:
    """A file of conf/iam/ with BUCKET, PREFIX … replaced, as its users do."""
    text = (FOLDER / f"{name}.json").read_text()
    for place, value in places.items():
        text = text.replace(place, value)
    found: Policy = json.loads(text)
    return found


@dataclass(frozen=True)
class Call:
    """One question to IAM.

    Attributes:
        context: the condition keys that the request has.
    """

    action: str
    resource: str
    context: Mapping[str, str] = field(default_factory=dict, hash=False)


# The settings of a bucket, by the parameter of a GET.
_SETTINGS = {
    "lifecycle": "GetLifecycleConfiguration",
    "versioning": "GetBucketVersioning",
    "object-lock": "GetBucketObjectLockConfiguration",
    "encryption": "GetEncryptionConfiguration",
}
_OBJECT = {"GET": "GetObject", "HEAD": "GetObject", "PUT": "PutObject", "DELETE": "DeleteObject"}


def calls(sent: Sent, status: int) -> Iterator[Call]:
    """The actions that S3 checks for one request (Amazon's service authorization reference)."""
    method, url = sent.method, urlsplit(sent.target)
    bucket, _, key = unquote(url.path.lstrip("/")).partition("/")
    query = parse_qs(url.query, keep_blank_values=True)
    at = f"arn:aws:s3:::{bucket}"
    if not key:
        if "delete" in query:
            for each in ElementTree.fromstring(sent.body).iter():
                if each.tag.endswith("Key"):
                    yield Call("s3:DeleteObject", f"{at}/{each.text}")
        elif "uploads" in query:
            yield Call("s3:ListBucketMultipartUploads", at)
        elif asked := query.keys() & _SETTINGS.keys():
            yield Call(f"s3:{_SETTINGS[asked.pop()]}", at)
        else:
            yield Call("s3:ListBucket", at, {"s3:prefix": query.get("prefix", [""])[0]})
        return
    if "uploadId" in query and method == "DELETE":
        yield Call("s3:AbortMultipartUpload", f"{at}/{key}")
    elif method in ("PUT", "POST"):
        # Only the last request of an upload in parts creates an object.
        makes = not query.keys() & {"uploads", "partNumber"}
        context = {"s3:ObjectCreationOperation": str(makes).lower()}
        # S3 shows only that it exists.
        for name in ("if-none-match", "if-match"):
            if name in sent.headers:
                context[f"s3:{name}"] = sent.headers[name]
        yield Call("s3:PutObject", f"{at}/{key}", context)
    else:
        yield Call(f"s3:{_OBJECT[method]}", f"{at}/{key}")
        if status == 404:
            # A role that may not list the key gets 403 instead.
            yield Call("s3:ListBucket", at, {"s3:prefix": key})


def allows(found: Policy, call: Call) -> bool:
    """Whether it allows the call, and does not deny it."""
    answers = {each["Effect"] for each in found["Statement"] if _matches(each, call)}
    return answers == {"Allow"}


def denies(found: Policy, call: Call) -> bool:
    """Whether a statement denies the call."""
    return any(each["Effect"] == "Deny" and _matches(each, call) for each in found["Statement"])


def _matches(statement: Policy, call: Call) -> bool:
    return (
        any(_like(call.action, each) for each in listed(statement["Action"]))
        and any(_like(call.resource, each) for each in listed(statement["Resource"]))
        and all(
            _holds(operator, call.context.get(key), listed(values))
            for operator, keys in statement.get("Condition", {}).items()
            for key, values in keys.items()
        )
    )


def _holds(operator: str, actual: str | None, values: list[str]) -> bool:
    if operator == "Null":
        return (actual is None) == (values == ["true"])
    if operator == "Bool":
        return actual in values
    if operator == "StringLike":
        return actual is not None and any(_like(actual, each) for each in values)
    if operator == "ArnNotEquals":
        return actual not in values
    raise AssertionError(f"{operator} is not known here")


def _like(text: str, pattern: str) -> bool:
    assert not re.search(r"[\[\]]", pattern)
    return fnmatchcase(text, pattern)


def listed(value: str | list[str]) -> list[str]:
    return [value] if isinstance(value, str) else value


def smaller(found: Policy) -> Iterator[tuple[str, Policy]]:
    """The policy without one of its actions, resources or condition's values, each in turn."""
    for place, statement in enumerate(found["Statement"]):
        lists = [(statement, name) for name in ("Action", "Resource")]
        lists += [(keys, key) for keys in statement.get("Condition", {}).values() for key in keys]
        for holder, name in lists:
            for value in listed(holder[name]):
                without = copy.deepcopy(found)
                inner = without["Statement"][place]
                if name in ("Action", "Resource"):
                    inner[name] = [each for each in listed(inner[name]) if each != value]
                else:
                    for keys in inner["Condition"].values():
                        if name in keys:
                            keys[name] = [each for each in listed(keys[name]) if each != value]
                yield f"{statement['Sid']}: {value}", without


def files() -> list[Path]:
    return sorted(FOLDER.glob("*.json"))


class Enforcing(HTTPConnectionPool):
    """The connections of a proxy to its store, which refuse what no policy allows, as S3 does.

    Attributes:
        policies: the policies of the caller.
        denied: the calls that were refused, in order.
        ahead: the time by which the store's clock is ahead, so that objects look older.
    """

    def __init__(self, pool: HTTPConnectionPool) -> None:
        super().__init__(pool.host, pool.port, maxsize=64, retries=False)
        self.policies: Sequence[Policy] = ()
        self.denied: list[Call] = []
        self.ahead = timedelta()

    def urlopen(  # type: ignore[override]
        self, method: str, url: str, body: Any = None, headers: Any = None, **options: Any
    ) -> BaseHTTPResponse:
        sent = Sent(method, url, headers, body or b"")
        if denied := self._refused(sent, 0):
            return _refusal(denied)
        answer = super().urlopen(method, url, body, headers, **options)
        # S3 hides whether an object is missing from callers who may not list it.
        if denied := self._refused(sent, answer.status):
            return _refusal(denied)
        if date := answer.headers.get("Date"):
            answer.headers["Date"] = format_datetime(
                parsedate_to_datetime(date) + self.ahead, usegmt=True
            )
        return answer

    def _refused(self, sent: Sent, status: int) -> list[Call]:
        denied = [
            each
            for each in calls(sent, status)
            if not any(allows(policy, each) for policy in self.policies)
        ]
        self.denied += denied
        return denied


def _refusal(denied: Sequence[Call]) -> HTTPResponse:
    """S3's answer. It refuses the keys of a DeleteObjects one by one."""
    text, status = "<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>", 403
    if denied[0].action == "s3:DeleteObject" and len(denied) > 1:
        keys = (each.resource.partition("/")[2] for each in denied)
        errors = (f"<Error><Key>{key}</Key><Code>AccessDenied</Code></Error>" for key in keys)
        text, status = f"<DeleteResult>{''.join(errors)}</DeleteResult>", 200
    headers = {"Content-Type": "application/xml", "Content-Length": str(len(text))}
    return HTTPResponse(text.encode(), headers, status)
