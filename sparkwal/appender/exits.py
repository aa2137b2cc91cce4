"""Closes appenders that are open when the interpreter ends, so that no accepted row is lost."""

from __future__ import annotations

import atexit
import logging
import multiprocessing
import os
from multiprocessing import util
from typing import Protocol

_logger = logging.getLogger("sparkwal")

# Usually as long as the retries last when a store is down.
WAIT_SECONDS = 60.0


class Open(Protocol):
    """What closing at the interpreter's end needs of an appender."""

    @property
    def pid(self) -> int:
        """The process that opened it."""

    @property
    def unacknowledged(self) -> int:
        """Appends that are not known to be durable."""

    @property
    def has_journal(self) -> bool:
        """Whether a journal keeps them."""

    def close(self, timeout: float | None = None) -> None:
        """Send what was accepted, and end."""


_open: set[Open] = set()
_hooked = -1  # the process that has the exit hook


def add(appender: Open) -> None:
    """Close an appender at the interpreter's end, unless `remove` comes first."""
    global _hooked
    if _hooked != os.getpid():
        _hooked = os.getpid()
        atexit.register(_close_all)
        if multiprocessing.parent_process() is not None:
            # A child process of multiprocessing ends without atexit.
            util.Finalize(None, _close_all, exitpriority=0)
    _open.add(appender)


def remove(appender: Open) -> None:
    """Do not close an appender at the end: it is closed, or its user knows that it is not."""
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
