"""Logs whose rows go to a table and leave the log."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from .codec import searching
from .compacting import GRACE_MS, collector, compactor, hours, others, outsider
from .configuration import Configuration, keeping
from .explore import Budget
from .lake import undisturbed
from .machine import Process
from .processes import appender, driver
from .world import Call, State, apply

_STILL = "batches", "consumers"
_PAST = GRACE_MS + 1


# One that may die, and one that comes after.
_ONE_AND_THE_NEXT = {"A": compactor("A"), "B": compactor("B")}


def exhaustive() -> dict[str, Configuration]:
    """Name → what is searched to the end."""
    return {
        "two compactors, a crash": Configuration(
            {"A": compactor("A"), "B": compactor("B", runs=2)},
            Budget(1, 0),
            begin=lambda: _written(1),
            still=_STILL,
        ),
        "a compactor takes over, a fault": Configuration(
            _ONE_AND_THE_NEXT,
            Budget(1, 1),
            begin=lambda: _compacted(1, 1),
            follows={"B": "A"},
            still=_STILL,
        ),
        "a compactor, a writer, a crash": Configuration(
            {"A": compactor("A", runs=2), "W": driver("X", "q", 3, inline=1000)},
            Budget(1, 0),
            begin=lambda: _written(1),
            still=("consumers",),
        ),
        "a compactor takes over, OPTIMIZE": Configuration(
            {**_ONE_AND_THE_NEXT, "O": outsider(Call("optimize"))},
            Budget(1, 0),
            begin=lambda: _compacted(1, 1),
            follows={"B": "A"},
            still=_STILL,
        ),
        "a compactor takes over, the table forgets": Configuration(
            {**_ONE_AND_THE_NEXT, "O": outsider(Call("forget"))},
            Budget(1, 0),
            begin=lambda: _compacted(1, 1),
            follows={"B": "A"},
            still=_STILL,
        ),
        "a compactor takes over, the table is made again": Configuration(
            {**_ONE_AND_THE_NEXT, "O": outsider(Call("table_make_again"))},
            Budget(1, 0),
            begin=lambda: _compacted(1, 1),
            follows={"B": "A"},
            still=_STILL,
        ),
        "a compactor takes over, the table is restored": Configuration(
            {**_ONE_AND_THE_NEXT, "O": outsider(Call("restore", (0,)))},
            Budget(1, 0),
            begin=lambda: _collectable(3, 1),
            follows={"B": "A"},
            still=("consumers",),
            deletes=True,
            kept=2,
        ),
        "a collector with an old view, a compactor, a crash": Configuration(
            {"A": compactor("A"), "C": collector("C")},
            Budget(1, 0),
            begin=lambda: _collectable(3, 1),
            still=("consumers",),
            deletes=True,
            kept=2,
        ),
        "a collection and a writer": Configuration(
            {"C": compactor("C"), "W": driver("X", "q", 6, inline=1000)},
            Budget(1, 0),
            begin=lambda: _collectable(4, 0),
            still=("consumers",),
            deletes=True,
            kept=2,
        ),
        "a log that is made again": Configuration(
            {
                "A": compactor("A"),
                "R": outsider(Call("make_log_again")),
                "W": driver("X", "q", 4, inline=1000),
            },
            begin=lambda: _compacted(1, 1),
            follows={"W": "R"},
            still=("consumers",),
            deletes=True,
        ),
        # Who makes a log again while it is collected may lose what he writes: section 10.
        "a log that is made again before it is collected": Configuration(
            {
                "R": outsider(Call("make_log_again")),
                "W": driver("X", "q", 6, inline=1000),
                "A": compactor("A"),
                "C": collector("C"),
            },
            begin=lambda: _collectable(4, 0),
            follows={"W": "R", "A": "R", "C": "R"},
            still=("consumers",),
            deletes=True,
            kept=2,
        ),
        "a zombie's slot is collected": Configuration(
            {
                "Z": driver("Z", "z", 1, inline=1000),
                "O": others(
                    driver("X", "q", 4, inline=1000), compactor("A"), hours(_PAST), compactor("C")
                ),
            },
            begin=lambda: _written(1),
            deletes=True,
            kept=2,
        ),
        "an appender whose slot is collected": Configuration(
            {
                "Z": appender("Z", "z", 2, 1, idle=True),
                "O": others(
                    driver("X", "q", 4, inline=1000), compactor("A"), hours(_PAST), compactor("C")
                ),
            },
            begin=lambda: _written(1),
            deletes=True,
            kept=2,
        ),
        "an appender sleeps until all but the last records are collected": Configuration(
            {
                "Z": appender("Z", "z", 3, 1, idle=True),
                "O": others(compactor("A"), hours(_PAST), compactor("C")),
            },
            ends={"Z": "done"},
            begin=lambda: _written(1),
            deletes=True,
            kept=2,
        ),
    }


def large() -> dict[str, Configuration]:
    """Searched by `python -m tests.simulation.search`."""
    return {
        "two compactors, a fault": Configuration(
            {"A": compactor("A", collects=False), "B": compactor("B", collects=False)},
            Budget(0, 1),
            begin=lambda: _written(1),
            still=_STILL,
        ),
        "two compactors, the log grows": Configuration(
            {
                "A": compactor("A", collects=False),
                "B": compactor("B", collects=False),
                "O": others(driver("X", "q", 2, inline=1000)),
            },
            begin=lambda: _written(1),
            still=("consumers",),
        ),
    }


def after(processes: Iterable[Process], state: State | None = None, kept: int = 1000) -> State:
    """The world after these processes, one after the other, undisturbed."""
    state = state or State()
    with searching(), keeping(kept):
        for process in processes:
            state, _ = undisturbed(state, process)
    return state


def _compacted(batches: int, more: int) -> State:
    """A log with so many microbatches in its table, and more that are not."""
    state = after([compactor("0")], _written(batches))
    state = after([driver("V", "q", batches + more, inline=1000)], state)
    return replace(state, hints={}, plan=-1)


def _collectable(batches: int, more: int) -> State:
    """The same, and what is in the table may be collected."""
    return apply(_compacted(batches, more), Call("sleep", (_PAST,)))[0]


def _written(batches: int) -> State:
    state = after([driver("W", "q", batches, inline=1000)])
    return replace(state, hints={}, plan=-1)
