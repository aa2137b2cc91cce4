"""Moments as people give them on a command line, and ages as they read them."""

from __future__ import annotations

import time
from contextlib import suppress

import click

from sparkwal.options.types import duration, timestamp

EXAMPLES = "1h (an hour ago), 30min, 2026-01-31T12:00:00Z"
EXPECTED = "a time before now such as 1h or 30min, a moment such as 2026-01-31T12:00:00Z (UTC \
unless it says otherwise), or milliseconds since 1970"


def moment_ms(text: str, now_ms: int) -> int:
    """Milliseconds since 1970.

    Args:
        text: a duration, which is before now: "1h"; or a moment as startingTimestamp takes it.

    Raises ValueError with what is expected.
    """
    text = text.strip()
    if text.isdecimal():
        return timestamp(text)  # tells seconds and microseconds apart
    with suppress(ValueError):
        return max(now_ms - duration(text), 0)
    with suppress(ValueError):
        return timestamp(text)
    raise ValueError(EXPECTED)


def as_moment(context: click.Context, parameter: click.Parameter, value: str | None) -> int | None:
    """The callback of a TIME: milliseconds since 1970."""
    if value is None:
        return None
    try:
        return moment_ms(value, time.time_ns() // 1_000_000)
    except ValueError as expected:
        raise click.BadParameter(f"{value!r}: {expected} is expected") from None


def length(milliseconds: int) -> str:
    """A time for people, in its greatest unit: "250 ms", "12 s", "5 min", "3.2 h", "9 d"."""
    if milliseconds < 1000:
        return f"{milliseconds} ms"
    value = milliseconds / 1000
    for unit, following in (("s", 60), ("min", 60), ("h", 24)):
        if value < following:
            return f"{value:.0f} {unit}" if value >= 10 or unit == "s" else f"{value:.1f} {unit}"
        value /= following
    return f"{value:.1f} d" if value < 10 else f"{value:,.0f} d"


def time_with_unit(
    context: click.Context, parameter: click.Parameter, value: str | None
) -> str | None:
    """The callback of an option that is a time with a unit: without one it would be
    milliseconds, and data goes by it."""
    if value is None:
        return None
    try:
        if value.strip().isdecimal():
            raise ValueError
        duration(value)
    except ValueError:
        raise click.BadParameter(
            f"{value!r} is no time with its unit, as 7d, 24h or 30min"
        ) from None
    return value
