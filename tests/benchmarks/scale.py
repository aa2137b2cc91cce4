"""The requests of a large deployment to S3, counted on the protocol's own code."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import pyarrow as pa
from rich.console import Console
from rich.table import Table

from benchmarks.measuring import dollars, numbers
from benchmarks.report import save
from sparkwal.format import keys, schema
from sparkwal.format.keys import sequencer_prefix
from sparkwal.protocol.clock import Clock
from sparkwal.protocol.commit import commit
from sparkwal.protocol.hint import Hints
from sparkwal.protocol.object_writer import TaskLimits
from sparkwal.protocol.plan import make_plan
from sparkwal.protocol.takeover import Claim
from sparkwal.protocol.task import TaskAttempt, write_partition
from sparkwal.store.base import LogStore
from sparkwal.testing.memory import MemoryStore

# S3's documented limit for each prefix of a bucket, in requests a second.
PUTS_PER_PREFIX = 3500
ROOT = "wal"
SPARK_SCHEMA = schema.from_arrow(pa.schema([("id", pa.int64()), ("body", pa.string())]))
PLAN_TTL_MS = 600_000

console = Console(stderr=True, highlight=False)


class SimulatedClock(Clock):
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.ms = 1_700_000_000_000

    def now_ms(self) -> int:
        return self.ms

    def boot_ms(self) -> int:
        return self.ms

    def boot_id(self) -> str:  # type: ignore[override]
        return "simulated"

    def sleep(self, seconds: float) -> None:
        self.ms += int(seconds * 1000)


@dataclass(frozen=True)
class Deployment:
    """Sequencers that each commit a microbatch of so many partitions every second."""

    sequencers: int
    partitions: int  # in one sequencer's microbatch
    rows: int  # in one partition
    inlined: bool

    @property
    def window(self) -> int:
        """The smallest with room for the partitions."""
        return next(w for w in keys.WINDOWS if w > self.partitions)


class Sequencer:
    """One log with its query; each restart is another leader, as of a new application."""

    def __init__(self, name: str, store: MemoryStore, folder: Path, deployment: Deployment) -> None:
        self._store, self._deployment = store, deployment
        self._prefix = sequencer_prefix(ROOT, name)
        self._log = LogStore(store, self._prefix)
        self._hints = Hints(self._prefix, folder)
        self._name = name
        self._restarts = 0
        self._batch = 0
        target = schema.to_arrow(SPARK_SCHEMA)
        ids = list(range(deployment.rows))
        bodies = [f"{name}-{number:08x}-of-some-sensor" for number in ids]
        self._rows = pa.RecordBatch.from_pydict({"id": ids, "body": bodies}, schema=target)

    def restart(self) -> None:
        """As after a kill -9: the next plan starts cold."""
        self._restarts += 1

    def microbatch(self, clock: SimulatedClock) -> float:
        """Plan, write and commit one; the seconds that the driver's part took: plan and commit."""
        begin = time.perf_counter()
        plan_id = f"{self._name}-{self._restarts}-{self._batch}"
        claim = Claim(
            leader_id=f"driver:{self._name}:{self._restarts}",
            host="driver",
            plan_id=plan_id,
            spark_schema=SPARK_SCHEMA,
            merge_schema=False,
            window=self._deployment.window,
            in_flight_limit=1,
            reason="simulated",
        )
        plan = make_plan(lambda: self._log, claim, self._hints, clock, PLAN_TTL_MS)
        tasks = plan.for_tasks()
        driver = time.perf_counter() - begin
        limits = TaskLimits(
            batch_size=2**20,
            batch_timeout_ms=60_000,
            multipart_threshold=16 * 2**20,
            inline_threshold=2**20 if self._deployment.inlined else 0,
            codec="zstd",
        )
        results = [
            write_partition(
                lambda: self._log,
                tasks,
                TaskAttempt(self._name, self._batch, p),
                iter([self._rows]),
                limits,
            )
            for p in range(self._deployment.partitions)
        ]
        begin = time.perf_counter()
        commit(lambda: self._log, results, self._hints, clock, PLAN_TTL_MS, "zstd")
        self._batch += 1
        return driver + time.perf_counter() - begin

    def last_record_bytes(self) -> int:
        """The size of the newest commit record."""
        window = self._deployment.window
        first = self._store.list(f"{self._prefix}/batches/", 1).entries[0].key
        newest = keys.decode(first.rpartition("/")[2]) or 0
        slot = keys.slot(keys.position(newest, window), window)
        return len(self._store.objects[keys.key(self._prefix, slot)])


