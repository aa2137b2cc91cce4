"""What an option's text may be, and what it means: the parsers of the options' tables.

Each raises ValueError with what is expected; `options.parse` names the option.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import field
from typing import Any

_SIZE_UNITS = {"": 1, "b": 1, "kb": 2**10, "mb": 2**20, "gb": 2**30, "tb": 2**40}
_TIME_UNITS = {"": 1, "ms": 1, "s": 1000, "min": 60_000, "m": 60_000, "h": 3_600_000,
               "d": 86_400_000}  # fmt: skip
_QUANTITY = re.compile(r"\s*(\d+)\s*([a-z]*)\s*", re.IGNORECASE)


def _quantity(text: str, units: dict[str, int], what: str) -> int:
    match = _QUANTITY.fullmatch(text)
    unit = match[2].lower().replace("ib", "b") if match else ""
    if unit in ("k", "g", "t") or (unit == "m" and units is _SIZE_UNITS):
        unit += "b"
    if match is None or unit not in units:
        raise ValueError(what)
    return int(match[1]) * units[unit]


def size(text: str) -> int:
    """Bytes from "1048576", "1mb", "64KiB"."""
    return _quantity(text, _SIZE_UNITS, "a size such as 1mb, 64kb or a number of bytes")


_LONGEST_MS = 36_500 * 86_400_000


def duration(text: str) -> int:
    """Milliseconds from "500", "500ms", "2s", "1min"."""
    found = _quantity(text, _TIME_UNITS, "a time such as 500ms, 2s or a number of milliseconds")
    if found > _LONGEST_MS:
        # Stored in the log it would make a record that nobody can read.
        raise ValueError("a time of at most 36500d")
    return found


def whole(text: str) -> int:
    if not text.strip().isdecimal():
        raise ValueError("a whole number")
    return int(text)


def boolean(text: str) -> bool:
    if text.strip().lower() not in ("true", "false"):
        raise ValueError("true or false")
    return text.strip().lower() == "true"


def text(value: str) -> str:
    if not value.strip():
        raise ValueError("a text that is not empty")
    return value.strip()


def secret(value: str) -> str:
    """A text that appears in no message."""
    return text(value)


_NAME = re.compile(r"[A-Za-z0-9_-]+")


def sequencer_name(value: str) -> str:
    if not _NAME.fullmatch(value.strip()):
        raise ValueError("a name of letters, digits, _ and - (to read all: sequencers=*)")
    return value.strip()


def consumer_name(value: str) -> str:
    if not _NAME.fullmatch(value.strip()):
        raise ValueError("a name of letters, digits, _ and -")
    return value.strip()


def account_id(value: str) -> str:
    if not re.fullmatch("[0-9]{12}", value.strip()):
        raise ValueError("the 12 digits of an AWS account")
    return value.strip()


def star(value: str) -> str:
    if value.strip() != "*":
        raise ValueError("* (for one of them: sequencer=NAME)")
    return "*"


def one_of(*choices: str) -> Callable[[str], str]:
    def parse_choice(value: str) -> str:
        if value.strip().lower() not in choices:
            raise ValueError(" or ".join(choices))
        return value.strip().lower()

    return parse_choice


def position(value: str) -> str | int:
    word = value.strip().lower()
    if word in ("earliest", "latest"):
        return word
    if not word.isdecimal():
        raise ValueError("earliest, latest or a position (a whole number)")
    return int(word)


def timestamp(value: str) -> int:
    """Milliseconds since 1970 from that number or from ISO 8601 (UTC unless it says otherwise)."""
    from datetime import UTC, datetime

    if value.strip().isdecimal():
        return _milliseconds(int(value))
    try:
        moment = datetime.fromisoformat(value.strip())
    except ValueError:
        raise ValueError("a time such as 2026-01-31T12:00:00Z or milliseconds since 1970") from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return round(moment.timestamp() * 1000)


def _milliseconds(number: int) -> int:
    # As milliseconds these are moments in 1970 … 1973 and after 5138: another unit is meant.
    if 10**9 <= number < 10**11:
        meant = f"looks like seconds, in milliseconds it is {number * 1000}"
    elif number >= 10**14:
        meant = f"looks like microseconds, in milliseconds it is {number // 1000}"
    else:
        return number
    raise ValueError(f"a number of milliseconds since 1970 (this {meant})")


def option(
    name: str, parse: Callable[[str], Any], default: Any, meaning: str, shown: str | None = None
) -> Any:
    """A dataclass field that is an option; `shown` is its default as people read it."""
    return field(
        default=default,
        repr=parse is not secret,
        metadata={"name": name, "parse": parse, "meaning": meaning, "shown": shown},
    )
