"""Reading many small commits, beside bare GETs of the same objects and beside few large commits."""

from __future__ import annotations

import json
import random
import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import click
import pyarrow as pa
from rich.console import Console
from sorted_s3 import serve

from benchmarks.measuring import BUCKET, numbers, spawned
from benchmarks.microbatch import reset
from benchmarks.peers import start_session
from benchmarks.report import table
from sparkwal import Log
from sparkwal.appender.appender import Appender
from sparkwal.options.open import open_log
from sparkwal.options.parsing import from_keywords
from sparkwal.options.reading import SourceOptions
from sparkwal.protocol.slots import WHOLE
from sparkwal.store.base import LogStore
from sparkwal.testing.memory import MemoryStore
from sparkwal.testing.servers import log_options, s3_client

console = Console(stderr=True, highlight=False)
ROWS = 200
LARGE = 100
TAIL = 1000
SCHEMA = pa.schema(
    [("id", pa.int64()), ("v", pa.float64()), ("t", pa.timestamp("us", "UTC")), ("s", pa.string())]
)


def rows_of(count: int, rng: random.Random) -> pa.RecordBatch:
    ids = range(count)
    texts = [f"user-{rng.getrandbits(32)}-some text that is the same in all rows" for _ in ids]
    times = [1_700_000_000_000_000 + 1000 * each for each in ids]
    return pa.record_batch([[*ids], [1.25 * each for each in ids], times, texts], schema=SCHEMA)


def _serve(commits: int, seed: int, latency_ms: int, pipe: Connection) -> None:
    """A process that holds the same rows in so many commits, and in few, until it is ended."""
    from sortedcontainers import SortedDict

    memory, rng = MemoryStore(), random.Random(seed)
    for name, count in (("small", commits), ("large", LARGE), ("tail", TAIL)):
        rows = rows_of(ROWS * commits // count if name == "large" else ROWS, rng)
        options: Any = {"maxInFlightRequests": 1, "batchSizeThreshold": 1}
        with Appender(LogStore(memory, name), SCHEMA, producer_id="p", **options) as wal:
            for _ in range(count):
                wal.append(rows)
    objects = SortedDict({f"{BUCKET}/{key}": body for key, body in memory.objects.items()})
    with serve(objects, latency_ms) as url:
        pipe.send((url, [key for key in memory.objects if key.startswith("small/")]))
        pipe.poll(None)


def _runs(
    url: str, names: list[str], commits: int, hedge: bool, spark: Any
) -> dict[str, Callable[[], int]]:
    """The measured reads: each returns the rows, or objects, that it read."""
    given = log_options(url, hedge=hedge)
    path = f"s3://{BUCKET}/small"
    store = open_log(from_keywords(SourceOptions, path, given)).store
    client = s3_client(url, max_pool_connections=store.concurrency)

    def bare(get: Callable[[str], bytes]) -> int:
        with ThreadPoolExecutor(store.concurrency) as pool:
            return sum(1 for body in pool.map(get, names) if body)

    def scanned(name: str) -> int:
        return sum(batch.num_rows for batch in Log(f"s3://{BUCKET}/{name}", **given).scan())

    def loaded() -> int:
        spark.read.format("weaselwal").options(**given).load(path).write.format("noop").mode(
            "overwrite"
        ).save()
        return ROWS * commits

    runs: dict[str, Callable[[], int]] = {
        "GETs by boto3": lambda: bare(
            lambda key: client.get_object(Bucket=BUCKET, Key=key)["Body"].read()
        ),
        "GETs by the store": lambda: bare(lambda key: store.get_range(key, 0, WHOLE)),
        "Log.scan": lambda: scanned("small"),
        "Log.scan, 100 commits": lambda: scanned("large"),
        "Log.current, 1,000 commits": lambda: (
            Log(f"s3://{BUCKET}/tail", **given).current().to_arrow().num_rows
        ),
    }
    return runs | ({"spark.read": loaded} if spark is not None else {})


def measure(
    url: str, names: list[str], commits: int, turns: int, hedge: bool, spark: Any
) -> dict[str, tuple[float, float, str]]:
    """For each run, in turns: median seconds, least CPU seconds of this process, requests."""
    wall: dict[str, list[float]] = defaultdict(list)
    cpu: dict[str, list[float]] = defaultdict(list)
    requests: dict[str, str] = {}
    runs = _runs(url, names, commits, hedge, spark)
    expected = {"GETs by boto3": len(names), "GETs by the store": len(names)}
    expected["Log.current, 1,000 commits"] = ROWS * TAIL
    for turn in range(turns + 1):
        for name, run in runs.items():
            reset(url)
            began, used = time.perf_counter(), time.process_time()
            found = run()
            taken, used = time.perf_counter() - began, time.process_time() - used
            if found != expected.get(name, ROWS * commits):
                raise RuntimeError(f"{name}: {found} were read")
            with urlopen(f"{url}/__counts") as answer:
                counts = json.load(answer)
            requests[name] = ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items()))
            if turn:  # the first opens connections
                wall[name].append(taken)
                cpu[name].append(used)
    return {name: (statistics.median(wall[name]), min(cpu[name]), requests[name]) for name in runs}


@click.command("small-commits")
@click.option("--commits", default=10_000, show_default=True, help="Of 200 rows each.")
@click.option("--latency", "latencies", default="0,20", show_default=True, callback=numbers)
@click.option("--turns", default=3, show_default=True, help="One more warms up.")
@click.option("--spark/--no-spark", default=True, show_default=True)
@click.option("--hedge/--no-hedge", default=True, show_default=True, help="The option `hedge`.")
@click.option("--seed", type=int, help="Of the rows.  [default: a new one]")
@click.option(
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    default=Path("benchmark/small-commits.json"),
    show_default=True,
)
def main(
    commits: int,
    latencies: list[int],
    turns: int,
    spark: bool,
    hedge: bool,
    seed: int | None,
    output: Path,
) -> None:
    """Read a log of many small commits: by Log.scan and by Spark, beside bare parallel GETs of the
    same objects by boto3 and by the library's own store, and beside the same rows in 100 commits.

    In turns, against a server in memory that counts the requests and delays them.
    """
    seed = random.SystemRandom().randrange(10**6) if seed is None else seed
    console.print(f"seed {seed}")
    session = start_session(["weaselwal"], {}) if spark else None
    columns = ["", "s", "CPU ms for each record", "of bare GETs' speed", "of boto3's", "requests"]
    results: dict[str, Any] = {"seed": seed, "commits": commits}
    for latency_ms in latencies:
        with spawned(_serve, commits, seed, latency_ms) as (url, names):
            found = measure(url, names, commits, turns, hedge, session)
            bare, boto = found["GETs by the store"][0], found["GETs by boto3"][0]
            lines: list[list[Any]] = []
            for name, (seconds, cpu, requests) in found.items():
                records = TAIL if "current" in name else commits
                each = "" if name == "spark.read" else f"{cpu / records * 1000:.2f}"
                ratios = ["", ""] if "current" in name else [bare / seconds, boto / seconds]
                shown = [f"{x:.2f} ×" if x else "" for x in ratios]
                lines.append([name, f"{seconds:.2f}", each, *shown, requests])
            console.print(table(f"{commits:,} commits, +{latency_ms} ms", columns, lines))
            results[f"+{latency_ms} ms"] = lines
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps(results, indent=2) + "\n")
