"""A store that now and then holds a request for ten seconds, or is slow for a minute."""

from __future__ import annotations

import itertools
import json
import tempfile
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from benchmarks.measuring import (
    BUCKET,
    Bare,
    appended,
    delayed,
    in_order,
    latency,
    numbers,
    open_appender,
    put,
    record_bytes,
    rows_of,
    store,
)
from benchmarks.peers import PEERS, Place, start_session
from benchmarks.report import save, table
from sparkwal.testing.proxy import S3Proxy

console = Console()
_IN_FLIGHT = 50
# Published of S3 Standard: 0.16 % of the parts of large uploads took more than 10 s.
STALLS = 0.0016


def measure(upstream: str, rate: int, count: int, seed: int, tail: bool) -> list[list[Any]]:
    """A line for each: bare PUTs without stalls, appends without and with hedging."""
    rows = rows_of(16_384)
    body = record_bytes(upstream, rows)
    shape = ["--p99-ms", "120", "--seed", str(seed)] if tail else []
    stalls = ["--stalls", str(STALLS)] if tail else []
    base = 30.0 if tail else 20.0
    with (
        delayed(upstream, base, *shape) as url,
        ThreadPoolExecutor(4 * _IN_FLIGHT) as pool,
    ):
        bare = Bare(url, 4 * _IN_FLIGHT, body)
        put(bare, pool, 2 * _IN_FLIGHT, rate)
        seconds = put(bare, pool, count, rate)
    least, ordered = latency(seconds), latency(in_order(seconds, rate))
    lines = [["PUT, no stalls", rate, *_of(least), "", "", "", 1.0]]
    # The time of any log that acknowledges in order and adds no delay.
    ratios = [round(a / b, 2) for a, b in zip(_of(ordered), _of(least), strict=True)]
    lines.append(["the same, acknowledged in order", rate, *_of(ordered), *ratios, 1.0])
    for hedge in (False, True):
        with (
            delayed(upstream, base, *shape, *stalls) as url,
            open_appender(url, _IN_FLIGHT, batchSizeThreshold=1, hedge=hedge) as wal,
        ):
            appended(wal, rows, 2 * _IN_FLIGHT, rate)
            before = _puts(url)
            took = latency(appended(wal, rows, count, rate))
            sent = (_puts(url) - before) / count
        ratios = [round(a / b, 2) for a, b in zip(_of(took), _of(least), strict=True)]
        name = f"append, hedge={str(hedge).lower()}"
        lines.append([name, rate, *_of(took), *ratios, round(sent, 4)])
    return lines


def slowed(upstream: str, rate: int, seconds: int) -> list[list[Any]]:
    """Requests for each append at 30 ms, then while every request takes 300 ms."""
    rows, lines = rows_of(16_384), []
    with (
        S3Proxy(upstream, latency_ms=30) as proxy,
        open_appender(proxy.url, _IN_FLIGHT, batchSizeThreshold=1) as wal,
    ):
        appended(wal, rows, 10 * rate, rate)
        for name, factor in (("30 ms", 1), ("300 ms", 10)):
            proxy.latency_ms = 30 * factor
            proxy.reset()
            took = latency(appended(wal, rows, seconds * rate, rate))
            sent = proxy.counts()["PUT"] / (seconds * rate)
            lines.append([name, rate, *_of(took), round(sent, 4)])
    return lines


def triggers(upstream: str, count: int, seed: int) -> list[list[Any]]:
    """Whole triggers of one query, 1,000 rows inlined, without stalls and with them."""
    lines: list[list[Any]] = []
    shape = ["--p99-ms", "120", "--seed", str(seed)]
    spark = start_session(["inlined"], {})
    spark.conf.set("spark.sql.streaming.numRecentProgressUpdates", count + 100)
    numbered = itertools.count()
    try:
        for name, stalls in (("no stalls", 0.0), ("stalls", STALLS)):
            with delayed(upstream, 30.0, *shape, "--stalls", str(stalls)) as url:
                place = Place(url, BUCKET, f"triggers-{next(numbered)}")
                source = spark.readStream.format("rate-micro-batch")
                rows = source.options(rowsPerBatch=1000, numPartitions=2).load()
                writer = PEERS["inlined"].write(rows.writeStream, place)
                folder = tempfile.mkdtemp(prefix="sparkwal-benchmark-")
                query = writer.option("checkpointLocation", folder).start()
                while (last := query.lastProgress) is None or last.batchId < count:
                    if (failed := query.exception()) is not None:
                        raise failed
                    time.sleep(2)
                query.stop()
                done = query.recentProgress[20:]
                took = latency([p.durationMs["triggerExecution"] / 1000 for p in done])
                sent = _puts(url) / len(query.recentProgress)
            ratios = (
                [round(a / b, 2) for a, b in zip(_of(took), lines[0][1:4], strict=True)]
                if lines
                else ["", "", ""]
            )
            lines.append([name, *_of(took), *ratios, round(sent, 4)])
    finally:
        spark.stop()
    return lines


def _of(found: Any) -> list[float]:
    return [found.p50, found.p99, found.p999]


def _puts(url: str) -> int:
    with urllib.request.urlopen(f"{url}/__counts") as answer:
        return int(json.load(answer).get("PUT", 0))


@click.command("stalls")
@click.option(
    "--rate",
    "rates",
    default="40,200",
    show_default=True,
    callback=numbers,
    help="Appends a second.",
)
@click.option("--samples", default=5000, show_default=True, help="Appends of each kind.")
@click.option("--seed", default=1, show_default=True, help="Of the latencies and the stalls.")
@click.option("--triggers", "count", default=2000, show_default=True, help="Triggers of a query.")
@click.option(
    "--slow",
    "seconds",
    default=60,
    show_default=True,
    help="Seconds for which the store is ten times as slow.",
)
@click.option(
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    default=Path("benchmark/stalls.json"),
    show_default=True,
)
def main(rates: list[int], samples: int, seed: int, count: int, seconds: int, output: Path) -> None:
    """Measure acknowledgements under stalls against bare PUTs without any.

    Latencies are lognormal, median 30 ms and 99th percentile 120 ms; 0.16 % of the requests are
    held for 10 s, half of them before they take effect. Then the same at 20 ms without a tail,
    a store that slows down, and whole triggers.
    """
    columns = ["", "per s", "p50", "p99", "p99.9", "p50 ×", "p99 ×", "p99.9 ×", "PUTs"]
    results: dict[str, Any] = {"seed": seed}
    with store() as upstream:
        for tail in (True, False):
            for rate in rates:
                lines = measure(upstream, rate, samples, seed, tail)
                shape = "with a tail and stalls" if tail else "20 ms, no tail"
                console.print(table(f"Acknowledged, ms, {shape}, seed {seed}", columns, lines))
                results[f"{shape}, {rate} a second"] = lines
        lines = slowed(upstream, 40, seconds)
        columns = ["latency", "per s", "p50", "p99", "p99.9", "PUTs"]
        console.print(table("A store that slows down tenfold", columns, lines))
        results["slow"] = lines
        lines = triggers(upstream, count, seed)
        columns = ["", "p50", "p99", "p99.9", "p50 ×", "p99 ×", "p99.9 ×", "PUTs"]
        console.print(table("Whole triggers, ms, with a tail", columns, lines))
        results["triggers"] = lines
    save(results, output, console)
