"""A thousand writers into one Iceberg table: by logs and one commit a cycle, and by pyiceberg."""

from __future__ import annotations

import json
import multiprocessing
import os
import tempfile
import time
import urllib.request
import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import pyarrow as pa
from rich.console import Console

import sparkwal
from benchmarks.logs import SCHEMA, rows_of
from benchmarks.measuring import BUCKET, delayed, dollars, store
from benchmarks.report import table
from sparkwal.lifecycle.cycle import Run
from sparkwal.testing.servers import ACCESS_KEY, REGION, SECRET_KEY, log_options

if TYPE_CHECKING:
    from pyiceberg.table import Table

console = Console(stderr=True, highlight=False)
_PROCESSES = 4
# A table's own attempts, before its writer begins again.
_MOST_RETRIES = "20"


def configure(proxy: str, folder: str) -> None:
    """Name a catalog in a file, with its tables on S3, for this process and its children."""
    settings = {
        "TYPE": "sql",
        "URI": f"sqlite:///{folder}/catalog.db",
        "WAREHOUSE": f"s3://{BUCKET}/warehouse",
        "S3__ENDPOINT": proxy,
        "S3__ACCESS_KEY_ID": ACCESS_KEY,
        "S3__SECRET_ACCESS_KEY": SECRET_KEY,
        "S3__REGION": REGION,
    }
    os.environ |= {f"PYICEBERG_CATALOG__LAKE__{name}": text for name, text in settings.items()}


def opened(name: str) -> Table:
    from pyiceberg.catalog import load_catalog

    return load_catalog("lake").load_table(name)


def create(name: str) -> None:
    """Create a table as sparkwal does."""
    from pyiceberg.catalog import load_catalog

    catalog = load_catalog("lake")
    catalog.create_namespace_if_not_exists("db")
    properties = {
        "commit.manifest-merge.enabled": "true",
        "commit.retry.num-retries": _MOST_RETRIES,
    }
    catalog.create_table(name, SCHEMA, properties=properties)


def append(name: str, writers: Sequence[int], rows: int) -> int:
    """Append the rows of these writers, each in a commit.

    Returns:
        How often a commit was given up after a conflict, and begun again.
    """
    from pyiceberg.exceptions import CommitFailedException

    conflicts, lake = 0, opened(name)
    for writer in writers:
        while True:
            try:
                lake.append(pa.Table.from_batches([rows_of(writer, rows)]))
                break
            except CommitFailedException:
                conflicts += 1
                lake = opened(name)
    return conflicts


def by_logs(url: str, name: str, writers: int, rows: int) -> None:
    """Each writer has a log. A cycle of compaction makes one commit of all."""
    path = f"s3://{BUCKET}/{uuid.uuid4().hex}/wal"
    options: dict[str, Any] = dict(log_options(url))

    def one(writer: int) -> None:
        with sparkwal.Appender(
            path, SCHEMA, producer_id="p", sequencer=f"writer-{writer:04d}", **options
        ) as wal:
            wal.append(rows_of(writer, rows)).result()

    with ThreadPoolExecutor(_PROCESSES) as pool:
        list(pool.map(one, range(writers)))
    life = sparkwal.Lifecycle(path, table=f"iceberg://lake/{name}", **options)
    for result in life.run_all(whole=True).values():
        if not isinstance(result, Run):
            raise result


def by_one_log(url: str, name: str, writers: int, rows: int) -> None:
    """The writers send their rows to one service, which has a log."""
    path = f"s3://{BUCKET}/{uuid.uuid4().hex}/wal"
    options: dict[str, Any] = dict(log_options(url))
    with sparkwal.Appender(path, SCHEMA, producer_id="p", **options) as wal:
        for writer in range(writers):
            wal.append(rows_of(writer, rows))
    sparkwal.Lifecycle(path, table=f"iceberg://lake/{name}", **options).run_once(whole=True)


