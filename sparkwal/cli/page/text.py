"""Numbers, moments and names as the page shows them. All that a log says of itself is escaped."""

from __future__ import annotations

import html
import math
import re

from sparkwal.cli.looking_back import dollars
from sparkwal.cli.telling import moment, size
from sparkwal.cli.times import length
from sparkwal.history.series import DAY, HOUR, LAST_MS, SECOND

# What is no text, or turns the direction of what follows it.
_UNSEEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\u202a-\u202e\u2066-\u2069]")
_UNITS = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def safe(value: object) -> str:
    """A text for HTML, in an element or in quotes; what cannot be seen is shown as a mark."""
    return html.escape(_UNSEEN.sub("\ufffd", str(value)))


def count(value: float | None) -> str:
    """A whole number with all its digits."""
    return "–" if value is None else f"{value:,.0f}"


def short(value: float | None) -> str:
    """A number in at most four characters and a unit."""
    if value is None:
        return "–"
    for unit, letter in _UNITS:
        if abs(value) >= unit:
            return _digits(value / unit) + letter
    return _digits(value)


def _digits(value: float) -> str:
    return f"{value:.3g}" if value < 100 else f"{value:.0f}"


def byte_size(value: float | None) -> str:
    """Bytes with their unit."""
    return "–" if value is None else size(round(value))


def milliseconds(value: float | None) -> str:
    """A latency."""
    if value is None:
        return "–"
    if value >= 10_000:
        return f"{value / 1000:.3g} s" if value < 1e6 else f"{value / 1000:,.0f} s"
    return f"{value:.3g} ms" if value < 1000 else f"{value:,.0f} ms"


def dollar(value: float | None) -> str:
    """Dollars of an axis: the smallest too."""
    if value is None:
        return "–"
    if 0 < value < 0.0001:
        exponent = math.floor(math.log10(value))
        return f"${value / 10**exponent:.2g}e{exponent}"
    return dollars(value)


def when(timestamp_ms: int | None) -> str:
    """A moment to the second, UTC."""
    if timestamp_ms is None:
        return "–"
    return moment(min(timestamp_ms, LAST_MS))[:19].replace("T", " ")


def lasting(milliseconds: float) -> str:
    """How long, for people."""
    return length(round(milliseconds)).replace(".0 ", " ")


def step(milliseconds: int) -> str:
    """A width of time, exactly: "15 min"."""
    for unit, size_ms in (("d", DAY), ("h", HOUR), ("min", 60 * SECOND)):
        if milliseconds % size_ms == 0:
            return f"{milliseconds // size_ms:,} {unit}"
    return f"{milliseconds // SECOND} s"


def tick_bytes(value: float | None) -> str:
    """Bytes on an axis: no digit more than is needed."""
    return byte_size(value).replace(".0 ", " ")


FORMATS = {"count": short, "bytes": tick_bytes, "ms": milliseconds, "dollars": dollar}
