"""The world of the simulation distinguishes what behaves differently, its threads what waits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest

from sparkwal.appender import sender as library
from tests.simulation import oracle
from tests.simulation.codec import searching
from tests.simulation.machine import Ask, Machine, Process, Stuck
from tests.simulation.processes import appender, driver, reader, straggler
from tests.simulation.world import Call, State, apply


@pytest.fixture(autouse=True)
def _searching() -> Iterator[None]:
    with searching():
        yield


@dataclass
class UndisturbedRun:
    """A process that nothing disturbed: the world after it, what it asked for, and its end."""

    state: State
    calls: list[Call]
    outcome: str | None


def run(process: Process, state: State) -> UndisturbedRun:
    machine, calls = Machine(process), []
    while machine.calls:
        thread = min(machine.calls)
        calls.append(machine.calls[thread])
        state, answer = apply(state, machine.calls[thread])
        machine.answer(thread, answer)
    return UndisturbedRun(state, calls, machine.outcome)


def test_worlds_in_which_a_straggler_would_put_other_objects_are_not_taken_for_one() -> None:
    first, second = (run(driver(name, "q", 1), State()).state for name in "AB")
    # All else alike: a straggler takes nothing but the plan.
    second = replace(first, plan=second.plan)
    empty = [replace(state, objects={}, contents=frozenset()) for state in (first, second)]
    assert run(straggler(0), empty[0]).calls != run(straggler(0), empty[1]).calls
    assert first.key() != second.key()


def test_seals_are_put_in_any_order() -> None:
    state = run(appender("A", "p", 1, 3), State()).state
    machine = Machine(appender("B", "q", 0, 1))
    while len(machine.calls) == 1:
        thread = min(machine.calls)
        state, answer = apply(state, machine.calls[thread])
        machine.answer(thread, answer)
    assert {call.operation for call in machine.calls.values()} <= {"put", "get_range"}
    assert len(machine.calls) == 2
    machine.close()


def test_a_reader_gets_the_commits_of_the_time_when_it_listed() -> None:
    state = run(driver("A", "q", 2), State()).state
    now = oracle.committed(state)
    assert len(now) == 2
    oracle.check_reading(str(run(reader(), state).outcome), now)
    with pytest.raises(oracle.Violation, match="a reader saw"):
        oracle.check_reading(f"read {(0, now, [])!r}", now)


def test_a_process_that_waits_for_itself_is_found_out() -> None:
    def process(ask: Ask) -> str:
        lock = library.threading.Lock()
        with lock, lock:
            return "done"

    with pytest.raises(Stuck):
        Machine(process)
