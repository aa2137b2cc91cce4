"""From the restart of a killed driver to its first new commit, against a plain start."""

from __future__ import annotations

import json
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

import sparkwal
from benchmarks.measuring import BUCKET, store
from faults.evidence import Stream, gather
from faults.processes import DRIVER, Application, Driver
from sparkwal.format.header import CommitHeader
from sparkwal.testing.servers import log_options

ROWS = 1000

console = Console(stderr=True, highlight=False)


@dataclass(frozen=True)
class Place:
    """The folders of one repeat: its log, its checkpoint and the output of its applications."""

    folder: Path
    endpoint: str

    @property
    def log(self) -> str:
        return f"s3://{BUCKET}/{self.folder.name}"

    @property
    def options(self) -> dict[str, str]:
        return log_options(self.endpoint, hedge=True)

    @property
    def stream(self) -> Stream:
        return Stream(self.folder / "checkpoint", ROWS)

    def work(self) -> dict[str, object]:
        """The options of faults.driver by name."""
        checkpoint = self.stream.checkpoint
        return {"log": self.log, "endpoint": self.endpoint, "checkpoint": checkpoint, "rows": ROWS}

    def commits(self) -> list[CommitHeader]:
        records = sparkwal.Log(self.log, **self.options).records()
        return [x for x in records if isinstance(x, CommitHeader)]


def start_application(place: Place, name: str) -> tuple[Application, float]:
    """A new process; the clock begins before Python and the JVM start."""
    words = [f"--{key}={value}" for key, value in place.work().items()]
    began = time.time()
    command = [*DRIVER, *words]
    return Application(name, place.folder, command, place.folder / f"{name}.tmp"), began


def start_query(place: Place, name: str) -> tuple[Application, float]:
    """A new process; the clock begins when its Spark has run a query and waits for another."""
    driver = Driver(name, place.folder)
    driver.wait_line("ready")
    began = time.time()
    driver.go(**place.work())
    return driver, began


Start = Callable[[Place, str], tuple[Application, float]]
STARTS: dict[str, Start] = {"query": start_query, "application": start_application}


def measure(start: Start, place: Place, rng: random.Random) -> tuple[float, float]:
    """Seconds of a start with a new log, and of the restart after a kill -9 at any moment."""
    place.folder.mkdir()
    started: list[Application] = []

    def first_commit(name: str) -> float:
        """By the new record's own clock, so that the store is not asked meanwhile."""
        before, noted = len(place.commits()), place.stream.noted
        application, began = start(place, name)
        started.append(application)
        # One more than the next: that one may be in the log, and Spark not know it.
        application.wait_line(f"batch {noted + 2}")
        return place.commits()[before].timestamp_ms / 1000 - began

    try:
        plain = first_commit("plain")
        time.sleep(rng.uniform(0, 3))
        started[0].kill()
        recovery = first_commit("recovery")
    finally:
        for application in started:
            application.end()
    problems = gather(place.log, place.options, [place.stream]).problems
    if problems:
        raise click.ClickException("\n".join(problems))
    return plain, recovery


def shown(results: dict[str, dict[str, float]]) -> Table:
    """Medians and ratios."""
    table = Table(title="Seconds to the first new commit", title_justify="left")
    for column in ("start of", "plain", "after kill -9", "ratio"):
        table.add_column(column, justify="right" if column != "start of" else "left")
    for name, found in results.items():
        numbers = (f"{found[key]:.2f}" for key in ("plain_s", "recovery_s", "ratio"))
        table.add_row(f"the {name}", *numbers)
    return table


@click.command("restart")
@click.option("--repeats", type=click.IntRange(1), default=7, show_default=True)
@click.option("--seed", type=int, help="Of the moments of the kills.  [default: a new one]")
def main(repeats: int, seed: int | None) -> None:
    """Kill drivers with SIGKILL and measure how long their restart takes to the first new
    commit, against the start of the same query with a new checkpoint and a new log.

    Both in turns, on a store in memory on this machine. Prints medians as a table and
    everything as one line of JSON; every log is proven whole afterwards.
    """
    seed = random.SystemRandom().randrange(10**6) if seed is None else seed
    console.print(f"seed {seed}")
    rng = random.Random(seed)
    results: dict[str, dict[str, float]] = {}
    taken: dict[str, list[tuple[float, float]]] = {}
    with tempfile.TemporaryDirectory(prefix="sparkwal-recovery-") as folder, store() as endpoint:
        for name, start in STARTS.items():
            # The first fills the caches of the disk and does not count.
            places = (Place(Path(folder) / f"{name}-{n}", endpoint) for n in range(repeats + 1))
            pairs = []
            for place in places:
                pairs.append(measure(start, place, rng))
                console.print(f"{place.folder.name}: {pairs[-1][0]:.2f} s, {pairs[-1][1]:.2f} s")
            del pairs[0]
            plain, recovery = (statistics.median(column) for column in zip(*pairs, strict=True))
            taken[name] = [(round(a, 3), round(b, 3)) for a, b in pairs]
            results[name] = {
                "plain_s": round(plain, 3),
                "recovery_s": round(recovery, 3),
                "ratio": round(recovery / plain, 3),
            }
    console.print(shown(results))
    head = {"seed": seed, "cpus": os.cpu_count(), "repeats": repeats}
    print(json.dumps({**head, **results, "pairs": taken}))
