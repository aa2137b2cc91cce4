"""The permissions that Azure and Google check for each request, and the answer of their roles."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit

from sparkwal.testing.proxy import Sent
from tests.docs.cloud_roles import BLOBS, CONF, INSPECTOR, ROLE_OF


class Call(NamedTuple):
    """One permission that a request needs, and the key for which; of a LIST the prefix."""

    permission: str
    key: str
    is_list: bool = False


_AZURE = {"GET": "read", "HEAD": "read", "PUT": "write", "DELETE": "delete"}
_SETTINGS = dict(zip(("service", "container"), INSPECTOR[0], strict=True))
_GOOGLE = {"GET": "get", "DELETE": "delete"}


class AzureCalls:
    """The permissions of requests to Azure (its "Permissions for blob service operations")."""

    def of(self, sent: Sent, status: int) -> Iterator[Call]:
        url = urlsplit(sent.target)
        query = parse_qs(url.query)
        _, _, key = unquote(url.path.lstrip("/")).partition("/")[2].partition("/")
        if query.get("comp") == ["list"]:
            yield Call(f"{BLOBS}/read", query.get("prefix", [""])[0], is_list=True)
        elif asked := query.get("restype"):
            # The kind of the account is no setting of the container: doctor goes without it.
            if asked != ["account"]:
                yield Call(_SETTINGS[asked[0]], "")
        else:
            yield Call(f"{BLOBS}/{_AZURE[sent.method]}", key)


class GoogleCalls:
    """The permissions of requests to Google (its "IAM permissions for JSON methods").

    Attributes:
        there: the keys of the objects that there are: an overwrite takes a delete too.
    """

    def __init__(self, there: set[str]) -> None:
        self.there = there

    def of(self, sent: Sent, status: int) -> Iterator[Call]:
        url = urlsplit(sent.target)
        query = parse_qs(url.query)
        key = unquote(url.path.partition("/o/")[2])
        if sent.method == "POST":
            key = query["name"][0]
            yield Call("storage.objects.create", key)
            if status < 300 and key in self.there:
                yield Call("storage.objects.delete", key)
            if status < 300:
                self.there.add(key)
        elif not url.path.partition("/b/")[2].partition("/")[1]:
            yield Call("storage.buckets.get", "")
        elif key:
            yield Call(f"storage.objects.{_GOOGLE[sent.method]}", key)
            if sent.method == "DELETE":
                self.there.discard(key)
        else:
            yield Call("storage.objects.list", query.get("prefix", [""])[0], is_list=True)


@dataclass(frozen=True)
class Assignment:
    """A role with a condition.

    Attributes:
        permissions: those of the role.
        holds: whether the condition holds for a call.
        text: the condition.
    """

    permissions: Sequence[str]
    holds: Callable[[str, Call], bool]
    text: str

    def allows(self, call: Call) -> bool:
        return call.permission in self.permissions and self.holds(self.text, call)


def assigned(cloud: str, name: str, places: Mapping[str, str]) -> Assignment:
    """An assignment of conf/azure/ or conf/google/, with PREFIX … replaced, as its users do.

    Args:
        name: "reads", or the name of a role, "-" and "creates" or "changes".
    """
    role = ROLE_OF.get(name.rpartition("-")[2], "reader")
    document = json.loads((CONF / cloud / f"{role}.json").read_text())
    suffix = "condition" if cloud == "azure" else "json"
    text = (CONF / cloud / f"{name}.{suffix}").read_text()
    for place, value in places.items():
        text = text.replace(place, value)
    if cloud == "azure":
        return Assignment(document["DataActions"], _azure_holds, text)
    permissions = document["includedPermissions"]
    return Assignment(permissions, _google_holds, json.loads(text)["expression"])


_PART = re.compile(
    r"\(\n \(\n  !\(ActionMatches\{'(?P<action>[^']+)'\}(?: AND (?P<other>NOT )?"
    r"SubOperationMatches\{'Blob.List'\})?\)\n \)\n OR\n \(\n(?P<places>.+?)\n \)\n\)",
    re.DOTALL,
)
_PLACE = re.compile(r"  @(Resource|Request)\[\S+:(path|prefix)\] StringLike '([^']+)'")


def _azure_holds(text: str, call: Call) -> bool:
    parts = [*_PART.finditer(text)]
    assert "\nAND\n".join(part[0] for part in parts) == text.rstrip("\n")
    return all(_azure_part(part, call) for part in parts)


def _azure_part(part: re.Match[str], call: Call) -> bool:
    is_of_lists = "SubOperationMatches" in part[0] and not part["other"]
    if part["action"] != call.permission or is_of_lists != call.is_list:
        return True
    places = part["places"].split("\n  OR\n")
    matches = [_PLACE.fullmatch(place) for place in places]
    return any(match is not None and fnmatchcase(call.key, match[3]) for match in matches)


_TERM = re.compile(
    r'(?P<what>resource\.name|api\.getAttribute\("storage\.googleapis\.com/objectListPrefix", ""\))'
    r'(?: == |\.(?P<how>startsWith|endsWith)\()"(?P<text>[^"]+)"\)?'
)


def _google_holds(text: str, call: Call) -> bool:
    bucket = re.search(r"buckets/([^/]+)/", text)
    assert bucket is not None
    name = f"projects/_/buckets/{bucket[1]}"
    attributes = (name, call.key) if call.is_list else (f"{name}/objects/{call.key}", "")
    alternatives = text.split(" || ")
    return any(
        all(_google_term(term, *attributes) for term in each.strip("(").split(" && "))
        for each in alternatives
    )


def _google_term(term: str, name: str, prefix: str) -> bool:
    match = _TERM.match(term)
    assert match is not None, term
    value = name if match["what"] == "resource.name" else prefix
    if match["how"] is None:
        return value == match["text"]
    starts = match["how"] == "startsWith"
    return value.startswith(match["text"]) if starts else value.endswith(match["text"])
