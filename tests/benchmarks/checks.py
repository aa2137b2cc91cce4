"""The price of the checks of frames: reads by this code and by the code before them, in turns."""

from __future__ import annotations

import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import click
import pyarrow as pa
from rich.console import Console

import sparkwal
from benchmarks.report import table

console = Console(stderr=True, highlight=False)
ROOT = Path(__file__).parents[2]
_SCHEMA = pa.schema(
    [("id", pa.int64()), ("v", pa.float64()), ("t", pa.timestamp("us", "UTC")), ("s", pa.string())]
)
# A process that reads a log each time that it is asked: path, options, position after the last.
_READER = """
import json, sys, time
import sparkwal
for line in sys.stdin:
    path, options = json.loads(line)
    wall, cpu = time.perf_counter(), time.process_time()
    rows = sum(batch.num_rows for batch in sparkwal.Log(path, **options).scan())
    print(json.dumps([rows, time.perf_counter() - wall, time.process_time() - cpu]), flush=True)
"""


def _rows(count: int, rng: random.Random, ascii_only: bool) -> pa.RecordBatch:
    name = "user" if ascii_only else "größe"
    end = "some text that is the same in all rows"
    texts = [f"{name}-{rng.getrandbits(32)}-{end}" for _ in range(count)]
    times = [1_700_000_000_000_000 + 1000 * number for number in range(count)]
    values = [1.25 * number for number in range(count)]
    return pa.record_batch([[*range(count)], values, times, texts], schema=_SCHEMA)


def _write(path: Path, commits: int, rows: pa.RecordBatch) -> None:
    options: dict[str, Any] = {"maxInFlightRequests": 1, "batchSizeThreshold": 1}
    with sparkwal.Appender(str(path), _SCHEMA, producer_id="p", **options) as wal:
        for _ in range(commits):
            wal.append(rows)


def _package_of(revision: str, folder: Path) -> Path:
    """The library as it was at a commit."""
    archive = subprocess.run(
        ["git", "archive", revision, "sparkwal"], cwd=ROOT, check=True, capture_output=True
    )
    folder.mkdir()
    subprocess.run(["tar", "-x", "-C", str(folder)], input=archive.stdout, check=True)
    return folder


def _before_the_checks() -> str:
    """The commit before the one that added the checks."""
    log = ["git", "log", "--diff-filter=A", "--format=%H", "--", "sparkwal/format/frames.py"]
    added = subprocess.run(log, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split()
    return f"{added[-1]}~1"


@contextmanager
def _reader(package: Path) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", _READER],
        env={**os.environ, "PYTHONPATH": str(package)},
        cwd=package,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.terminate()
        process.wait()


def _read(process: subprocess.Popen[str], path: Path, options: dict[str, object]) -> list[float]:
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(json.dumps([str(path), options]) + "\n")
    process.stdin.flush()
    numbers: list[float] = json.loads(process.stdout.readline())
    return numbers


@click.command("checks")
@click.option("--before", "revision", help="A commit.  [default: that before the checks]")
@click.option("--turns", default=15, show_default=True, help="One more warms up.")
@click.option("--megabytes", default=512, show_default=True, help="Of the bulk read, as Arrow.")
@click.option("--commits", default=3000, show_default=True, help="Of 200 rows each.")
@click.option("--seed", type=int, help="Of the rows.  [default: a new one]")
def main(revision: str | None, turns: int, megabytes: int, commits: int, seed: int | None) -> None:
    """The checks of frames may cost 3 % of a bulk read and of a read of small commits.

    Three readers take turns at logs on this disk: this code, this code with verifyTexts=false, and
    the code before the checks. A ratio is of medians. The machine must be idle.
    """
    seed = random.randrange(2**32) if seed is None else seed
    rng = random.Random(seed)
    revision = revision or _before_the_checks()
    with tempfile.TemporaryDirectory(prefix="sparkwal-benchmark-") as name, ExitStack() as stack:
        folder = Path(name)
        bulk = 100_000
        large = _rows(bulk, rng, True)
        logs = {"bulk": max(1, megabytes * 2**20 // large.nbytes), "small commits": commits}
        _write(folder / "bulk", logs["bulk"], large)
        _write(folder / "small commits", commits, _rows(200, rng, True))
        _write(folder / "bulk, not ASCII", logs["bulk"], _rows(bulk, rng, False))
        old = stack.enter_context(_reader(_package_of(revision, folder / "before")))
        new = stack.enter_context(_reader(ROOT))
        readers: dict[str, tuple[subprocess.Popen[str], dict[str, object]]] = {
            "before": (old, {}),
            "now": (new, {}),
            "verifyTexts=false": (new, {"verifyTexts": False}),
        }
        lines: list[tuple[str, ...]] = []
        for log in ("bulk", "bulk, not ASCII", "small commits"):
            wall: dict[str, list[float]] = defaultdict(list)
            cpu: dict[str, list[float]] = defaultdict(list)
            for turn in range(turns + 1):
                for reader in rng.sample([*readers], len(readers)):
                    _, seconds, used = _read(readers[reader][0], folder / log, readers[reader][1])
                    if turn:
                        wall[reader].append(seconds)
                        cpu[reader].append(used)
            for reader in readers:
                ratio = statistics.median(wall[reader]) / statistics.median(wall["before"])
                of_cpu = statistics.median(cpu[reader]) / statistics.median(cpu["before"])
                seconds = statistics.median(wall[reader])
                lines.append((log, reader, f"{seconds:.3f} s", f"{ratio:.3f}", f"{of_cpu:.3f}"))
                console.print(*lines[-1])
    title = f"Reads beside those of {revision}; seed {seed}, {turns} turns"
    Console().print(table(title, ["log", "reader", "median", "ratio", "ratio of CPU"], lines))
