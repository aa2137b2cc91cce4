"""The logs that a command looks at, the range that it is given of them, and the damage it meets."""

import re
import select
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import click
from rich.console import Console
from rich.progress import Progress

from sparkwal.cli.exit_codes import Failed, Refused, advice
from sparkwal.cli.flags import EXAMPLES, as_moment, options, takes_log
from sparkwal.cli.output import escape, moment
from sparkwal.errors import InvalidLogError
from sparkwal.format.keys import ROOT
from sparkwal.options.open import open_log
from sparkwal.options.parsing import from_keywords
from sparkwal.options.reading import SourceOptions
from sparkwal.protocol.recovery import Head
from sparkwal.reading.log_range import LogRange
from sparkwal.reading.sequencers import all_logs
from sparkwal.store.parallel import run_parallel


class Damage:
    """The records and objects that a command cannot read; it shows the rest of the log. A command
    without an end sets `report`, which gets a line for each that is new."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, int | str], str] = {}
        self.report: Callable[[str], None] | None = None

    def add(self, log: str, error: InvalidLogError) -> None:
        """Of the log of this name; a record that is met twice counts once."""
        place = (log, str(error) if error.position is None else error.position)
        if place in self._found:
            return
        self._found[place] = str(error)
        if self.report is not None:
            self.report(f"not shown: {error}")

    def lines(self, log: str | None = None) -> list[str]:
        """One for each, of one log or of all; it names the position and the object."""
        return [line for (name, _), line in self._found.items() if log in (None, name)]

    def check(self, what: str = "shown") -> None:
        """Raises Failed where there is any; `what` is not done with it, for people."""
        if self._found:
            lines = [f"this cannot be read, and is not {what}:"]
            lines += (f"  {escape(line)}" for line in self.lines())
            if next_step := advice(self.lines()):
                lines.append(f"{next_step}. sparkwal verify lists all damage")
            raise Failed("\n".join(lines))


def notify(text: str) -> None:
    """Say something beside what is shown."""
    click.echo(escape(text), err=True)


def _with_times(given: dict[str, str], since: int | None, until: int | None) -> dict[str, Any]:
    times = {"startingTimestamp": since, "endingTimestamp": until}
    return {"given": given | {name: moment(at) for name, at in times.items() if at is not None}}


def _with_range(
    given: dict[str, str], start: int | None, end: int | None, positions: str | None = None
) -> dict[str, Any]:
    if positions is not None:
        if start is not None or end is not None:
            raise Refused("a range, or --start and --end: give one of them")
        match = re.fullmatch(r"(\d*)\.\.(\d*)|(\d+)", positions.strip())
        if match is None or match[0] == "..":
            raise Refused(f"{positions!r} is no range of positions: 100..199, 100.., ..199 or 100")
        low, high, one = match.groups()
        start, end = (int(each) if each else None for each in (low or one, high or one))
    ends = {"startingPosition": start, "endingPosition": end}
    return {"given": given | {name: str(at) for name, at in ends.items() if at is not None}}


# A range of times, both inclusive, as options of reading in `given`.
takes_times = options(
    _with_times,
    click.option("--since", callback=as_moment, metavar="TIME", help=f"From then on: {EXAMPLES}."),
    click.option("--until", callback=as_moment, metavar="TIME", help="Up to then."),
)
# As `takes_log` and `takes_times`, and a range of positions. A command with an argument
# `positions` may be given it there.
takes_range = options(
    _with_range,
    takes_log,
    click.option(
        "--start",
        type=click.IntRange(0),
        metavar="POSITION",
        help="The first position.  [default: the log's floor]",
    ),
    click.option(
        "--end",
        type=click.IntRange(0),
        metavar="POSITION",
        help="The last position.  [default: the head]",
    ),
    takes_times,
)


def logs_at(
    path: str,
    given: Mapping[str, str],
    damage: Damage | None = None,
    names: str | None = None,
    *,
    looks: bool = True,
    fail_fast: bool = True,
) -> list[LogRange]:
    """The log of these options, or those of these `names` with commas between them, * or as
    sequencers=* all under the path; they have looked at head and floor where that is asked for.
    What cannot be read goes into `damage`; without one it is an error. Raises Failed where there is
    no log."""
    asked = from_keywords(SourceOptions, path, {**given, "sequencers": "*"} if names else given)
    root = open_log(asked, fail_fast=fail_fast)
    found = [asked.sequencer]
    if names and names != "*":
        found = list(dict.fromkeys(filter(None, map(str.strip, names.split(",")))))
        for name in found:
            from_keywords(SourceOptions, path, {"sequencer": name})
    elif asked.sequencers:
        found = all_logs(root)
    if not found:
        raise no_log(root.url)
    logs = [
        LogRange(asked, name, root, on_damage=partial(damage.add, name) if damage else None)
        for name in found
    ]
    if looks:
        list(run_parallel(root.store, LogRange.look, logs))
        for log in logs:
            head_of(log)
    return logs


def log_at(
    path: str, given: Mapping[str, str], damage: Damage, *, fail_fast: bool = True
) -> LogRange:
    """One log, which has looked; otherwise as `logs_at`."""
    one = {name: value for name, value in given.items() if name.lower() != "sequencers"}
    return logs_at(path, one, damage, fail_fast=fail_fast)[0]


def head_of(log: LogRange) -> Head:
    """Raises Failed where there is no log."""
    if log.head is None or log.head.live is None:
        raise no_log(log.options.path, log.name)
    return log.head


@contextmanager
def progress(what: str) -> Iterator[Callable[[int, int], None]]:
    """How much of how many positions is done, on a terminal as long as it lasts."""
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, of: bar.update(task, completed=done, total=of)


def no_log(url: str, sequencer: str = ROOT) -> Refused:
    """The error of a path without a log: exit code 2, as for every wrong argument."""
    of = f" of sequencer {sequencer}" if sequencer != ROOT else ""
    return Refused(f"there is no log{of} at {url}; check the path")


def wait(interval_ms: int) -> None:
    """Sleep, but end at once when nobody reads any more: an idle log would never show it."""
    poll = select.poll()
    poll.register(1, 0)
    gone = select.POLLERR | select.POLLHUP | select.POLLNVAL
    if any(event & gone for _, event in poll.poll(interval_ms)):
        raise BrokenPipeError
