"""What the sections are made of: tiles, facts, tables, strips of runs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sparkwal.cli.page.text import safe

# Rows of a table that are shown at once; the others are folded away.
_SHOWN = 12


def section(title: str, body: str, note: str = "") -> str:
    """A section; body and note are HTML."""
    told = f'<p class="note">{note}</p>' if note else ""
    name = title.lower().replace(" ", "-")
    return f'<section id="{name}"><h2>{title}</h2>{body}{told}</section>'


def definitions(facts: dict[str, str]) -> str:
    """Names and what they are."""
    told = "".join(
        f"<dt>{safe(name)}</dt><dd><bdi>{safe(value)}</bdi></dd>" for name, value in facts.items()
    )
    return f'<dl class="facts">{told}</dl>'


def table(key: str, heads: Iterable[str], rows: list[list[Any]], shown: int = _SHOWN) -> str:
    """A table; what comes after the dots of a heading are the classes of its column.

    Args:
        rows: texts; ("deep", n, text) stands n steps to the right.
    """
    named = [head.split(".") for head in heads]
    names, classes = [name for name, *_ in named], [" ".join(rest) for _, *rest in named]
    top = "".join(
        f'<th class="{look}">{safe(name)}</th>'
        for (name, *_), look in zip(named, classes, strict=True)
    )

    def body(some: list[list[Any]]) -> str:
        return "".join("<tr>" + "".join(map(_cell, row, classes, names)) + "</tr>" for row in some)

    def drawn(some: list[list[Any]], told: str) -> str:
        return f"<table{told}><thead><tr>{top}</tr></thead><tbody>{body(some)}</tbody></table>"

    first = f'<div class="card rows">{drawn(rows[:shown], f""" id="table-{key}" """)}</div>'
    if len(rows) <= shown:
        return first
    rest = rows[shown:]
    return (
        f'{first}<details class="more"><summary>{len(rest):,} more</summary>'
        f'<div class="card rows">{drawn(rest, "")}</div></details>'
    )


def _cell(value: Any, look: str, name: str) -> str:
    if isinstance(value, tuple):
        _, depth, value = value
        look = f"{look} deep{depth}"
    # On a narrow screen the name stands with each value.
    return f'<td class="{look}" data-name="{safe(name)}"><bdi>{safe(value)}</bdi></td>'


def tiles(told: Iterable[tuple[str, str, str]]) -> str:
    """Each with a name, a figure, and what is to be said of it."""
    return "".join(
        f'<dl class="card tile"><dt>{safe(name)}</dt><dd>{safe(value)}</dd>'
        f"<dd><bdi>{safe(more)}</bdi></dd></dl>"
        for name, value, more in told
    )


def strip(key: str, runs: Iterable[tuple[float, float, str, str]], whole: float) -> str:
    """Runs (from, to, look, what it is) side by side; a short one can be seen all the same."""
    drawn = []
    for low, high, look, told in runs:
        left, wide = (
            1000 * x / whole if whole > 0 else 1000 * place
            for place, x in enumerate((low, high - low))
        )
        drawn.append(
            f'<rect class="run {look}" x="{left:.2f}" y="0" width="{max(wide, 2):.2f}" '
            f'height="10"><title>{safe(told)}</title></rect>'
        )
    return (
        f'<svg class="strip" id="strip-{key}" viewBox="0 0 1000 10" preserveAspectRatio="none" '
        f'role="img" aria-label="{key}">{"".join(drawn)}</svg>'
    )
