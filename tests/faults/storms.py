"""The faults of a store, as rules of the fault proxy."""

from __future__ import annotations

import random

from sparkwal.testing.proxy import Fault


def calm() -> list[Fault]:
    """No fault."""
    return []


def overload(p: float) -> list[Fault]:
    """Refusals: slow down, conflict, too many, internal error."""
    return [Fault("error", probability=p / 3, status=status) for status in (503, 409, 429, 500)]


def lost_replies(p: float) -> list[Fault]:
    """Writes that take effect and are not answered."""
    return [Fault("lost_reply", kind="PUT", probability=p), Fault("lost_reply", probability=p / 4)]


def late_errors(p: float) -> list[Fault]:
    """Requests that take effect and are answered with an error, sooner or later."""
    return [
        Fault("error_after", probability=p / 2, status=500),
        Fault("error_after", probability=p / 2, status=503, seconds=0.2),
    ]


def resets(p: float) -> list[Fault]:
    """Connections that break within the request, or within the answer."""
    return [Fault("reset", probability=p), Fault("truncate", kind="GET", probability=p)]


def slowness(p: float) -> list[Fault]:
    """Answers that take their time, some of them for nothing."""
    return [
        Fault("delay", probability=p / 2, seconds=0.3),
        Fault("lost_reply", probability=p / 2, seconds=0.3),
    ]


def stalls(p: float) -> list[Fault]:
    """Requests that are held, before they take effect or after, far beyond what is usual."""
    return [Fault(action, probability=p / 50, seconds=10) for action in ("delay", "stall")]


def everything(p: float) -> list[Fault]:
    """A little of all."""
    kinds = (overload, lost_replies, late_errors, resets, slowness, stalls)
    return [fault for kind in kinds for fault in kind(p / 4)]


def storm(rng: random.Random) -> list[Fault]:
    """One of them, hard enough that two of three requests may fail."""
    kinds = [
        overload,
        lost_replies,
        late_errors,
        resets,
        slowness,
        stalls,
        everything,
        everything,
    ]
    if rng.random() < 0.1:
        return calm()
    return rng.choice(kinds)(rng.uniform(0.5, 0.75))
