"""What `cat`, `head` and `tail` have in common: their options, and from a log to its rows' text.

Nothing here needs pyarrow until a command runs: its help is there at once.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sparkwal.cli.asking import takes_log
from sparkwal.cli.exits import EXIT_CODES, Refused
from sparkwal.cli.times import as_moment

if TYPE_CHECKING:
    import pyarrow as pa

    from sparkwal.cli.formats import Writer
    from sparkwal.cli.rows import Shown
    from sparkwal.cli.template import Part
    from sparkwal.reading.log_range import LogRange

FORMATS = ("table", "json", "csv", "arrow")
_LETTERS = r"""
Letters of --template:
  %p  position of the commit         %t  its time, ISO 8601 in UTC
  %k  partition that wrote the row   %r  number of the row in its commit and partition, from 0
  %q  query or producer              %b  its batch
  %s  sequencer                      %v  the row as JSON
  %{name}  a column; null is empty   %%  a percent sign
  \n \t \r \0 \e \\ \x41  characters
"""
_CONDITIONS = r"""
--where: columns, numbers, 'texts', == != < <= > >= and or not, in (…), is null, is not null,
  + - * / %, a.field of a struct, col('any name'), startswith endswith contains like matches
  (text, 'text'), lower upper length (text), abs (number), isnan (float).
  Times and days are texts: at >= '2026-01-31T12:00:00Z'. Null is unknown, as in SQL.
"""
# \b keeps the lines of a paragraph.
EPILOG = f"\b{_LETTERS}\n\b{_CONDITIONS}\n{EXIT_CODES}"


@dataclass(frozen=True)
class Asked:
    """What of each row, in which form, to where."""

    columns: str | None
    metadata: bool
    where: str | None
    sequencers: str | None
    template: str | None
    fmt: str
    out: Path | None


def takes_rows(*template_names: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """The options of a log and of its rows; the command gets `path`, `given` and `asked`."""
    options = [
        click.option("--start", type=click.IntRange(0), metavar="POSITION",
                     help="The first position.  [default: the log's floor]"),
        click.option("--end", type=click.IntRange(0), metavar="POSITION",
                     help="The last position.  [default: the head]"),
        click.option("--since", callback=as_moment, metavar="TIME",
                     help="Commits from this time on; 1h: an hour ago."),
        click.option("--until", callback=as_moment, metavar="TIME",
                     help="Commits up to this time."),
        click.option("--sequencers", metavar="a,b|*",
                     help="These logs under PATH, in the order of their commits' times."),
        click.option("--columns", metavar="a,b",
                     help="Only these, in this order; _wal_… columns may be among them."),
        click.option("--metadata", is_flag=True,
                     help="Add the _wal_… columns: where each row came from."),
        click.option("--where", metavar="CONDITION",
                     help="Only rows for which it is true: \"delay > 30 and origin == 'JFK'\"."),
        click.option(*template_names, "template", metavar="TEXT",
                     help=r"Each row as this text: '%p %t %v\n'; letters below."),
        click.option("--format", "fmt", type=click.Choice(FORMATS),
                     help="arrow is an IPC stream; with -o an IPC file, unless it is named "
                     ".arrows.  [default: table]"),
        click.option("--json", "as_json", is_flag=True, help="JSON lines: --format json."),
        click.option("-o", "--output", "out", metavar="FILE",
                     type=click.Path(dir_okay=False, path_type=Path),
                     help="A file, which appears when it is whole.  [default: standard output]"),
    ]  # fmt: skip

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(command)
        def asked(
            given: dict[str, str], start: int | None, end: int | None, since: int | None,
            until: int | None, sequencers: str | None, columns: str | None, metadata: bool,
            where: str | None, template: str | None, fmt: str | None, as_json: bool,
            out: Path | None, **others: Any,
        ) -> None:  # fmt: skip
            if [as_json, fmt is not None, template is not None].count(True) > 1:
                raise Refused("--json, --format and --template: give one of them")
            if columns is not None and metadata:
                raise Refused("--columns names the _wal_… columns too: leave --metadata out")
            bounds = {
                "startingPosition": start, "endingPosition": end,
                "startingTimestamp": since, "endingTimestamp": until,
            }  # fmt: skip
            given.update({name: str(value) for name, value in bounds.items() if value is not None})
            shape = "json" if as_json else fmt or "table"
            ask = Asked(columns, metadata, where, sequencers, template, shape, out)
            command(given=given, asked=ask, **others)

        for option in reversed(options):
            asked = option(asked)
        return takes_log(asked)

    return decorate


def tell(message: str) -> None:
    """What people should know, beside the rows."""
    click.echo(message, err=True)


@dataclass(frozen=True)
class Opened:
    """The logs that were asked for, and how their rows are shown."""

    logs: Sequence[LogRange]
    asked: Asked
    parts: Sequence[Part]

    def shown(self, known: pa.Schema) -> Shown:
        """Of logs with these columns. Raises Refused, OptionError."""
        from sparkwal.cli.rows import Shown, log_columns, shown_columns
        from sparkwal.cli.template import columns_of
        from sparkwal.cli.where import Where

        asked, own = self.asked, log_columns(known)
        columns = shown_columns(known, asked.columns, asked.metadata, len(self.logs) > 1)
        needed = columns_of(self.parts, known.names, own)
        keep = None
        if asked.where is not None:
            condition = Where(asked.where, known, own)
            needed, keep = needed | condition.columns, condition.of
        return Shown(known, columns, frozenset(needed), keep)


def open_rows(path: str, given: dict[str, str], asked: Asked) -> Opened:
    """Raises Failed where there is no log, Refused for what is asked wrongly, OptionError."""
    from sparkwal.cli.rows import open_logs
    from sparkwal.cli.template import parse_template

    parts = parse_template(asked.template) if asked.template is not None else []
    if asked.fmt == "arrow" and asked.out is None and sys.stdout.isatty():
        raise Refused("--format arrow is no text for a terminal: send it to a program, or -o FILE")
    return Opened(open_logs(path, given, asked.sequencers), asked, parts)


def show(opened: Opened, rows: Iterator[tuple[Shown, pa.RecordBatch | None]], end: Shown) -> None:
    """Print rows; None among them stands for a pause, in which nothing is held back."""
    from sparkwal.cli.formats import output, template_writer, writer

    asked = opened.asked
    with output(asked.out) as out:
        shape: Writer
        if asked.template is not None:
            shape = template_writer(out, opened.parts, end.columns)
        else:
            file = asked.out is not None and asked.out.suffix != ".arrows"
            shape = writer(asked.fmt, out, tell, file)
        for shown, batch in rows:
            if batch is None:
                shape.flush()
                continue
            whole = asked.template is not None
            shape.write(batch if whole else batch.select(list(shown.columns)))
        shape.end(end.target.empty_table().select(list(end.columns)).schema)
