"""The questions of docs/sql.md about a long log on S3: seconds and requests of each."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.request import urlopen

import click
import pyarrow as pa
from consumers import consumer, join
from docs.pages import commands
from rich.console import Console
from sorted_s3 import serve

from benchmarks.measuring import BUCKET, spawned
from benchmarks.microbatch import reset
from benchmarks.report import table
from sparkwal.appender.appender import Appender
from sparkwal.protocol.clock import Clock
from sparkwal.protocol.recovery import find_head
from sparkwal.store.base import LogStore
from sparkwal.testing.memory import MemoryStore
from sparkwal.testing.servers import log_options

console = Console(stderr=True, highlight=False)
_SCHEMA = pa.schema([("id", pa.int64()), ("origin", pa.string())])
_ROWS = 10


class _Slow(Clock):
    """A commit a second, of which the last is now."""

    def __init__(self, commits: int) -> None:
        self.behind_ms = 1000 * commits

    def now_ms(self) -> int:
        return super().now_ms() - self.behind_ms


def _serve(commits: int, pipe: Connection) -> None:
    """A process that holds the log, and a consumer in its middle, until it is ended."""
    from sortedcontainers import SortedDict

    memory, clock = MemoryStore(), _Slow(commits)
    log = LogStore(memory, "wal")
    options: dict[str, Any] = {"maxInFlightRequests": 1, "batchSizeThreshold": 1}
    with Appender(log, _SCHEMA, producer_id="gateway", clock=clock, **options) as wal:
        for number in range(commits):
            ids = [number * _ROWS + row for row in range(_ROWS)]
            wal.append(pa.record_batch([ids, ["JFK"] * _ROWS], schema=_SCHEMA))
            if number % 100 == 99:
                wal.flush()
            clock.behind_ms -= 1000
    head = find_head(log)
    assert head.live is not None
    header = head.live.header
    join(log, consumer("audit", commits // 2, header.log_id, host="etl-1"))
    with serve(SortedDict({f"{BUCKET}/{k}": body for k, body in memory.objects.items()})) as url:
        pipe.send(url)
        pipe.poll(None)


def _ask(line: str, url: str, folder: Path) -> dict[str, Any]:
    """The cost of a command: seconds, CPU seconds, requests."""
    options = folder / "options"
    options.write_text("\n".join(map(" = ".join, log_options(url).items())))
    words = line.replace("s3://bucket/wal", f"s3://{BUCKET}/wal")
    command = f"{sys.executable} -P -m {words} --options-file {options}"
    reset(url)
    began, used = time.perf_counter(), os.times()
    subprocess.run(command, shell=True, cwd=folder, check=True, stdout=subprocess.DEVNULL)
    seconds, spent = time.perf_counter() - began, os.times()
    with urlopen(f"{url}/__counts") as answer:
        requests = json.load(answer)
    cpu = sum(spent[2:4]) - sum(used[2:4])  # child processes
    return {"seconds": round(seconds, 1), "cpu_seconds": round(cpu, 1), "requests": requests}


@click.command("questions")
@click.option("--commits", default=100_000, show_default=True, help="A second apart, of 10 rows.")
@click.option("--only", type=int, multiple=True, help="Numbers of questions.  [default: all]")
@click.option(
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    default=Path("benchmark/questions.json"),
    show_default=True,
)
def main(commits: int, only: tuple[int, ...], output: Path) -> None:
    """Ask each question of docs/sql.md with `sparkwal sql`, of a log on S3."""
    results: list[dict[str, Any]] = []
    with TemporaryDirectory() as folder, spawned(_serve, commits) as url:
        for number, line in enumerate(commands("sparkwal/docs/sql.md")):
            if not only or number in only:
                found: dict[str, Any] = {"number": number, "query": line.split('"')[1]}
                found |= _ask(line, url, Path(folder))
                console.print(f"{number}: {found}")
                results.append(found)
    rows = [
        [
            each["number"],
            each["seconds"],
            each["cpu_seconds"],
            ", ".join(f"{n:,} {kind}" for kind, n in sorted(each["requests"].items())),
            each["query"][:60],
        ]
        for each in results
    ]
    columns = ["", "s", "CPU s", "requests", "question"]
    console.print(table(f"{commits:,} records", columns, rows))
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps({"commits": commits, "questions": results}, indent=1) + "\n")