def simulate(deployment: Deployment, seconds: int, restarts: int) -> dict[str, Any]:
    """So many simulated seconds, the cold starts apart; then some sequencers restart.

    Returns requests of one warm second, of one restart, and what they cost.
    """
    store, clock = MemoryStore(), SimulatedClock()
    driver: list[float] = []
    with tempfile.TemporaryDirectory(prefix="sparkwal-scale-") as folder:
        everyone = [
            Sequencer(str(number), store, Path(folder), deployment)
            for number in range(deployment.sequencers)
        ]
        for one in everyone:
            one.microbatch(clock)
        store.counts.clear()
        for _ in range(seconds):
            clock.ms += 1000
            driver += [one.microbatch(clock) for one in everyone]
        warm = Counter(store.counts)
        store.counts.clear()
        clock.ms += 1000
        for one in everyone[:restarts]:
            one.restart()
            one.microbatch(clock)
        again = Counter(store.counts)
        record = everyone[0].last_record_bytes()
    # A restart's microbatch does what a warm one does, and more.
    each = {kind: count / seconds for kind, count in sorted(warm.items())}
    of_warm = {kind: count / deployment.sequencers for kind, count in each.items()}
    recovery = {
        kind: round(count / restarts - of_warm.get(kind, 0), 3)
        for kind, count in sorted(again.items())
    }
    return {
        "sequencers": deployment.sequencers,
        "partitions_each": deployment.partitions,
        "inlined": deployment.inlined,
        "window": deployment.window,
        "simulated_seconds": seconds,
        "requests_per_second": each,
        "per_prefix_per_second": of_warm,
        "requests_of_a_restart": recovery,
        "record_bytes": record,
        "driver_ms_p50": round(statistics.median(driver) * 1000, 2),
        "dollars_per_day": round(dollars(each) * 86_400, 2),
        "years_until_numbers_end": round(keys.last_position(deployment.window) / (86_400 * 365.25)),
    }


def _requests(counts: Mapping[str, float]) -> str:
    return ", ".join(f"{count:,g} {kind}" for kind, count in counts.items()) or "none"


def show(found: Sequence[Mapping[str, Any]]) -> None:
    """Print the counts, one line for each deployment."""
    table = Table(title="Each sequencer commits one microbatch a second", title_justify="left")
    for column in (
        "sequencers × partitions",
        "window",
        "requests/s",
        "PUT/s of a prefix",
        "of 3,500",
        "record KB",
        "driver ms",
        "a restart",
        "$ a day",
    ):
        table.add_column(column, justify="right")
    for one in found:
        puts = one["per_prefix_per_second"].get("PUT", 0)
        table.add_row(
            f"{one['sequencers']} × {one['partitions_each']:,}"
            + (" inlined" if one["inlined"] else ""),
            f"{one['window']:,}",
            _requests(one["requests_per_second"]),
            f"{puts:,g}",
            f"{puts / PUTS_PER_PREFIX:.0%}",
            f"{one['record_bytes'] / 1000:,.0f}",
            f"{one['driver_ms_p50']:,.1f}",
            _requests(one["requests_of_a_restart"]),
            f"{one['dollars_per_day']:,.0f}",
        )
    Console(width=None if console.is_terminal else 150).print(table)


@click.command("scale")
@click.option(
    "--partitions",
    type=click.IntRange(1),
    default=10_000,
    show_default=True,
    help="Of all sequencers together.",
)
@click.option(
    "--sequencers",
    default="1,10,100",
    show_default=True,
    callback=numbers,
    help="How many share them, one simulation each.",
)
@click.option(
    "--rows",
    type=click.IntRange(1),
    default=20,
    show_default=True,
    help="Of one partition in one microbatch.",
)
@click.option(
    "--seconds",
    type=click.IntRange(1),
    default=10,
    show_default=True,
    help="Simulated, and with them counted.",
)
@click.option(
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    default=Path("benchmark/scale.json"),
    show_default=True,
)
def main(partitions: int, sequencers: list[int], rows: int, seconds: int, output: Path) -> None:
    """Count the requests of a large deployment, and what they cost at S3's list prices.

    Plans, tasks and commits are the code that Spark runs, against a store in memory that
    counts; time is simulated. Every second is like the one before, so a day is 86,400
    times one; restarts are counted apart.
    """
    found = []
    for inlined in (False, True):
        for number in sequencers:
            deployment = Deployment(number, partitions // number, rows, inlined)
            found.append(simulate(deployment, seconds, min(number, 5)))
            console.print(f"{deployment}: {found[-1]['requests_per_second']}")
    show(found)
    save(found, output, console)
