"""The mutations of what the queries of one session learn of each other."""

from __future__ import annotations

from tests.simulation.mutation import Mutation

_AGAIN = "two queries in one session, one of them is started again"

MUTATIONS = [
    Mutation(
        "fenced-run-stops",
        _AGAIN,
        "protocol/plan.py",
        "        if not hint.is_pending and not hints.has_ended(hint.run_id):\n",
        "        if False:\n",
    ),
    Mutation(
        "note-gets-run",
        _AGAIN,
        "protocol/plan.py",
        "    elif isinstance(hint, Fenced) and hint.is_pending:\n",
        "    elif False:\n",
    ),
    Mutation(
        "hint-names-run",
        _AGAIN,
        "protocol/plan.py",
        "Committed(leadership, checked_by, run_id, ",
        "Committed(leadership, checked_by, checked_by, ",
    ),
    Mutation(
        "ended-run-not-fenced",
        "runs of two queries in one session, one after the other, a fault",
        "protocol/plan.py",
        "        if not hint.is_pending and not hints.has_ended(hint.run_id):\n",
        "        if not hint.is_pending:\n",
    ),
]
