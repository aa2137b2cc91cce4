"""`sparkwal log`: the records of a log as lines, newest first."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from itertools import chain
from typing import Any

import click
from rich.cells import cell_len, set_cell_size

from sparkwal.cli.open_logs import Damage, head_of, log_at, wait
from sparkwal.console.escape import escape
from sparkwal.console.exit_codes import takes_colours
from sparkwal.console.options import (
    EXAMPLES,
    as_json,
    as_moment,
    first_and_last,
    takes_log,
    time_with_unit,
)
from sparkwal.console.output import as_json_line, moment, size
from sparkwal.format.header import CommitHeader
from sparkwal.options.types import duration
from sparkwal.protocol.replay import first_at_or_after
from sparkwal.reading.history import Collected, Follower, Found, Unreadable, is_seal, walk
from sparkwal.reading.log_range import LogRange
from sparkwal.reading.rows import PassedOver


class RecordLines:
    def __init__(self, log: LogRange, as_json: bool, passed_over: PassedOver) -> None:
        self._log, self._as_json, self._passed_over = log, as_json, passed_over
        terminal = sys.stdout.isatty()
        self.coloured = terminal and not as_json and takes_colours()
        self._place = max(len("position"), len(str(log.gap)))
        # What comes before the last column, and how wide a line may be.
        self._room = shutil.get_terminal_size().columns - self._place - 57 if terminal else 400

    def heading(self) -> list[str]:
        if self._as_json:
            return []
        names = self._columns("position", "time (UTC)", "kind", "rows", "bytes", "term")
        return [self._style(f"{names}  query/batch", dim=True)]

    def line(self, found: Found) -> str:
        if isinstance(found, Unreadable):
            self._passed_over(found.why)
        if self._as_json:
            return as_json_line(document(found))
        if isinstance(found, Collected):
            text = f"{found.start}…{found.end - 1} were collected while this was read"
            return self._style(text, fg="cyan")
        if isinstance(found, Unreadable):
            text = self._columns(str(found.position), "", "damaged", "", "", "").rstrip()
            return self._style(f"{text}  {escape(str(found.why))}", fg="red")
        header = found.header
        place, time, term = str(header.position), moment(header.timestamp_ms), str(header.term)
        if isinstance(header, CommitHeader):
            rows = f"{header.rows:,}"
            columns = self._columns(place, time, "commit", rows, size(header.bytes), term)
            return f"{columns}  {self._clipped(escape(header.query), f'/{header.batch_id}')}"
        columns = self._columns(place, time, "leader", "", "", term)
        last = self._clipped(f"{escape(header.host)}: {escape(header.reason)}", "")
        return self._style(f"{columns}  {last}", fg="yellow")

    def ending(self) -> list[str]:
        """What came before the oldest record, where that is not the first of all."""
        floor, state = self._log.floor.current(), self._log.floor.state
        if not floor or state is None:
            return []
        where = f": their rows are in {escape(state.target.table)}" if state.target else ""
        return [self._style(f"positions below {floor} were collected{where}", fg="cyan")]

    def _columns(self, place: str, time: str, kind: str, rows: str, bytes_: str, term: str) -> str:
        return f"{place:>{self._place}} {time:<24} {kind:<6} {rows:>9} {bytes_:>8} {term:>4}"

    def _clipped(self, text: str, ending: str) -> str:
        room = max(self._room - len(ending), 6)
        if cell_len(text) > room:
            text = set_cell_size(text, room - 1).rstrip() + "…"
        return text + ending

    def _style(self, text: str, **style: Any) -> str:
        return click.style(text, **style) if self.coloured else text


def document(found: Found) -> dict[str, Any]:
    if isinstance(found, Collected):
        return {"kind": "collected", "start": found.start, "end": found.end - 1}
    if isinstance(found, Unreadable):
        return {"position": found.position, "kind": "damaged", "error": str(found.why)}
    header = found.header
    common = {
        "position": header.position, "kind": header.kind, "timestamp": moment(header.timestamp_ms),
        "term": header.term, "leader_id": header.leader_id,
    }  # fmt: skip
    if isinstance(header, CommitHeader):
        return {
            **common, "rows": header.rows, "bytes": header.bytes,
            "objects": len(header.batches) + 1,
            "query": header.query, "query_id": header.query_id, "batch_id": header.batch_id,
        }  # fmt: skip
    return {**common, "host": header.host, "reason": header.reason}


# Of --follow, unless it is set otherwise.
_FOLLOWED = 10


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
    if positions is not None:
        if start is not None or end is not None:
            raise click.UsageError("a range, or --start and --end: give one of them")
        try:
            start, end = first_and_last(positions)
        except ValueError as expected:
            raise click.BadParameter(str(expected)) from None
    if follows and (end is not None or until is not None):
        raise click.UsageError("--follow has no end: remove --end and --until")
    damage = Damage()
    log = log_at(path, given, damage, fail_fast=not follows)
    first, after = _bounds(log, start, end, since, until)
    if follows and start is None and since is None:
        most = most or _FOLLOWED
    oldest_first = reverse or follows
    there = walk(log, first, after, newest_first=most is not None or not oldest_first, most=most)
    shown = RecordLines(log, as_json, damage.of(log.name))
    lines: Iterator[str] = (shown.line(each) for each in there)
    if most is not None and oldest_first:
        # The newest are looked for from the end, whichever way they are shown.
        lines = iter(list(lines)[::-1])
    if follows:
        for line in chain(shown.heading(), lines):
            click.echo(line)
        follower = Follower(log, max(first, after))
        while True:
            for found in follower.new():
                if isinstance(found, Collected) or not is_seal(found):
                    click.echo(shown.line(found))
            wait(duration(interval))
    elif as_json:
        for line in lines:
            click.echo(line)
    else:
        os.environ.setdefault("LESS", "FRX")  # as git does: no pager for a few lines
        is_whole = first == log.floor.current() and most is None and not reverse
        whole = chain(shown.heading(), lines, shown.ending() if is_whole else [])
        # The pager's function puts an end of line after the last.
        parts = (f"\n{line}" if place else line for place, line in enumerate(whole))
        click.echo_via_pager(parts, color=shown.coloured)
    damage.check()


def _bounds(
    log: LogRange, start: int | None, end: int | None, since: int | None, until: int | None
) -> tuple[int, int]:
    """The first position, and the one after the last. Raises OptionError, CollectedError."""
    head = head_of(log)
    floor = log.floor.current()
    first = floor if start is None else log.checked(start, "--start")
    after = log.gap if end is None else log.until(end, "--end")

    def at(timestamp_ms: int) -> int:
        return first_at_or_after(log.log, head, timestamp_ms, start=floor, tolerant=True)

    if since is not None:
        first = max(first, at(since))
    if until is not None:
        after = min(after, at(until + 1))
    return first, after
