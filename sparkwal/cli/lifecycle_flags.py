"""Options, logs and messages that the commands and jobs of the lifecycle share."""

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
from sparkwal.errors import CompactionError, OptionError, SparkWalError, escape
from sparkwal.format.keys import ROOT
from sparkwal.lifecycle.policy import ASIDE, WAIT, LifecycleOptions, Policy
from sparkwal.options.open import open_log
from sparkwal.options.parsing import parse
from sparkwal.options.types import duration, integer, size
from sparkwal.reading.sequencers import all_logs, has_log
from sparkwal.store.base import LogStore

EXIT_CODES = """
\b
Exit codes:
    0  done, or there was no work
    1  it failed; see the message. Run it again to continue
    2  wrong usage: an option, a path or a table. It wrote nothing
    3  suspended: it could not write a range to the table, or the table was changed from outside.
       It skips and deletes nothing; mend what the message names and run it again
  130  stopped by Ctrl-C (SIGINT), 143 stopped by SIGTERM; run it again to continue
"""


class Failures(click.ClickException):
    """The errors of one or several logs, by the names of their sequencers."""

    exit_code: int  # type: ignore[misc]

    def __init__(self, failures: Mapping[str, SparkWalError], *, several: bool) -> None:
        texts = {name: one_line(error) for name, error in failures.items()}
        lines = [f"{name}: {text}" for name, text in texts.items()] if several else texts.values()
        super().__init__("\n".join(lines))
        wrong_usage = all(isinstance(error, OptionError) for error in failures.values())
        self.exit_code = 2 if wrong_usage else 1
        if any(isinstance(error, CompactionError) for error in failures.values()):
            self.exit_code = 3


def one_line(error: SparkWalError) -> str:
    """An error as one line."""
    text = " ".join(str(error).split())
    return f"suspended ({error.stage}): {text}" if isinstance(error, CompactionError) else text


def _seconds(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    text = time_with_unit(context, parameter, value)
    return None if text is None else str(duration(text) // 1000)


_TIMES = {
    "retainSeconds": _seconds,
    "gcGrace": time_with_unit,
    "consumerExpiry": time_with_unit,
    "tombstoneHorizon": time_with_unit,
}
_COLLECTING = ("gcGrace", "consumerExpiry")
_COMPACTING = (*_COLLECTING, "tombstoneHorizon")
_METAVARS = {integer: "N", size: "SIZE"}


def takes_lifecycle_options(*, policy: bool) -> Decorator:
    """Add the options of collection to `log_options`, with `policy` also those of the policy.

    The command needs `takes_log_options` above this decorator.
    """
    of_policy = {option.name for option in fields(Policy)} if policy else set()
    others = _COMPACTING if policy else _COLLECTING
    by_flag = {
        option.metadata["name"].lower(): option
        for option in fields(LifecycleOptions)
        if option.name in of_policy or option.metadata["name"] in others
    }

    def merge(log_options: dict[str, str], **flags: str | None) -> dict[str, Any]:
        named = {by_flag[name].metadata["name"]: value for name, value in flags.items()}
        return {"log_options": with_flags(log_options, **named)}

    decorators = []
    for name, option in by_flag.items():
        about = option.metadata
        callback = _TIMES.get(about["name"])
        # persistRowThreshold → --persist-row-threshold.
        words = re.sub("(?<!^)(?=[A-Z])", "-", about["name"]).lower()
        flag = "--retain" if callback is _seconds else f"--{words}"
        metavar = "TIME" if callback else _METAVARS.get(about["parse"], f"{WAIT}|{ASIDE}")
        default = about["shown"] or option.default
        decorators.append(
            click.option(
                flag,
                name,
                callback=callback,
                metavar=metavar,
                help=about["meaning"] + ("." if default is None else f".  [default: {default}]"),
            )
        )
    return options(merge, *decorators, names=["log_options", *by_flag])


def parse_options(
    path: str, log_options: dict[str, str], *, all_sequencers: bool
) -> LifecycleOptions:
    """Parse and check the options of a lifecycle.

    Raises:
        OptionError: an option is wrong, or --sequencer contradicts --all.
    """
    settings = parse(LifecycleOptions, {**log_options, "path": path})
    if all_sequencers and settings.sequencer != ROOT:
        raise OptionError("--sequencer and --all: give one of them")
    return settings


def existing_logs(settings: LifecycleOptions, *, all_sequencers: bool) -> dict[str, LogStore]:
    """The logs that exist, by the names of their sequencers."""
    log = open_log(settings, fail_fast=True)
    if all_sequencers:
        return {name: log.sequencer(name) for name in all_logs(log)}
    return {settings.sequencer: log} if has_log(log) else {}


class EventPrinter:
    """Prints warnings among the events of a lifecycle.

    Attributes:
        note: what the lifecycle does now, for a progress line.
    """

    def __init__(self, console: Console) -> None:
        self.note = "looking"
        self._console = console

    def __call__(self, event: events.Event) -> None:
        if isinstance(event, events.CompactionPlanned):
            is_again = event.cut == event.to
            self.note = "refused rows" if is_again else f"positions {event.cut}…{event.to - 1}"
        elif isinstance(event, events.FloorMoved):
            self.note = "collecting"
        # The job reports a failed compaction itself.
        if event.level >= logging.WARNING and not isinstance(event, events.CompactionSuspended):
            self._console.print(escape(str(event)), highlight=False, markup=False, soft_wrap=True)


@contextmanager
def printing_events(console: Console) -> Iterator[EventPrinter]:
    """Print events, and keep Python's logging from printing them a second time."""
    logger = logging.getLogger("sparkwal")
    handler = logging.NullHandler()
    logger.addHandler(handler)
    printer = EventPrinter(console)
    stop = events.subscribe(printer)
    try:
        yield printer
    finally:
        stop()
        logger.removeHandler(handler)
