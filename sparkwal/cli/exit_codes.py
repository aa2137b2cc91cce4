"""How a command ends: its exit codes, and the exceptions that stand for them."""

from __future__ import annotations

import codecs
import errno
import io
import json
import os
import signal
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import click

from sparkwal.cli.output import escape
from sparkwal.errors import InvalidLogError, OptionError, SparkWalError
from sparkwal.format.checked import NEWER


def takes_colours() -> bool:
    """Whether a terminal may be sent colours."""
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM") not in ("dumb", "unknown")


def spells_out_the_rest() -> None:
    """Characters that the encoding of an output lacks are written as in JSON too: they end
    nothing, and JSON says the same with them."""
    codecs.register_error("sparkwal.json", _spelled)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="sparkwal.json")


def _spelled(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeEncodeError)
    return json.dumps(error.object[error.start : error.end])[1:-1], error.end


EXIT_CODES = """
\b
Exit codes:
    0  done
    1  it failed, or what was looked at is not sound; the message says why
    2  wrong usage: an option, a path. Nothing was written
  130  stopped by Ctrl-C (SIGINT), 143 stopped by SIGTERM
  141  who read its output went away, as in `| head -1`
"""
_RESTORE = "Restore it, for example from a bucket version or a backup: sparkwal help damaged"


def advice(problems: Iterable[str]) -> str:
    """The next step after these problems of a log; "" if only a newer sparkwal can read it."""
    return _RESTORE if any(NEWER not in text for text in problems) else ""


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
    text = escape(str(error), keeps="\n")
    # The error of a missing record gives this advice itself.
    if isinstance(error, InvalidLogError) and error.position is not None and "estore" not in text:
        text = f"{text}\n{advice([text])}".strip()
    return (Refused if isinstance(error, OptionError) else Failed)(text)


class Terminated(KeyboardInterrupt):
    """SIGTERM came: whatever Ctrl-C would end, it ends."""


def hear_signals() -> None:
    """Let SIGTERM end the command as Ctrl-C does, whatever runs when a signal comes."""
    signal.signal(signal.SIGTERM, _terminate)
    sys.unraisablehook = _ignored


def _terminate(*_: object) -> None:
    raise Terminated


def _ignored(ignored: sys.UnraisableHookArgs) -> None:
    # Python ignores what a handler raises inside a `__del__` or a collector's callback: send the
    # signal again, a moment later.
    if isinstance(ignored.exc_value, KeyboardInterrupt):
        again = signal.SIGTERM if isinstance(ignored.exc_value, Terminated) else signal.SIGINT
        threading.Timer(0.01, os.kill, (os.getpid(), again)).start()
    else:
        sys.__unraisablehook__(ignored)


@contextmanager
def ended_quietly() -> Iterator[None]:
    """Errors of the library, signals and a pipe that nobody reads any more become exit codes."""
    try:
        yield
        sys.stdout.flush()
    except SparkWalError as error:
        raise as_exit(error) from None
    except Terminated:
        raise Stopped(signal.SIGTERM) from None
    except KeyboardInterrupt:
        raise Stopped(signal.SIGINT) from None
    except (BrokenPipeError, SystemExit) as end:
        # Rich makes the latter of the former.
        if BrokenPipeError not in (type(end), type(end.__context__)):
            raise
        _drop_output()
        raise Stopped(signal.SIGPIPE) from None
    except OSError as error:
        # An error of a file names it.
        if error.filename is not None or error.errno not in _FULL:
            raise
        _drop_output()
        raise Failed(f"the output could not be written: {error.strerror}") from None


_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}


def _drop_output() -> None:
    # What is still buffered would be complained about when the interpreter ends.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
