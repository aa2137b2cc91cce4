"""Roles of Azure and Google, and the conditions of their assignments, made from conf/iam/.

python -m tests.docs.cloud_roles     writes conf/azure/ and conf/google/

A custom role of both clouds names permissions and no paths. So there are few roles, and a file for
each assignment has its condition.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CONF = Path(__file__).parents[2] / "conf"
BLOBS = "Microsoft.Storage/storageAccounts/blobServices/containers/blobs"
_PATH = f"@Resource[{BLOBS}:path]"
_PREFIX = f"@Request[{BLOBS}:prefix]"
_READ = f"ActionMatches{{'{BLOBS}/read'}}"
# What each role of a cloud may do, in the words of Azure and of Google.
PERMISSIONS: Mapping[str, tuple[Sequence[str], Sequence[str]]] = {
    "reader": (["read"], ["get", "list"]),
    "creator": (["write"], ["create"]),
    # Google takes an overwrite for a delete too.
    "changer": (["write", "delete"], ["create", "delete"]),
}
_SERVICE = "Microsoft.Storage/storageAccounts/blobServices"
# What `sparkwal doctor` needs to show the settings of a container or bucket.
INSPECTOR = (
    [f"{_SERVICE}/read", f"{_SERVICE}/containers/read"],
    ["storage.buckets.get"],
)
# The role of an assignment.
ROLE_OF = {"creates": "creator", "changes": "changer"}
# The policies of conf/iam/ whose holders write, and so need more than the role `reader`.
WRITERS = (
    "writer",
    "consumer",
    "consumer-of-all",
    "lease",
    "compactor",
    "collector",
    "operator",
)


@dataclass(frozen=True)
class Rights:
    """What the own policy of a role allows beyond reading, by patterns of keys.

    Attributes:
        creates: where it writes objects that nobody replaces or deletes with this policy.
        changes: where it also replaces and deletes.
    """

    creates: tuple[str, ...]
    changes: tuple[str, ...]

    @classmethod
    def of(cls, role: str) -> Rights:
        document = json.loads((CONF / "iam" / f"{role}.json").read_text())
        put, delete = (
            {
                resource.removeprefix("arn:aws:s3:::BUCKET/")
                for statement in document["Statement"]
                if action in _words(statement["Action"])
                for resource in _words(statement["Resource"])
            }
            for action in ("s3:PutObject", "s3:DeleteObject")
        )
        return cls(tuple(sorted(put - delete)), tuple(sorted(delete)))


def files() -> dict[str, str]:
    """The text of each file, by its name below conf/."""
    made = {}
    for role, (azure, google) in PERMISSIONS.items():
        made[f"azure/{role}.json"] = _json(
            {
                "Name": f"sparkwal {role}",
                "IsCustom": True,
                "Description": f"{', '.join(azure)} objects of a log",
                "Actions": [],
                "DataActions": [f"{BLOBS}/{name}" for name in azure],
                "AssignableScopes": ["/subscriptions/SUBSCRIPTION"],
            }
        )
        made[f"google/{role}.json"] = _json(
            {
                "title": f"sparkwal {role}",
                "stage": "GA",
                "includedPermissions": [f"storage.objects.{name}" for name in google],
            }
        )
    made["azure/inspector.json"] = _json(
        {
            "Name": "sparkwal inspector",
            "IsCustom": True,
            "Description": "read the settings of a log's container",
            "Actions": INSPECTOR[0],
            "DataActions": [],
            "AssignableScopes": ["/subscriptions/SUBSCRIPTION"],
        }
    )
    made["google/inspector.json"] = _json(
        {
            "title": "sparkwal inspector",
            "stage": "GA",
            "includedPermissions": INSPECTOR[1],
        }
    )
    made["azure/reads.condition"] = "AND\n".join(
        (
            _azure(f"{_READ} AND NOT SubOperationMatches{{'Blob.List'}}", _PATH, ["PREFIX/*"]),
            _azure(f"{_READ} AND SubOperationMatches{{'Blob.List'}}", _PREFIX, ["PREFIX/*"]),
        )
    )
    made["google/reads.json"] = _google(
        "reads",
        f'{_google_path("PREFIX/*")} || api.getAttribute("storage.googleapis.com/objectListPrefix",'
        ' "").startsWith("PREFIX/")',
    )
    for role, kind, patterns in assignments():
        actions = PERMISSIONS[ROLE_OF[kind]][0]
        made[f"azure/{role}-{kind}.condition"] = "AND\n".join(
            _azure(f"ActionMatches{{'{BLOBS}/{action}'}}", _PATH, patterns) for action in actions
        )
        expression = " || ".join(map(_google_path, patterns))
        made[f"google/{role}-{kind}.json"] = _google(f"{role} {kind}", expression)
    return made


def assignments() -> Iterator[tuple[str, str, Sequence[str]]]:
    """Role, "creates" or "changes", and the patterns of keys."""
    for role in WRITERS:
        rights = Rights.of(role)
        if rights.creates:
            yield role, "creates", rights.creates
        if rights.changes:
            yield role, "changes", rights.changes


def table() -> str:
    """One row for each role of a log: the assignments beyond that of the role `reader`."""
    lines = [
        "| role | `creator`: new objects | `changer`: also overwrites and deletes |",
        "|---|---|---|",
    ]
    for role in WRITERS:
        cells = []
        for kind, patterns in (
            ("creates", Rights.of(role).creates),
            ("changes", Rights.of(role).changes),
        ):
            where = ", ".join(f"`{pattern.removeprefix('PREFIX/')}`" for pattern in patterns)
            links = " ".join(
                f"[{cloud.title()}](../../conf/{cloud}/{role}-{kind}.{ending})"
                for cloud, ending in (("azure", "condition"), ("google", "json"))
            )
            cells.append(f"{where} ({links})" if patterns else "")
        lines.append(f"| {role} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _azure(actions: str, attribute: str, patterns: Sequence[str]) -> str:
    """A part of a condition: these actions only where the attribute has one of the patterns."""
    places = "\n  OR\n".join(f"  {attribute} StringLike '{pattern}'" for pattern in patterns)
    return f"(\n (\n  !({actions})\n )\n OR\n (\n{places}\n )\n)\n"


def _google(title: str, expression: str) -> str:
    return _json({"title": f"sparkwal {title}", "expression": expression})


def _google_path(pattern: str) -> str:
    """The objects whose keys have a pattern: at most two parts around a star."""
    first, star, last = f"projects/_/buckets/BUCKET/objects/{pattern}".partition("*")
    if not star:
        return f'resource.name == "{first}"'
    begins = f'resource.name.startsWith("{first}")'
    return f'({begins} && resource.name.endsWith("{last}"))' if last else begins


def _words(value: str | list[str]) -> list[str]:
    return [value] if isinstance(value, str) else value


def _json(value: Any) -> str:
    return json.dumps(value, indent=2) + "\n"


def main() -> None:
    for name, text in files().items():
        (CONF / name).parent.mkdir(exist_ok=True)
        (CONF / name).write_text(text)


if __name__ == "__main__":
    main()
