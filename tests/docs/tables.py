"""Tables of the documentation, and types of options, that are made from the code.

python -m tests.docs.tables     writes the tables into their pages, and the types into KEYWORDS
"""

from __future__ import annotations

import dataclasses
import json
import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import sparkwal
from sparkwal.errors import OptionError
from sparkwal.events import Event
from sparkwal.events.emitting import PathEvent
from sparkwal.lifecycle.policy import LifecycleOptions
from sparkwal.metrics.table import METRICS
from sparkwal.options import spark_versions, types
from sparkwal.options.reading import SourceOptions
from sparkwal.options.store import StoreOptions
from sparkwal.options.writing import AppenderOptions, SinkOptions, WriterOptions
from sparkwal.reading.verification import VerifyOptions
from tests.docs import cloud_roles
from tests.docs.support import Support, parent
from tests.docs.support import results as support_of_sparks
from tests.lifecycle.partial_cases import CASES, LATE
from tests.spark.ways import WAYS
from tests.values.awkward import REFUSED
from tests.values.doors import NO_DELTA, NO_JSON, NO_PANDAS, NO_PARQUET, NO_SQL

PACKAGE = Path(sparkwal.__file__).parent
PAGES = PACKAGE / "docs"
IAM = Path(__file__).parents[2] / "conf" / "iam"
# The folder of the tests that need Delta Lake.
OF_DELTA = "tests/spark/tables"


def event_kinds() -> list[type[Event]]:
    """All events, in the order in which they are written down."""
    kinds = [each for each in vars(sparkwal.events).values() if isinstance(each, type)]
    return [kind for kind in kinds if issubclass(kind, Event) and kind not in (Event, PathEvent)]


def events() -> str:
    """One row for each module of events: their names and fields."""
    rows: dict[str, list[str]] = {}
    for kind in event_kinds():
        fields = ", ".join(each.name for each in dataclasses.fields(kind))
        warned = "⚠ " if kind.level >= logging.WARNING else ""
        about = kind.__module__.rpartition(".")[2]
        rows.setdefault(about, []).append(f"{warned}`{kind.name}({fields})`")
    lines = ["| about | events |", "|---|---|"]
    return "\n".join(lines + [f"| {about} | {'<br>'.join(each)} |" for about, each in rows.items()])


def metrics() -> str:
    """One row for each metric, after a row with their source."""
    rows: dict[str, list[str]] = {}
    for each in METRICS:
        more = ", ".join(each.more)
        name = each.full_name + (f"{{{more}}}" if more else "")
        rows.setdefault(", ".join(each.sources), []).append(f"| `{name}` | {each.help} |")
    lines = ["| metric | meaning |", "|---|---|"]
    for sources, each_row in rows.items():
        lines += [f"| **{sources}** | |", *each_row]
    return "\n".join(lines)


# Section → its options, and those that an earlier section lists already.
SECTIONS: dict[str, tuple[type[StoreOptions], type[StoreOptions] | None]] = {
    "Reading and writing": (StoreOptions, None),
    "Writing": (SinkOptions, StoreOptions),
    "Reading": (SourceOptions, StoreOptions),
    "Appender": (AppenderOptions, WriterOptions),
    "Lifecycle": (LifecycleOptions, StoreOptions),
}


# The text of a parser for people.
_TYPES = {
    "integer": "number",
    "duration": "time",
    "sequencer_name": "name",
    "consumer_name": "name",
    "timestamp": "moment",
    "account_id": "account",
    "sequencers": "names",
}
_NAMES = {parser: name for name, parser in vars(types).items() if callable(parser)}


def described(
    kind: type[StoreOptions], listed: type[StoreOptions] | None
) -> Iterator[tuple[str, str, str]]:
    """The name, type, default and meaning of each option that is not in `listed`."""
    known = {each.name: each.metadata for each in dataclasses.fields(listed)} if listed else {}
    for each in dataclasses.fields(kind):
        about = each.metadata
        if known.get(each.name) != about:
            parser = _NAMES.get(about["parse"], "choice")
            default = about["shown"] or ("" if each.default is None else str(each.default).lower())
            shown = _TYPES.get(parser, parser) + (f"; {default}" if default else "")
            yield about["name"], shown, about["meaning"]


def option_table(section: str) -> str:
    """One row for each option."""
    lines = ["| option (type; default) | meaning |", "|---|---|"]
    for name, kind, meaning in described(*SECTIONS[section]):
        lines.append(f"| `{name}` ({kind}) | {meaning} |")
    return "\n".join(lines)


