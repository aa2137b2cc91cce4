"""The logs that a command looks at, and the damage that it meets."""

from __future__ import annotations

import select
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from sparkwal.console.escape import escape
from sparkwal.console.exit_codes import Failed
from sparkwal.console.output import moment
from sparkwal.errors import InvalidLogError
from sparkwal.format.keys import ROOT
from sparkwal.options.open import open_log
from sparkwal.options.parsing import from_keywords
from sparkwal.options.reading import CONSUMERS, TRIGGERS, SourceOptions, refuse
from sparkwal.protocol.recovery import Head
from sparkwal.reading.log_range import LogRange
from sparkwal.reading.rows import PassedOver
from sparkwal.reading.sequencers import all_logs
from sparkwal.store.parallel import run_parallel

# Lines of one message, at most.
_MOST = 20


class Damage:
    """The records and objects that a command cannot read; it shows the rest of the log."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, int | str], str] = {}

    def of(self, log: str) -> PassedOver:
        """What takes in the damage of the log of this name: a record that is met twice once."""

        def passed_over(error: InvalidLogError) -> None:
            place = str(error) if error.position is None else error.position
            self._found.setdefault((log, place), str(error))

        return passed_over

    def lines(self, log: str | None = None) -> list[str]:
        """One for each, of one log or of all; it names the position and the object."""
        return [line for (name, _), line in self._found.items() if log in (None, name)]

    def check(self, what: str = "shown") -> None:
        """Raises Failed where there is any; `what` is not done with it, for people."""
        if not self._found:
            return
        lines = [f"  {escape(line)}" for line in self._found.values()]
        more = [f"  … and {len(lines) - _MOST} more"] if len(lines) > _MOST else []
        advice = (
            "Restore it, for example from a bucket version or a backup: see docs/operations.md, "
            "A record or an object is damaged or gone. sparkwal verify lists all damage"
        )
        first = f"this cannot be read, and is not {what}:"
        raise Failed("\n".join([first, *lines[:_MOST], *more, advice]))


def bounds(
    start: int | None, end: int | None, since: int | None, until: int | None
) -> dict[str, str]:
    """The positions and times of a range, both inclusive, as options of reading."""
    positions = {"startingPosition": start, "endingPosition": end}
    times = {"startingTimestamp": since, "endingTimestamp": until}
    return {
        **{name: str(value) for name, value in positions.items() if value is not None},
        **{name: moment(value) for name, value in times.items() if value is not None},
    }


def logs_at(path: str, given: Mapping[str, str], damage: Damage | None = None) -> list[LogRange]:
    """The log, or with sequencers=* all under the path; none was looked at yet. What cannot be read
    goes into `damage`; without one it is an error. Raises Failed where there is no log."""
    options = from_keywords(SourceOptions, path, given)
    return _ranges(options, "*" if options.sequencers else None, damage)


def _ranges(
    options: SourceOptions, sequencers: str | None, damage: Damage | None, fail_fast: bool = True
) -> list[LogRange]:
    root = open_log(options, fail_fast=fail_fast)
    names = [options.sequencer]
    if sequencers == "*":
        names = all_logs(root)
    elif sequencers is not None:
        names = list(dict.fromkeys(filter(None, map(str.strip, sequencers.split(",")))))
        for name in names:
            from_keywords(SourceOptions, options.path, {"sequencer": name})
    if not names:
        raise no_log(root.url)
    return [
        LogRange(options, name, root, passed_over=damage.of(name) if damage else None)
        for name in names
    ]


def open_logs(
    path: str, given: dict[str, str], sequencers: str | None, damage: Damage | None = None
) -> list[LogRange]:
    """The logs that are asked for, looked at once: `sequencers` are names with commas between them,
    "*", or None for the one log of the options. Raises Failed where there is no log."""
    if sequencers is not None:
        given = {**given, "sequencers": "*"}
    options = from_keywords(SourceOptions, path, given)
    refuse(options, "does not go with a command", *TRIGGERS, *CONSUMERS, "minPartitions")
    # A lease is written into the log.
    refuse(options, "does not go with a command, which only looks", "lease")
    several = sequencers or options.sequencers
    logs = _ranges(options, several, damage)
    for _ in run_parallel(logs[0].log.store, LogRange.look, logs):
        pass
    for log in logs:
        if log.log_id is None and several != "*":
            raise no_log(options.path, log.name)
    return logs


def log_at(
    path: str, given: Mapping[str, str], damage: Damage, *, fail_fast: bool = True
) -> LogRange:
    """One log, looked at: its head and its floor. Raises Failed where there is none."""
    options = from_keywords(SourceOptions, path, given)
    (log,) = _ranges(options, None, damage, fail_fast)
    log.look()
    head_of(log)
    return log


def head_of(log: LogRange) -> Head:
    """Raises Failed where there is no log."""
    if log.head is None or log.head.live is None:
        raise no_log(log.log.url)
    return log.head


@contextmanager
def progress(what: str) -> Iterator[Callable[[int, int], None]]:
    """How many positions are done, and of how many, on a terminal as long as it lasts."""
    console = Console(stderr=True)
    columns = (
        TextColumn(what), BarColumn(30), MofNCompleteColumn(), TextColumn("positions"),
        TimeRemainingColumn(),
    )  # fmt: skip
    disabled = not console.is_terminal
    with Progress(*columns, console=console, transient=True, disable=disabled) as bar:
        task = bar.add_task("", total=None)

        def show(done: int, of: int) -> None:
            bar.update(task, completed=done, total=of)

        yield show


def no_log(url: str, sequencer: str = ROOT) -> Failed:
    of = f" of sequencer {sequencer}" if sequencer != ROOT else ""
    return Failed(f"there is no log{of} at {url}; check the path")


def wait(interval_ms: int) -> None:
    """Sleep, but end at once when nobody reads any more: an idle log would never show it."""
    poll = select.poll()
    poll.register(1, 0)
    gone = select.POLLERR | select.POLLHUP | select.POLLNVAL
    if any(event & gone for _, event in poll.poll(interval_ms)):
        raise BrokenPipeError
