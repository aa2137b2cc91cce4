"""How fast the appender is, measured against bare conditional PUTs of the same bytes."""

from __future__ import annotations

import os
import platform
import time
from concurrent.futures import ThreadPoolExecutor
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from benchmarks.measuring import (
    Bare,
    append_all,
    appended,
    delayed,
    latency,
    numbers,
    open_appender,
    put,
    put_all,
    record_bytes,
    rows_of,
    store,
)
from benchmarks.report import save, table

console = Console()
# One append is one record: the latency of a PUT is compared with that of a record.
ONE_EACH = {"batchSizeThreshold": 1}


def measure_latency(
    upstream: str, in_flight: int, latency_ms: float, rate: float, count: int, size: int
) -> dict[str, Any]:
    """Both kinds at the same pace, in turns: the machine's moods hit them alike."""
    rows = rows_of(size)
    # With fewer in flight than the delay asks for, the queue would be measured.
    rate = min(rate, 0.7 * in_flight * 1000 / (latency_ms + 10))
    count = max(40, min(count, int(rate * 20)))
    with (
        delayed(upstream, latency_ms) as url,
        open_appender(url, in_flight, **ONE_EACH) as wal,
        ThreadPoolExecutor(in_flight) as pool,
    ):
        bare = Bare(url, in_flight, record_bytes(upstream, rows))
        rounds = 8
        mine: list[float] = []
        theirs: list[float] = []
        for turn in range(rounds + 1):
            ours = appended(wal, rows, count // rounds, rate)
            puts = put(bare, pool, count // rounds, rate)
            if turn:  # the first opens connections
                mine += ours
                theirs += puts
    ours_ms, puts_ms = latency(mine), latency(theirs)
    return {
        "in_flight": in_flight,
        "latency_ms": latency_ms,
        "rate": round(rate, 1),
        "appender": vars(ours_ms),
        "put": vars(puts_ms),
        "p50_ratio": round(ours_ms.p50 / puts_ms.p50, 3),
        "p99_ratio": round(ours_ms.p99 / puts_ms.p99, 3),
    }


def measure_throughput(upstream: str, in_flight: int, count: int, size: int) -> dict[str, Any]:
    """Records a second with so many in flight, and PUTs a second of as many threads."""
    rows = rows_of(size)
    body = record_bytes(upstream, rows)
    rounds = 4
    mine = theirs = 0.0
    with (
        delayed(upstream, 20) as url,
        open_appender(url, in_flight, **ONE_EACH) as wal,
    ):
        bare = Bare(url, in_flight, body)
        append_all(wal, rows, in_flight)
        put_all(bare, in_flight, in_flight)
        for _ in range(rounds):
            mine += append_all(wal, rows, count // rounds)
            theirs += put_all(bare, in_flight, count // rounds)
    done = count // rounds * rounds
    return {
        "in_flight": in_flight,
        "object_bytes": len(body),
        "appender_per_s": round(done / mine, 1),
        "put_per_s": round(done / theirs, 1),
        "appender_mb_per_s": round(done * len(body) / mine / 1e6, 2),
        "ratio": round(theirs / mine, 3),
    }


def measure_appends(upstream: str, count: int, kind: str) -> dict[str, Any]:
    """Small appends by one thread, into batches of 1 MiB, until the last is durable."""
    small = rows_of(1)
    text = small.column("payload")[0].as_py()
    with open_appender(upstream, 50, batchTimeoutMs="1s") as wal:
        began = time.perf_counter()
        if kind == "dict":
            for number in range(count):
                wal.append([{"id": number, "payload": text}])
        else:
            for _ in range(count):
                wal.append(small)
        accepted = time.perf_counter()
        wal.flush()
        durable = time.perf_counter()
    return {
        "rows": kind,
        "appends": count,
        "appends_per_s": round(count / (accepted - began)),
        "us_per_append": round((accepted - began) / count * 1e6, 2),
        "durable_per_s": round(count / (durable - began)),
        "mb_per_s": round(count * small.nbytes / (durable - began) / 1e6, 2),
    }


# For each part of the results: the title of its table, and the value of each column.
TABLES = {
    "latency": (
        "From append to acknowledgement, against a bare PUT of the same bytes (ms)",
        {
            "in flight": "in_flight",
            "added ms": "latency_ms",
            "per s": "rate",
            "samples": "appender.samples",
            "p50": "appender.p50",
            "PUT p50": "put.p50",
            "ratio p50": "p50_ratio",
            "p99": "appender.p99",
            "PUT p99": "put.p99",
            "ratio p99": "p99_ratio",
        },
    ),
    "throughput": (
        "As fast as it goes, 20 ms added",
        {
            "in flight": "in_flight",
            "bytes": "object_bytes",
            "records/s": "appender_per_s",
            "PUTs/s": "put_per_s",
            "MB/s": "appender_mb_per_s",
            "ratio": "ratio",
        },
    ),
    "appends": (
        "Small appends by one thread",
        {
            "rows": "rows",
            "appends/s": "appends_per_s",
            "µs each": "us_per_append",
            "durable/s": "durable_per_s",
            "MB/s": "mb_per_s",
        },
    ),
}


def _value(found: dict[str, Any], path: str) -> Any:
    return reduce(getitem, path.split("."), found)


def _show(results: dict[str, Any]) -> None:
    for part, (title, columns) in TABLES.items():
        lines = [[_value(one, path) for path in columns.values()] for one in results[part]]
        console.print(table(title, list(columns), lines))


@click.command("appender")
@click.option(
    "--in-flight",
    "limits",
    default="1,10,50,200",
    show_default=True,
    callback=numbers,
    help="Limits to measure.",
)
@click.option(
    "--latency",
    "latencies",
    default="0,20,100",
    show_default=True,
    callback=numbers,
    help="Milliseconds that the proxy adds to every request.",
)
@click.option(
    "--rate",
    type=click.FloatRange(1),
    default=60.0,
    show_default=True,
    help="Records a second while latencies are measured: below saturation.",
)
@click.option(
    "--samples", type=click.IntRange(40), default=800, show_default=True, help="Of each latency."
)
@click.option(
    "--size",
    type=click.IntRange(1),
    default=16_384,
    show_default=True,
    help="Bytes of rows in one record.",
)
@click.option(
    "--records",
    type=click.IntRange(100),
    default=2000,
    show_default=True,
    help="Of each throughput.",
)
@click.option(
    "--appends",
    type=click.IntRange(1000),
    default=500_000,
    show_default=True,
    help="Small appends by one thread.",
)
@click.option(
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    default=Path("benchmark/appender.json"),
    show_default=True,
)
def main(
    limits: list[int],
    latencies: list[int],
    rate: float,
    samples: int,
    size: int,
    records: int,
    appends: int,
    output: Path,
) -> None:
    """Measure the appender against bare conditional PUTs, in the same run.

    Starts a store in memory and a proxy that adds latency, each in a separate process,
    on this machine; no other host is reached.
    """
    results: dict[str, Any] = {
        "machine": {"cpus": os.cpu_count(), "python": platform.python_version()},
        "latency": [],
        "throughput": [],
        "appends": [],
    }
    with store() as upstream:
        for kind in ("RecordBatch", "dict"):
            results["appends"].append(measure_appends(upstream, appends, kind))
        for number in limits:
            results["throughput"].append(
                measure_throughput(upstream, number, min(records, number * 100), size)
            )
            for delay in latencies:
                results["latency"].append(
                    measure_latency(upstream, number, delay, rate, samples, size)
                )
    _show(results)
    save(results, output, console)
