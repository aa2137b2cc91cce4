"""Journal, appender and store together, through what may happen to each of them; a failure names
its seed."""

from __future__ import annotations

import os
import random
from collections import Counter

import pytest

from sparkwal.journal import files
from sparkwal.journal.opening import begin
from sparkwal.journal.owner import Owner
from sparkwal.journal.scanning import scan_folder
from sparkwal.journal.settings import Settings
from sparkwal.testing.disk import MemoryFolder

from .journal_runs import SHAPES, Chance, Run

FIRST_SEED = int(os.environ.get("SPARKWAL_SEED", "0"))
SETTINGS = Settings(segment_bytes=2**16, max_bytes=2**20, slots=100)


def _runs(name: str, count: int, capsys: pytest.CaptureFixture[str]) -> None:
    steps, tickets, outcomes = 0, 0, Counter[str]()
    for seed in range(FIRST_SEED, FIRST_SEED + count):
        run = Run(seed, SHAPES[name], Chance())
        run.run()
        steps, tickets = steps + run.steps, tickets + run.ledger.tickets
        outcomes.update(run.outcomes)
    with capsys.disabled():
        told = ", ".join(f"{kind} {number}" for kind, number in outcomes.most_common())
        print(f"\n  {name}: {count} seeds from {FIRST_SEED}, {steps:,} steps; {told}")
    assert outcomes["done"] > count / 4
    assert tickets > count


@pytest.mark.parametrize("name", SHAPES)
def test_what_was_accepted_is_in_the_log_once_and_in_order(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    _runs(name, 25, capsys)


@pytest.mark.slow
@pytest.mark.parametrize("name", SHAPES)
def test_it_is_in_a_thousand_runs(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    _runs(name, 1000, capsys)


def test_a_seed_repeats_its_run() -> None:
    first, second = (Run(7, SHAPES["journal: all of it"], Chance()) for _ in range(2))
    first.run()
    second.run()
    assert first.trace == second.trace


def test_what_was_accepted_before_a_loss_of_power_is_not_cut_off_as_torn() -> None:
    """Power takes the mark, which nobody syncs; then the disk damages the last entry."""
    owner = Owner("log", "id", "producer", -1, b"schema")

    def opened(folder: MemoryFolder) -> tuple[range, int]:
        contents = scan_folder(folder, SETTINGS.largest, SETTINGS.slots, 100)
        found = begin(folder, contents, owner, SETTINGS, lambda event: None)
        if found.journal.last < 0:
            found.journal.wait(found.journal.write(b"accepted"))
        return found.lost, found.journal.last

    folder, seed = MemoryFolder(), 0
    assert opened(folder) == (range(0), 0)
    while files.read_mark(left := folder.after_crash(random.Random(seed))) != (-1, -1):
        seed += 1
    assert opened(left) == (range(0), 0)
    left = left.after_kill()
    name = files.segment_name(0)
    data = bytearray(left.bytes_of(name))
    data[-1] ^= 1
    left.put(name, bytes(data))
    assert opened(left)[0] == range(1)
