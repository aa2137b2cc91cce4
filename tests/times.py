"""How long the tests of a run took, by folder, and what the slowest of them protect.

PYTEST_ADDOPTS=--junitxml=run.xml bash tests/run.sh
python -m tests.times run.xml run-tables-*.xml > sparkwal/docs/test-times.md
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

SLOWEST = 15


@dataclass(frozen=True)
class Timed:
    """A test that ran.

    Attributes:
        file: dotted, as JUnit's class names are.
        needs: the markers that say what it needs.
        protects: the promise that it fails for.
    """

    file: str
    name: str
    seconds: float
    needs: str
    protects: str

    @property
    def folder(self) -> str:
        return "/".join(self.file.split(".")[:-1])


def read(report: Path) -> Iterator[Timed]:
    """The tests of pytest's `--junitxml`; those that were skipped are left out."""
    for case in ElementTree.parse(report).iter("testcase"):
        if case.find("skipped") is not None:
            continue
        properties = {
            one.attrib["name"]: one.attrib["value"] for one in case.iterfind("properties/property")
        }
        yield Timed(
            case.attrib["classname"],
            case.attrib["name"],
            float(case.attrib["time"]),
            properties.get("needs", ""),
            properties.get("protects", ""),
        )


def folders(tests: Iterable[Timed]) -> list[str]:
    """A row for each folder, and one for each set of needs; the slowest first."""
    by_folder: dict[str, list[Timed]] = defaultdict(list)
    by_needs: dict[str, list[Timed]] = defaultdict(list)
    for test in tests:
        by_folder[test.folder].append(test)
        by_needs[test.needs or "nothing (fast)"].append(test)
    lines = []
    for head, groups in (("folder", by_folder), ("needs", by_needs)):
        lines += [f"| {head} | tests | seconds |", "|---|---|---|"]
        for name, group in sorted(groups.items(), key=lambda pair: -_seconds(pair[1])):
            lines.append(f"| {name} | {len(group):,} | {_seconds(group):,.0f} |")
        lines.append("")
    return lines


def slowest(tests: Iterable[Timed]) -> list[str]:
    lines = ["| seconds | test | needs | protects |", "|---|---|---|---|"]
    for test in sorted(tests, key=lambda test: -test.seconds)[:SLOWEST]:
        name = f"{test.file.replace('.', '/')}.py::{test.name}".replace("|", "\\|")
        lines.append(f"| {test.seconds:.1f} | `{name}` | {test.needs} | {test.protects} |")
    return lines


def page(tests: Sequence[Timed]) -> str:
    lines = [
        "# What the tests take",
        "",
        f"{len(tests):,} tests took {_seconds(tests):,.0f} seconds, in four workers on two cores:"
        " two seconds of a test are about one of a core. The first test of a session pays for Spark"
        " or for a server. `python -m tests.times` makes this page out of a run.",
        "",
        *folders(tests),
        f"The {SLOWEST} slowest:",
        "",
        *slowest(tests),
    ]
    return "\n".join(lines) + "\n"


def _seconds(tests: Iterable[Timed]) -> float:
    return sum(test.seconds for test in tests)


if __name__ == "__main__":
    print(page([test for name in sys.argv[1:] for test in read(Path(name))]), end="")
