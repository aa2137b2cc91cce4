"""What commands print: tables and sizes for people, JSON for programs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import click
from rich import box
from rich.console import Console
from rich.table import Table


def print_json(document: Mapping[str, Any]) -> None:
    """One JSON object on a line of standard output."""
    click.echo(json.dumps(document, ensure_ascii=False, separators=(",", ":")))


def size(count: int | None) -> str:
    """Bytes for people."""
    if count is None:
        return "?"
    value, units = float(count), ["B", "kB", "MB", "GB", "TB"]
    while value >= 1000 and len(units) > 1:
        value, units = value / 1000, units[1:]
    return f"{value:.0f} {units[0]}" if units[0] == "B" else f"{value:.1f} {units[0]}"


def moment(timestamp_ms: int) -> str:
    """Milliseconds since 1970 as ISO 8601 in UTC."""
    time = datetime.fromtimestamp(timestamp_ms / 1000, UTC)
    return time.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def shown(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table on standard output."""
    table = Table(title=title, title_justify="left", box=box.SIMPLE)
    for heading in columns:
        table.add_column(heading, no_wrap=True)
    for row in rows:
        table.add_row(*row)
    console = Console()
    # In a file or a pipe no line is cut off.
    (console if console.is_terminal else Console(width=240)).print(table)


def facts(rows: Mapping[str, str]) -> None:
    """Names and what they are, one below the other."""
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    for name, value in rows.items():
        table.add_row(f"[dim]{name}[/dim]", value)
    console = Console()
    (console if console.is_terminal else Console(width=240)).print(table)
