"""The lives of drivers of stateful queries: each is killed at a random moment, and another begins.

On one machine the logs carry the checkpoints, and disks are lost. On a cluster the checkpoints are
on S3, and executors die too.
"""

from __future__ import annotations

import os
import random
import shutil
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from signal import SIGKILL
from typing import NamedTuple

import sparkwal
from faults.processes import Driver, processes, send
from faults.stateful import EAGER, PROVIDERS, QUERIES, add_files, expected
from sparkwal.checkpoints import folder
from sparkwal.options.open import open_log
from sparkwal.options.parsing import parse
from sparkwal.options.reading import SourceOptions
from sparkwal.protocol.recovery import find_head

PROGRAM = (sys.executable, "-P", "-m", "faults.stateful_driver")
MACHINES = 3
# In the last life queries fail less often.
FAILURES = 10
# When a driver is killed: soon after its start, just after a file was written, or at any time.
MOMENTS = ("start", "planned", "state", "sent", "noted", "any")
# What becomes of the disk, which is lost half of the time.
FATES = {"kept": 4, "folders lost": 3, "disk lost": 3, "backup": 2}


def choose_providers(rng: random.Random) -> dict[str, str]:
    """A provider for each query. transformWithState needs RocksDB."""
    return {
        query: rng.choice([name for name in PROVIDERS if query != "sums" or name != "hdfs"])
        for query in QUERIES
    }


class Log(NamedTuple):
    """A log with the options to read it."""

    path: str
    options: Mapping[str, str]

    def last_batch(self) -> int:
        """The last microbatch of its query; −1 without one."""
        head = find_head(open_log(parse(SourceOptions, {**self.options, "path": self.path})))
        txns = head.live.header.txns if head.live else {}
        return max((number for number, _ in txns.values()), default=-1)

    def rows(self) -> Counter[tuple[int, ...]]:
        """All of its rows.

        Raises:
            AssertionError: an object is damaged, or a part of the log is missing.
        """
        report = sparkwal.verify(self.path, **self.options)
        assert report.ok, str(report)
        found = sparkwal.Log(self.path, **self.options).to_pandas()
        return Counter(tuple(map(int, row)) for row in found.itertuples(index=False))


@dataclass
class Lives:
    """The lives of drivers, one after another. Each runs all queries.

    Attributes:
        folder: receives all files and outputs.
        providers: the provider of each query.
        logs: the folder or URL of the logs.
        options: to reach the logs.
        ahead: the files that are there at the begin of a life and not read.
        counted: what happened, and how often.
        files: the files that are there.
    """

    folder: Path
    rng: random.Random
    providers: Mapping[str, str]
    logs: str
    options: Mapping[str, str]
    ahead: int = 15
    counted: Counter[str] = field(default_factory=Counter)
    files: int = 0
    _drivers: list[Driver] = field(default_factory=list)

    def log(self, query: str) -> Log:
        """The log of a query."""
        return Log(f"{self.logs}/{query}", self.options)

    def last_driver(self) -> Driver:
        """The driver that was started last, which has no work yet."""
        if not self._drivers:
            self._start_one()
        return self._drivers[-1]

    def next_driver(self) -> Driver:
        """`last_driver`, and one more starts meanwhile."""
        driver = self.last_driver()
        self._start_one()
        return driver

    def _start_one(self) -> None:
        self._drivers.append(self.start(f"driver-{len(self._drivers)}"))

    def start(self, name: str) -> Driver:
        """Start a driver."""
        raise NotImplementedError

    def checkpoints(self, driver: Driver) -> str:
        """The folder or URL of the checkpoints."""
        raise NotImplementedError

    def add_files(self, more: int) -> None:
        """Have so many more files than queries have read."""
        # These two have no microbatch without a file.
        read = max(self.log(query).last_batch() + 1 for query in ("distinct", "sums"))
        self.files = max(self.files, read + more)
        add_files(self.folder / "in", self.files)

    def give_work(self, driver: Driver, *, all_files: bool = False) -> None:
        """Have a driver run all queries."""
        is_eager = self.rng.random() < 0.7
        driver.go(
            files=str(self.folder / "in"),
            logs=self.logs,
            checkpoints=self.checkpoints(driver),
            providers=self.providers,
            settings=EAGER if is_eager else {},
            endpoint=self.options.get("endpoint"),
            all_files=all_files,
        )

    def note(self, driver: Driver) -> None:
        """Count what a driver reported before it died."""
        lines = driver.lines()
        print(time.strftime("%T"), driver.name, *lines, sep="\n  ")
        self.counted["queries that failed"] += sum(line.startswith("failed ") for line in lines)
        self.counted["folders made from the log"] += sum(
            line.startswith("rebuilt ") and ": -1: " not in line for line in lines
        )

    def run_to_end(self, driver: Driver) -> None:
        """Read all files, and compare the rows of the logs with those that are expected.

        Raises:
            AssertionError: a query failed, or a row is missing, doubled or wrong.
        """
        self.give_work(driver, all_files=True)
        for query in QUERIES:
            driver.wait_for(partial(self._is_done, driver, query), f"{query} ends")
        driver.finish()
        self.note(driver)
        for query in QUERIES:
            found, wanted = self.log(query).rows(), expected(query, self.files)
            wrong = {"lost": wanted - found, "too many": found - wanted}
            assert not any(wrong.values()), f"{query}, {self.providers[query]}: {wrong}"
            self.counted[f"rows of {query}"] = found.total()

    def _is_done(self, driver: Driver, query: str) -> bool:
        """Whether a query has read all files.

        Raises:
            AssertionError: sparkwal stopped a query, or one fails again and again.
        """
        failures = driver.failures()
        # On a busy machine Spark waits in vain for its own processes.
        assert len(failures) < FAILURES and "sparkwal.errors" not in "".join(failures), failures
        return f"done {query}" in driver.lines()

    def end_others(self, last: Driver) -> None:
        """End what is left of all drivers but one."""
        for driver in self._drivers:
            if driver is not last:
                driver.end()

    def close(self) -> None:
        """End all drivers."""
        for driver in self._drivers:
            driver.end()


