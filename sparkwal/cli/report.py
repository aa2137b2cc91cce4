"""`sparkwal report`: the past of a log as one HTML page."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click

from sparkwal.cli.asking import as_json, takes_log
from sparkwal.cli.exits import Failed, Refused
from sparkwal.cli.files import whole_file
from sparkwal.cli.looking import no_log
from sparkwal.cli.looking_back import looked_back, takes_time, within
from sparkwal.cli.page.page import page
from sparkwal.cli.telling import print_json
from sparkwal.errors import InvalidLogError
from sparkwal.history.document import document
from sparkwal.history.prices import Prices
from sparkwal.lifecycle.consumers import consumers
from sparkwal.options.parsing import from_keywords
from sparkwal.options.reading import SourceOptions, one_log
from sparkwal.protocol.clock import SystemClock


@click.command()
@takes_log
@click.option("-o", "--output", type=click.Path(dir_okay=False, path_type=Path),
              help="Where the page goes; what is there is replaced.")  # fmt: skip
@takes_time
@as_json
def command(
    path: str,
    given: dict[str, str],
    output: Path | None,
    since: int | None,
    until: int | None,
    prices: Prices,
    as_json: bool,
) -> None:
    """The past of the log at PATH as one HTML page: rates, latency, leaders, pauses, cost.

    The page is one file that loads nothing. One GET is made for each record. With --json the
    numbers of the page are printed; the page is then written only where -o says so.
    """
    if output is None and not as_json:
        raise Refused("name the page: -o report.html")
    if output is not None and not output.parent.is_dir():
        raise Refused(f"there is no folder {output.parent}; make it first")
    if output is not None and output.exists() and not output.is_file():
        raise Refused(f"{output} is no file that could be replaced; name another")
    options = within(one_log(from_keywords(SourceOptions, path, given)), since, until)
    looked = looked_back(options)
    if looked is None:
        raise no_log(path)
    try:
        readers = consumers(path, **given)
    except InvalidLogError as error:
        readers, looked = [], replace(looked, damage=looked.damage or str(error))
    told = document(looked, prices, SystemClock().now_ms(), readers)
    if output is not None:
        with whole_file(output) as file:
            # What the log says of itself may hold halves of characters.
            file.write(page(told).encode(errors="replace"))
        if not as_json:
            click.echo(
                f"{output}: {told['totals']['commits']:,} commits, {output.stat().st_size:,} bytes"
            )
    if as_json:
        print_json(told)
    if looked.damage:
        raise Failed(f"the report lacks what is damaged: {looked.damage}")
