"""Each line that safety rests on states its rule under a key; a mutation of that key breaks it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import pytest

import sparkwal
from tests.simulation.mutation import Mutation
from tests.simulation.mutations import MUTATIONS

PACKAGE = Path(sparkwal.__file__).parent
TESTS = Path(__file__).parents[1]
OURS = [mutation for mutation in MUTATIONS if not mutation.file.startswith("simulation/")]
TAG = re.compile(r" *# SAFETY\(([\w-]+)\) §(\d+): \S")


class Tag(NamedTuple):
    """A comment `SAFETY(key) §section: the rule` and the lines of code after it."""

    key: str
    section: str
    code: list[str]


def tags(file: Path) -> list[Tag]:
    lines = file.read_text().splitlines()
    return [
        Tag(begin[1], begin[2], [each for each in lines[number:] if not _is_comment(each)])
        for number, line in enumerate(lines)
        if (begin := TAG.match(line))
    ]


def _is_comment(line: str) -> bool:
    return line.lstrip().startswith("#")


@pytest.mark.parametrize("mutation", OURS, ids=lambda mutation: mutation.name)
def test_the_line_that_a_mutation_breaks_has_its_rule(mutation: Mutation) -> None:
    assert mutation.old in (PACKAGE / mutation.file).read_text()
    (tag,) = [tag for tag in tags(PACKAGE / mutation.file) if tag.key == mutation.name]
    broken = mutation.old.strip().partition("\n")[0]
    # The tag of an argument stands before its call.
    assert any(broken in line for line in tag.code[:2]), "another line comes after the tag"


def test_every_tag_has_a_mutation_and_a_section() -> None:
    headings = re.findall(r"^## (\d+) ", (PACKAGE / "PROTOCOL.md").read_text(), re.MULTILINE)
    known = {(mutation.file, mutation.name) for mutation in OURS}
    for file in PACKAGE.rglob("*.py"):
        found = tags(file)
        assert len(found) == len(re.findall("# safety", file.read_text(), re.IGNORECASE)), file
        for tag in found:
            assert (str(file.relative_to(PACKAGE)), tag.key) in known
            assert tag.section in headings


def test_a_test_proves_rules_that_there_are() -> None:
    keys = {mutation.name for mutation in OURS}
    named = {
        key
        for file in TESTS.rglob("test_*.py")
        for marker in re.findall(r"pytest\.mark\.proves\(([^)]*)\)", file.read_text())
        for key in re.findall(r'"([^"]*)"', marker)
    }
    assert named and named <= keys