class Machine(NamedTuple):
    """The disk of a machine that runs drivers: checkpoints, and what sparkwal notes."""

    path: Path

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def notes(self) -> Path:
        """Where $XDG_STATE_HOME is."""
        return self.path / "state"

    @property
    def temporary(self) -> Path:
        return self.path / "tmp"

    def lose_folders(self, queries: Sequence[str]) -> None:
        for query in queries:
            shutil.rmtree(self.checkpoints / query, ignore_errors=True)

    def lose_disk(self) -> None:
        shutil.rmtree(self.checkpoints, ignore_errors=True)
        shutil.rmtree(self.notes, ignore_errors=True)
        # The next driver may have begun to use the rest of the folder.
        for hints in self.temporary.glob("sparkwal-*"):
            shutil.rmtree(hints, ignore_errors=True)

    def back_up(self, query: str) -> None:
        if (self.checkpoints / query).is_dir():
            shutil.rmtree(self._backup(query), ignore_errors=True)
            shutil.copytree(self.checkpoints / query, self._backup(query))

    def restore(self, query: str) -> bool:
        """Replace a checkpoint by its backup. False without one."""
        if not self._backup(query).is_dir():
            return False
        self.lose_folders([query])
        shutil.copytree(self._backup(query), self.checkpoints / query)
        return True

    def _backup(self, query: str) -> Path:
        return self.path / "backup" / query


def _names(place: Path) -> set[str]:
    return {name for _, _, names in os.walk(place) for name in names}


