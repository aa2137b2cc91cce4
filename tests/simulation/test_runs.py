"""Seeded runs with many lives, many faults and clocks that jump; a failure names its seed."""

from __future__ import annotations

import os
from collections import Counter

import pytest

from tests.simulation.runs import Run, Shape

FIRST_SEED = int(os.environ.get("SPARKWAL_SEED", "0"))
SHAPES = {
    "two queries, objects": Shape(),
    "one query, rows inlined": Shape(queries=1, inline=1000),
    "two producers": Shape(queries=0, producers=2, batches=10, lives=16, crash=0.04, fault=0.15),
    "two producers and a query": Shape(queries=1, producers=2, lives=14, crash=0.03, fault=0.1),
    "three queries and two producers, every leader archives": Shape(
        queries=3, producers=2, batches=4, lives=20, crash=0.03, fault=0.1, entries=(1, 1)
    ),
    "a storm": Shape(lives=16, crash=0.05, fault=0.15, stall=0.05, clock=0.2),
}


@pytest.mark.parametrize("seeds", [20, pytest.param(200, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", SHAPES)
def test_seeded_runs_keep_every_promise(
    name: str, seeds: int, capsys: pytest.CaptureFixture[str]
) -> None:
    steps, outcomes = 0, Counter[str]()
    for seed in range(FIRST_SEED, FIRST_SEED + seeds):
        run = Run(seed, SHAPES[name])
        run.run()
        steps += run.steps
        outcomes.update(outcome.split()[0] for outcome in run.outcomes)
    with capsys.disabled():
        reported = ", ".join(f"{kind} {count}" for kind, count in outcomes.most_common())
        print(f"\n  {name}: seeds from {FIRST_SEED}, {steps:,} steps; {reported}")
    assert outcomes["FencedError"]


def test_a_seed_repeats_its_run() -> None:
    first, second = Run(7, Shape()), Run(7, Shape())
    first.run()
    second.run()
    assert first.trace == second.trace
