"""Quantiles of any number of values in bounded memory, to one percent."""

from __future__ import annotations

import math
from collections import Counter

# Values beyond are counted as these: of milliseconds and bytes none that matter.
_LEAST, _MOST = 1e-3, 1e18
ERROR = 0.01
_GAMMA = (1 + ERROR) / (1 - ERROR)
_WIDTH = math.log(_GAMMA)


class Quantiles:
    """Counts of numbers from 0 on, in bins whose width grows with them (as DDSketch does).

    What it tells is off by at most ERROR of the value; least and greatest are exact. It has at most
    2,500 bins, and two of them joined are as one that got the values of both.
    """

    def __init__(self) -> None:
        self.count = 0
        self.least, self.most = math.inf, -math.inf
        self._bins: Counter[int] = Counter()

    def add(self, value: float) -> None:
        """Count one number, finite and not negative."""
        self.count += 1
        self.least, self.most = min(self.least, value), max(self.most, value)
        bounded = min(max(value, _LEAST), _MOST)
        self._bins[math.ceil(math.log(bounded) / _WIDTH)] += 1

    def join(self, other: Quantiles) -> None:
        """Count what the other has counted."""
        self.count += other.count
        self.least, self.most = min(self.least, other.least), max(self.most, other.most)
        self._bins.update(other._bins)

    def at(self, share: float) -> float | None:
        """The value that this share of all, 0 … 1, does not exceed; None of none."""
        if not self.count:
            return None
        rank = max(1, math.ceil(share * self.count))
        for index in sorted(self._bins):
            rank -= self._bins[index]
            if rank <= 0:
                middle = 2 * _GAMMA**index / (_GAMMA + 1)
                return min(max(middle, self.least), self.most)
        return self.most

    def told(self) -> dict[str, float | int | None]:
        """For programs: how many, the median, the 99th percentile and the greatest."""
        return {
            "count": self.count, "p50": _rounded(self.at(0.5)), "p99": _rounded(self.at(0.99)),
            "max": _rounded(self.most) if self.count else None,
        }  # fmt: skip


def _rounded(value: float | None) -> float | int | None:
    """Without digits that mean nothing."""
    if value is None or isinstance(value, int):
        return value
    return round(value, 3)
