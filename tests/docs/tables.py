"""The tables in the documentation that are made from code.

python -m tests.docs.tables     writes them into the pages
"""

from __future__ import annotations

import dataclasses
import logging
import re
from collections.abc import Callable
from pathlib import Path

import sparkwal
from sparkwal.events import Event

PAGES = Path(sparkwal.__file__).parent / "docs"


def events() -> str:
    """One row for each event."""
    lines = ["| event | fields | what happened |", "|---|---|---|"]
    for kind in Event.__subclasses__():
        fields = ", ".join(f"`{each.name}`" for each in dataclasses.fields(kind))
        warned = "⚠ " if kind.level >= logging.WARNING else ""
        lines.append(f"| `{kind.name}` | {warned}{fields} | {kind.__doc__} |")
    return "\n".join(lines)


# The page and the words that open the table in it → what the table says.
TABLES: dict[tuple[str, str], Callable[[], str]] = {("events.md", "| event |"): events}


def found(page: str, opening: str) -> str:
    """The table of a page that begins with these words."""
    pattern = rf"^{re.escape(opening)}.*\n(?:\|.*(?:\n|\Z))*"
    match = re.search(pattern, (PAGES / page).read_text(), re.MULTILINE)
    assert match, f"{page} holds no table that begins with {opening!r}"
    return match[0].rstrip("\n")


def main() -> None:
    for (page, opening), made in TABLES.items():
        text = (PAGES / page).read_text()
        (PAGES / page).write_text(text.replace(found(page, opening), made()))


if __name__ == "__main__":
    main()