KEYWORDS = PACKAGE / "options" / "keywords.py"
# The type of a keyword argument by its parser. Each option also takes its text.
_KEYWORD_TYPES = {
    "integer": "int | str",
    "size": "int | str",
    "duration": "int | str",
    "position": "int | str",
    "boolean": "bool | str",
    "timestamp": "datetime | int | str",
}
_FOLDERS = {"journal": "str | PathLike[str]"}
_KEYWORDS_HEAD = '''
"""The types of options as keyword arguments. A wrong name fails mypy and pyright.

`python -m tests.docs.tables` writes this file from the classes of options. options.md describes
each option.
"""

from datetime import datetime
from os import PathLike
from typing import TypedDict
'''


def keywords() -> str:
    """The module of a TypedDict for each class of options."""
    base = "StoreKeywords"
    parts = [_KEYWORDS_HEAD.lstrip(), _typed_dict(base, "TypedDict", StoreOptions, "path")]
    shared = {each.metadata["name"] for each in dataclasses.fields(StoreOptions)}
    for kind in (SourceOptions, VerifyOptions, SinkOptions, AppenderOptions, LifecycleOptions):
        name = kind.__name__.replace("Options", "Keywords")
        parts.append(_typed_dict(name, base, kind, *shared))
    return "\n\n".join(parts)


def _typed_dict(name: str, base: str, kind: type[StoreOptions], *left_out: str) -> str:
    lines = [f"class {name}({base}, total=False):"]
    for each in dataclasses.fields(kind):
        option = each.metadata["name"]
        if option not in left_out:
            parser = _NAMES.get(each.metadata["parse"], "choice")
            kind_of = _FOLDERS.get(option) or _KEYWORD_TYPES.get(parser, "str")
            lines.append(f"    {option}: {kind_of}")
    return "\n".join(lines) + "\n"


def ways() -> str:
    """One row for each outcome of what is asked of Spark, after a row with its kind."""
    rows = []
    for kind, each in WAYS.items():
        names: dict[str, list[str]] = {}
        for way in each:
            happens = f"refused: {way.refused}" if way.refused else way.note or "taken"
            names.setdefault(happens, []).append(way.name)
        rows += [[f"**{kind}**", ""], *([", ".join(asked), how] for how, asked in names.items())]
    return _lines(["asked for", "what happens"], rows)


# Role → the policies that it has. The last one is its own; the others stand above it.
ROLES = {
    "writer": ("writer",),
    "reader": ("reader",),
    "reader of all sequencers": ("reader", "reader-of-all"),
    "reader with a `consumer`": ("reader", "consumer"),
    "… of all sequencers": ("reader", "reader-of-all", "consumer-of-all"),
    "reader with a `lease`": ("reader", "lease"),
    "compactor": ("reader", "compactor"),
    "… into a table": ("reader", "compactor", "table"),
    "collector": ("reader", "collector"),
    "operator of the [command](cli.md)": ("reader", "reader-of-all", "operator"),
    "reader of table and log; with `collector` also a collector beside a table": (
        "reader",
        "table-reader",
    ),
}


def policies() -> str:
    """One row for each role: its policies, and what its own one allows."""
    lines = ["| role | policies | the last one allows |", "|---|---|---|"]
    for role, names in ROLES.items():
        links = " + ".join(f"[{name}](../../conf/iam/{name}.json)" for name in names)
        document = json.loads((IAM / f"{names[-1]}.json").read_text())
        allowed = "; ".join(_allowed(each) for each in document["Statement"])
        lines.append(f"| {role} | {links} | {allowed} |")
    return "\n".join(lines)


def _allowed(statement: dict[str, Any]) -> str:
    """The actions of a statement, and where."""
    condition = statement.get("Condition", {}).get("StringLike", {}).get("s3:prefix")
    places = (f"`{_below(place)}`" for place in _words(condition or statement["Resource"]))
    return f"{', '.join(_words(statement['Action']))} on {', '.join(places)}"


def _words(given: str | list[str]) -> list[str]:
    return [each.removeprefix("s3:") for each in ([given] if isinstance(given, str) else given)]


def _below(place: str) -> str:
    return place.removeprefix("arn:aws:s3:::").removeprefix("BUCKET/").removeprefix("PREFIX/")


def sparks() -> str:
    """One row for each Spark: the capabilities that it lacks, and the jars of Delta Lake for it."""
    versions = reversed(spark_versions.supported())
    return _lines(
        ["Spark", "lacks", "Delta Lake, S3A"],
        [[version, *_of_spark(version)] for version in versions],
    )


