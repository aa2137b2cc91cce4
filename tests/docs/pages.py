"""The pages of the documentation, and the blocks of code in them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    "README.md",
    "sparkwal/PROTOCOL.md",
    *sorted(str(page.relative_to(ROOT)) for page in (ROOT / "sparkwal/docs").glob("*.md")),
    "tests/benchmarks/README.md",
    "tests/faults/README.md",
    "tests/simulation/README.md",
    "tests/histories/README.md",
]


class Block(NamedTuple):
    """A fenced block: its first line, its language and its text."""

    page: str
    line: int
    language: str
    text: str


def blocks(page: str, language: str) -> list[Block]:
    """The blocks of a page in this language, in order."""
    text = (ROOT / page).read_text()
    found = re.finditer(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    every = [
        Block(page, text.count("\n", 0, match.start()) + 2, match[1], match[2]) for match in found
    ]
    assert all(block.language for block in every), f"a block of {page} names no language"
    return [block for block in every if block.language == language]


def commands(page: str) -> list[str]:
    """The lines of a page's shell blocks that call `sparkwal`."""
    return [
        line
        for block in blocks(page, "bash")
        for line in block.text.splitlines()
        if line.startswith("sparkwal")
    ]
