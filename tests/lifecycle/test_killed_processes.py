"""Writers of thirty logs and two coordinators that die at random requests, against a list of rows.

A seed repeats a failure: pytest -k "[17]".
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from sparkwal.format.keys import ROOT
from sparkwal.lifecycle.coordinator import Coordinator
from sparkwal.lifecycle.cycle import Run
from sparkwal.protocol.chain import newest_record
from sparkwal.protocol.hint import Hints
from tests.lifecycle.table import Died
from tests.lifecycle.test_coordinator import Mortal
from tests.lifecycle.test_many_logs import GRACE_MS, Lives
from tests.protocol.query import Query, StoppedClock

LOGS = [f"log{number:02d}" for number in range(30)]
# What the clocks of the coordinators show, beside that of the store.
APART_MS = {"ahead": 3_600_000, "behind": -3_600_000}


class Storm:
    """Processes that die and come again.

    Attributes:
        waiting: by log: the rows of the microbatch that its query commits next.
        deaths: how often a process died.
        beside: how often something happened between two steps of a coordinator.
    """

    def __init__(self, seed: int, folder: Path) -> None:
        self.random = random.Random(seed)
        self.lives = Lives()
        self.lives.table.before = self._between
        self.queries = {
            name: Query(
                self.lives.store,
                Hints(f"wal/sequencers/{name}", folder / name),
                query_id=name,
                prefix=f"wal/sequencers/{name}",
                clock=self.lives.timed.clock,
            )
            for name in LOGS
        }
        self.batches = dict.fromkeys(LOGS, 0)
        self.waiting: dict[str, tuple[int, ...]] = {}
        # With the clock, and whether it is one of all logs.
        self.processes: dict[str, tuple[Coordinator, StoppedClock, bool]] = {}
        self.rows = 0
        self.deaths = 0
        self.beside = 0
        # The coordinators that run: the second one inside a step of the first.
        self._running: list[str] = []

    def write(self, name: str, *, dies: bool) -> None:
        """Commit a microbatch. A query that died begins again with the same one."""
        if name not in self.waiting:
            count = self.random.randrange(1, 4)
            self.waiting[name] = tuple(range(self.rows, self.rows + count))
            self.rows += count
        query = self.queries[name]
        query.store = self._mortal(12) if dies else self.lives.store
        try:
            query.microbatch(self.batches[name], self.waiting[name])
        except Died:
            self.deaths += 1
            self.queries[name] = query.restarted()
            return
        self.batches[name] += 1
        self.lives.written += self.waiting.pop(name)

    def compact(self, who: str) -> None:
        """Run a coordinator, which dies at some request of this run or of a later one."""
        if who not in self.processes:
            clock = StoppedClock()
            of_all = self.random.random() < 0.7
            name = self.random.choice([name for name in LOGS if self.batches[name]] or [ROOT])
            process = self.lives.process(self._mortal(600), name=name, clock=clock)
            self.processes[who] = process, clock, of_all or name == ROOT
        process, clock, of_all = self.processes[who]
        clock.wall_ms = self.lives.timed.clock.wall_ms + APART_MS[who]
        clock.since_boot_ms = self.lives.timed.clock.since_boot_ms
        self._running.append(who)
        try:
            whole = self.random.random() < 0.3
            if of_all:
                results = process.run_all(whole=whole)
                assert all(isinstance(run, Run) for run in results.values()), results
            else:
                process.run_once(whole=whole)
        except Died:
            self.deaths += 1
            del self.processes[who]
        finally:
            self._running.pop()

    def step(self) -> None:
        self.lives.later(self.random.choice([0, 1000, 60_000, GRACE_MS // 4]))
        if self.random.random() < 0.7:
            self.write(self.random.choice(LOGS), dies=self.random.random() < 0.3)
        else:
            self.compact(self.random.choice([*APART_MS]))

    def _mortal(self, most: int) -> Mortal:
        return Mortal(self.lives.store, self.random.randrange(1, most), self.random.random() < 0.5)

    def _between(self, step: str) -> None:
        """What happens beside a coordinator that has reached a step of the table."""
        chance = self.random.random()
        if not self._running or chance > 0.3:
            return
        if chance < 0.1:
            raise Died
        self.beside += 1
        if chance < 0.2:
            self.write(self.random.choice(LOGS), dies=False)
        elif len(self._running) == 1:
            (other,) = APART_MS.keys() - {*self._running}
            self.compact(other)


@pytest.mark.parametrize(
    "seed", [*range(3), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(3, 60))]
)
def test_the_table_has_each_row_once_whoever_dies(seed: int, tmp_path: Path) -> None:
    storm = Storm(seed, tmp_path)
    for _ in range(150):
        storm.step()
    for name in [*storm.waiting]:
        storm.write(name, dies=False)
    lives = storm.lives
    lives.table.before = lambda step: None
    lives.later(2 * 3_600_000)
    lives.process().run_all(whole=True)
    assert lives.rows == sorted(lives.written) == [*range(storm.rows)]
    ranges = lives.table.ranges
    assert ranges == [*range(1, len(ranges) + 1)] and len(ranges) > 5
    assert storm.deaths > 5 and storm.beside > 0
    chain = newest_record(lives.root)
    assert chain is not None and all(log.floor <= log.cut for log in chain.logs.values())
