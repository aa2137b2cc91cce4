"""Leaders that archive: with room for one query in the records, every leader does."""

from __future__ import annotations

from dataclasses import replace

from tests.simulation.codec import searching
from tests.simulation.configuration import Configuration, archiving
from tests.simulation.explore import Budget
from tests.simulation.machine import Machine, Process
from tests.simulation.processes import appender, driver, straggler
from tests.simulation.world import State, apply

_ONE = (1, 1)


def exhaustive() -> dict[str, Configuration]:
    """Name → what is searched to the end."""
    return {
        "two leaders archive, a crash and a lost reply": Configuration(
            {"A": driver("A", "a", 2, inline=1000), "B": driver("B", "b", 2, inline=1000)},
            Budget(1, 1),
            begin=_long_ago,
            entries=_ONE,
        ),
        "two leaders archive, the store keeps a part": Configuration(
            {"A": driver("A", "a", 1, inline=1000), "B": driver("B", "b", 2, inline=1000)},
            Budget(parts=1),
            begin=_long_ago,
            entries=_ONE,
        ),
        "two leaders archive, a crash, a straggler": Configuration(
            {"A": driver("A", "a", 1), "B": driver("B", "n", 1), "T": straggler(0)},
            Budget(1, 0),
            begin=_long_ago,
            entries=_ONE,
        ),
        "a query of the archive comes back and is archived again": Configuration(
            {
                "A": driver("A", "a", 2, inline=1000),
                "B": driver("B", "n", 1, inline=1000),
                "C": driver("C", "a", 2, inline=1000),
            },
            Budget(1, 0),
            begin=_long_ago,
            # C is the first to archive: "a" is in the archive and, newer, in the head.
            entries=(3, 1),
            follows={"C": "B"},
        ),
        "a producer of the archive, a leader that archives, a lost reply": Configuration(
            {"A": appender("A", "a", 3, 2), "B": driver("B", "n", 1, inline=1000)},
            Budget(0, 1),
            begin=_long_ago,
            entries=_ONE,
        ),
        # Room for all: the archive of others is inherited.
        "leaders that have nothing to archive, a crash": Configuration(
            {
                "A": driver("A", "b", 2, inline=1000),
                "B": appender("B", "c", 2, 2),
                "C": driver("C", "a", 1, inline=1000),
            },
            Budget(1, 0),
            begin=_long_ago,
            entries=(9, 9),
            follows={"C": "B"},
        ),
    }


def _long_ago() -> State:
    """A log with a microbatch of each of three queries, whose checkpoints are lost: "a" is in the
    archive, "b" and "c" in the head."""
    state = State()
    with searching(), archiving(_ONE):
        for name in "abc":
            state = _ended(driver(f"old-{name}", name, 1, inline=1000), state)
            state = replace(state, now_ms=state.now_ms + 1)
    return replace(state, hints={}, checkpoint={}, plan=-1)


def _ended(process: Process, state: State) -> State:
    machine = Machine(process)
    while machine.calls:
        thread, call = min(machine.calls.items())
        state, answer = apply(state, call)
        machine.answer(thread, answer)
    assert machine.outcome == "done", machine.outcome
    return state
