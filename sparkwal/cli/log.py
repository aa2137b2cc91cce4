"""`sparkwal log`: the records of a log, newest first."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain

import click

from sparkwal.cli.asking import as_json, takes_log
from sparkwal.cli.exits import Failed
from sparkwal.cli.following import follow
from sparkwal.cli.looking import head_of, log_at
from sparkwal.cli.ranges import first_and_last
from sparkwal.cli.records import Told
from sparkwal.cli.times import EXAMPLES, as_moment, time_with_unit
from sparkwal.options.types import duration
from sparkwal.protocol.replay import first_at_or_after
from sparkwal.reading.history import walk
from sparkwal.reading.log_range import LogRange

# Of --follow, unless it is told otherwise.
_FOLLOWED = 10


@dataclass(frozen=True)
class _Asked:
    """Which records: of positions start … end, both there, and of a time."""

    start: int | None
    end: int | None
    since: int | None
    until: int | None

    @property
    def is_everything(self) -> bool:
        return self == _Asked(None, None, None, None)


@click.command()
@takes_log
@click.argument("positions", metavar="[FIRST..LAST]", required=False)
@click.option("--start", type=click.IntRange(0), metavar="POSITION", help="The first position.")
@click.option("--end", type=click.IntRange(0), metavar="POSITION", help="The last position.")
@click.option("--since", callback=as_moment, metavar="TIME", help=f"From then on: {EXAMPLES}.")
@click.option("--until", callback=as_moment, metavar="TIME", help="Up to then.")
@click.option("-n", "most", type=click.IntRange(1), metavar="N", help="The newest N of them.")
@click.option("--reverse", is_flag=True, help="Oldest first.")
@click.option("--follow", "-f", "follows", is_flag=True, help="Then wait for what comes.")
@click.option(
    "--interval", default="1s", show_default=True, metavar="TIME", callback=time_with_unit,
    help="How often --follow looks.",
)  # fmt: skip
@as_json
def command(
    path: str, given: dict[str, str], positions: str | None, start: int | None, end: int | None,
    since: int | None, until: int | None, most: int | None, reverse: bool, follows: bool,
    interval: str, as_json: bool,
) -> None:  # fmt: skip
    """The records of the log at PATH, newest first: commits, and who came to lead it.

    Dead records and the seals of a takeover are left out; sparkwal show has them. On a terminal
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
    asked = _asked(positions, start, end, since, until)
    if follows and (asked.end is not None or until is not None):
        raise click.UsageError("--follow has no end: remove --end and --until")
    log = log_at(path, given, fail_fast=not follows)
    first, after = _bounds(log, asked)
    if follows and asked.is_everything:
        most = most or _FOLLOWED
    oldest_first = reverse or follows
    found = walk(log, first, after, newest_first=most is not None or not oldest_first, most=most)
    told = Told(log, as_json)
    lines: Iterator[str] = (told.line(each) for each in found)
    if most is not None and oldest_first:
        # The newest are looked for from the end, whichever way they are told.
        lines = iter(list(lines)[::-1])
    if follows:
        following = (told.line(each) for each in follow(log, max(first, after), duration(interval)))
        for line in chain(told.heading(), lines, following):
            click.echo(line)
    elif as_json:
        for line in lines:
            click.echo(line)
    else:
        os.environ.setdefault("LESS", "FRX")  # as git does: no pager for a few lines
        ending = told.ending() if first == log.floor.current() and most is None else []
        whole = (
            chain(told.heading(), lines, ending) if not reverse else chain(told.heading(), lines)
        )
        # The pager's function puts an end of line after the last.
        parts = (f"\n{line}" if place else line for place, line in enumerate(whole))
        click.echo_via_pager(parts, color=told.coloured)
    if told.unreadable:
        raise Failed(f"{told.unreadable} positions cannot be read: sparkwal verify tells more")


def _asked(
    positions: str | None, start: int | None, end: int | None, since: int | None, until: int | None
) -> _Asked:
    if positions is None:
        return _Asked(start, end, since, until)
    if start is not None or end is not None:
        raise click.UsageError("a range, or --start and --end: give one of them")
    try:
        return _Asked(*first_and_last(positions), since, until)
    except ValueError as expected:
        raise click.BadParameter(str(expected)) from None


def _bounds(log: LogRange, asked: _Asked) -> tuple[int, int]:
    """The first position, and the one after the last. Raises OptionError, CollectedError."""
    head = head_of(log)
    floor = log.floor.current()
    first = floor if asked.start is None else log.checked(asked.start, "--start")
    after = head.gap if asked.end is None else log.until(asked.end, "--end")

    def at(timestamp_ms: int) -> int:
        tolerant = log.options.tolerant
        return first_at_or_after(log.log, head, timestamp_ms, start=floor, tolerant=tolerant)

    if asked.since is not None:
        first = max(first, at(asked.since))
    if asked.until is not None:
        after = min(after, at(asked.until + 1))
    return first, after
