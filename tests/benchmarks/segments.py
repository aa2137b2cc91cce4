"""A log of many small commits with segments, beside the same log without them and bare GETs."""

from __future__ import annotations

import json
import random
import resource
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import click
from rich.console import Console
from sorted_s3 import serve

from benchmarks.measuring import BUCKET, numbers, spawned
from benchmarks.microbatch import reset
from benchmarks.peers import start_session
from benchmarks.report import table
from benchmarks.small_commits import ROWS, SCHEMA, rows_of
from sparkwal import Log
from sparkwal.appender.appender import Appender
from sparkwal.options.open import open_log
from sparkwal.options.parsing import from_keywords
from sparkwal.options.reading import SourceOptions
from sparkwal.protocol.slots import WHOLE
from sparkwal.reading.log_range import LogRange
from sparkwal.reading.segmenting import Made, make_segments
from sparkwal.sql.past import price
from sparkwal.store.base import LogStore
from sparkwal.testing.memory import MemoryStore
from sparkwal.testing.servers import log_options, s3_client

console = Console(stderr=True, highlight=False)
_QUESTION = "SELECT count(*), sum(rows), max(time) FROM records"
# The names of the two logs, which have the same records.
PLAIN, SEGMENTED = "plain", "segmented"


def _serve(commits: int, seed: int, latency_ms: int, pipe: Connection) -> None:
    """A process that holds the log twice, until it is ended."""
    from sortedcontainers import SortedDict

    memory, rng = MemoryStore(), random.Random(seed)
    options: Any = {"maxInFlightRequests": 1, "batchSizeThreshold": 1}
    rows = rows_of(ROWS, rng)
    with Appender(LogStore(memory, PLAIN), SCHEMA, producer_id="p", **options) as wal:
        for _ in range(commits):
            wal.append(rows)
    objects = SortedDict({f"{BUCKET}/{key}": body for key, body in memory.objects.items()})
    copies = {key.replace(PLAIN, SEGMENTED): body for key, body in objects.items()}
    names = [*memory.objects]
    objects.update(copies)
    with serve(objects, latency_ms) as url:
        pipe.send((url, names))
        pipe.poll(None)


def _looked(name: str, given: dict[str, Any]) -> LogRange:
    options = from_keywords(SourceOptions, f"s3://{BUCKET}/{name}", given)
    log = LogRange(options, options.sequencer, open_log(options))
    log.refresh()
    return log


def _scanned(given: dict[str, Any]) -> int:
    return sum(batch.num_rows for batch in Log(f"s3://{BUCKET}/{PLAIN}", **given).scan())


def _made(given: dict[str, Any]) -> Made:
    return make_segments(_looked(SEGMENTED, given))


def _runs(url: str, names: list[str], spark: Any) -> dict[str, Callable[[str], object]]:
    """The measured reads of one of the two logs, by name."""
    given = log_options(url)
    store = open_log(from_keywords(SourceOptions, f"s3://{BUCKET}/{PLAIN}", given)).store
    client = s3_client(url, max_pool_connections=store.concurrency)

    def log(name: str) -> Log:
        return Log(f"s3://{BUCKET}/{name}", **given)

    def loaded(name: str) -> object:
        reader = spark.read.format("weaselwal").options(**given)
        return reader.load(f"s3://{BUCKET}/{name}").count()

    def bare(get: Callable[[str], bytes]) -> int:
        with ThreadPoolExecutor(store.concurrency) as pool:
            return sum(1 for body in pool.map(get, names) if body)

    runs: dict[str, Callable[[str], object]] = {
        "GETs by boto3": lambda _: bare(
            lambda key: client.get_object(Bucket=BUCKET, Key=key)["Body"].read()
        ),
        "GETs by the store": lambda _: bare(lambda key: store.get_range(key, 0, WHOLE)),
        "Log.scan": lambda name: sum(batch.num_rows for batch in log(name).scan()),
        "Log.scan with metadata": lambda name: sum(
            batch.num_rows for batch in log(name).scan(include_metadata=True)
        ),
        "Log.records": lambda name: sum(1 for _ in log(name).records()),
        "SELECT over records": lambda name: (
            log(name)
            .sql("SELECT count(*), sum(rows), max(time) FROM records")
            .read_all()
            .to_pylist()
        ),
        "Log.replay": lambda name: sum(len(entry.rows) > 0 for entry in log(name).replay()),
        "Log.current": lambda name: log(name).current().to_arrow().num_rows,
    }
    return runs | ({"spark.read": loaded} if spark is not None else {})


