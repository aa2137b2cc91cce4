"""Configurations of queries in one session, whose hints lie beside each other."""

from __future__ import annotations

from functools import partial

from tests.simulation.configuration import Configuration
from tests.simulation.explore import Budget
from tests.simulation.processes import driver

_EMPTY = frozenset({1})
_one = partial(driver, query_id="q", leader_id="app:q", session=True, inline=1000, empty=_EMPTY)
_other = partial(driver, query_id="r", leader_id="app:r", session=True, inline=1000)
_NOT_FENCED = "done OutcomeUnknownError StoreUnavailableError"


def exhaustive() -> dict[str, Configuration]:
    """Name → what is searched to the end."""
    return {
        "runs of two queries in one session, one after the other, a fault": Configuration(
            {
                "A": _one("A", batches=1),
                "B": _other("B", batches=1),
                "A2": _one("A2", batches=3),
                "B2": _other("B2", batches=2),
            },
            Budget(0, 1),
            follows={"B": "A", "A2": "B", "B2": "A2"},
            ends=dict.fromkeys(("A", "B", "A2", "B2"), _NOT_FENCED),
        ),
        "two queries in one session, one of them is started again": Configuration(
            {
                "A": _one("A", batches=1),
                "A2": _one("A2", batches=4),
                "B": _other("B", batches=2),
            },
            Budget(0, 0),
            follows={"A2": "A", "B": "A"},
        ),
        "two queries run in one session, a fault": Configuration(
            {"A": _one("A", batches=3), "B": _other("B", batches=1)},
            Budget(0, 1),
        ),
    }
