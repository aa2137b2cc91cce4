"""Who sends numbers to a registry already."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

from sparkwal.errors import OptionError
from sparkwal.metrics.prometheus import Prometheus
from sparkwal.metrics.table import ALL, METRICS, Labels

T = TypeVar("T")


def begin(meter: Prometheus, labels: Labels, source: str) -> None:
    """All that this source counts is there, at 0."""
    for metric in METRICS:
        if metric.kind == "counter" and source in metric.sources and not metric.more:
            meter.add(metric, 0, *labels)


# Reentrant: what starts may start something itself.
_lock = threading.RLock()
_running: dict[tuple[Prometheus, Hashable], Any] = {}


def _forked() -> None:
    # A thread that is not here may have held it, and what ran does not run here.
    global _lock
    _lock = threading.RLock()
    _running.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


def once(meter: Prometheus, key: Hashable, start: Callable[[], T]) -> T:
    """What `start` returned the first time for this meter and key, in this process."""
    with _lock:
        if (meter, key) not in _running:
            _running[meter, key] = start()
        found: T = _running[meter, key]
        return found


def ended(meter: Prometheus, key: Hashable) -> None:
    """`once` may start it again."""
    with _lock:
        _running.pop((meter, key), None)


def refuse_twice(meter: Prometheus, labels: Labels, other: str, *, but: Hashable = None) -> None:
    """Raises OptionError where the source `other` counts commits of this log already, by another
    key of `once` than `but`."""
    with _lock:
        taken = any(
            known is meter and key != but and isinstance(key, tuple) and key[0] == other
            and _meet(labels, key[1])
            for known, key in _running
        )  # fmt: skip
    if taken:
        raise OptionError(
            f"the commits of {labels.log} are counted here already, by its {other}: leave one of "
            "the two out"
        )


def _meet(one: Labels, other: Labels) -> bool:
    return one.log == other.log and (
        one.sequencer == other.sequencer or ALL in (one.sequencer, other.sequencer)
    )
