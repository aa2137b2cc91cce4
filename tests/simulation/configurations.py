"""The configurations that are searched, and the mutations that the search must catch."""

from __future__ import annotations

from dataclasses import dataclass

from sparkwal.testing.simulation.explore import Budget
from sparkwal.testing.simulation.processes import (
    TTL_MS,
    Process,
    collector,
    driver,
    reader,
    straggler,
)


def exhaustive() -> dict[str, tuple[dict[str, Process], Budget]]:
    """Name → what is searched to the end."""
    two = {"A": driver("A", "q", 1, 1), "B": driver("B", "q", 1, 1)}
    return {
        "one life, two batches, two partitions, every fault twice": (
            {"A": driver("A", "q", 2, 2)},
            Budget(1, 2),
        ),
        "two lives of one query, every fault": (two, Budget(0, 1)),
        "two lives of one query, rows inlined, every fault": (
            {name: driver(name, "q", 1, 1, inline=1000) for name in "AB"},
            Budget(0, 1),
        ),
        "two lives in one application, a crash": (
            {name: driver(name, "q", 2, 1, leader_id="app") for name in "AB"},
            Budget(1, 0),
        ),
        "two queries and a reader": (
            {"A": driver("A", "q", 1, 1), "B": driver("B", "r", 1, 1), "R": reader()},
            Budget(1, 0),
        ),
        "a straggling task behind two lives": (
            {**two, "T": straggler(0)},
            Budget(1, 0),
        ),
        "two lives, two batches, an empty one, a reader": (
            {
                "A": driver("A", "q", 2, 1, empty=frozenset({0})),
                "B": driver("B", "q", 2, 1, empty=frozenset({0})),
                "R": reader(),
            },
            Budget(1, 0),
        ),
        "a sleeper behind a collector": (
            {**two, "C": collector(GRACE_MS)},
            Budget(0, 0),
        ),
        "two queries, a straggler, a reader, a crash": (
            {
                "A": driver("A", "q", 1, 1),
                "B": driver("B", "r", 1, 1),
                "T": straggler(0),
                "R": reader(),
            },
            Budget(1, 0),
        ),
        "three lives, a crash": (
            {name: driver(name, "q", 1, 1) for name in "ABC"},
            Budget(1, 0),
        ),
    }


# Longer than a plan lives.
GRACE_MS = 2 * TTL_MS


@dataclass(frozen=True)
class Mutation:
    """One rule of the protocol, broken."""

    name: str
    file: str
    old: str
    new: str


MUTATIONS = [
    Mutation(
        "a replayed microbatch is written again",
        "protocol/task.py",
        "if batch_id <= plan.leadership.txns.get(query_id, (-1, 0))[0]:",
        "if False:",
    ),
    Mutation(
        "a record's transactions leave out its own",
        "protocol/commit.py",
        "return {**kept, query_id: (batch_id, timestamp_ms)}",
        "return kept",
    ),
    Mutation(
        "a new leader starts without the transactions of the log",
        "protocol/leadership.py",
        "txns=live.txns if live else {},",
        "txns={},",
    ),
    Mutation(
        "a refused commit counts as durable without reading back",
        "protocol/commit.py",
        "if found.header.plan_id != plan.plan_id:",
        "if False:",
    ),
    Mutation(
        "a read-back compares the leader instead of the plan",
        "protocol/commit.py",
        "if found.header.plan_id != plan.plan_id:",
        "if found.header.leader_id != plan.leadership.leader_id:",
    ),
    Mutation(
        "a leader record refused counts as ours",
        "protocol/leadership.py",
        "return found is not None and found.header.plan_id == header.plan_id",
        "return found is not None",
    ),
    Mutation(
        "a commit without an answer counts as durable",
        "protocol/commit.py",
        "        if not error.maybe_applied:\n            raise\n",
        "        return\n",
    ),
    Mutation(
        "an old claim is used without a look at the log",
        "protocol/commit.py",
        "clock.boot_ms() - plan.planned_ms >= ttl_ms",
        "False",
    ),
    Mutation(
        "records are collected before the grace is over",
        "testing/simulation/processes.py",
        'ask(Call("sleep", (grace_ms,)))',
        'ask(Call("sleep", (0,)))',
    ),
    Mutation(
        "a leader skips a position: the log has a hole",
        "protocol/leadership.py",
        "position=head.gap,",
        "position=head.gap + 1,",
    ),
    Mutation(
        "a task that finds its key taken names its own bytes instead of what is there",
        "protocol/task.py",
        "    if not created:\n",
        "    if False:\n",
    ),
    Mutation(
        "the store overwrites",
        "testing/simulation/world.py",
        "    if key in state.objects:\n        return state, False\n",
        "",
    ),
]
