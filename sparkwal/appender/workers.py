"""Threads of an appender: those that send requests, and the one that calls tickets back.

They are daemons: a request that hangs must not keep a process alive whose appender
has failed already.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from heapq import heappop, heappush
from itertools import count
from queue import SimpleQueue

from sparkwal.errors import OptionError

_logger = logging.getLogger("sparkwal")

# How long closing waits for callbacks that do not return.
_DRAIN_SECONDS = 5.0


# How many forks ago this module was loaded. Python counts for us: to ask the system which process
# this is takes longer than an append's lock.
_forks = 0


def _count_fork() -> None:
    global _forks
    _forks += 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_count_fork)


class Workers:
    """Up to `limit` threads, started as they are needed. One thread submits."""

    def __init__(self, limit: int, entered: Callable[[], None]) -> None:
        self._limit, self._entered = limit, entered
        self._tasks: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._idle = threading.Semaphore(0)
        self._count = 0

    def submit(self, task: Callable[[], None]) -> None:
        """Run a task that never raises."""
        if not self._idle.acquire(blocking=False) and self._count < self._limit:
            self._count += 1
            name = f"sparkwal-put-{self._count}"
            try:
                threading.Thread(target=self._work, name=name, daemon=True).start()
            except RuntimeError:
                # The machine gives no more threads, or the interpreter ends: those there are
                # go on, and where there is none, this one does it.
                self._count -= 1
                if not self._count:
                    task()
                    return
        self._tasks.put(task)

    def _work(self) -> None:
        self._entered()
        while (task := self._tasks.get()) is not None:
            task()
            del task  # it holds the record's bytes
            self._idle.release()

    def stop(self) -> None:
        """End every thread after its task, without waiting for it."""
        for _ in range(self._count):
            self._tasks.put(None)


class Callbacks:
    """Runs what tickets call back, one after another, in a thread of its own, holding no lock.

    In the order of the appends: of those that wait, none goes before one with a lower sequence.

    Attributes:
        pid: of the process that this appender was opened in.
    """

    def __init__(self) -> None:
        self.pid, self._forks = os.getpid(), _forks
        # A heap of (sequence, number, is done, callback); its two steps are one instruction each.
        self._waiting: list[tuple[int, int, Callable[[], bool], Callable[[], None]]] = []
        self._numbers = count()
        # Its `put` may be interrupted anywhere, even by another `put` of the same thread.
        self._wakes: SimpleQueue[bool] = SimpleQueue()
        self._ended = False
        self._thread = threading.Thread(target=self._run, name="sparkwal-callbacks", daemon=True)
        self._thread.start()

    def add(self, sequence: int, is_done: Callable[[], bool], callback: Callable[[], None]) -> None:
        """Call back once the append of this sequence is done, and `wake` was called after that."""
        heappush(self._waiting, (sequence, next(self._numbers), is_done, callback))
        # Who makes it done calls `wake` after that: one of the two sees the other.
        if is_done():
            self.wake()

    def wake(self) -> None:
        """Appends are done."""
        if self._waiting:
            self._wakes.put(True)
            if self._ended:
                self._run_done()

    def _run(self) -> None:
        while self._wakes.get():
            self._run_done()
        self._ended = True
        self._run_done()

    def _run_done(self) -> None:
        with suppress(IndexError):  # none is left; after the end two threads may look
            while self._waiting[0][2]():
                first = heappop(self._waiting)
                if first[2]():
                    self._call(first[3])
                else:  # a lower one came in between
                    heappush(self._waiting, first)

    def _call(self, callback: Callable[[], None]) -> None:
        # Nothing that a callback raises keeps the next from being called.
        try:
            callback()
        except BaseException:  # sys.exit() would end this thread, and no process
            _logger.exception("a callback of an append failed")

    def stop(self) -> None:
        """Call back what is done, but do not wait forever for a callback that hangs."""
        self._wakes.put(False)
        # A callback may close the appender.
        if threading.get_ident() != self._thread.ident:
            self._thread.join(_DRAIN_SECONDS)

    def check_process(self) -> None:
        """Raises OptionError in a fork: it has none of the appender's threads."""
        if self._forks != _forks:
            raise OptionError(
                f"this appender was opened by process {self.pid}, and this is its fork "
                f"{os.getpid()}, which has none of its threads: open an appender in each "
                "process that appends"
            )
