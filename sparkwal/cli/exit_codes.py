"""The exit codes of a command, and the exceptions that lead to them."""

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

from sparkwal.errors import InvalidLogError, OptionError, SparkWalError
from sparkwal.format.keys import SUPERFLUOUS
from sparkwal.format.versions import NEWER


def allows_colours() -> bool:
    """Whether the environment allows colours on a terminal."""
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM") not in ("dumb", "unknown")


def escape_unencodable() -> None:
    r"""Write a character that an output's encoding lacks as a JSON escape such as \u00e9.

    Otherwise it would raise UnicodeEncodeError. Inside JSON, the escape means the same character.
    """
    codecs.register_error("sparkwal.json", _json_escape)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="sparkwal.json")


def _json_escape(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeEncodeError)
    return json.dumps(error.object[error.start : error.end])[1:-1], error.end


EXIT_CODES = """
\b
Exit codes:
    0  done
    1  it failed, or the log is damaged; see the message
    2  wrong usage: an option or a path. It wrote nothing
  130  stopped by Ctrl-C (SIGINT), 143 stopped by SIGTERM
  141  the reader of its output ended, as in `| head -1`
"""
_RESTORE = "Restore it, for example from a bucket version or a backup: sparkwal help damaged"


def advice(problems: Iterable[str]) -> str:
    """The next step after these problems of a log.

    It is "" if every problem is a format that only a newer sparkwal can read, or a superfluous
    object.
    """
    has_loss = any(NEWER not in text and SUPERFLUOUS not in text for text in problems)
    return _RESTORE if has_loss else ""


class Failed(click.ClickException):
    """The command failed: exit code 1."""


class Refused(click.ClickException):
    """An argument is wrong: exit code 2."""

    exit_code = 2


class Stopped(click.exceptions.Exit):
    """A signal ended the command: exit code 128 + its number, as in a shell."""

    def __init__(self, signum: int) -> None:
        super().__init__(128 + signum)


def exit_for(error: SparkWalError) -> click.ClickException:
    """The exception that ends a command with this error's message and exit code."""
    text = str(error)
    # The error of a missing record already contains this advice.
    if isinstance(error, InvalidLogError) and error.position is not None and "estore" not in text:
        text = f"{text}\n{advice([text])}".strip()
    return (Refused if isinstance(error, OptionError) else Failed)(text)


class Terminated(KeyboardInterrupt):
    """The process received SIGTERM. It ends the command wherever Ctrl-C would."""


def handle_signals() -> None:
    """Let SIGTERM end the command as Ctrl-C does, also during a `__del__`."""
    signal.signal(signal.SIGTERM, _terminate)
    sys.unraisablehook = _resend_signal


def _terminate(*_: object) -> None:
    raise Terminated


def _resend_signal(unraisable: sys.UnraisableHookArgs) -> None:
    # If a handler raises inside a `__del__` or a garbage collector's callback, Python ignores the
    # exception. So send the signal again, a moment later.
    if isinstance(unraisable.exc_value, KeyboardInterrupt):
        terminated = isinstance(unraisable.exc_value, Terminated)
        signum = signal.SIGTERM if terminated else signal.SIGINT
        threading.Timer(0.01, os.kill, (os.getpid(), signum)).start()
    else:
        sys.__unraisablehook__(unraisable)


@contextmanager
def errors_as_exit_codes() -> Iterator[None]:
    """Turn errors of the library, signals and a closed output pipe into exit codes."""
    try:
        yield
        sys.stdout.flush()
    except SparkWalError as error:
        raise exit_for(error) from None
    except Terminated:
        raise Stopped(signal.SIGTERM) from None
    except KeyboardInterrupt:
        raise Stopped(signal.SIGINT) from None
    except (BrokenPipeError, SystemExit) as end:
        # Rich raises SystemExit while it handles BrokenPipeError.
        if BrokenPipeError not in (type(end), type(end.__context__)):
            raise
        _drop_output()
        raise Stopped(signal.SIGPIPE) from None
    except OSError as error:
        # Standard output has no file name.
        if error.filename is not None or error.errno not in _DISK_ERRORS:
            raise
        _drop_output()
        raise Failed(f"the output could not be written: {error.strerror}") from None


_DISK_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}


def _drop_output() -> None:
    # Otherwise the interpreter, when it ends, flushes the buffer and prints an error.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
