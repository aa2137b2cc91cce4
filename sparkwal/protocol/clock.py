"""Time as the protocol needs it: passed in, so that tests can stop it or set it back."""

import functools
import time
from datetime import UTC, datetime
from pathlib import Path

from sparkwal.errors import OptionError

_2100_MS = 4_102_444_800_000
_TEN_YEARS_MS = 3653 * 86_400_000


class Clock:
    """This machine's wall time since 1970, which may jump either way, and time since it booted,
    which counts time asleep and never goes back. Values of `boot_ms` compare only within one boot.
    Tests pass a clock with the same four methods."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def boot_ms(self) -> int:
        # Linux counts time asleep in BOOTTIME only; elsewhere MONOTONIC is the nearest.
        which = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
        return time.clock_gettime_ns(which) // 1_000_000

    @staticmethod
    @functools.cache  # No process outlives its boot, and every microbatch asks several times.
    def boot_id() -> str:
        try:
            return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        except OSError:
            return "unknown"

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


SYSTEM = Clock()


def next_timestamp(now_ms: int, before_ms: int) -> int:
    """The timestamp of a record: now, but never before that of the record before it, `before_ms` (0
    in an empty log). One clock that is ahead also dates every later record. So what is surely wrong
    raises OptionError: 2100, or ten years after the last record."""
    if now_ms >= _2100_MS or (before_ms and now_ms - before_ms > _TEN_YEARS_MS):
        last = f", and the log's last record is of {utc(before_ms)[:10]}" if before_ms else ""
        raise OptionError(
            f"this machine's clock says {utc(now_ms)[:10]}{last}: every later record would bear "
            "that date. Set the clock and start again; this record was not written"
        )
    return max(now_ms, before_ms)


def utc(since_1970_ms: int) -> str:
    """The moment for people, to the second."""
    return datetime.fromtimestamp(since_1970_ms / 1000, UTC).isoformat(timespec="seconds")


def is_old(clock: Clock, since_ms: int, boot_id: str, ttl_ms: int) -> bool:
    """Whether the moment `since_ms` is `ttl_ms` ago or longer, or belongs to another boot."""
    age = clock.boot_ms() - since_ms
    # SAFETY(claim-expires) §6: a claim is old after planTtl or in another boot
    return boot_id != clock.boot_id() or not 0 <= age < ttl_ms
