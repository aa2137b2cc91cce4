"""Limits of the log's size: how much of it is neither in a table nor below its floor.

An appender that has limits samples what is there when it opens, and counts what it sends itself.
Above its lower limit it looks at the log's lifecycle every minute; below it makes no request.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from sparkwal.appender.context import AppenderContext
from sparkwal.errors import SparkWalError
from sparkwal.events import SizeLimit
from sparkwal.protocol.chain import look
from sparkwal.protocol.leader import Leadership
from sparkwal.protocol.replay import about_bytes

_logger = logging.getLogger("sparkwal")

LOOK_MS = 60_000
# How many records to sample for the size of all that were there before.
_SAMPLES = 32
# A run of own records closes at the lower limit divided by this.
_SHARE = 256


@dataclass
class _Run:
    last: int  # position
    bytes: int


class SizeWatch:
    """Counts what waits in the log, and reports when it reaches a limit or falls below one. Only
    one thread may call `add`. Raises InvalidLogError, StoreUnavailableError if the first look
    fails."""

    def __init__(self, context: AppenderContext, leadership: Leadership) -> None:
        self._log, self._clock, self._lead = context.log, context.clock, leadership
        self._subscribers = context.subscribers
        self._soft, self._hard = context.settings.soft_limit, context.settings.hard_limit
        # Below the lower limit nothing has to be looked at.
        self._first = min(each for each in (self._soft, self._hard) if each is not None)
        self._lock = threading.Lock()
        self._woken = threading.Event()
        self._ended = False
        self._runs: deque[_Run] = deque()
        self._safe, self._before = -1, 0  # the last result of `_look`
        self.size = 0
        self._over_soft = self._over_hard = False
        self._count(*self._look())
        self._looked_ms = self._clock.boot_ms()

    def start(self, refuse: Callable[[str | None], None]) -> None:
        """Begin to watch, in a thread of its own. `refuse` is called with the reason to accept no
        more, and with None to accept again."""
        self._refuse = refuse
        self._settle()
        threading.Thread(target=self._watch, name="sparkwal-size", daemon=True).start()

    def add(self, position: int, size: int) -> None:
        """Count a record that is on its way."""
        with self._lock:
            if self._runs and self._runs[-1].bytes * _SHARE < self._first:
                self._runs[-1].last = position
                self._runs[-1].bytes += size
            else:
                self._runs.append(_Run(position, size))
            self.size += size
            if self.size < self._first:
                return
            # After an old look compaction may have come far: report nothing before the next look.
            if self._seconds() > 0:
                self._settle()
            if self.size - size < self._first:
                self.wake()

    def wake(self) -> None:
        """Let the thread check the time again."""
        self._woken.set()

    def close(self) -> None:
        """End the thread, without waiting for it."""
        self._ended = True
        self.wake()

    def _watch(self) -> None:
        self._subscribers.enter_thread()
        while not self._ended:
            over = self.size >= self._first
            seconds = self._seconds() if over else None
            if seconds is None or seconds > 0:
                self._woken.wait(seconds)
                self._woken.clear()
                continue
            found: tuple[int, int] | None = None
            try:
                found = self._look()
            except SparkWalError:
                pass  # the count still holds; the next look may succeed
            except Exception:
                _logger.exception("the lifecycle of %s could not be read", self._log.url)
            with self._lock:
                if found is not None:
                    self._count(*found)
                # Set this last: until then `add` leaves the report to this look.
                self._looked_ms = self._clock.boot_ms()
                self._settle()

    def _seconds(self) -> float:
        """Seconds until the next look."""
        return (self._looked_ms + LOOK_MS - self._clock.boot_ms()) / 1000

    def _look(self) -> tuple[int, int]:
        """The first position that waits, and about how many bytes lie from there to where this
        appender began: 1 LIST and 1 GET, and samples if that position has moved."""
        state = look(self._log, self._lead.log_id)
        safe = 0 if state is None else state.floor if state.target is None else state.cut
        if safe == self._safe:
            return safe, self._before
        window, began = self._lead.window, self._lead.next_position
        return safe, about_bytes(self._log, window, safe, began, _SAMPLES)

    def _count(self, safe: int, before: int) -> None:
        self._safe, self._before = safe, before
        while self._runs and self._runs[0].last < safe:
            self._runs.popleft()
        self.size = before + sum(run.bytes for run in self._runs)

    def _settle(self) -> None:
        """Report what has changed. The caller holds the lock: reports stay in order."""
        soft, hard, url, publish = self._soft, self._hard, self._log.url, self._subscribers.publish
        over = soft is not None and self.size >= soft
        if over and not self._over_soft and soft is not None:
            publish(SizeLimit(path=url, option="softLimitBytes", bytes=self.size, limit=soft))
        self._over_soft = over
        over = hard is not None and self.size >= hard
        if over == self._over_hard:
            return
        self._over_hard = over
        if not over or hard is None:
            self._refuse(None)
            return
        publish(SizeLimit(path=url, option="hardLimitBytes", bytes=self.size, limit=hard))
        self._refuse(
            f"about {self.size} bytes of {url} are neither in a table nor below its floor "
            f"(hardLimitBytes {hard}): compaction is behind. Nothing was accepted; run the "
            "compaction more often or with more resources, or raise the limit. Appends go on by "
            "themselves within a minute after it has caught up"
        )
