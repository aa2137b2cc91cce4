"""`sparkwal tail`: the newest rows of a log, and those that come."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from sparkwal.cli.exits import Refused
from sparkwal.cli.showing import EPILOG, Asked, open_rows, show, takes_rows, tell
from sparkwal.cli.times import time_with_unit
from sparkwal.options.types import duration

if TYPE_CHECKING:
    import pyarrow as pa

    from sparkwal.cli.rows import Shown


@click.command(epilog=EPILOG)
@takes_rows("--template")
@click.option("-n", "count", type=click.IntRange(0), default=10, show_default=True, help="Rows.")
@click.option("-f", "--follow", is_flag=True, help="Then those that come, each once, until Ctrl-C.")
@click.option(
    "--interval", default="1s", show_default=True, metavar="TIME", callback=time_with_unit,
    help="How often -f looks; a look that finds nothing is 1 GET.",
)  # fmt: skip
def command(
    path: str, given: dict[str, str], asked: Asked, count: int, follow: bool, interval: str
) -> None:
    """The newest rows of the log at PATH; with -f those that come too.

    Reads back from the head, no more records than it must: 2 LIST and 2 GET, 1 GET for each record,
    and of an appender's log maxInFlightRequests − 1 to be sure of its head.

    -f goes on over a new leader, a floor that moves (it says what it missed) and a store that is
    away for a while; a log that was made again ends it with exit code 1. Logs that begin under
    PATH meanwhile are not followed.
    """
    if follow and asked.out is not None:
        raise Refused("-f has no end at which a file would be whole: send it to a pipe instead")
    if follow and {"endingPosition", "endingTimestamp"} & given.keys():
        raise Refused("-f has no end: leave --end and --until out")
    opened = open_rows(path, given, asked)
    from sparkwal.cli.ends import last_rows
    from sparkwal.cli.rows import known_columns
    from sparkwal.cli.tailing import followed

    shown = opened.shown(known_columns(log.spark_schema for log in opened.logs))

    def rows() -> Iterator[tuple[Shown, pa.RecordBatch | None]]:
        for batch in last_rows(opened.logs, shown, count):
            yield shown, batch
        if follow:
            yield from followed(opened.logs, opened.shown, duration(interval), tell)

    show(opened, rows(), shown)
