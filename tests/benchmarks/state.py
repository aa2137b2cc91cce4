"""Triggers of stateful queries whose checkpoints are on S3, with each manager of their files, or in
the log."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import click

from benchmarks.measuring import BUCKET, delayed, store
from benchmarks.microbatch import Length
from benchmarks.peers import ABORTABLE, Place, best_bucket, start_session
from benchmarks.report import save, table
from benchmarks.triggers import (
    LOCAL_FILES,
    Row,
    console,
    from_log,
    kinds,
    measure,
    on_s3,
    on_s3_at_best,
)
from sparkwal.checkpoints.rebuild import FILE_MANAGER
from sparkwal.spark import s3a
from sparkwal.testing.servers import make_bucket

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# Where the checkpoint is, and who writes its files.
MANAGERS: Mapping[str, tuple[Callable[[Place], str], Mapping[str, str]]] = {
    "Spark's, as installed": (on_s3, {}),
    "Spark's, at its best": (on_s3_at_best, ABORTABLE),
    "sparkwal's": (on_s3_at_best, {FILE_MANAGER: s3a.FILE_MANAGER}),
    "in the log": (from_log, LOCAL_FILES),
}
_STATE = "spark.sql.streaming.stateStore"
_PROVIDER = "org.apache.spark.sql.execution.streaming.state.{}StateStoreProvider"
PROVIDERS = {
    "RocksDB": {
        f"{_STATE}.providerClass": _PROVIDER.format("RocksDB"),
        f"{_STATE}.rocksdb.changelogCheckpointing.enabled": "true",
    },
    "HDFS-backed": {f"{_STATE}.providerClass": _PROVIDER.format("HDFSBacked")},
}


def _distinct(rows: DataFrame) -> DataFrame:
    rows = rows.withWatermark("timestamp", "10 seconds")
    return rows.dropDuplicates(["timestamp", "value"]).select("value")


def rows_of(partitions: int) -> Iterator[tuple[str, Row]]:
    """All that is measured with so many partitions of the state."""
    for (provider, one), (manager, (place, two)) in itertools.product(
        PROVIDERS.items(), MANAGERS.items()
    ):
        title = f"{partitions}, {provider}, {manager}"
        of_query = {
            "spark.sql.shuffle.partitions": str(partitions),
            "spark.sql.streaming.noDataMicroBatches.enabled": "false",
        }
        yield title, Row(title, "inlined", place, {**of_query, **one, **two}, _distinct)


@click.command("state")
@click.option("--latency", type=click.IntRange(0), default=20, show_default=True)
@click.option("--repeats", type=click.IntRange(1), default=1, show_default=True)
@click.option("--microbatches", type=click.IntRange(1), default=20, show_default=True)
@click.option("--partitions", type=click.IntRange(1), multiple=True, default=[8, 64])
@click.option("--only", multiple=True, default=[""], help="Part of the titles to measure.")
@click.option("--output", type=click.Path(dir_okay=False, path_type=Path), help="JSON of it all.")
def main(
    latency: int,
    repeats: int,
    microbatches: int,
    partitions: tuple[int, ...],
    only: tuple[str, ...],
    output: Path | None,
) -> None:
    """Measure whole triggers of dropDuplicates with a watermark: 1,000 rows in each, written to a
    log, and the checkpoint on S3 or in the log. All requests of the process are counted.
    """
    every = {
        title: row
        for each in partitions
        for title, row in rows_of(each)
        if any(part in title for part in only)
    }
    with ExitStack() as stack:
        server = stack.enter_context(store())
        make_bucket(server, best_bucket(BUCKET))
        proxy = stack.enter_context(delayed(server, latency))
        spark = start_session(["inlined", "parquet"], {BUCKET: proxy})
        stack.callback(spark.stop)
        places = (Place(proxy, BUCKET, f"run-{n}") for n in itertools.count())
        length = Length(measured=microbatches, seconds=60)
        found = measure(spark, every, places, repeats, length)
    if output is not None:
        save({"latency_ms": latency, "rows": found}, output, console)
    columns = ["", "trigger ms", "microbatches", "requests", "of them", "$ per million"]
    lines = [
        (
            title,
            f"{x['trigger_ms']:.0f}",
            x["microbatches"],
            f"{x['requests_per_microbatch']:g}",
            kinds(x),
            f"{x['dollars_per_million']:,.0f}",
        )
        for title, x in found.items()
    ]
    title = f"Stateful triggers, +{latency} ms, by the partitions of the state"
    console.print(table(title, columns, lines))
