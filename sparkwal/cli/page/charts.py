"""Charts as SVG: the plot is stretched to the room that it gets, its texts are HTML and are not."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from sparkwal.cli.page.text import FORMATS, safe, when
from sparkwal.history.series import DAY

Values = Sequence[float | None]

HEIGHT = 100
_SLOT = 10
# On an axis over more than this many times its least value, tenfold is one step.
_WIDE = 40


@dataclass(frozen=True)
class Curve:
    """One thing that a chart shows.

    Attributes:
        name: in the legend, and where the pointer is.
        values: one for each slot of time; None where there is none.
        look: its colour, "a" … "d" of the style.
    """

    name: str
    values: Values
    look: str


@dataclass(frozen=True)
class Time:
    """The slots of time of all charts: `slots` of `width_ms`, from `start_ms` on."""

    start_ms: int
    width_ms: int
    slots: int


def bars(key: str, title: str, note: str, unit: str, time: Time, curves: Sequence[Curve]) -> str:
    """Values of each slot, those of one slot one upon the other."""
    sums = [0.0] * time.slots
    paths = []
    tops = [sum(values) for values in zip(*([v or 0 for v in c.values] for c in curves),
                                          strict=True)]  # fmt: skip
    top = ceiling(max(tops, default=0))
    # Few are not broad; many touch, since a gap of less than a pixel makes a pattern.
    width = min((0.8 if time.slots <= 120 else 1.02) * _SLOT, 0.06 * _SLOT * time.slots)
    for curve in curves:
        path = []
        for slot, value in enumerate(curve.values):
            if not value:
                continue
            low, high = sums[slot] / top, (sums[slot] + value) / top
            sums[slot] += value
            left = _SLOT * (slot + 0.5) - width / 2
            path.append(
                f"M{_at(left)} {_at(HEIGHT * (1 - low))}V{_at(HEIGHT * (1 - high))}"
                f"h{_at(width)}V{_at(HEIGHT * (1 - low))}z"
            )
        paths.append(f'<path class="bar {curve.look}" d="{"".join(path)}"/>')
    return _figure(key, title, note, unit, time, curves, (0, top / 2, top), "".join(paths))


def band(key: str, title: str, note: str, unit: str, time: Time, low: Curve, high: Curve) -> str:
    """Two lines, and what lies between them."""
    there = [value for curve in (low, high) for value in curve.values if value is not None]
    ticks, place = _axis(there)
    lines = [_line(curve, place) for curve in (low, high)]
    drawn = _between(low.values, high.values, place) + "".join(lines)
    return _figure(key, title, note, unit, time, [low, high], ticks, drawn)


def ceiling(value: float) -> float:
    """The next number that is round, and its half too."""
    if value <= 0:
        return 1
    power = 10.0 ** math.floor(math.log10(value))
    return next(
        step * power for step in (1, 1.5, 2, 3, 4, 5, 6, 8, 10) if value <= step * power * 1.000001
    )


def _axis(values: Sequence[float]) -> tuple[tuple[float, float, float], _Place]:
    most = max(values, default=0)
    least = min((value for value in values if value > 0), default=0)
    if least <= 0 or most / least < _WIDE:
        top = ceiling(most)
        return (0, top / 2, top), _Place(0, top, False)
    low, high = math.floor(math.log10(least)), math.ceil(math.log10(most) - 1e-9)
    return (10.0**low, 10.0 ** ((low + high) / 2), 10.0**high), _Place(low, high, True)


@dataclass(frozen=True)
class _Place:
    """Where a value lies on the axis, from the top."""

    low: float
    high: float
    tenfold: bool

    def __call__(self, value: float) -> str:
        if self.tenfold:
            value = math.log10(value) if value > 0 else self.low
        share = (value - self.low) / (self.high - self.low)
        return _at(HEIGHT * (1 - min(max(share, 0), 1)))


def _line(curve: Curve, place: _Place) -> str:
    path, dots, drawn = [], [], False
    few = sum(value is not None for value in curve.values) <= 60
    for slot, value in enumerate(curve.values):
        if value is None:
            drawn = False
            continue
        x, y = _at(_SLOT * (slot + 0.5)), place(value)
        path.append(f"{'L' if drawn else 'M'}{x} {y}")
        # One that stands alone is no line.
        alone = not drawn and (slot + 1 == len(curve.values) or curve.values[slot + 1] is None)
        if few or alone:
            dots.append(f"M{x} {y}h0")
        drawn = True
    return (
        f'<path class="line {curve.look}" d="{"".join(path)}"/>'
        f'<path class="dots {curve.look}" d="{"".join(dots)}"/>'
    )


def _between(low: Values, high: Values, place: _Place) -> str:
    """The areas between two lines, one for each run without a break."""
    runs: list[list[tuple[int, float, float]]] = [[]]
    for slot, (one, other) in enumerate(zip(low, high, strict=True)):
        if one is None or other is None:
            runs.append([])
        else:
            runs[-1].append((slot, one, other))
    path = []
    for run in runs:
        if len(run) > 1:
            upper = [f"{_at(_SLOT * (slot + 0.5))} {place(high)}" for slot, _, high in run]
            lower = [f"{_at(_SLOT * (slot + 0.5))} {place(low)}" for slot, low, _ in run]
            path.append("M" + "L".join([*upper, *reversed(lower)]) + "z")
    return f'<path class="between" d="{"".join(path)}"/>'


def _at(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")


def _figure(
    key: str,
    title: str,
    note: str,
    unit: str,
    time: Time,
    curves: Sequence[Curve],
    ticks: Sequence[float],
    drawn: str,
) -> str:
    legend = "".join(f'<li class="{c.look}">{safe(c.name)}</li>' for c in curves)
    labels = "".join(f"<span>{safe(FORMATS[unit](tick))}</span>" for tick in reversed(ticks))
    width = _SLOT * time.slots
    grid = "".join(f'<path class="grid" d="M0 {y}H{width}"/>' for y in (0, HEIGHT // 2, HEIGHT))
    times = "".join(f"<span>{text}</span>" for text in _times(time))
    return (
        f'<figure class="card chart" id="chart-{key}" data-chart="{key}" data-unit="{unit}">'
        f"<figcaption><h3>{safe(title)}</h3><p>{safe(note)}</p>"
        f"{f'<ul>{legend}</ul>' if len(curves) > 1 else ''}</figcaption>"
        f'<div class="plot"><div class="ys" aria-hidden="true">{labels}</div>'
        f'<div class="area" tabindex="0"><svg viewBox="0 0 {width} {HEIGHT}" role="img" '
        f'preserveAspectRatio="none" aria-label="{safe(title)}, {safe(note)}">{grid}{drawn}</svg>'
        f'<i class="cursor" hidden></i></div><div class="xs" aria-hidden="true">{times}</div></div>'
        "</figure>"
    )


def _times(time: Time) -> list[str]:
    span = time.width_ms * time.slots
    moments = [when(time.start_ms + span * part // 4) for part in range(5)]
    if span <= 2 * DAY:
        first, last = (3, 5) if span > 900_000 else (4, 8)
        shown = [each[11:16] if first == 3 else each[11:19] for each in moments]
        return shown
    return [each[:7] if span > 1200 * DAY else each[5:10] for each in moments]
