"""How a command ends: its exit codes, and the exceptions that stand for them."""

from __future__ import annotations

import click

from sparkwal.errors import OptionError, SparkWalError

EXIT_CODES = """
\b
Exit codes:
    0  done
    1  it failed, or what was looked at is not sound; the message says why
    2  wrong usage: an option, a path. Nothing was written
  130  stopped by Ctrl-C (SIGINT), 143 stopped by SIGTERM
"""


class Failed(click.ClickException):
    """What was asked was not done: exit code 1."""


class Refused(click.ClickException):
    """The request itself is wrong: exit code 2."""

    exit_code = 2


class Stopped(click.exceptions.Exit):
    """Ended by a signal: exit code 128 + its number, as a shell reports it."""

    def __init__(self, signum: int) -> None:
        super().__init__(128 + signum)


def as_exit(error: SparkWalError) -> click.ClickException:
    """The exception that ends a command with the error's message and its exit code."""
    return (Refused if isinstance(error, OptionError) else Failed)(str(error))
