"""The journal beside its disk: latency, bandwidth, opening again, and an outage of the store."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from benchmarks import journal_disk, journal_replay, outage
from benchmarks.measuring import numbers, store
from benchmarks.report import Goal, save, show_goals, table
from benchmarks.sinks import machine, one_of

PARTS = ("flush", "latency", "bandwidth", "replay", "memory", "outage")

# Threads that append in an outage.
_THREADS = 8

console = Console(highlight=False)


def goals(results: dict[str, Any]) -> Iterator[Goal]:
    """The goals of which the results hold what is needed."""
    for one in results.get("latency", []):
        for kind in ("turns", "paced"):
            ratios = one[kind]["ratios"]
            for name in ("journal", "appender"):
                what = f"{name}, {one['bytes']:,} bytes, {kind}: p50"
                yield Goal(
                    f"{what} over the disk's",
                    "≤ 1.3 ×",
                    f"{ratios[name]:.2f} ×",
                    ratios[name] <= 1.3,
                )
                beside = ratios[name] / ratios["sqlite"]
                yield Goal(f"{what} over SQLite's", "< 1 ×", f"{beside:.2f} ×", beside < 1)
    for one in results.get("bandwidth", []):
        if one["what"].startswith("journal"):
            ratio = one["ratio"]
            yield Goal(
                f"{one['what']}: of the disk's bandwidth", "≥ 0.7 ×", f"{ratio:.2f} ×", ratio >= 0.7
            )
    for one in results.get("replay", []):
        for state in ("cached", "cold"):
            found = one[state]
            speed, ratio = found["scan_mb_per_s"], found["ratio"]
            yield Goal(
                f"replay of {one['entry_bytes']:,} bytes, {state}",
                "≥ 500 MB/s or 0.8 ×",
                f"{speed} MB/s, {ratio:.2f} ×",
                speed >= 500 or ratio >= 0.8,
            )
    for one in results.get("memory", []):
        worst = one["open_mb"]
        what = f"memory to open {one['megabytes']} MB"
        yield Goal(what, "≤ a segment, 67 MB", f"{worst} MB", worst <= 67)
    for one in results.get("outage", []):
        what = f"outage of {one['outage_seconds']:g} s"
        lost = len(one["problems"])
        yield Goal(f"{what}: lost, twice, out of order", "0", str(lost), lost == 0)
        drained = one["drained_per_s_with_wait"]
        wanted = 5 * one["rate"]
        yield Goal(
            f"{what}: drained afterwards", f"≥ {wanted:,.0f}/s", f"{drained:,}/s", drained >= wanted
        )


def show(results: dict[str, Any], console: Console) -> None:
    """Everything measured, then the goals."""
    if found := results.get("flush"):
        names = ["least", "p10", "p50", "p90", "p99", "most"]
        lines = [[where, *(found[where][x] for x in names)] for where in ("disk", "memory")]
        console.print(table("4 KiB written over, and fdatasync (ms)", ["on", *names], lines))
        reported = (
            f"{found['flushes']} flushes of the disk for each, {found['flush_ms']} ms of it; "
        )
        console.print(reported + ", ".join(f"{x} {kind}" for x, kind in found["caches"].items()))
    if found := results.get("latency"):
        names = ["p10", "p50", "p90", "p99", "mean"]
        lines = [
            [
                f"{one['bytes']:,}",
                kind,
                way,
                *(each[name] for name in names),
                one[kind]["ratios"][way],
            ]
            for one in found
            for kind in ("turns", "paced")
            for way, each in one[kind]["ms"].items()
        ]
        columns = ["bytes", "", "way", *names, "p50 over the disk's"]
        console.print(table("Until it is on the disk (ms)", columns, lines))
    if found := results.get("bandwidth"):
        lines = [[one["what"], one["mb_per_s"], one["ratio"]] for one in found]
        console.print(table("1 MiB at a time", ["what", "MB/s", "of the first"], lines))
    if found := results.get("replay"):
        names = ["scan_mb_per_s", "read_mb_per_s", "ratio", "us_per_entry", "cpu_mb_per_s"]
        lines = [
            [f"{one['entry_bytes']:,}", state, *(one[state][name] for name in names)]
            for one in found
            for state in ("cached", "cold")
        ]
        columns = ["bytes each", "files", "MB/s", "read MB/s", "ratio", "µs each", "by CPU MB/s"]
        console.print(table("Reading a journal when it is opened", columns, lines))
    if found := results.get("memory"):
        names = ["megabytes", "entry_bytes", "open_mb", "send_mb"]
        lines = [[one[name] for name in names] for one in found]
        columns = ["MB", "bytes each", "to open, MB", "to open and send, MB"]
        console.print(table("How far the peak of memory grows", columns, lines))
    for one in results.get("outage", []):
        lines = [[name, value] for name, value in one.items()]
        console.print(table("An outage of the store", ["what", "measured"], lines))
    show_goals(goals(results), console)


@click.command("journal")
@click.option(
    "--only",
    "parts",
    default=",".join(PARTS),
    show_default=True,
    callback=one_of(PARTS),
    help="Parts to measure.",
)
@click.option(
    "--folder",
    type=click.Path(file_okay=False, exists=True, path_type=Path),
    help="On the disk to be measured.  [default: the temporary folder]",
)
@click.option(
    "--sizes",
    default="1024,65536,1048576",
    show_default=True,
    callback=numbers,
    help="Bytes of an entry.",
)
@click.option(
    "--samples", type=click.IntRange(10), default=400, show_default=True, help="Of each latency."
)
@click.option(
    "--rate",
    type=click.FloatRange(1),
    default=25.0,
    show_default=True,
    help="Appends a second of each way while latencies are measured.",
)
@click.option(
    "--megabytes",
    type=click.IntRange(16),
    default=512,
    show_default=True,
    help="Written and read at a time.",
)
@click.option("--repeats", type=click.IntRange(1), default=5, show_default=True)
@click.option(
    "--memory",
    "memories",
    default="100,800",
    show_default=True,
    callback=numbers,
    help="Megabytes of the journals that are recovered.",
)
@click.option("--outage-seconds", type=click.FloatRange(1), default=600.0, show_default=True)
@click.option(
    "--outage-rate",
    type=click.FloatRange(1),
    default=1000.0,
    show_default=True,
    help="Appends a second meanwhile.",
)
@click.option(
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    default=Path("benchmark/journal.json"),
    show_default=True,
    help="Parts that are not measured now stay as they are there.",
)
def main(
    parts: list[str],
    folder: Path | None,
    sizes: list[int],
    samples: int,
    rate: float,
    megabytes: int,
    repeats: int,
    memories: list[int],
    outage_seconds: float,
    outage_rate: float,
    output: Path,
) -> None:
    """Measure the journal beside its disk, in the same run and in turns.

    Starts a store in memory, in a separate process on this machine, and reaches no other host.
    """
    results: dict[str, Any] = json.loads(output.read_text()) if output.exists() else {}
    results["machine"] = machine()
    with tempfile.TemporaryDirectory(prefix="sparkwal-journal-", dir=folder) as name:
        place = Path(name)
        ways: dict[str, Callable[[], Any]] = {
            "flush": lambda: journal_disk.measure_flush(_new(place), samples),
            "latency": partial(_latency, place, sizes, samples, rate),
            "bandwidth": lambda: journal_disk.measure_bandwidth(_new(place), megabytes, repeats),
            "replay": lambda: [
                journal_replay.measure_replay(_new(place), size, megabytes, repeats)
                for size in sizes
            ],
            "memory": lambda: [
                journal_replay.measure_memory(_new(place), 1024, size) for size in memories
            ],
            "outage": lambda: [outage.measure(_new(place), outage_seconds, outage_rate, _THREADS)],
        }
        for part in parts:
            results[part] = ways[part]()
            # At once: the minutes before are not lost with what comes after.
            save(results, output, console)
    show(results, Console(highlight=False, width=None if console.is_terminal else 120))


def _new(place: Path) -> Path:
    """Make an empty folder, and remove the former one, so that the disk does not fill."""
    folder = place / "now"
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir()
    return folder


def _latency(place: Path, sizes: list[int], samples: int, rate: float) -> list[dict[str, Any]]:
    with store() as upstream:
        return [
            journal_disk.measure_latency(_new(place), upstream, size, samples, rate)
            for size in sizes
        ]
