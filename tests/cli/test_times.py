"""Moments on a command line."""

from __future__ import annotations

import pytest

from sparkwal.cli.flags import EXPECTED, moment_ms
from sparkwal.cli.output import length

NOW = 1_800_000_000_000


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1h", NOW - 3_600_000),
        ("30min", NOW - 1_800_000),
        (" 90 s ", NOW - 90_000),
        ("7d", NOW - 7 * 86_400_000),
        ("36500d", 0),
        ("1700000000123", 1_700_000_000_123),
        ("2026-01-31", 1_769_817_600_000),
        ("2026-01-31T12:00:00", 1_769_860_800_000),
        ("2026-01-31T12:00:00.250+02:00", 1_769_853_600_250),
    ],
)
def test_a_moment_is_before_now_or_itself(text: str, expected: int) -> None:
    assert moment_ms(text, NOW) == expected


@pytest.mark.parametrize("text", ["", "yesterday", "1 fortnight", "-1h", "1.5h", "2026-13-01"])
def test_an_invalid_time_prints_examples(text: str) -> None:
    with pytest.raises(ValueError) as refused:
        moment_ms(text, NOW)
    assert str(refused.value) == EXPECTED


def test_seconds_are_not_taken_for_milliseconds() -> None:
    with pytest.raises(ValueError, match="1800000000000"):
        moment_ms("1800000000", NOW)


@pytest.mark.parametrize(
    ("milliseconds", "text"),
    [
        (0, "0 ms"),
        (999, "999 ms"),
        (1000, "1 s"),
        (61_000, "1.0 min"),
        (720_000, "12 min"),
        (5_400_000, "1.5 h"),
        (86_400_000, "1.0 d"),
        (86_400_000 * 1500, "1,500 d"),
    ],
)
def test_a_duration_is_printed_in_its_greatest_unit(milliseconds: int, text: str) -> None:
    assert length(milliseconds) == text
