"""Appends to a store that now and then holds a request for ten seconds."""

from __future__ import annotations

import json
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from benchmarks.measuring import (
    Bare,
    appended,
    delayed,
    latency,
    numbers,
    open_appender,
    put,
    record_bytes,
    rows_of,
    store,
)
from benchmarks.report import save, table

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
        least = latency(put(bare, pool, count, rate))
    lines = [["PUT, no stalls", rate, least.p50, least.p99, least.p999, "", "", "", 1.0]]
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


def _of(found: Any) -> list[float]:
    return [found.p50, found.p99, found.p999]


def _puts(url: str) -> int:
    with urllib.request.urlopen(f"{url}/__counts") as answer:
        return int(json.load(answer).get("PUT", 0))


@click.command("stalls")
@click.option("--rate", "rates", default="40,200", show_default=True, callback=numbers,
              help="Appends a second.")  # fmt: skip
@click.option("--samples", default=5000, show_default=True, help="Appends of each kind.")
@click.option("--seed", default=1, show_default=True, help="Of the latencies and the stalls.")
@click.option("--output", type=click.Path(dir_okay=False, path_type=Path),
              default=Path("benchmark/stalls.json"), show_default=True)  # fmt: skip
def main(rates: list[int], samples: int, seed: int, output: Path) -> None:
    """Measure acknowledgements under stalls against bare PUTs without any.

    Latencies are lognormal, median 30 ms and 99th percentile 120 ms; 0.16 % of the requests are
    held for 10 s, half of them before they take effect. Then the same at 20 ms without a tail.
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
    save(results, output, console)
