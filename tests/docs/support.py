"""The outcomes of the tests under each Spark, for the support table.

python -m tests.docs.support FOLDER…     folders with pytest's --junitxml, as tests/versions.sh
                                         leaves them; writes support.json, which the table is
                                         made from
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from sparkwal.options import spark_versions

RESULTS = Path(__file__).with_name("support.json")
# How tests/capabilities.py gives the reason of a skip.
LACKS = "Spark lacks "
# A test that runs others in a separate process. Their outcomes have a report of their own.
RUNS_TABLES = "tests.spark.test_delta"


@dataclass(frozen=True)
class Outcome:
    """One test under one Spark.

    Attributes:
        spark: the version of Spark.
        file: the file of the test.
        lacks: the capability for which the test was skipped, or "".
    """

    spark: str
    test: str
    file: str
    passed: bool
    failed: bool
    lacks: str


@dataclass
class Support:
    """All outcomes under one minor version of Spark.

    Attributes:
        version: the newest version that ran the tests.
        passed: the number of tests that passed, by file. A file without a number was not run.
        failed: the tests that failed.
        lacks: the capabilities for which tests were skipped.
    """

    version: str
    passed: dict[str, int] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)
    lacks: list[str] = field(default_factory=list)

    def of_folder(self, folder: str) -> dict[str, int]:
        """The part of `passed` in a folder, without the folders in it."""
        return {file: count for file, count in self.passed.items() if parent(file) == folder}


def outcomes(report: Path) -> Iterator[Outcome]:
    """The tests of one report that ran under a Spark, or were skipped because of it."""
    for case in ElementTree.parse(report).iter("testcase"):
        properties = {
            entry.attrib["name"]: entry.attrib["value"]
            for entry in case.iterfind("properties/property")
        }
        spark = properties.get("spark")
        if spark is None or case.attrib["classname"] == RUNS_TABLES:
            continue
        skipped = case.find("skipped")
        reason = "" if skipped is None else skipped.attrib.get("message", "")
        failed = case.find("failure") is not None or case.find("error") is not None
        file = f"{case.attrib['classname'].replace('.', '/')}.py"
        yield Outcome(
            spark,
            f"{file}::{case.attrib['name']}",
            file,
            skipped is None and not failed,
            failed,
            reason.removeprefix(LACKS) if reason.startswith(LACKS) else "",
        )


def summary(reports: Iterable[Path]) -> dict[str, Support]:
    """Group outcomes by minor version. If two reports hold a test, the later report counts."""
    newest: dict[tuple[str, str], Outcome] = {}
    for report in sorted(reports, key=lambda file: file.stat().st_mtime):
        for outcome in outcomes(report):
            newest[minor(outcome.spark), outcome.test] = outcome
    groups: dict[str, list[Outcome]] = {}
    for (version, _), outcome in newest.items():
        groups.setdefault(version, []).append(outcome)
    return {version: _support(groups[version]) for version in sorted(groups)}


def _support(tests: list[Outcome]) -> Support:
    passed = dict.fromkeys(sorted({outcome.file for outcome in tests}), 0)
    return Support(
        max((outcome.spark for outcome in tests), key=spark_versions.numbers),
        passed | Counter(outcome.file for outcome in tests if outcome.passed),
        sorted(outcome.test for outcome in tests if outcome.failed),
        sorted({outcome.lacks for outcome in tests if outcome.lacks}),
    )


def parent(file: str) -> str:
    return file.rpartition("/")[0]


def minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


def as_json(by_version: Mapping[str, Support]) -> str:
    """The text of the file."""
    data = {name: asdict(support) for name, support in by_version.items()}
    return json.dumps(data, indent=1) + "\n"


def results() -> dict[str, Support]:
    """The last outcomes of each minor version."""
    stored: dict[str, dict[str, Any]] = json.loads(RESULTS.read_text())
    return {name: Support(**fields) for name, fields in stored.items()}


def main(folders: Iterable[str]) -> None:
    """Write the file; a version without a report keeps its outcomes."""
    reports = [report for folder in folders for report in Path(folder).glob("*.xml")]
    by_version = dict(sorted((results() | summary(reports)).items()))
    RESULTS.write_text(as_json(by_version))
    for version, support in by_version.items():
        passed = sum(support.passed.values())
        print(f"Spark {support.version}: {passed} passed, {len(support.failed)} failed")
        for test in support.failed:
            print(f"  {version} failed: {test}")


if __name__ == "__main__":
    main(sys.argv[1:])
