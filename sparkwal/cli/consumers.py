"""`sparkwal consumers`: who reads a log, and how far they are."""

from __future__ import annotations

from collections.abc import Sequence

import click

from sparkwal.cli.asking import as_json, takes_logs
from sparkwal.cli.looking import head_of, logs_at
from sparkwal.cli.telling import print_json, shown
from sparkwal.cli.times import length, time_with_unit
from sparkwal.lifecycle.consumers import ConsumerInfo, told
from sparkwal.options.types import duration


@click.command()
@takes_logs
@click.option(
    "--expiry", metavar="TIME", callback=time_with_unit,
    help="As compaction is run with, e.g. 7d: who has not told for longer holds nothing back.",
)  # fmt: skip
@as_json
def command(path: str, given: dict[str, str], expiry: str | None, as_json: bool) -> None:
    """Who reads the log at PATH, how far they are, and whom its floor waits for.

    2 requests for each consumer, 1 more for one that lags; 2 LIST and 1 GET for each log.
    """
    found = []
    for log in logs_at(path, given):
        log.look(floor=False)
        head = head_of(log)
        found += told(log.log, log.name, head, None if expiry is None else duration(expiry))
    if as_json:
        for each in found:
            print_json(vars(each))
    elif found:
        consumer_table(found)
    else:
        click.echo("no consumers")


def consumer_table(found: Sequence[ConsumerInfo]) -> None:
    """The consumers of one log or more on standard output."""
    several = len({each.sequencer for each in found}) > 1
    rows = [
        [
            *([each.sequencer] if several else []),
            each.name, str(each.position), f"{each.lag:,}", _behind(each),
            length(each.age_ms), _standing(each), each.host,
        ]
        for each in found
    ]  # fmt: skip
    columns = ["consumer", ">position", ">lag", ">behind", ">last told", "", "host"]
    shown(None, ["log", *columns] if several else columns, rows)


def _behind(each: ConsumerInfo) -> str:
    return "?" if each.lag_ms is None else length(each.lag_ms) if each.lag else "–"


def _standing(each: ConsumerInfo) -> str:
    if not each.of_this_log:
        return "of another log"
    kind = "lease" if each.expires_ms is not None else ""
    return kind or "live" if each.live else f"expired {kind}".strip()
