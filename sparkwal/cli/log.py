"""`sparkwal log`: print the records of a log, one a line, newest first."""

import os
import sys
from collections.abc import Iterator
from itertools import chain
from typing import Any

import click

from sparkwal.cli.exit_codes import allows_colours
from sparkwal.cli.flags import as_json, takes_interval
from sparkwal.cli.open_logs import Damage, log_at, notify, takes_range, wait
from sparkwal.cli.output import as_json_line, moment, size
from sparkwal.errors import InvalidLogError, escape
from sparkwal.format.header import CommitHeader
from sparkwal.reading.history import Collected, Follower, Found, is_seal, walk

_HEADS = ("position", "time (UTC)", "kind", "rows", "bytes", "term", "query/batch")


def _columns(width: int, *cells: object) -> str:
    """One line; `width` is that of the column of positions."""
    return "{:>{width}} {:<24} {:<6} {:>9} {:>8} {:>4}  {}".format(*cells, width=width)


def _line(entry: Found, width: int) -> str:
    if isinstance(entry, Collected):
        text = f"{entry.start}…{entry.end - 1} were collected during this read"
        return click.style(text, fg="cyan")
    if isinstance(entry, InvalidLogError):
        position = str(entry.position)
        text = _columns(width, position, "", "damaged", "", "", "", escape(str(entry)))
        return click.style(text, fg="red")
    header = entry.header
    position = str(header.position)
    time = moment(header.timestamp_ms)
    if isinstance(header, CommitHeader):
        last = f"{escape(header.query)}/{header.batch_id}"
        rows = f"{header.rows:,}"
        return _columns(
            width, position, time, "commit", rows, size(header.bytes), header.term, last
        )
    last = f"{escape(header.host)}: {escape(header.reason)}"
    text = _columns(width, position, time, "leader", "", "", header.term, last)
    return click.style(text, fg="yellow")


def document(entry: Found) -> dict[str, Any]:
    """A record, a collected range or damage as a JSON document."""
    if isinstance(entry, Collected):
        return {"kind": "collected", "start": entry.start, "end": entry.end - 1}
    if isinstance(entry, InvalidLogError):
        return {"position": entry.position, "kind": "damaged", "error": str(entry)}
    header = entry.header
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
@click.option("-n", "most", type=click.IntRange(1), metavar="N", help="The newest N records.")
@click.option("--reverse", is_flag=True, help="Oldest first.")
@click.option("--follow", "-f", "follows", is_flag=True, help="Then print new records.")
@takes_interval("1s", "How often --follow looks for new records.")
@as_json
def command(
    path: str,
    log_options: dict[str, str],
    most: int | None,
    interval: int,
    *,
    reverse: bool,
    follows: bool,
    as_json: bool,
) -> None:
    """This omits dead records and the seals of a takeover; sparkwal show prints them. On a terminal
    it runs $PAGER and reads more records as you scroll. --follow begins with the newest 10
    records, unless --start, --since or -n is set.

    \b
    sparkwal log s3://bucket/wal -n 20
    sparkwal log s3://bucket/wal 1000..1999
    sparkwal log s3://bucket/wal --since 1h --reverse --json

    Requests: for head and floor 2 LIST and 2 GET (of an appender's log as many GETs as it may have
    in flight), and 1 GET for each printed record; for each of --since and --until log₂ n GETs; an
    idle --follow 1 GET in each --interval.
    """
    if follows and {"endingPosition", "endingTimestamp"} & log_options.keys():
        raise click.UsageError("--follow has no end: remove --end and --until")
    damage = Damage()
    log = log_at(path, log_options, damage, fail_fast=not follows)
    # A start or a time below the floor means the floor: list all remaining records.
    first, after = log.start(from_floor=True), log.end(from_floor=True)
    if follows and not {"startingPosition", "startingTimestamp"} & log_options.keys():
        most = most or 10
    oldest_first = reverse or follows
    entries = walk(log, first, after, newest_first=most is not None or not oldest_first, most=most)
    width = max(len("position"), len(str(log.gap)))

    def line(entry: Found) -> str:
        if isinstance(entry, InvalidLogError):
            damage.add(log.name, entry)
        return as_json_line(document(entry)) if as_json else _line(entry, width)

    lines: Iterator[str] = map(line, entries)
    if most is not None and oldest_first:
        # `walk` reads the newest records from the end back: reverse them.
        lines = reversed(list(lines))
    heading = [] if as_json else [click.style(_columns(width, *_HEADS), dim=True)]
    if as_json or follows:
        for text in chain(heading, lines):
            click.echo(text)
    else:
        os.environ.setdefault("LESS", "FRSX")  # as in git: no pager if the lines fit
        # `echo_via_pager` adds a line break only at the end.
        all_lines = enumerate(chain(heading, lines))
        parts = (f"\n{text}" if number else text for number, text in all_lines)
        click.echo_via_pager(parts, color=sys.stdout.isatty() and allows_colours())
        if (floor := log.floor.current()) == log.gap:
            click.echo(f"no record: all positions are below the floor, {floor}", err=True)
    follower = Follower(log, max(first, after))
    damage.report = notify
    while follows:
        for entry in follower.new():
            if not is_seal(entry):
                click.echo(line(entry))
        wait(interval)
    damage.check()
