"""Random runs of logs whose refused rows step aside and are written again, and a model of them.

The model knows which rows were written, which of them are in the table, and which wait: each row is
in exactly one of the two, whichever process dies where.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from sparkwal.errors import SparkWalError
from sparkwal.lifecycle.policy import Policy
from sparkwal.protocol.chain import newest_record
from tests.lifecycle.table import Died, ModelTable
from tests.lifecycle.test_again import Mended
from tests.lifecycle.test_coordinator import Mortal

NAMES = ("default", "a", "b")
STEPS = ("look", "find", "aside", "went aside", "write", "written", "remove", "burn", "burned")
_ALONE = Policy(late_window_seconds=0)


class Runs:
    """One random run.

    Args:
        seed: that of the run.
    """

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.lives = Mended()
        self.done: list[str] = []
        for name in NAMES:
            self.lives.write(name)
        self.lives.process().run_all()

    def step(self) -> None:
        """Something happens, and a process may die of it."""
        work = self.rng.choice(
            [self._write] * 5
            + [self._compact] * 8
            + [self._again] * 6
            + [self._mend, self._give_up, self._change, self._move]
        )
        self.done.append(work.__name__)
        with suppress(Died, SparkWalError):
            work()
        self.lives.table.before = lambda step: None

    def settle(self) -> None:
        """All processes live, and the table takes what it takes."""
        lives = self.lives
        for _ in range(3):
            lives.later(3_700_000)
            for name in NAMES:
                lives.process(name=name).recover()
            lives.process().run_all()

    def check(self) -> None:
        """Each row is in the table, or waits, once."""
        lives = self.lives
        found = sorted([*lives.rows, *lives.aside])
        assert found == lives.written, (self.done, lives.rows, lives.aside)
        record = newest_record(lives.root)
        if record is not None:
            assert sum(log.rows_aside for log in record.logs.values()) == len(lives.aside)

    def _write(self) -> None:
        """Write rows, of which the table refuses some."""
        lives, before = self.lives, len(self.lives.written)
        lives.write(self.rng.choice(NAMES), self.rng.randint(1, 4))
        lives.table.refuses |= {x for x in lives.written[before:] if self.rng.random() < 0.4}

    def _refuse(self) -> None:
        """The table refuses more rows than before, also of those that wait."""
        waiting = [row for row in self.lives.written if row not in self.lives.rows]
        self.lives.table.refuses |= {*self.rng.sample(waiting, min(len(waiting), 2))}

    def _mend(self) -> None:
        """The table takes some of the rows that wait from now on."""
        waiting = sorted({*self.lives.aside})
        self.lives.table.refuses -= {*self.rng.sample(waiting, self.rng.randint(0, len(waiting)))}

    def _compact(self) -> None:
        policy = {"policy": _ALONE} if self.rng.random() < 0.1 else {}
        self._dying(lambda store: self.lives.process(store, **policy).run_all())

    def _again(self) -> None:
        if self.rng.random() < 0.7:
            self._mend()
        name = self.rng.choice(NAMES)
        self._dying(lambda store: self.lives.process(store, name=name).refused_again())

    def _give_up(self) -> None:
        self.lives.process(name=self.rng.choice(NAMES)).give_up_range()

    def _change(self) -> None:
        """A real change of the target."""
        table = self.lives.table
        former = table.target
        table.target = replace(former, cluster_by=(self.rng.choice("vwx"),))
        try:
            self.lives.process().change_target()
        except BaseException:
            record = newest_record(self.lives.root)
            kept = record.tables.get(former.table) if record else None
            table.target = kept.target if kept else former
            raise

    def _move(self) -> None:
        """The table goes to another place with the rows that it refused, and is accepted there."""
        lives, old = self.lives, self.lives.table
        record = newest_record(lives.root)
        if record is None or old.target.table not in record.tables:
            return
        number = int(old.target.table.rpartition("-")[2]) if "-" in old.target.table else 0
        moved = ModelTable(lives.root, replace(old.target, table=f"memory://table-{number + 1}"))
        moved.versions, moved.table_id, moved.refuses = old.versions, old.table_id, old.refuses
        moved.refused.versions, moved._columns = old.refused.versions, old._columns
        lives.table = moved
        name = next(name for name, log in record.logs.items() if log.table == old.target.table)
        lives.process(name=name).accept_table()

    def _dying(self, work: Callable[[object], object]) -> None:
        """Do work that may die at a call of the store or the table, or beside another process."""
        lives, rng = self.lives, self.rng
        kind = rng.choice(["lives", "lives", "store", "table", "beside", "beside"])
        nth = rng.randint(1, 25 if kind == "store" else 3)
        if kind == "store":
            work(Mortal(lives.store, nth, rng.random() < 0.5))
            return
        step = rng.choice(STEPS)
        others = [self._write, self._refuse, self._mend, self._compact, self._again, self._give_up]
        other = rng.choice(others)
        count = 0

        def before(now: str) -> None:
            nonlocal count
            count += now == step
            if now != step or count != nth:
                return
            if kind == "table":
                raise Died
            if kind == "beside":
                lives.table.before = lambda step: None
                self.done.append(f"beside at {step}: {other.__name__}")
                with suppress(Died, SparkWalError):
                    other()

        lives.table.before = before
        work(None)


def run(seed: int, steps: int = 40) -> Runs:
    """One random run, settled and checked."""
    runs = Runs(seed)
    for _ in range(steps):
        runs.step()
    runs.settle()
    runs.check()
    return runs
