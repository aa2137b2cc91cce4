"""`sparkwal head`: the first rows of a log."""

from __future__ import annotations

import click

from sparkwal.cli.showing import EPILOG, Asked, open_rows, show, takes_rows


@click.command(epilog=EPILOG)
@takes_rows("-f", "--template")
@click.option("-n", "count", type=click.IntRange(0), default=10, show_default=True, help="Rows.")
def command(path: str, given: dict[str, str], asked: Asked, count: int) -> None:
    """The first rows of the log at PATH, from its floor on.

    Reads no further than it must: with --where until so many rows are found.
    """
    opened = open_rows(path, given, asked)
    from sparkwal.cli.ends import first_rows
    from sparkwal.cli.rows import known_columns

    shown = opened.shown(known_columns(log.spark_schema for log in opened.logs))
    show(opened, ((shown, batch) for batch in first_rows(opened.logs, shown, count)), shown)
