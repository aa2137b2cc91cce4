"""Each line that safety rests on names the mutation that proves it; no mutation lacks its line."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import pytest

import sparkwal

from .mutation import Mutation
from .mutations import MUTATIONS

PACKAGE = Path(sparkwal.__file__).parent
OURS = [mutation for mutation in MUTATIONS if not mutation.file.startswith("simulation/")]


class Tag(NamedTuple):
    """A comment `Safety (§section): … "name of a mutation" …` and the lines of code after it."""

    section: str
    names: list[str]
    code: list[str]


def tags(file: Path) -> list[Tag]:
    lines = file.read_text().splitlines()
    found = []
    for number, line in enumerate(lines):
        if (begin := re.match(r" *# Safety \(§(\d+)\): ", line)) is None:
            continue
        text, code = line[begin.end() :], []
        comment = True
        for later in lines[number + 1 :]:
            if not later.lstrip().startswith("#"):
                code.append(later)
            elif not code and comment and "# Safety (" not in later:
                text += " " + later.lstrip(" #")
                continue
            comment = False
        found.append(Tag(begin[1], re.findall(r'"([^"]+)"', text), code))
    return found


@pytest.mark.parametrize("mutation", OURS, ids=lambda mutation: mutation.name)
def test_the_line_that_a_mutation_breaks_names_it(mutation: Mutation) -> None:
    (tag,) = [tag for tag in tags(PACKAGE / mutation.file) if mutation.name in tag.names]
    broken = mutation.old.strip().partition("\n")[0]
    # The tag of an argument stands before its call.
    assert any(broken in line for line in tag.code[:2]), "another line comes after the tag"


def test_every_tag_names_a_mutation_and_a_section() -> None:
    headings = re.findall(r"^## (\d+) ", (PACKAGE / "PROTOCOL.md").read_text(), re.MULTILINE)
    known = {(mutation.file, mutation.name) for mutation in OURS}
    for file in PACKAGE.rglob("*.py"):
        found = tags(file)
        assert len(found) == file.read_text().count("# Safety"), file
        for tag in found:
            assert tag.names, f"{file} has a tag without a mutation"
            assert {(str(file.relative_to(PACKAGE)), name) for name in tag.names} <= known
            assert tag.section in headings
