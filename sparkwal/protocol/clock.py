"""The clocks of the protocol. They are parameters, so that tests can stop them or set them back."""

import functools
import time
from datetime import UTC, datetime
from pathlib import Path

from sparkwal.errors import OptionError

_2100_MS = 4_102_444_800_000
_TEN_YEARS_MS = 3653 * 86_400_000


class Clock:
    """This machine's wall clock and boot clock. Tests pass a clock with the same four methods.

    The wall clock counts from 1970 and may jump either way. The boot clock counts from the boot,
    with time asleep, and never goes back; its values compare only within one boot.
    """

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def boot_ms(self) -> int:
        # Only BOOTTIME counts time asleep on Linux. On other systems MONOTONIC comes nearest.
        which = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
        return time.clock_gettime_ns(which) // 1_000_000

    # No process outlives its boot, and every microbatch reads the id several times, so cache it.
    @staticmethod
    @functools.cache
    def boot_id() -> str:
        try:
            return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        except OSError:
            return "unknown"

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


SYSTEM = Clock()


def next_timestamp(now_ms: int, before_ms: int) -> int:
    """The timestamp of a record: now, but not before the record before it.

    One clock that is ahead dates every later record too, so a time that is certainly wrong is
    refused.

    Args:
        now_ms: the time now.
        before_ms: the time of the record before; 0 in an empty log.

    Raises:
        OptionError: the time is after 2100, or more than ten years after the last record.
    """
    if now_ms >= _2100_MS or (before_ms and now_ms - before_ms > _TEN_YEARS_MS):
        last = f", and the log's last record is of {utc(before_ms)[:10]}" if before_ms else ""
        raise OptionError(
            f"this machine's clock shows {utc(now_ms)[:10]}{last}: every later record would get "
            "that date. Set the clock and start again; this record was not written"
        )
    return max(now_ms, before_ms)


def utc(since_1970_ms: int) -> str:
    """A time for people, to the second."""
    return datetime.fromtimestamp(since_1970_ms / 1000, UTC).isoformat(timespec="seconds")


def is_old(clock: Clock, since_ms: int, boot_id: str, ttl_ms: int) -> bool:
    """Whether the time `since_ms` is `ttl_ms` ago or longer, or belongs to another boot."""
    age = clock.boot_ms() - since_ms
    # SAFETY(claim-expires) §6: a claim is old after planTtl or in another boot
    return boot_id != clock.boot_id() or not 0 <= age < ttl_ms
