"""The logs that a command looks at."""

from __future__ import annotations

from collections.abc import Mapping

from sparkwal.cli.exits import Failed
from sparkwal.format.keys import ROOT
from sparkwal.open import open_log
from sparkwal.options.parsing import from_keywords
from sparkwal.options.reading import SourceOptions
from sparkwal.protocol.recovery import Head
from sparkwal.reading.log_range import LogRange
from sparkwal.sequencers import all_logs


def logs_at(path: str, given: Mapping[str, str]) -> list[LogRange]:
    """The log, or with sequencers=* all under the path; none was looked at yet.

    Raises Failed where there is none, OptionError.
    """
    options = from_keywords(SourceOptions, path, given)
    root = open_log(options, fail_fast=True)
    names = all_logs(root) if options.sequencers else [options.sequencer]
    if not names:
        raise no_log(root.url)
    return [LogRange(options, name, root) for name in names]


def log_at(path: str, given: Mapping[str, str], *, fail_fast: bool = True) -> LogRange:
    """One log, looked at: its head and its floor.

    Raises Failed where there is none, OptionError, InvalidLogError.
    """
    options = from_keywords(SourceOptions, path, given)
    log = LogRange(options, options.sequencer, open_log(options, fail_fast=fail_fast))
    log.look()
    head_of(log)
    return log


def head_of(log: LogRange) -> Head:
    """Its head. Raises Failed where there is no log."""
    if log.head is None or log.head.live is None:
        raise no_log(log.log.url)
    return log.head


def no_log(url: str, sequencer: str = ROOT) -> Failed:
    """The error for a place without a log, or without the one of this name."""
    of = f" of sequencer {sequencer}" if sequencer != ROOT else ""
    return Failed(f"there is no log{of} at {url}; check the path")
