"""The mutations of what the queries of one session learn of each other."""

from __future__ import annotations

from .mutation import Mutation

_AGAIN = "two queries in one session, one of them is started again"

MUTATIONS = [
    Mutation(
        "fenced-run-stops",
        _AGAIN,
        "protocol/plan.py",
        "        if hint.run_id is not None and not hints.has_ended(hint.run_id):\n",
        "        if False:\n",
    ),
    Mutation(
        "note-gets-run",
        _AGAIN,
        "protocol/plan.py",
        "    elif isinstance(hint, FencingNote) and hint.run_id is None:\n",
        "    elif False:\n",
    ),
    Mutation(
        "hint-names-run",
        _AGAIN,
        "protocol/plan.py",
        "Hint(lead, None, looked_by, run_id, ",
        "Hint(lead, None, looked_by, looked_by, ",
    ),
    Mutation(
        "ended-run-not-fenced",
        "runs of two queries in one session, one after the other, a fault",
        "protocol/plan.py",
        "        if hint.run_id is not None and not hints.has_ended(hint.run_id):\n",
        "        if hint.run_id is not None:\n",
    ),
]
