"""What an option's text may be, and what it means: the parsers of the options' tables.

Each raises ValueError with what is expected; `options.parse` names the option.
"""

import re
from collections.abc import Callable
from dataclasses import field
from datetime import UTC, datetime
from functools import partial
from typing import Any, NamedTuple

_SIZE_UNITS = {
    "": 1,
    "b": 1,
    "k": 2**10,
    "kb": 2**10,
    "m": 2**20,
    "mb": 2**20,
    "g": 2**30,
    "gb": 2**30,
    "t": 2**40,
    "tb": 2**40,
}
_TIME_UNITS = {
    "": 1,
    "ms": 1,
    "s": 1000,
    "min": 60_000,
    "m": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
}
_LONGEST_MS = 36_500 * 86_400_000
_NUMBER = r"0*\d{1,19}"


def _quantity(units: dict[str, int], what: str, text: str) -> int:
    match = re.fullmatch(rf"\s*({_NUMBER})\s*([a-z]*)\s*", text, re.IGNORECASE)
    unit = match[2].lower().replace("ib", "b") if match else ""
    if match is None or unit not in units:
        raise ValueError(what)
    return int(match[1]) * units[unit]


def size(text: str) -> int:
    return _quantity(_SIZE_UNITS, "a size such as 1mb, 64kb or a number of bytes", text)


def duration(text: str) -> int:
    """Milliseconds."""
    found = _quantity(_TIME_UNITS, "a time such as 500ms, 2s or a number of milliseconds", text)
    if found > _LONGEST_MS:
        # Stored in the log it would make a record that nobody can read.
        raise ValueError("a time of at most 36500d")
    return found


def _matched(pattern: str, what: str, value: str) -> str:
    """The value without the space around it."""
    if not re.fullmatch(pattern, value.strip(), re.DOTALL):
        raise ValueError(what)
    return value.strip()


text = partial(_matched, ".+", "a text that is not empty")
secret = partial(_matched, ".+", "a text that is not empty")  # appears in no message
consumer_name = partial(
    _matched, "[A-Za-z0-9_-]{1,200}", "a name of at most 200 letters, digits, _ and -"
)
sequencer_name = partial(
    _matched, "[A-Za-z0-9_-]+", "a name of letters, digits, _ and - (to read all: sequencers=*)"
)
account_id = partial(_matched, "[0-9]{12}", "the 12 digits of an AWS account")
star = partial(_matched, r"\*", "* (for one of them: sequencer=NAME)")


def whole(value: str) -> int:
    return int(_matched(_NUMBER, "a whole number from 0 on, of at most 19 digits", value))


def boolean(value: str) -> bool:
    return one_of("true", "false")(value) == "true"


def one_of(*choices: str) -> Callable[[str], str]:
    return lambda value: _matched("|".join(choices), " or ".join(choices), value.lower())


def position(value: str) -> str | int:
    what = "earliest, latest or a position (a whole number)"
    word = _matched(rf"earliest|latest|{_NUMBER}", what, value.lower())
    return int(word) if word.isdecimal() else word


def timestamp(value: str) -> int:
    """Milliseconds since 1970 from that number or from ISO 8601 (UTC unless it says otherwise)."""
    if re.fullmatch(_NUMBER, value.strip()):
        number = int(value)
        # As milliseconds these are moments in 1970 … 1973 and after 5138: another unit is meant.
        if 10**9 <= number < 10**11:
            meant = f"looks like seconds, in milliseconds it is {number * 1000}"
        elif number >= 10**14:
            meant = f"looks like microseconds, in milliseconds it is {number // 1000}"
        else:
            return number
        raise ValueError(f"a number of milliseconds since 1970 (this {meant})")
    try:
        moment = datetime.fromisoformat(value.strip())
    except ValueError:
        raise ValueError("a time such as 2026-01-31T12:00:00Z or milliseconds since 1970") from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return round(moment.timestamp() * 1000)


class Limit(NamedTuple):
    """Which of the numbers that a parser gives are allowed, and what is expected instead."""

    allows: Callable[[int], bool]
    expected: str


ABOVE_ZERO = Limit(lambda number: number > 0, "a value greater than 0")


def option(
    name: str,
    parse: Callable[[str], Any],
    default: Any,
    meaning: str,
    shown: str | None = None,
    limit: Limit | None = None,
) -> Any:
    """A dataclass field that is an option; `shown` is its default as people read it."""
    return field(
        default=default,
        repr=parse is not secret,
        metadata={"name": name, "parse": parse, "meaning": meaning, "shown": shown, "limit": limit},
    )
