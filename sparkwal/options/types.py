"""The parsers of option values. Each turns a text into a checked value.

For a wrong text a parser raises ValueError, whose message is the expected form. `options.parsing`
adds the option's name.
"""

import re
from collections.abc import Callable
from dataclasses import field
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, NamedTuple

from sparkwal.format.keys import CONSUMER_NAME, SEQUENCER_NAME

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
# The option `sequencers` of all logs under a path.
ALL = "*"
_LONGEST_MS = 36_500 * 86_400_000
_NUMBER = "0*[0-9]{1,19}"
# A read begins with the rows of the log's table.
TABLE = "table"
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def _quantity(units: dict[str, int], expected: str, text: str) -> int:
    match = re.fullmatch(rf"\s*({_NUMBER})\s*([a-z]*)\s*", text, re.IGNORECASE)
    unit = match[2].lower().replace("ib", "b") if match else ""
    if match is None or unit not in units:
        raise ValueError(expected)
    return int(match[1]) * units[unit]


def size(text: str) -> int:
    """A number of bytes."""
    return _quantity(_SIZE_UNITS, "a size such as 1mb, 64kb or a number of bytes", text)


def duration(text: str) -> int:
    """A number of milliseconds."""
    expected = "a time such as 500ms, 2s or a number of milliseconds"
    milliseconds = _quantity(_TIME_UNITS, expected, text)
    if milliseconds > _LONGEST_MS:
        # A record with a larger number would be unreadable.
        raise ValueError("a time of at most 36500d")
    return milliseconds


def _matched(pattern: str, expected: str, value: str) -> str:
    """The value without leading and trailing space, if it matches."""
    if not re.fullmatch(pattern, value.strip(), re.DOTALL):
        raise ValueError(expected)
    return value.strip()


text = partial(_matched, ".+", "a text that is not empty")
# As `text`. An option with this parser never appears in a message.
secret = partial(_matched, ".+", "a text that is not empty")
consumer_name = partial(
    _matched, CONSUMER_NAME.pattern, "a name of at most 200 letters, digits, _ and -"
)
sequencer_name = partial(
    _matched,
    SEQUENCER_NAME.pattern,
    "a name of letters, digits, _ and - (to read all: sequencers=*)",
)
account_id = partial(_matched, "[0-9]{12}", "the 12 digits of an AWS account")


def sequencers(value: str) -> str:
    """ALL, or names with commas between them."""
    names = dict.fromkeys(filter(None, map(str.strip, value.split(","))))
    if not names or ([*names] != [ALL] and not all(map(SEQUENCER_NAME.fullmatch, names))):
        raise ValueError("* for all logs, or names with commas between them,")
    return ",".join(names)


def integer(value: str) -> int:
    return int(_matched(_NUMBER, "a whole number from 0 on, of at most 19 digits", value))


def boolean(value: str) -> bool:
    return one_of("true", "false")(value) == "true"


def one_of(*choices: str) -> Callable[[str], str]:
    return lambda value: _matched("|".join(choices), " or ".join(choices), value.lower())


def position(value: str) -> str | int:
    expected = f"earliest, latest, {TABLE} or a position (a whole number)"
    word = _matched(rf"earliest|latest|{TABLE}|{_NUMBER}", expected, value.lower())
    return int(word) if word.isdecimal() else word


def timestamp(value: str) -> int:
    """Milliseconds since 1970, from that number or from ISO 8601 (in UTC by default)."""
    if re.fullmatch(_NUMBER, value.strip()):
        number = int(value)
        # Milliseconds of 1970 … 1973 and after 5138 are probably numbers of another unit.
        if 10**9 <= number < 10**11:
            guess = f"looks like seconds, in milliseconds it is {number * 1000}"
        elif number >= 10**14:
            guess = f"looks like microseconds, in milliseconds it is {number // 1000}"
        else:
            return number
        raise ValueError(f"a number of milliseconds since 1970 (this {guess})")
    try:
        moment = datetime.fromisoformat(value.strip())
    except ValueError:
        raise ValueError("a time such as 2026-01-31T12:00:00Z or milliseconds since 1970") from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return (moment - EPOCH) // timedelta(milliseconds=1)


class Limit(NamedTuple):
    """A check of a parsed number, and the text that describes the allowed numbers."""

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
    """A dataclass field for an option.

    Args:
        name: the option's name for users.
        parse: turns the option's text into its value.
        default: the value without the option.
        meaning: the description in the documentation.
        shown: the default in the documentation, if it differs from `default`.
        limit: the allowed numbers.
    """
    return field(
        default=default,
        repr=parse is not secret,
        metadata={"name": name, "parse": parse, "meaning": meaning, "shown": shown, "limit": limit},
    )