def results_of_sparks(outcomes: Mapping[str, Support]) -> str:
    """One row for each folder of tests, one column for each Spark: how many passed."""
    versions = spark_versions.supported()
    files = {file for support in outcomes.values() for file in support.passed}
    heads = [outcomes[version].version if version in outcomes else version for version in versions]
    rows = [
        [
            f"`{folder}`",
            *(_passed(outcomes.get(version), version, folder, files) for version in versions),
        ]
        for folder in sorted({parent(file) for file in files})
    ]
    return _lines(["tests that passed with Spark", *heads], rows)


def _lines(heads: list[str], rows: Iterable[list[str]]) -> str:
    """A table."""
    lines = [f"| {' | '.join(row)} |" for row in (heads, *rows)]
    return "\n".join([lines[0], f"|{'---|' * len(heads)}", *lines[1:]])


def _passed(support: Support | None, version: str, folder: str, files: set[str]) -> str:
    """How many tests of a folder passed, and how many of its files were not run."""
    if folder == OF_DELTA and not spark_versions.has_delta(version):
        return "no Delta Lake"
    ran = support.of_folder(folder) if support else {}
    if not ran:
        return "not run"
    missing = sum(parent(file) == folder and file not in ran for file in files)
    note = f"; {missing} {'file' if missing == 1 else 'files'} not run" if missing else ""
    return f"{sum(ran.values())}{note}"


def _of_spark(version: str) -> tuple[str, str]:
    lacks = ", ".join(spark_versions.lacks(version)) or "nothing"
    try:
        s3 = spark_versions.hadoop_connector("s3", version)
        jars = f"`{spark_versions.delta_package(version)}`, `{s3}`"
    except OptionError:
        jars = "none yet; `Log(path).current()` reads table and log"
    return lacks, jars


def values() -> str:
    """One row for each reader and writer that refuses values: which ones."""
    refuses = {
        "each writer": REFUSED,
        "`jobs/http_ingest.py`, in JSON": NO_JSON,
        "SQL, `--where`": NO_SQL,
        "`--format parquet`": NO_PARQUET,
        "`to_pandas`": NO_PANDAS,
        # The kind "moment or interval" is there as an interval.
        "a compaction into Delta": [name for name in NO_DELTA if not name.startswith("moment")],
    }
    rows = []
    for who, names in refuses.items():
        # The words after a comma tell cases of one kind apart.
        kinds = dict.fromkeys(name.partition(", ")[0] for name in names)
        rows.append([who, "; ".join(kinds)])
    return _lines(["reader or writer", "refuses"], rows)


def merges() -> str:
    """One row for each case of records that lack columns: a key's rows, and what a MERGE leaves."""

    def cell(row: Mapping[str, Any] | None) -> str:
        if not row:
            return "none"
        named = (f"{name}={json.dumps(row[name])}" for name in row if name != "gone")
        return f"`{','.join([*(['delete'] if row.get('gone') else []), *named])}`"

    rows = []
    for case, (before, log, after) in {**CASES, **LATE}.items():
        rows.append([case, cell(before), " ".join(map(cell, log)), cell(after)])
    return _lines(["case", "in the table", "in the log", "in the table then"], rows)


# The page and a heading in it → the first table after that heading.
TABLES: dict[tuple[str, str], Callable[[], str]] = {
    ("deploying.md", "## Which Spark, which Python"): sparks,
    ("deploying.md", "### Tested"): lambda: results_of_sparks(support_of_sparks()),
    ("events.md", "# Events"): events,
    ("security.md", "## Policies"): policies,
    ("security.md", "## Roles on Azure and Google"): cloud_roles.table,
    ("lifecycle.md", "### Records that lack columns"): merges,
    ("metrics.md", "## All metrics"): metrics,
    ("sql.md", "## Values that not all readers hold"): values,
    ("options.md", "## Triggers, modes and layouts"): ways,
    **{("options.md", f"## {section}"): partial(option_table, section) for section in SECTIONS},
}


def table(text: str, heading: str) -> re.Match[str]:
    """The first table after a heading, as the group "table"."""
    pattern = rf"^{re.escape(heading)}\n(?:(?!#|\|).*\n)*(?P<table>\|.*(?:\n\|.*)*)"
    match = re.search(pattern, text, re.MULTILINE)
    assert match, f"there is no table after {heading!r}"
    return match


def main() -> None:
    for (page, heading), made in TABLES.items():
        text = (PAGES / page).read_text()
        first, last = table(text, heading).span("table")
        (PAGES / page).write_text(text[:first] + made() + text[last:])
    KEYWORDS.write_text(keywords())


if __name__ == "__main__":
    main()
