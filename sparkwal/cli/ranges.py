"""Ranges of positions as people give them on a command line."""

from __future__ import annotations

import re

_RANGE = re.compile(r"(\d*)\.\.(\d*)|(\d+)")


def first_and_last(text: str) -> tuple[int | None, int | None]:
    """Both inclusive; None where an end is left open.

    Raises ValueError with what is expected.
    """
    match = _RANGE.fullmatch(text.strip())
    if match is None or match[0] == "..":
        raise ValueError(f"{text!r} is no range of positions: 100..199, 100.., ..199 or 100")
    low, high, one = match.groups()
    first, last = low or one, high or one
    return int(first) if first else None, int(last) if last else None
