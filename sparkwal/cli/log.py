"""`sparkwal log`: the records of a log as lines, newest first."""

import os
import sys
from collections.abc import Iterator
from itertools import chain
from typing import Any

import click

from sparkwal.cli.exit_codes import takes_colours
from sparkwal.cli.flags import as_json, takes_interval
from sparkwal.cli.open_logs import Damage, log_at, notify, takes_range, wait
from sparkwal.cli.output import as_json_line, escape, moment, size
from sparkwal.errors import InvalidLogError
from sparkwal.format.header import CommitHeader
from sparkwal.reading.history import Collected, Follower, Found, is_seal, walk

_HEADS = ("position", "time (UTC)", "kind", "rows", "bytes", "term", "query/batch")


def _columns(width: int, *cells: object) -> str:
    """One line; the positions of all lines are so wide."""
    return "{:>{width}} {:<24} {:<6} {:>9} {:>8} {:>4}  {}".format(*cells, width=width)


def _line(found: Found, width: int) -> str:
    if isinstance(found, Collected):
        text = f"{found.start}…{found.end - 1} were collected while this was read"
        return click.style(text, fg="cyan")
    if isinstance(found, InvalidLogError):
        place, error = str(found.position), escape(str(found))
        return click.style(_columns(width, place, "", "damaged", "", "", "", error), fg="red")
    header = found.header
    place, time = str(header.position), moment(header.timestamp_ms)
    if isinstance(header, CommitHeader):
        last = f"{escape(header.query)}/{header.batch_id}"
        rows, stored = f"{header.rows:,}", size(header.bytes)
        return _columns(width, place, time, "commit", rows, stored, header.term, last)
    last = f"{escape(header.host)}: {escape(header.reason)}"
    text = _columns(width, place, time, "leader", "", "", header.term, last)
    return click.style(text, fg="yellow")


def document(found: Found) -> dict[str, Any]:
    if isinstance(found, Collected):
        return {"kind": "collected", "start": found.start, "end": found.end - 1}
    if isinstance(found, InvalidLogError):
        return {"position": found.position, "kind": "damaged", "error": str(found)}
    header = found.header
    common = {
        "position": header.position,
        "kind": header.kind,
        "timestamp": moment(header.timestamp_ms),
        "term": header.term,
        "leader_id": header.leader_id,
    }
    if isinstance(header, CommitHeader):
        return {
            **common,
            "rows": header.rows,
            "bytes": header.bytes,
            "objects": len(header.batches) + 1,
            "query": header.query,
            "query_id": header.query_id,
            "batch_id": header.batch_id,
        }
    return {**common, "host": header.host, "reason": header.reason}


@click.command()
@takes_range
@click.argument("positions", metavar="[FIRST..LAST]", required=False)
@click.option("-n", "most", type=click.IntRange(1), metavar="N", help="The newest N of them.")
@click.option("--reverse", is_flag=True, help="Oldest first.")
@click.option("--follow", "-f", "follows", is_flag=True, help="Then wait for what comes.")
@takes_interval("1s", "How often --follow looks.")
@as_json
def command(
    path: str,
    given: dict[str, str],
    most: int | None,
    reverse: bool,
    follows: bool,
    interval: int,
    as_json: bool,
) -> None:
    """Dead records and the seals of a takeover are left out; sparkwal show has them. On a terminal
    through $PAGER, for which records are read as you go on. --follow begins with the newest 10,
    or where --start, --since or -n say.

    \b
    sparkwal log s3://bucket/wal -n 20
    sparkwal log s3://bucket/wal 1000..1999
    sparkwal log s3://bucket/wal --since 1h --reverse --json

    Requests: for head and floor 2 LIST and 2 GET (of an appender's log as many GETs as it may have
    in flight), and 1 GET for each record that is shown; --since and --until log₂ n each; an idle
    --follow 1 GET each --interval.
    """
    if follows and {"endingPosition", "endingTimestamp"} & given.keys():
        raise click.UsageError("--follow has no end: remove --end and --until")
    damage = Damage()
    log = log_at(path, given, damage, fail_fast=not follows)
    # It shows the records that are left, whatever time they are asked from.
    first, after = log.start(from_floor=True), log.end(from_floor=True)
    if follows and not {"startingPosition", "startingTimestamp"} & given.keys():
        most = most or 10
    oldest_first = reverse or follows
    there = walk(log, first, after, newest_first=most is not None or not oldest_first, most=most)
    width = max(len("position"), len(str(log.gap)))

    def line(found: Found) -> str:
        if isinstance(found, InvalidLogError):
            damage.add(log.name, found)
        return as_json_line(document(found)) if as_json else _line(found, width)

    lines: Iterator[str] = map(line, there)
    if most is not None and oldest_first:
        # The newest are looked for from the end, whichever way they are shown.
        lines = reversed(list(lines))
    heading = [] if as_json else [click.style(_columns(width, *_HEADS), dim=True)]
    if as_json or follows:
        for each in chain(heading, lines):
            click.echo(each)
    else:
        os.environ.setdefault("LESS", "FRSX")  # as git does: no pager for a few lines
        # The pager's function puts an end of line after the last.
        parts = (f"\n{each}" if place else each for place, each in enumerate(chain(heading, lines)))
        click.echo_via_pager(parts, color=sys.stdout.isatty() and takes_colours())
    follower, damage.report = Follower(log, max(first, after)), notify
    while follows:
        for found in follower.new():
            if isinstance(found, Collected) or not is_seal(found):
                click.echo(line(found))
        wait(interval)
    damage.check()
