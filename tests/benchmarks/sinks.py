"""sparkwal beside what else writes a stream to S3: same server, same rows, one run."""

from __future__ import annotations

import functools
import itertools
import json
import os
import platform
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from benchmarks import bulk, long_logs, microbatch
from benchmarks.measuring import BUCKET, delayed, numbers, store
from benchmarks.peers import PEERS, Place, best_bucket, start_session
from benchmarks.report import draw, show
from sparkwal.testing.servers import make_bucket

PARTS = ("recovery", "memory", "microbatch", "bulk-write", "bulk-read")

console = Console(stderr=True, highlight=False)


def one_of(known: Sequence[str]) -> Callable[..., list[str]]:
    """The callback of an option such as read,write."""

    def parse(context: click.Context, parameter: click.Parameter, value: str) -> list[str]:
        names = [name.strip() for name in value.split(",")]
        for name in names:
            if name not in known:
                raise click.BadParameter(f"{name!r} is none of {', '.join(known)}")
        return [name for name in known if name in names]

    return parse


def machine() -> dict[str, object]:
    """A description of the machine."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((x.partition(":")[2].strip() for x in lines if x.startswith("model name")), "")
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "cpu": model,
        "cpus": os.cpu_count(),
        "memory_gib": round(memory / 2**30, 1),
        "system": platform.platform(),
        "python": platform.python_version(),
    }


@click.command("sinks")
@click.option(
    "--only",
    "parts",
    default=",".join(PARTS),
    show_default=True,
    callback=one_of(PARTS),
    help="Parts to measure.",
)
@click.option("--peers", default=",".join(PEERS), show_default=True, callback=one_of(list(PEERS)))
@click.option(
    "--latency",
    "latencies",
    default="0,20,100",
    show_default=True,
    callback=numbers,
    help="Milliseconds added to every request; of recovery at most 20.",
)
@click.option("--repeats", type=click.IntRange(1), default=3, show_default=True)
@click.option(
    "--microbatches",
    type=click.IntRange(1),
    default=40,
    show_default=True,
    help="Measured in one query, of slow sinks fewer.",
)
@click.option(
    "--rows",
    type=click.IntRange(1000),
    default=8_000_000,
    show_default=True,
    help="Of a bulk write.",
)
@click.option(
    "--commits",
    default="10,10000,1000000",
    show_default=True,
    callback=numbers,
    help="Lengths of the logs that are recovered.",
)
@click.option(
    "--memory-bytes",
    type=click.IntRange(10**6),
    default=2 * 10**9,
    show_default=True,
    help="Of Arrow in one partition.",
)
@click.option("--quick", is_flag=True, help="Little of everything: does it work at all?")
@click.option(
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("benchmark"),
    show_default=True,
    help="Folder for benchmark.json and benchmark.svg. Parts and latencies that are not "
    "measured now stay as they are there.",
)
def main(
    parts: list[str],
    peers: list[str],
    latencies: list[int],
    repeats: int,
    microbatches: int,
    rows: int,
    commits: list[int],
    memory_bytes: int,
    quick: bool,
    output: Path,
) -> None:
    """Measure sparkwal and its peers side by side, and print the results against the goals.

    Starts a store in memory, and a proxy for each added latency, in separate processes on
    this machine. It reaches no other host, but Spark downloads S3A and Delta Lake the first
    time. Peers take turns; figures are medians.
    """
    length = microbatch.Length(measured=microbatches)
    if quick:
        length = microbatch.Length(warm=2, measured=5, least=2, seconds=10)
        rows = 50_000
        commits = [10, 2000]
        memory_bytes = 50 * 10**6
    output.mkdir(parents=True, exist_ok=True)
    file = output / "benchmark.json"
    results: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    results["machine"] = machine()

    def keep(part: str, found: Any) -> None:
        # At once: the hours before are not lost with what comes after.
        results[part] = found
        file.write_text(json.dumps(results, indent=2, ensure_ascii=False) + "\n")

    _measure(results, keep, parts, peers, latencies, repeats, length, rows, commits, memory_bytes)
    show(results, Console(width=None if console.is_terminal else 120))
    draw(results, output / "benchmark.svg")
    console.print(f"written to {output}")


def _measure(
    results: dict[str, Any],
    keep: Callable[[str, Any], None],
    parts: Sequence[str],
    peers: Sequence[str],
    latencies: Sequence[int],
    repeats: int,
    length: microbatch.Length,
    rows: int,
    commits: Sequence[int],
    memory_bytes: int,
) -> None:
    if "recovery" in parts:
        # With more it waits for its three requests and nothing else.
        near = [ms for ms in latencies if ms <= 20] or latencies
        keep("recovery", long_logs.measure(commits, near, 7 * repeats, console.print))
    if set(parts) <= {"recovery"}:
        return
    with ExitStack() as stack:
        server = stack.enter_context(store())
        proxies = {ms: stack.enter_context(delayed(server, ms)) for ms in latencies}
        # S3A knows the way to a store by its bucket.
        buckets = {ms: f"{BUCKET}-{ms}" for ms in latencies}
        endpoints = {buckets[ms]: proxies[ms] for ms in latencies} | {BUCKET: server}
        for bucket in buckets.values():
            make_bucket(server, bucket)
        for bucket in endpoints:
            make_bucket(server, best_bucket(bucket))
        spark = start_session(peers, endpoints)
        stack.callback(spark.stop)
        jvm: Any = spark.sparkContext._jvm
        java = jvm.java.lang.System.getProperty("java.version")
        keep("machine", results["machine"] | {"spark": spark.version, "java": java})
        keys: Iterator[int] = itertools.count()

        def behind_proxy(ms: int) -> Place:
            return Place(proxies[ms], buckets[ms], f"run-{next(keys)}")

        def bulk_place(ms: int) -> Place:
            # A proxy that adds nothing would only cost bulk data the copying.
            return behind_proxy(ms) if ms else Place(server, BUCKET, f"run-{next(keys)}")

        # First: workers grow by all that they do, and stay so.
        if "memory" in parts:
            slow = behind_proxy(max(latencies)) if any(latencies) else None
            keep("memory", bulk.measure_memory(spark, bulk_place(0), slow, memory_bytes))
            console.print(f"memory: {results['memory']}")
        if "microbatch" in parts:
            names = [name for name in peers if PEERS[name].microbatches]
            microbatch.warm_up(spark, names, functools.partial(behind_proxy, min(latencies)))
            for ms in latencies:
                one = microbatch.measure(
                    spark,
                    names,
                    functools.partial(behind_proxy, ms),
                    ms,
                    repeats,
                    length,
                    console.print,
                )
                keep("microbatch", _with(results.get("microbatch", []), one))
        if {"bulk-write", "bulk-read"} & set(parts):
            keep("source", {"rows": rows, "arrow_bytes": rows * bulk.ROW_BYTES})
            with bulk.local_source(spark, rows) as source:
                for part, measure in (
                    ("bulk-write", bulk.measure_write),
                    ("bulk-read", bulk.measure_read),
                ):
                    if part in parts:
                        names = [name for name in peers if PEERS[name].bulk]
                        for ms in latencies:
                            place = functools.partial(bulk_place, ms)
                            console.print(f"{part}, +{ms} ms")
                            seconds = measure(spark, names, place, source, repeats, console.print)
                            one = {"latency_ms": ms, "peers": seconds}
                            keep(part, _with(results.get(part, []), one))


def _with(found: Sequence[dict[str, Any]], one: dict[str, Any]) -> list[dict[str, Any]]:
    """The earlier results, with the new figures of this latency."""
    others = [x for x in found if x["latency_ms"] != one["latency_ms"]]
    return sorted([*others, one], key=lambda x: int(x["latency_ms"]))