class LivesOnMachines(Lives):
    """Drivers with a local master. Any of a few machines runs the next one."""

    def start(self, name: str) -> Driver:
        machine = self._random_machine()
        environment = {**os.environ, "XDG_STATE_HOME": str(machine.notes)}
        return Driver(
            name,
            self.folder,
            temporary=machine.temporary,
            environment=environment,
            program=PROGRAM,
        )

    def checkpoints(self, driver: Driver) -> str:
        return str(self._machine(driver).checkpoints)

    def kill_next(self) -> None:
        """A life of a driver, up to its death and the fate of its disk."""
        driver = self.next_driver()
        machine = self._machine(driver)
        self.add_files(self.ahead)
        self.give_work(driver)
        self._wait_for_moment(driver, machine)
        is_machine_alive = self.rng.random() < 0.2
        driver.kill(orphans=is_machine_alive)
        self.counted["kills"] += 1
        self.note(driver)
        self._note_progress(machine)
        if is_machine_alive:
            # Spark's Python workers live on for a moment.
            self.counted["of a JVM alone"] += 1
        else:
            driver.end()
            self._befall(machine)

    def finish(self) -> None:
        """Read all files, and after the loss of all disks some more."""
        driver = self.last_driver()
        self.end_others(driver)
        self.run_to_end(driver)
        for number in range(MACHINES):
            Machine(self.folder / f"machine-{number}").lose_disk()
        self.add_files(3)
        self.run_to_end(driver)

    def _random_machine(self) -> Machine:
        return Machine(self.folder / f"machine-{self.rng.randrange(MACHINES)}")

    def _machine(self, driver: Driver) -> Machine:
        return Machine(driver.temporary.parent)

    def _wait_for_moment(self, driver: Driver, machine: Machine) -> None:
        moment = self.rng.choice(MOMENTS)
        self.counted[f"killed at: {moment}"] += 1
        query = self.rng.choice([*QUERIES])
        if moment == "start":
            time.sleep(self.rng.uniform(0, 4))
            return
        driver.wait_line(f"started {query}")
        if moment == "any":
            time.sleep(self.rng.uniform(0, 8))
            return
        place = machine.checkpoints / query
        looks: dict[str, Callable[[], object]] = {
            "planned": lambda: folder.latest(place, "offsets"),
            "state": lambda: _names(place / "state/0/0"),
            "sent": lambda: _names(Path(self.log(query).path) / "batches"),
            "noted": lambda: folder.latest(place, "commits"),
        }
        look = looks[moment]
        for _ in range(self.rng.randint(1, 6)):
            before = look()
            deadline = time.monotonic() + 20
            while look() == before and time.monotonic() < deadline:
                time.sleep(0.001)
        if self.rng.random() < 0.4:
            time.sleep(self.rng.uniform(0, 0.05))

    def _note_progress(self, machine: Machine) -> None:
        for query in QUERIES:
            place, last = machine.checkpoints / query, self.log(query).last_batch()
            planned, noted = (folder.latest(place, kind) for kind in ("offsets", "commits"))
            self.counted["microbatches planned, not in the log"] += 0 <= last < planned
            self.counted["microbatches in the log, not noted"] += noted < last == planned

    def _befall(self, machine: Machine) -> None:
        (fate,) = self.rng.choices([*FATES], [*FATES.values()])
        for query in QUERIES:
            if self.rng.random() < 0.2:
                machine.back_up(query)
        some = self.rng.sample([*QUERIES], self.rng.randint(1, len(QUERIES)))
        if fate == "disk lost":
            machine.lose_disk()
        if fate == "folders lost":
            machine.lose_folders(some)
        if fate == "backup" and not any([machine.restore(query) for query in some]):
            fate = "kept"
        self.counted[f"disk: {fate}"] += 1


@dataclass
class LivesOnCluster(Lives):
    """Drivers whose executors are processes of a standalone cluster.

    Attributes:
        url: the URL of the checkpoints.
        settings: settings of Spark, with the master.
        environment: the environment of the drivers.
    """

    url: str = ""
    settings: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)

    def start(self, name: str) -> Driver:
        settings = [
            word
            for setting, value in self.settings.items()
            for word in ("--conf", f"{setting}={value}")
        ]
        return Driver(
            name,
            self.folder,
            *settings,
            environment={**os.environ, **self.environment},
            program=PROGRAM,
        )

    def checkpoints(self, driver: Driver) -> str:
        return self.url

    def kill_next(self) -> None:
        """A life of a driver, in which executors die before it."""
        driver = self.next_driver()
        self.add_files(self.ahead)
        self.give_work(driver)
        if self.rng.random() < 0.7:
            driver.wait_line("started sums")
        for _ in range(self.rng.randint(0, 3)):
            time.sleep(self.rng.uniform(0.5, 8))
            executors = self._executors(driver)
            self.counted["kills of executors"] += bool(executors) and send(
                self.rng.choice(executors), SIGKILL
            )
        time.sleep(self.rng.uniform(0, 8))
        driver.end()
        self.counted["kills of drivers"] += 1
        self.note(driver)

    def finish(self) -> None:
        """Read all files."""
        driver = self.last_driver()
        self.end_others(driver)
        self.add_files(3)
        self.run_to_end(driver)

    def _executors(self, driver: Driver) -> list[int]:
        # Its options name the folder of its driver.
        mine = f"-Djava.io.tmpdir={driver.temporary} "
        return [
            process.pid
            for process in processes()
            if "CoarseGrainedExecutorBackend" in process.command and mine in process.command
        ]
