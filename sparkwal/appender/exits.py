"""Closes appenders that are open when the interpreter ends, so that no accepted row is lost."""

from __future__ import annotations

import atexit
import multiprocessing
import os
from collections.abc import Callable
from multiprocessing import util

# Usually as long as the retries last when a store is down.
WAIT_SECONDS = 60.0

Close = Callable[[float], None]
_open: set[Close] = set()
_hooked = -1  # the process that has the exit hook


def add(close: Close) -> None:
    """Call `close` with a timeout at the interpreter's end, unless `remove` comes first."""
    global _hooked
    if _hooked != os.getpid():
        _hooked = os.getpid()
        atexit.register(_close_all)
        if multiprocessing.parent_process() is not None:
            # A child process of multiprocessing ends without atexit.
            util.Finalize(None, _close_all, exitpriority=0)
    _open.add(close)


def remove(close: Close) -> None:
    _open.discard(close)


def _close_all() -> None:
    for close in tuple(_open):
        close(WAIT_SECONDS)
