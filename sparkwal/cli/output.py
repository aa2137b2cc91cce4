"""Prints tables, sizes and times for people, and JSON for programs."""

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import click
from rich import box
from rich.console import Console
from rich.filesize import decimal
from rich.table import Table
from rich.text import Text

from sparkwal.errors import escape

_MOMENTS = ("timestamp_ms", "start_ms", "end_ms", "first_ms", "last_ms", "since_ms", "until_ms")
_LAST_MS = 253_402_300_799_999  # the end of the year 9999


def as_json_line(document: Mapping[str, Any]) -> str:
    # Only strings contain characters to escape, and inside strings the escape means the same.
    return escape(json.dumps(document, ensure_ascii=False, separators=(",", ":")))


def print_json(document: Mapping[str, Any]) -> None:
    click.echo(as_json_line(document))


def size(count: int | None) -> str:
    """Bytes for people."""
    return "?" if count is None else decimal(count).replace("bytes", "B").replace("byte", "B")


def length(milliseconds: int) -> str:
    """A duration for people, in its greatest unit: "250 ms", "12 s", "5 min", "3.2 h", "9 d"."""
    if milliseconds < 1000:
        return f"{milliseconds} ms"
    value = milliseconds / 1000
    for unit, following in (("s", 60), ("min", 60), ("h", 24)):
        if value < following:
            return f"{value:.0f} {unit}" if value >= 10 or unit == "s" else f"{value:.1f} {unit}"
        value /= following
    return f"{value:.1f} d" if value < 10 else f"{value:,.0f} d"


def dollars(amount: float) -> str:
    """Dollars for people: two decimals, or two significant digits below 10 cents."""
    if amount == 0 or amount >= 0.0995:
        return f"${amount:,.2f}"
    return f"${amount:#.2g}" if amount >= 0.0001 else "< $0.0001"


def rate(value: float) -> str:
    """A rate per second for people."""
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


def moment(timestamp_ms: int) -> str:
    """Milliseconds since 1970 as ISO 8601 in UTC; a later year than 9999 is the end of 9999."""
    time = datetime.fromtimestamp(min(timestamp_ms, _LAST_MS) / 1000, UTC)
    return time.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def format_value(name: str, value: Any) -> str:
    """A value of a JSON document for people. Its name decides the unit."""
    match value:
        case None | "" | [] | ():
            return "–"
        case bool() | str():
            return str(value)
        case dict():
            counted = [f"{count:,} {kind}" for kind, count in sorted(value.items()) if count]
            return ", ".join(counted) or "none"
        case list() | tuple():
            return "; ".join(map(str, value))
    if name in _MOMENTS:
        return moment(value)[:19].replace("T", " ")
    if "cost" in name:
        return dollars(value)
    if name.startswith(("put_", "write_")):
        return f"{value:.3g} ms" if value < 1000 else f"{value / 1000:,.3g} s"
    if name.endswith("_ms"):
        return length(value)
    if name.startswith(("bytes", "stored", "size_")):
        return size(round(value))
    return f"{value:,}" if isinstance(value, int) else rate(value)


def format_name(name: str) -> str:
    """A name of a JSON document for people."""
    return "behind" if name == "lag_ms" else name.removesuffix("_ms").replace("_", " ")


def table(rows: Sequence[Mapping[str, Any]], title: str | None = None) -> None:
    """Print JSON documents with the same names as a table. Columns of numbers are right-aligned.

    The table is as wide as its content, and the terminal wraps it: a cut number would look like a
    different number.
    """
    table = Table(box=box.SIMPLE, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    # `Text` has no markup: rich would interpret the brackets of a name in a `str`.
    for name in rows[0]:
        is_number = all(isinstance(row[name], int | float | None) for row in rows)
        head = Text(escape(format_name(name)))
        table.add_column(head, no_wrap=True, justify="right" if is_number else "left")
    for row in rows:
        table.add_row(*(Text(escape(format_value(name, row[name]))) for name in rows[0]))
    console = out()
    wide = console.options.update(max_width=10**6)
    console.width = max(console.width, console.measure(table, options=wide).maximum)
    if title is not None:
        # rich would wrap the title of the `Table` at the width of the table.
        console.print(Text(escape(title), "italic"), soft_wrap=True)
    console.print(table)


def facts(rows: Mapping[str, str | Text]) -> None:
    """Print names and values, one a line."""
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True, style="dim", min_width=9)
    table.add_column(overflow="fold")
    for name, value in rows.items():
        text = value if isinstance(value, Text) else Text(escape(value))
        safe = escape(text.plain, keep="\n")
        table.add_row(Text(escape(name)), text if safe == text.plain else Text(safe, text.style))
    out().print(table)


def out() -> Console:
    """Standard output: a terminal with its width, or a file or pipe with wide lines."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(width=240, highlight=False)