def gathered(url: str, name: str, writers: int, rows: int) -> None:
    """The writers send their rows to one process, which has them in memory and appends once."""
    create(name)
    batches = [rows_of(writer, rows) for writer in range(writers)]
    opened(name).append(pa.Table.from_batches(batches))


def one_by_one(url: str, name: str, writers: int, rows: int) -> None:
    """One process appends the rows of each writer as they come."""
    create(name)
    append(name, range(writers), rows)


def at_once(url: str, name: str, writers: int, rows: int) -> None:
    """Several processes append, and repeat an append after a conflict."""
    create(name)
    parts = [range(first, writers, _PROCESSES) for first in range(_PROCESSES)]
    with ProcessPoolExecutor(_PROCESSES, multiprocessing.get_context("spawn")) as pool:
        futures = [pool.submit(append, name, part, rows) for part in parts]
        console.print(f"begun again after {sum(x.result() for x in futures)} conflicts")


_ONE_BY_ONE = (one_by_one, at_once)
_WAYS: dict[str, Callable[[str, str, int, int], None]] = {
    "sparkwal: a log for each writer, one cycle": by_logs,
    "sparkwal: one log, one cycle": by_one_log,
    "pyiceberg: all gathered in one process, one append": gathered,
    "pyiceberg: one process, an append for each writer": one_by_one,
    f"pyiceberg: {_PROCESSES} processes, an append for each writer": at_once,
}


def measure(proxy: str, way: str, writers: int, rows: int) -> dict[str, Any]:
    """Write the rows in one way, and look at the table."""
    name = f"db.t{uuid.uuid4().hex[:8]}"
    urllib.request.urlopen(urllib.request.Request(f"{proxy}/__reset", method="POST"))
    began = time.perf_counter()
    _WAYS[way](proxy, name, writers, rows)
    seconds = time.perf_counter() - began
    with urllib.request.urlopen(f"{proxy}/__requests") as answer:
        requests = json.load(answer)
    counts = Counter(request["kind"] for request in requests)
    lake = opened(name)
    ids = lake.scan(selected_fields=("id",)).to_arrow()["id"].to_pylist()
    once = sum(1 for number in Counter(ids).values() if number == 1)
    return {
        "writers": writers,
        "seconds": round(seconds, 1),
        "rows once": once,
        "rows": len(ids),
        "snapshots": len(lake.snapshots()),
        "files": len([*lake.scan().plan_files()]),
        "MB sent": round(sum(request["bytes_in"] for request in requests) / 1e6, 1),
        "requests": sum(counts.values()),
        "of them": ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items())),
        "$": round(dollars(counts), 4),
    }


@click.command("iceberg")
@click.option("--writers", default=1000, show_default=True)
@click.option(
    "--appends",
    default=250,
    show_default=True,
    help="Writers that append one by one: each commit writes the metadata of all before it again.",
)
@click.option("--rows", default=100, show_default=True, help="Of each writer.")
@click.option("--only", default="", help="A part of the names of the ways.")
@click.option(
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    default=Path("benchmark/iceberg.json"),
    show_default=True,
)
def main(writers: int, appends: int, rows: int, only: str, output: Path) -> None:
    """The same rows of many writers into an Iceberg table on S3, in each way.

    The catalog is a file, whose requests do not count.
    """
    results: dict[str, Any] = {}
    with store() as url, delayed(url, 0) as proxy, tempfile.TemporaryDirectory() as folder:
        configure(proxy, folder)
        for way, write in _WAYS.items():
            if only in way:
                size = appends if write in _ONE_BY_ONE else writers
                results[way] = measure(proxy, way, size, rows)
                console.print(way, results[way])
    columns = ["", *next(iter(results.values()))]
    lines = [[way, *found.values()] for way, found in results.items()]
    Console().print(table(f"Writers of {rows} rows", columns, lines))
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps({"rows": rows, **results}, indent=2) + "\n")
