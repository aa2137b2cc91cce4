"""As `again_runs`, with a real table: rows of several logs, also by keys, and a model of them.

By keys the row with the greatest sequence wins among those that do not wait. All sequences differ,
and come in any order.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyiceberg.exceptions import CommitStateUnknownException

import sparkwal
from sparkwal.errors import SparkWalError
from sparkwal.lifecycle.cycle import Run
from tests.cli.logs import ran
from tests.lifecycle.iceberg_table import Died, IcebergLake, failing, meanwhile
from tests.lifecycle.test_iceberg_refused import LONG

SCHEMA = pa.schema([("id", pa.int64()), ("n", pa.int64()), ("v", pa.string())])
NAMES = ("default", "a", "b")
KEYED: dict[str, Any] = {"keys": ["id"], "sequence_by": "n"}
DELETES = ("v = 'gone'", "v = 'gone' OR v = 'away'")
GONE = ("gone", "away")


class IcebergRuns:
    """One random run.

    Args:
        seed: that of the run.
        folder: an empty folder.
        table: the table's URL.
        is_keyed: the table has keys.
    """

    def __init__(self, seed: int, folder: Path, table: str, *, is_keyed: bool) -> None:
        self.rng = random.Random(seed)
        self.lake = IcebergLake(folder, table=table, schema=SCHEMA)
        self.is_keyed = is_keyed
        self.horizon = self.rng.choice(["0ms", "1h", "7d"])
        self.delete_when = DELETES[0]
        self.refuses = False
        self.sequences = [*range(1000)]
        self.rng.shuffle(self.sequences)
        self.written: list[dict[str, Any]] = []
        self.done: list[str] = []
        for name in NAMES:
            self._write(name, may_refuse=False)
        self._life().run_all(whole=True)
        self._toggle()

    def round(self) -> None:
        """Rows come, go into the table, and those that it refused are written again."""
        for work, share in (
            (self._write, 0.9),
            (self._write, 0.9),
            (self._compact, 0.7),
            (self._change, 0.2),
            (self._again, 0.9),
        ):
            if work == self._again and self.rng.random() < 0.8:
                self._alive(self._compact)
            if self.rng.random() < share:
                self._step(work)

    def _step(self, work: Callable[[], object]) -> None:
        """Something happens, and a process may die of it."""
        self.done.append(work.__name__)
        if work == self._again and self.refuses and self.rng.random() < 0.8:
            self._toggle()
        with ExitStack() as stack:
            kind = self.rng.choice(["lives", "lives", "dies", "dies after", "no answer", "beside"])
            if work == self._write:
                kind = "lives"
            self.done.append(kind)
            nth = self.rng.randint(0, 14)
            if kind == "beside":
                other = self.rng.choice([self._write, self._compact, self._again])
                self.done.append(other.__name__)
                stack.enter_context(meanwhile(lambda: self._alive(other)))
            elif kind != "lives":
                error: Callable[[], BaseException] = Died
                if kind == "no answer":
                    error = lambda: CommitStateUnknownException("lost")  # noqa: E731
                stack.enter_context(failing(nth, error, after=kind != "dies"))
            with suppress(Died, SparkWalError):
                work()
        if not self.refuses and self.rng.random() < 0.8:
            self._toggle()

    def _alive(self, work: Callable[[], object]) -> None:
        with suppress(SparkWalError):
            work()

    def settle(self) -> None:
        """All processes live, and the table takes what is still in the logs."""
        if self.refuses:
            self._toggle()
        for name in NAMES:
            # A log that waits is tried at once by a run of it alone.
            with suppress(SparkWalError):
                self._life(name).run_once(whole=True)
        results = self._life().run_all(whole=True)
        assert all(isinstance(run, Run) for run in results.values()), (self.done, results)

    def check(self) -> None:
        """Each row is in the table, or a later one of its key is, or it waits."""
        lines = ran("refused", self.lake.path, "--all", "--json", "--limit", "9999").splitlines()
        waiting = [json.loads(json.loads(line)["values"])["n"] for line in lines]
        rows = sorted(row["n"] for row in self.lake.found())
        about = (self.done, self.horizon, rows, waiting)
        assert len({*waiting}) == len(waiting), about
        landed = [row for row in self.written if row["n"] not in waiting]
        if not self.is_keyed:
            assert rows == sorted(row["n"] for row in landed), about
            return
        for key in {row["id"] for row in self.written}:
            of_key = {row["n"]: row["v"] for row in landed if row["id"] == key}
            found = [row["n"] for row in self.lake.found() if row["id"] == key]
            assert len(found) <= 1 and {*found} <= {*of_key}, about
            if self.horizon == "0ms" and {*GONE} & {*of_key.values()}:
                # Without the sequences of deletes a late row brings its key back.
                continue
            last = max(of_key) if of_key else None
            is_gone = last is None or of_key[last] == "gone"
            if last is not None and of_key[last] == "away":
                # What that means depends on when it came.
                continue
            assert found == ([] if is_gone else [last]), about

    def _life(self, name: str = "default", **others: Any) -> sparkwal.Lifecycle:
        target: dict[str, Any] = {}
        if self.is_keyed:
            target = {**KEYED, "delete_when": self.delete_when, "tombstoneHorizon": self.horizon}
        return sparkwal.Lifecycle(
            self.lake.path,
            table=self.lake.target.table,
            sequencer=name,
            refusedRows="aside",
            **{**target, **others},
        )

    def _write(self, name: str = "", *, may_refuse: bool = True) -> None:
        rows = []
        for _ in range(self.rng.randint(1, 4)):
            n = self.sequences.pop()
            kinds = ["ok", "ok", *([f"{n:04}{LONG}"] * 3 if may_refuse else ()), "gone"]
            rows.append({"id": self.rng.randint(0, 3), "n": n, "v": self.rng.choice(kinds)})
        with sparkwal.Appender(
            self.lake.path, SCHEMA, producer_id="p", sequencer=name or self.rng.choice(NAMES)
        ) as wal:
            wal.append(rows).result()
        self.written += rows

    def _toggle(self) -> None:
        """The table takes long values from now on, or refuses them."""
        self.refuses = not self.refuses
        with self.lake.iceberg().update_spec() as change:
            if self.refuses:
                change.add_identity("v")
            else:
                change.remove_field("v")

    def _compact(self) -> None:
        self._life().run_all(whole=True)

    def _again(self) -> None:
        names = [*NAMES]
        self.rng.shuffle(names)
        for name in names:
            self._life(name).refused_again()

    def _change(self) -> None:
        """A real change of the target, if it has a condition."""
        if not self.is_keyed:
            return
        before = self.delete_when
        self.delete_when = self.rng.choice(DELETES)
        try:
            self._life().change_target()
        finally:
            target = self.lake.head().target
            self.delete_when = target.delete_when if target else before


def run(seed: int, folder: Path, table: str, *, is_keyed: bool, rounds: int = 5) -> IcebergRuns:
    """One random run, settled and checked."""
    runs = IcebergRuns(seed, folder, table, is_keyed=is_keyed)
    for _ in range(rounds):
        runs.round()
    runs.settle()
    runs.check()
    return runs
