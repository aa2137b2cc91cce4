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

from sparkwal.errors import SparkWalError
from sparkwal.events import Event, SizeLimit
from sparkwal.protocol.chain import look
from sparkwal.protocol.clock import Clock
from sparkwal.protocol.replay import about_bytes
from sparkwal.store.log_store import LogStore

_logger = logging.getLogger("sparkwal")

LOOK_MS = 60_000
# How many records to sample for the size of all that were there before.
_SAMPLES = 32
# A run of own records closes at the lower limit divided by this.
_SHARE = 256


@dataclass(frozen=True)
class Limits:
    soft: int | None
    hard: int | None

    @property
    def first(self) -> int:
        """The lower limit: below it nothing has to be looked at."""
        return min(limit for limit in (self.soft, self.hard) if limit is not None)


@dataclass
class _Run:
    last: int  # position
    bytes: int


class SizeWatch:
    """Counts what waits in the log, and reports when it reaches a limit or falls below one. Only
    one thread may call `add`.

    Args:
        began: the first position that this appender writes.

    Raises InvalidLogError, StoreUnavailableError if the first look fails.
    """

    def __init__(
        self,
        log: LogStore,
        log_id: str,
        window: int,
        began: int,
        limits: Limits,
        clock: Clock,
        publish: Callable[[Event], None],
    ) -> None:
        self._log, self._log_id, self._window, self._began = log, log_id, window, began
        self._limits, self._clock, self._publish = limits, clock, publish
        self._lock = threading.Lock()
        self._woken = threading.Event()
        self._ended = False
        self._runs: deque[_Run] = deque()
        self._safe, self._before = -1, 0  # the last result of `_look`
        self.size = 0
        self._over_soft = self._over_hard = False
        self._count(*self._look())
        self._looked_ms = clock.boot_ms()

    def start(self, entered: Callable[[], None], refuse: Callable[[str | None], None]) -> None:
        """Begin to watch, in a thread of its own, which calls `entered` first. `refuse` is
        called with the reason to accept no more, and with None to accept again."""

        def watch() -> None:
            entered()
            self._watch()

        self._refuse = refuse
        self._settle()
        threading.Thread(target=watch, name="sparkwal-size", daemon=True).start()

    def add(self, position: int, size: int) -> None:
        """Count a record that is on its way."""
        with self._lock:
            if self._runs and self._runs[-1].bytes * _SHARE < self._limits.first:
                self._runs[-1].last = position
                self._runs[-1].bytes += size
            else:
                self._runs.append(_Run(position, size))
            self.size += size
            if self.size < self._limits.first:
                return
            # After an old look compaction may have come far: report nothing before the next look.
            if self._seconds() > 0:
                self._settle()
            if self.size - size < self._limits.first:
                self.wake()

    def wake(self) -> None:
        """Let the thread check the time again."""
        self._woken.set()

    def close(self) -> None:
        """End the thread, without waiting for it."""
        self._ended = True
        self.wake()

    def _watch(self) -> None:
        while not self._ended:
            over = self.size >= self._limits.first
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
        state = look(self._log, self._log_id)
        safe = 0 if state is None else state.floor if state.target is None else state.cut
        if safe == self._safe:
            return safe, self._before
        return safe, about_bytes(self._log, self._window, safe, self._began, _SAMPLES)

    def _count(self, safe: int, before: int) -> None:
        self._safe, self._before = safe, before
        while self._runs and self._runs[0].last < safe:
            self._runs.popleft()
        self.size = before + sum(run.bytes for run in self._runs)

    def _settle(self) -> None:
        """Report what has changed. The caller holds the lock, else two threads could report in the
        wrong order."""
        soft, hard, url = self._limits.soft, self._limits.hard, self._log.url
        over = soft is not None and self.size >= soft
        if over and not self._over_soft and soft is not None:
            self._publish(SizeLimit(path=url, option="softLimitBytes", bytes=self.size, limit=soft))
        self._over_soft = over
        over = hard is not None and self.size >= hard
        if over == self._over_hard:
            return
        self._over_hard = over
        if not over or hard is None:
            self._refuse(None)
            return
        self._publish(SizeLimit(path=url, option="hardLimitBytes", bytes=self.size, limit=hard))
        self._refuse(
            f"about {self.size} bytes of {url} are neither in a table nor below its floor "
            f"(hardLimitBytes {hard}): compaction is behind. Nothing was accepted; run the "
            "compaction more often or with more resources, or raise the limit. Appends go on by "
            "themselves within a minute after it has caught up"
        )
