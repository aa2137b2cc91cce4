"""Watches the log's size: the bytes that are neither in a table nor below the floor.

An appender with size limits samples the log when it opens, and counts the records that it sends.
Above the lower limit it reads the log's lifecycle every minute. Below it makes no request.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable

from sparkwal.appender.context import AppenderContext
from sparkwal.errors import SparkWalError
from sparkwal.events import SizeLimit
from sparkwal.journal.safe_threading import Flag
from sparkwal.protocol.chain import newest_lifecycle
from sparkwal.protocol.leadership import Leadership
from sparkwal.protocol.records import about_bytes
from sparkwal.store.threads import start_daemon

_logger = logging.getLogger("sparkwal")

LOOK_MS = 60_000
# The number of records to sample, to estimate the size of all earlier ones.
_SAMPLES = 32
# A run of own records closes at the lower limit divided by this number.
_SHARE = 256


class SizeWatch:
    """Counts the log's bytes, and reports when they reach a limit or fall below one.

    Only one thread may call `add`.

    Raises:
        InvalidLogError: the log is damaged.
        StoreUnavailableError: the store did not answer.
    """

    def __init__(self, context: AppenderContext, leadership: Leadership) -> None:
        self._log = context.log
        self._clock = context.clock
        self._lead = leadership
        self._subscribers = context.subscribers
        settings = context.settings
        limits = {"softLimitBytes": settings.soft_limit, "hardLimitBytes": settings.hard_limit}
        self._limits = {name: limit for name, limit in limits.items() if limit is not None}
        # Below the lower limit no request is necessary.
        self._first = min(self._limits.values())
        # The limits that the size has reached.
        self._over: set[str] = set()
        self._lock = threading.Lock()
        self._woken = Flag()
        self._ended = False
        # (last position, bytes) of own records.
        self._runs: deque[tuple[int, int]] = deque()
        # The last result of `_measure`.
        self._safe, self._before = -1, 0
        self.size = 0
        self._count(*self._measure())
        self._looked_ms = self._clock.boot_ms()

    def start(self, refuse: Callable[[str | None], None]) -> None:
        """Begin to watch.

        Args:
            refuse: gets the reason to accept no appends, and None to accept them again.
        """
        self._refuse = refuse
        self._settle()
        start_daemon(self._watch, "size")

    def add(self, position: int, size: int) -> None:
        """Count a record that is in flight."""
        with self._lock:
            run = 0
            if self._runs and self._runs[-1][1] * _SHARE < self._first:
                run = self._runs.pop()[1]
            self._runs.append((position, run + size))
            self.size += size
            if self.size < self._first:
                return
            # The last look is old, and compaction may have come far since: report after the next
            # look.
            if self._seconds() > 0:
                self._settle()
            if self.size - size < self._first:
                self.wake()

    def wake(self) -> None:
        """Let the thread check the time again."""
        self._woken.set()

    def close(self) -> None:
        """End the thread without waiting for it."""
        self._ended = True
        self.wake()

    def _watch(self) -> None:
        while not self._ended:
            seconds = self._seconds() if self.size >= self._first else None
            if seconds is None or seconds > 0:
                self._woken.wait(seconds)
                self._woken.clear()
                continue
            looked = self._safe, self._before
            try:
                with self._subscribers.overhearing():
                    looked = self._measure()
            except SparkWalError:
                # The count still holds, and the next look may succeed.
                pass
            except Exception:
                _logger.exception("the lifecycle of %s could not be read", self._log.url)
            with self._lock:
                self._count(*looked)
                # Set this last: until then `add` leaves the report to this thread.
                self._looked_ms = self._clock.boot_ms()
                self._settle()

    def _seconds(self) -> float:
        """The seconds until the next look."""
        return (self._looked_ms + LOOK_MS - self._clock.boot_ms()) / 1000

    def _measure(self) -> tuple[int, int]:
        """Read the lifecycle, and estimate the size: 1 LIST and 1 GET, and samples if the cut has
        moved.

        Returns:
            The first position that is neither in a table nor below the floor, and about the bytes
            from there to the first position of this appender.
        """
        state = newest_lifecycle(self._log, self._lead.log_id)
        safe = 0 if state is None else state.cut if state.table else state.floor
        if safe == self._safe:
            return safe, self._before
        window, began = self._lead.window, self._lead.next_position
        return safe, about_bytes(self._log, window, safe, began, _SAMPLES)

    def _count(self, safe: int, before: int) -> None:
        self._safe, self._before = safe, before
        while self._runs and self._runs[0][0] < safe:
            self._runs.popleft()
        self.size = before + sum(size for _, size in self._runs)

    def _settle(self) -> None:
        """Report what has changed. The caller holds the lock, so that reports stay in order."""
        was, self._over = (
            self._over,
            {name for name, limit in self._limits.items() if self.size >= limit},
        )
        url = self._log.url
        size = self.size
        hard = "hardLimitBytes"
        for name, limit in self._limits.items():
            if name in self._over - was:
                self._subscribers.publish(SizeLimit(url, name, size, limit))
        if hard in was - self._over:
            self._refuse(None)
        elif hard in self._over - was:
            self._refuse(
                f"about {size} bytes of {url} are neither in a table nor below its floor "
                f"({hard} {self._limits[hard]}): compaction is behind. This append was not "
                "accepted; run the compaction more often or with more resources, or raise the "
                "limit. Appends continue by themselves within a minute after it has caught up"
            )
