"""What the documentation says because the code says it: tables of pages, and a docstring.

python -m tests.docs.tables     writes them where they stand
"""

from __future__ import annotations

import dataclasses
import json
import logging
import re
import textwrap
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import sparkwal
from sparkwal.events import Event
from sparkwal.lifecycle.options import LifecycleOptions
from sparkwal.metrics.table import METRICS
from sparkwal.options.appender import AppenderOptions
from sparkwal.options.parsing import Table
from sparkwal.options.reading import SourceOptions
from sparkwal.options.store import StoreOptions
from sparkwal.options.writing import SinkOptions, WriterOptions

PACKAGE = Path(sparkwal.__file__).parent
PAGES = PACKAGE / "docs"
IAM = Path(__file__).parents[2] / "conf" / "iam"
DATA_SOURCE = PACKAGE / "spark" / "datasource.py"


def events() -> str:
    """One row for each event."""
    lines = ["| event | fields | what happened |", "|---|---|---|"]
    for kind in Event.__subclasses__():
        fields = ", ".join(f"`{each.name}`" for each in dataclasses.fields(kind))
        warned = "⚠ " if kind.level >= logging.WARNING else ""
        meaning = " ".join((kind.__doc__ or "").split())
        lines.append(f"| `{kind.name}` | {warned}{fields} | {meaning} |")
    return "\n".join(lines)


def metrics() -> str:
    """One row for each metric."""
    lines = ["| metric | kind | more labels | told by | meaning |", "|---|---|---|---|---|"]
    for each in METRICS:
        more = ", ".join(f"`{label}`" for label in each.more)
        told = ", ".join(each.sources)
        lines.append(f"| `{each.full_name}` | {each.kind} | {more} | {told} | {each.help} |")
    return "\n".join(lines)


class Option(NamedTuple):
    """One option as people read it."""

    name: str
    type: str
    default: str
    meaning: str


_TYPES = {
    "whole": "number",
    "duration": "time",
    "sequencer_name": "name",
    "consumer_name": "name",
    "timestamp": "moment",
    "account_id": "account",
    "star": "*",
    "parse_choice": "choice",
}

# Section → its options, and those that an earlier section has told already.
SECTIONS: dict[str, tuple[type[Table], type[Table] | None]] = {
    "Reading and writing": (StoreOptions, None),
    "Writing": (SinkOptions, StoreOptions),
    "Reading": (SourceOptions, StoreOptions),
    "Appender": (AppenderOptions, WriterOptions),
    "Lifecycle": (LifecycleOptions, StoreOptions),
}


def options(section: str) -> list[Option]:
    """The options of a section, in the order of the code."""
    kind, told = SECTIONS[section]
    known = {} if told is None else {each.name: each for each in dataclasses.fields(told)}
    return [
        _option(each)
        for each in dataclasses.fields(kind)
        if each.name not in known or known[each.name].metadata != each.metadata
    ]


def _option(field: dataclasses.Field[object]) -> Option:
    about = field.metadata
    parser = about["parse"].__name__
    default = about["shown"] or ("" if field.default is None else str(field.default).lower())
    return Option(about["name"], _TYPES.get(parser, parser), default, about["meaning"])


def option_table(section: str) -> str:
    """One row for each option."""
    lines = ["| option | type | default | meaning |", "|---|---|---|---|"]
    lines += [f"| `{o.name}` | {o.type} | {o.default} | {o.meaning} |" for o in options(section)]
    return "\n".join(lines)


def option_paragraphs() -> str:
    """What the data source's docstring says of its options: one paragraph each."""
    lines: list[str] = []
    for section in ("Reading and writing", "Writing", "Reading"):
        lines += ["", f"    Options: {section.lower()}", ""]
        for each in options(section):
            kind = f"{each.type}; {each.default}" if each.default else each.type
            lines += textwrap.wrap(
                f"{each.name} ({kind}): {each.meaning}",
                88,
                initial_indent="    - ",
                subsequent_indent="      ",
            )
    return "\n".join(lines) + "\n    "


# Role → the policies that it is given.
ROLES = {
    "writer": ("writer",),
    "reader": ("reader",),
    "reader of all sequencers": ("reader", "reader-of-all"),
    "reader with `consumer` or `lease`": ("reader", "consumer"),
    "compactor": ("reader", "compactor"),
    "… into a table": ("reader", "compactor", "table"),
    "collector": ("reader", "collector"),
}


def policies() -> str:
    """One row for each statement of the policies that a role has beside the reader's."""
    lines = ["| role | policies | may do | on |", "|---|---|---|---|"]
    for role, names in ROLES.items():
        links = " + ".join(f"[{name}](../../conf/iam/{name}.json)" for name in names)
        document = json.loads((IAM / f"{names[-1]}.json").read_text())
        for each in document["Statement"]:
            condition = each.get("Condition", {}).get("StringLike", {}).get("s3:prefix")
            on = condition or each["Resource"]
            places = ", ".join(
                f"`{_below(place)}`" for place in ([on] if isinstance(on, str) else on)
            )
            actions = [each["Action"]] if isinstance(each["Action"], str) else each["Action"]
            may = ", ".join(f"`{action}`" for action in actions)
            lines.append(f"| {role} | {links} | {may} | {places} |")
            role = links = ""
    return "\n".join(lines)


def _below(place: str) -> str:
    return place.removeprefix("arn:aws:s3:::").removeprefix("BUCKET/").removeprefix("PREFIX/")


# The page and a heading in it → what the first table after that heading says.
TABLES: dict[tuple[str, str], Callable[[], str]] = {
    ("events.md", "# Events"): events,
    ("security.md", "## Policies"): policies,
    ("metrics.md", "## All metrics"): metrics,
    **{("options.md", f"## {section}"): partial(option_table, section) for section in SECTIONS},
}


def table(text: str, heading: str) -> re.Match[str]:
    """The first table after a heading, as the group "table"."""
    pattern = rf"^{re.escape(heading)}\n(?:(?!#|\|).*\n)*(?P<table>\|.*(?:\n\|.*)*)"
    match = re.search(pattern, text, re.MULTILINE)
    assert match, f"there is no table after {heading!r}"
    return match


def paragraphs(source: str) -> re.Match[str]:
    """The options in the data source's docstring, as the group "options"."""
    match = re.search(r'(?P<options>\n    Options: .*?)"""', source, re.DOTALL)
    assert match, "the data source's docstring tells no options"
    return match


def main() -> None:
    for (page, heading), made in TABLES.items():
        text = (PAGES / page).read_text()
        first, last = table(text, heading).span("table")
        (PAGES / page).write_text(text[:first] + made() + text[last:])
    source = DATA_SOURCE.read_text()
    first, last = paragraphs(source).span("options")
    DATA_SOURCE.write_text(source[:first] + option_paragraphs() + source[last:])


if __name__ == "__main__":
    main()
