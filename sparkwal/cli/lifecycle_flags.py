"""What commands and jobs of the lifecycle share: options, several logs, messages."""

import logging
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from typing import Any

import click
from rich.console import Console

from sparkwal import events
from sparkwal.cli.flags import Decorator, options, time_with_unit, with_flags
from sparkwal.cli.output import escape
from sparkwal.errors import CompactionError, OptionError, SparkWalError
from sparkwal.format.keys import ROOT
from sparkwal.lifecycle.policy import LifecycleOptions, Policy
from sparkwal.options.open import open_log
from sparkwal.options.parsing import parse
from sparkwal.options.types import duration
from sparkwal.reading.sequencers import all_logs, has_log
from sparkwal.store.base import LogStore

EXIT_CODES = """
\b
Exit codes:
    0  done, or nothing was due
    1  it failed; the message says why. Run again to go on
    2  wrong usage: an option, a path, a table. Nothing was written
    3  suspended: a range could not be brought into the table, or the table is not what it was.
       Nothing is skipped or deleted; mend what the message names and run again
  130  stopped by Ctrl-C (SIGINT), 143 stopped by SIGTERM; run again to go on
"""


class Failures(click.ClickException):
    """What went wrong with one log or more of them."""

    exit_code: int  # type: ignore[misc]

    def __init__(self, failures: Mapping[str, SparkWalError], several: bool) -> None:
        texts = {name: line(error) for name, error in failures.items()}
        lines = [f"{name}: {text}" for name, text in texts.items()] if several else texts.values()
        super().__init__("\n".join(lines))
        self.exit_code = 2 if all(isinstance(e, OptionError) for e in failures.values()) else 1
        if any(isinstance(error, CompactionError) for error in failures.values()):
            self.exit_code = 3


def line(error: SparkWalError) -> str:
    """An error as one line."""
    text = escape(" ".join(str(error).split()))
    return f"suspended ({error.stage}): {text}" if isinstance(error, CompactionError) else text


def _seconds(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    text = time_with_unit(context, parameter, value)
    return None if text is None else str(duration(text) // 1000)


_TIMES = {"retainSeconds": _seconds, "gcGrace": time_with_unit, "consumerExpiry": time_with_unit}
_COLLECTING = ("gcGrace", "consumerExpiry")


def takes_lifecycle_options(*, policy: bool) -> Decorator:
    """Add the options of a lifecycle to `given`, with `policy` those of its policy too. The command
    has `takes_log_options` above it."""
    known = {each.name for each in fields(Policy)} if policy else set()
    taken = {
        each.metadata["name"].lower(): each
        for each in fields(LifecycleOptions)
        if each.name in known or each.metadata["name"] in _COLLECTING
    }

    def with_mine(given: dict[str, str], **mine: str | None) -> dict[str, Any]:
        named = {taken[name].metadata["name"]: value for name, value in mine.items()}
        return {"given": with_flags(given, **named)}

    added = []
    for name, each in taken.items():
        about = each.metadata
        callback = _TIMES.get(about["name"])
        # persistRowThreshold → --persist-row-threshold.
        words = re.sub("(?<!^)(?=[A-Z])", "-", about["name"]).lower()
        flag = "--retain" if callback is _seconds else f"--{words}"
        metavar = "TIME" if callback else {"whole": "N", "size": "SIZE"}[about["parse"].__name__]
        default = about["shown"] or each.default
        added.append(
            click.option(
                flag,
                name,
                callback=callback,
                metavar=metavar,
                help=about["meaning"] + ("." if default is None else f".  [default: {default}]"),
            )
        )
    return options(with_mine, *added, names=["given", *taken])


def checked(path: str, given: dict[str, str], every: bool) -> LifecycleOptions:
    """The options, checked. Raises OptionError."""
    settings = parse(LifecycleOptions, {**given, "path": path})
    if every and settings.sequencer != ROOT:
        raise OptionError("--sequencer and --all: give one of them")
    return settings


def logs(settings: LifecycleOptions, every: bool) -> dict[str, LogStore]:
    """The logs that are there, by the names of their sequencers."""
    log = open_log(settings, fail_fast=True)
    if every:
        return {name: log.sequencer(name) for name in all_logs(log)}
    return {settings.sequencer: log} if has_log(log) else {}


class Story:
    def __init__(self, console: Console) -> None:
        self.note = "looking"
        self._console = console

    def __call__(self, event: events.Event) -> None:
        if isinstance(event, events.CompactionPlanned):
            self.note = f"positions {event.cut}…{event.to - 1}"
        elif isinstance(event, events.FloorMoved):
            self.note = "collecting"
        # A failure is the job's own message.
        if event.level >= logging.WARNING and not isinstance(event, events.CompactionSuspended):
            self._console.print(escape(str(event)), highlight=False, markup=False, soft_wrap=True)


@contextmanager
def narrated(console: Console) -> Iterator[Story]:
    """Events as a story, and nothing of them a second time through Python's logging."""
    logger, nothing = logging.getLogger("sparkwal"), logging.NullHandler()
    logger.addHandler(nothing)
    story = Story(console)
    stop = events.subscribe(story)
    try:
        yield story
    finally:
        stop()
        logger.removeHandler(nothing)
