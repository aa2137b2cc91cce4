"""Where numbers go, and who sends them there already."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Hashable
from typing import Any, Protocol, TypeVar

from sparkwal.errors import OptionError
from sparkwal.metrics.table import METRICS, Metric, Place

T = TypeVar("T")


class Meter(Protocol):
    """Takes numbers; `labels` are the values of `metric.labels`, in that order.

    Any thread may call it. Nothing of it waits for a request or for who reads the numbers.
    """

    def add(self, metric: Metric, amount: float, *labels: str) -> None:
        """Count. With 0 the series is there before anything happens."""

    def observe(self, metric: Metric, value: float, *labels: str) -> None:
        """One more value of a histogram."""

    def set(self, metric: Metric, value: float | Callable[[], float], *labels: str) -> None:
        """A gauge's value, or who tells it whenever it is read."""

    def forget(self, metric: Metric, *labels: str) -> None:
        """The series vanishes; one that is not there is no error. Counts begin at 0 again."""


def begin(meter: Meter, place: Place, source: str) -> None:
    """All that this source counts is there, at 0."""
    for metric in METRICS:
        if metric.kind == "counter" and source in metric.sources and not metric.more:
            meter.add(metric, 0, *place)


# In a place: every sequencer of the log.
ALL = "*"

# Reentrant: what starts may start something itself.
_lock = threading.RLock()
_running: dict[tuple[Meter, Hashable], Any] = {}


def _forked() -> None:
    # A thread that is not here may have held it, and what ran does not run here.
    global _lock
    _lock = threading.RLock()
    _running.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


def once(meter: Meter, key: Hashable, start: Callable[[], T]) -> T:
    """What `start` returned the first time for this meter and key, in this process."""
    with _lock:
        if (meter, key) not in _running:
            _running[meter, key] = start()
        found: T = _running[meter, key]
        return found


def ended(meter: Meter, key: Hashable) -> None:
    """`once` may start it again."""
    with _lock:
        _running.pop((meter, key), None)


def refuse_twice(meter: Meter, place: Place, other: str, *, but: Hashable = None) -> None:
    """Raises OptionError where the source `other` counts commits of this place already.

    Args:
        but: a key of `once` that may.
    """
    with _lock:
        taken = any(
            known is meter and key != but and isinstance(key, tuple) and key[0] == other
            and _meet(place, key[1])
            for known, key in _running
        )  # fmt: skip
    if taken:
        raise OptionError(
            f"the commits of {place.log} are counted here already, by its {other}: leave one of "
            "the two out"
        )


def _meet(one: Place, other: Place) -> bool:
    return one.log == other.log and (
        one.sequencer == other.sequencer or ALL in (one.sequencer, other.sequencer)
    )