def _counted(url: str) -> dict[str, int]:
    with urlopen(f"{url}/__counts") as answer:
        counts: dict[str, int] = json.load(answer)
    return counts


def _timed(url: str, run: Callable[[], object]) -> tuple[object, float, float]:
    reset(url)
    began = time.perf_counter()
    used = time.process_time()
    result = run()
    return result, time.perf_counter() - began, time.process_time() - used


def measure(
    url: str, names: list[str], turns: int, spark: Any, only: tuple[str, ...] = ()
) -> list[list[Any]]:
    """One line for each read, or each of `only`: seconds, their ratio, requests and their price."""
    lines: list[list[Any]] = []
    runs = _runs(url, names, spark)
    for read, run in runs.items():
        if only and read not in only:
            continue
        seconds: dict[str, float] = {}
        results: dict[str, object] = {}
        requests: dict[str, dict[str, int]] = {}
        for name in (PLAIN, SEGMENTED):
            taken = []
            for _ in range(turns + 1):
                results[name], wall, _ = _timed(url, partial(run, name))
                taken.append(wall)
            # The first opens connections.
            seconds[name] = statistics.median(taken[1:])
            requests[name] = _counted(url)
        if results[PLAIN] != results[SEGMENTED]:
            raise RuntimeError(f"{read}: {results}")
        lines.append(
            [
                read,
                f"{seconds[PLAIN]:.3f}",
                f"{seconds[SEGMENTED]:.3f}",
                f"1/{seconds[PLAIN] / seconds[SEGMENTED]:.1f}",
                sum(requests[PLAIN].values()),
                sum(requests[SEGMENTED].values()),
                f"${price(requests[SEGMENTED]) / len(names) * 1e6:.4f}",
            ]
        )
    return lines


def _memory_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


@click.command("segments")
@click.option("--commits", default=10_000, show_default=True, help="Of 200 rows each.")
@click.option("--latency", "latencies", default="0,20", show_default=True, callback=numbers)
@click.option("--turns", default=3, show_default=True, help="One more warms up.")
@click.option("--spark/--no-spark", default=True, show_default=True)
@click.option("--only", multiple=True, help="A name of the first column; repeatable.")
@click.option("--seed", type=int, help="Of the rows.  [default: a new one]")
@click.option(
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    default=Path("benchmark/segments.json"),
    show_default=True,
)
def main(
    commits: int,
    latencies: list[int],
    turns: int,
    spark: bool,
    only: tuple[str, ...],
    seed: int | None,
    output: Path,
) -> None:
    """Read a log of many small commits with and without segments, beside bare parallel GETs of the
    same objects, against a server in memory that counts the requests and delays them.
    """
    seed = random.SystemRandom().randrange(10**6) if seed is None else seed
    console.print(f"seed {seed}")
    session = start_session(["weaselwal"], {}) if spark else None
    columns = ["", "s without", "s with", "ratio", "requests", "with", "price of a million records"]
    results: dict[str, Any] = {"seed": seed, "commits": commits}
    for latency_ms in latencies:
        with spawned(_serve, commits, seed, latency_ms) as (url, names):
            given = log_options(url)
            # The first opens connections and imports modules.
            _scanned(given)
            _, scan_s, scan_cpu = _timed(url, partial(_scanned, given))
            made, make_s, make_cpu = _timed(url, partial(_made, given))
            before = _memory_mb()
            lines = measure(url, names, turns, session, only)
        console.print(table(f"{commits:,} commits, +{latency_ms} ms", columns, lines))
        facts = {
            "CPU of making ÷ CPU of a scan": round(make_cpu / scan_cpu, 2),
            "seconds of making and of a scan": [round(make_s, 2), round(scan_s, 2)],
            "bytes of segments": getattr(made, "bytes", 0),
            "peak MB before and after the reads": [round(before), round(_memory_mb())],
        }
        for name, fact in facts.items():
            console.print(f"{name}: {fact}")
        results[f"+{latency_ms} ms"] = {"reads": lines, **facts}
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps(results, indent=2) + "\n")
