"""Appenders that are open when the interpreter ends are closed, so that no accepted row is lost."""

from __future__ import annotations

import atexit
import logging
import multiprocessing
import os
from multiprocessing import util
from typing import Protocol

_logger = logging.getLogger("sparkwal")

# In most cases as long as the retries for a store that is down.
WAIT_SECONDS = 60.0


class Open(Protocol):
    """What the end of the interpreter needs of an appender."""

    @property
    def pid(self) -> int:
        """The process that opened it."""

    @property
    def unacknowledged(self) -> int:
        """Appends that are not known to be durable."""

    @property
    def has_journal(self) -> bool:
        """Whether they are in a journal."""

    def close(self, timeout: float | None = None) -> None:
        """Send what was accepted, and end."""


_open: set[Open] = set()
_hooked = -1  # the process whose end is watched


def add(appender: Open) -> None:
    """Close it at the end, unless it is removed."""
    global _hooked
    if _hooked != os.getpid():
        _hooked = os.getpid()
        atexit.register(_close_all)
        if multiprocessing.parent_process() is not None:
            # Such a process ends without atexit.
            util.Finalize(None, _close_all, exitpriority=0)
    _open.add(appender)


def remove(appender: Open) -> None:
    """Do not close it at the end: it is closed, or its user knows that it is not."""
    _open.discard(appender)


def _close_all() -> None:
    for appender in tuple(_open):
        if appender.pid != os.getpid():
            continue  # inherited by a fork
        try:
            appender.close(WAIT_SECONDS)
        except Exception as error:
            _logger.error(
                "an appender was left open when the interpreter ended; %d appends were accepted "
                "and are %s: %s: %s",
                appender.unacknowledged,
                "in its journal" if appender.has_journal else "not known to be durable",
                type(error).__name__,
                error,
            )
