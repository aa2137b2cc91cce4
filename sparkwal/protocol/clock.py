"""Time as the protocol needs it: passed in, so that tests can stop it or set it back."""

from __future__ import annotations

import functools
import time
from pathlib import Path
from typing import Protocol


class Clock(Protocol):
    """Two clocks: one for people, one that cannot be set back."""

    def now_ms(self) -> int:
        """Wall time, milliseconds since 1970. May jump either way."""

    def boot_ms(self) -> int:
        """Milliseconds since this machine booted, time asleep included. Never goes back."""

    def boot_id(self) -> str:
        """Names this boot of this machine: `boot_ms` is comparable only within one."""

    def sleep(self, seconds: float) -> None:
        """Let others act."""


def is_old(clock: Clock, since_ms: int, boot_id: str, ttl_ms: int) -> bool:
    """Whether a moment of `boot_ms` is `ttl_ms` ago, or of another boot."""
    age = clock.boot_ms() - since_ms
    # Safety (§7): "an old claim is used without a look at the log"
    return boot_id != clock.boot_id() or not 0 <= age < ttl_ms


class SystemClock:
    """The clocks of this machine."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def boot_ms(self) -> int:
        # Linux counts time asleep in BOOTTIME only; elsewhere MONOTONIC is the nearest.
        which = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
        return time.clock_gettime_ns(which) // 1_000_000

    def boot_id(self) -> str:
        return _boot_id()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


@functools.cache  # No process outlives its boot, and every microbatch asks several times.
def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return "unknown"
