"""Checks that, without further faults, a query on any machine writes the rest of its source."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tests.simulation import oracle
from tests.simulation.machine import Machine
from tests.simulation.queries import Kind, query
from tests.simulation.world import State, apply


def all_in(kind: Kind) -> Callable[[State], None]:
    """A check that starts the query once more on each machine and on a new one.

    Raises:
        Violation: the log lacks a row of the source in the end.
    """
    seen: set[object] = set()

    def check(state: State) -> None:
        for machine in [*sorted(state.folders), "new"]:
            key = (state.contents, state.folders.get(machine), state.source, state.archived)
            if key not in seen:
                seen.add(key)
                _finish(state, machine, kind)

    return check


def _finish(state: State, machine: str, kind: Kind) -> None:
    verdict = oracle.committed(state)
    # Add a row, so that the query always has one to write.
    state = replace(state, source=state.source + 1)
    life = Machine(query("last", machine, kind))
    trace = []
    while life.calls:
        call = life.calls[0]
        trace.append(f"     last life on {machine}: {call.operation} {call.arguments[:1]}")
        state, answer = apply(state, call)
        if call.operation == "put":
            verdict = oracle.check(verdict, state)
        life.answer(0, answer)
    try:
        oracle.check_complete(state)
    except oracle.Violation as violation:
        raise oracle.Violation(
            f"{violation}: the last life on {machine!r} ended with {life.outcome}\n"
            + "\n".join(trace)
        ) from None
