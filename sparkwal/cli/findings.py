"""What the doctor found: one line each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Outcome = Literal["ok", "to do", "unknown"]


@dataclass(frozen=True)
class Line:
    """One finding.

    Attributes:
        advice: what to do, "" where there is nothing.
    """

    outcome: Outcome
    about: str
    said: str
    advice: str = ""


def ok(about: str, said: str) -> Line:
    return Line("ok", about, said)


def to_do(about: str, said: str, advice: str = "") -> Line:
    return Line("to do", about, said, advice)


def unknown(about: str, said: str) -> Line:
    """Not found out, or nothing to find out: no error."""
    return Line("unknown", about, said)
