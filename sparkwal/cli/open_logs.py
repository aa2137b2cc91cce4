"""Opens the logs of a command, parses its range of positions and times, and collects damage."""

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
from sparkwal.cli.output import moment
from sparkwal.errors import InvalidLogError, escape
from sparkwal.options.open import open_log
from sparkwal.options.parsing import from_keywords
from sparkwal.options.reading import SourceOptions
from sparkwal.protocol.recovery import Head
from sparkwal.reading.log_range import LogRange
from sparkwal.reading.sequencers import a_sequencer, logs_of, no_log_at
from sparkwal.reading.several import refresh_all
from sparkwal.store.base import LogStore


class Damage:
    """The records and objects that a command cannot read. The command shows the others.

    Attributes:
        report: receives a line for each new damage. Commands that follow a log set it.
    """

    def __init__(self) -> None:
        self._errors: dict[tuple[str, int | str], str] = {}
        self.report: Callable[[str], None] | None = None

    def add(self, log: str, error: InvalidLogError) -> None:
        """Add damage of the log of this name. A record that is read twice counts once."""
        key = (log, str(error) if error.position is None else error.position)
        if key in self._errors:
            return
        self._errors[key] = str(error)
        if self.report is not None:
            self.report(f"not shown: {error}")

    def lines(self, log: str | None = None) -> list[str]:
        """One line for each damage of one log or of all; it names the position and the object."""
        return [line for (name, _), line in self._errors.items() if log in (None, name)]

    def check(self, what: str = "shown") -> None:
        """Check that the command met no damage.

        Args:
            what: a participle for the message: "shown" or "counted".

        Raises:
            Failed: something is damaged.
        """
        if self._errors:
            lines = [f"these objects are unreadable and not {what}:"]
            lines += (f"  {escape(line)}" for line in self.lines())
            if next_step := advice(self.lines()):
                lines.append(f"{next_step}. sparkwal verify lists all damage")
            raise Failed("\n".join(lines))


def notify(text: str) -> None:
    """Print a message to standard error."""
    click.echo(escape(text), err=True)


def _with_times(
    log_options: dict[str, str], since: int | None, until: int | None
) -> dict[str, Any]:
    times = {"startingTimestamp": since, "endingTimestamp": until}
    texts = {name: moment(time) for name, time in times.items() if time is not None}
    return {"log_options": log_options | texts}


def _with_range(
    log_options: dict[str, str], start: int | None, end: int | None, positions: str | None = None
) -> dict[str, Any]:
    if positions is not None:
        if start is not None or end is not None:
            raise Refused("a range, or --start and --end: give one of them")
        match = re.fullmatch(r"(\d*)\.\.(\d*)|(\d+)", positions.strip())
        if match is None or match[0] == "..":
            raise Refused(f"{positions!r} is no range of positions: 100..199, 100.., ..199 or 100")
        low, high, one = match.groups()
        start, end = (int(digits) if digits else None for digits in (low or one, high or one))
    ends = {"startingPosition": start, "endingPosition": end}
    texts = {name: str(position) for name, position in ends.items() if position is not None}
    return {"log_options": log_options | texts}


# Adds a range of times, both inclusive, to `log_options`.
takes_times = options(
    _with_times,
    click.option(
        "--since", callback=as_moment, metavar="TIME", help=f"From this time on: {EXAMPLES}."
    ),
    click.option("--until", callback=as_moment, metavar="TIME", help="Up to this time."),
)
# Adds `takes_log`, `takes_times` and a range of positions: --start and --end, or the argument
# `positions` if the command has it.
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
    log_options: Mapping[str, str],
    damage: Damage | None = None,
    names: str | None = None,
    *,
    read_heads: bool = True,
    fail_fast: bool = True,
    takes_all: bool = True,
) -> list[LogRange]:
    """Open the logs under a path. If no option chooses one, a note names what is not shown.

    Args:
        path: the path.
        log_options: options of reading; `sequencers` = "*" stands for all logs under the path.
        damage: collects unreadable records and objects. Without it, they are errors.
        names: names of sequencers with commas between them, or "*". The default is the log of the
            option `sequencer`.
        read_heads: read head and floor of each log.
        fail_fast: do not retry while the store refuses connections.
        takes_all: the command has the option --all.

    Raises:
        Refused: there is no log.
    """
    with_names = {**log_options, "sequencers": names} if names else log_options
    parsed = from_keywords(SourceOptions, path, with_names)
    root = open_log(parsed, fail_fast=fail_fast)
    sequencers = logs_of(root, parsed)
    if not sequencers:
        raise no_log(root)
    logs = [
        LogRange(parsed, name, root, on_damage=partial(damage.add, name) if damage else None)
        for name in sequencers
    ]
    if read_heads:
        refresh_all(logs)
        for log in logs:
            head_of(log)
    if not names and not {"sequencer", "sequencers"} & {*map(str.lower, log_options)}:
        _mention_others(root, takes_all=takes_all)
    return logs


def _mention_others(root: LogStore, *, takes_all: bool) -> None:
    """Tell the user that the log at the path is not all that lies there: 1 LIST."""
    if name := a_sequencer(root):
        choice = "--all takes all, --sequencer NAME one" if takes_all else "--sequencer NAME"
        notify(
            f"note: this is the log at {root.url} itself; it also has sequencers, such as {name}: "
            f"{choice}"
        )


def log_at(
    path: str, log_options: Mapping[str, str], damage: Damage, *, fail_fast: bool = True
) -> LogRange:
    """Open one log and read its head and floor, as `logs_at`."""
    one = {name: value for name, value in log_options.items() if name.lower() != "sequencers"}
    return logs_at(path, one, damage, fail_fast=fail_fast, takes_all=False)[0]


def head_of(log: LogRange) -> Head:
    """The head of a log, which has read it.

    Raises:
        Refused: there is no log.
    """
    if log.head is None or log.head.live is None:
        raise no_log(log.log)
    return log.head


@contextmanager
def progress(what: str) -> Iterator[Callable[[int, int], None]]:
    """A progress bar on a terminal. It yields a function of the positions done and of all."""
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def no_log(log: LogStore) -> Refused:
    """The error of a path without a log: exit code 2, as for every wrong argument."""
    return Refused(no_log_at(log))


def wait(interval_ms: int) -> None:
    """Sleep, and end at once when the reader of standard output ends.

    A command that follows an idle log writes nothing and would not notice it otherwise.

    Raises:
        BrokenPipeError: the reader ended.
    """
    poll = select.poll()
    poll.register(1, 0)
    closed = select.POLLERR | select.POLLHUP | select.POLLNVAL
    if any(event & closed for _, event in poll.poll(interval_ms)):
        raise BrokenPipeError
