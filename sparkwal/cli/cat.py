"""`sparkwal cat`: rows of a log."""

from __future__ import annotations

import click

from sparkwal.cli.exits import Refused
from sparkwal.cli.ranges import first_and_last
from sparkwal.cli.showing import EPILOG, Asked, open_rows, show, takes_rows


@click.command(epilog=EPILOG)
@takes_rows("-f", "--template")
@click.argument("range", required=False)
def command(path: str, given: dict[str, str], asked: Asked, range: str | None) -> None:
    """Rows of the log at PATH as a table, JSON lines, CSV, Arrow or a text of your own.

    RANGE is positions, inclusive: 100..199, 100.., ..199 or 100. Without one, all rows that the
    log holds, from its floor on.

    \b
    sparkwal cat s3://bucket/wal --where "dep_delay > 30 and origin == 'JFK'" --columns id,origin
    sparkwal cat s3://bucket/wal 100..199 -f '%p %t %v\\n'
    """
    if range is not None:
        try:
            start, end = first_and_last(range)
        except ValueError as expected:
            raise Refused(str(expected)) from None
        if "startingPosition" in given or "endingPosition" in given:
            raise Refused("a range and --start or --end: give one of them")
        bounds = {"startingPosition": start, "endingPosition": end}
        given.update({name: str(value) for name, value in bounds.items() if value is not None})
    opened = open_rows(path, given, asked)
    from sparkwal.cli.rows import known_columns, rows

    shown = opened.shown(known_columns(log.spark_schema for log in opened.logs))
    show(opened, ((shown, batch) for batch in rows(opened.logs, shown)), shown)
