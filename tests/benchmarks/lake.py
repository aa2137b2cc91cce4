"""From log to lake: compaction beside Spark's own way to Delta, table and log read as one."""

from __future__ import annotations

import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

import sparkwal
from benchmarks.bulk import local_source, rows_of
from support.session import start_session

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, SparkSession


@contextmanager
def folder() -> Iterator[str]:
    """A folder that is removed at the end."""
    made = tempfile.mkdtemp(prefix="sparkwal-benchmark-")
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)


def seconds(work: Callable[[], Any]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def drain(rows: DataFrame) -> None:
    """Read everything and keep nothing."""
    rows.write.format("noop").mode("overwrite").save()


def compaction(spark: SparkSession, rows: int, turns: int, report: Callable[[str], None]) -> float:
    """How much faster than Parquet → Delta the same rows go from a log to Delta; in turns."""
    ratios = []
    with local_source(spark, rows) as source:
        for turn in range(turns + 1):
            with folder() as work:
                log = f"{work}/log"
                table = f"{work}/table"
                peer = f"{work}/peer"
                read = spark.read.parquet(source)
                read.write.format("weaselwal").mode("append").save(log)
                life = sparkwal.Lifecycle(log, spark=spark, table=table, collects=False)
                ours = seconds(lambda: life.run_once(whole=True))  # noqa: B023
                theirs = seconds(lambda: read.write.format("delta").save(peer))  # noqa: B023
                if spark.read.format("delta").load(table).count() != rows:
                    raise RuntimeError("the table does not hold every row")
            report(f"{rows:,} rows: log → Delta {ours:.2f} s, Parquet → Delta {theirs:.2f} s")
            if turn:  # the first loads classes
                ratios.append(theirs / ours)
    return statistics.median(ratios)


def current(
    spark: SparkSession, rows: int, keys: list[str], turns: int, report: Callable[[str], None]
) -> float:
    """How much longer table and log take as one than the two by themselves; in turns."""
    ratios = []
    with folder() as work:
        log, table = f"{work}/log", f"{work}/table"
        rows_of(spark, rows, 2).write.format("weaselwal").mode("append").save(log)
        life = sparkwal.Lifecycle(log, spark=spark, table=table, keys=keys, collects=False)
        run = life.run_once(whole=True)
        assert run.compacted is not None
        newer = rows_of(spark, rows // 4, 2)
        newer.write.format("weaselwal").mode("append").save(log)
        wal = spark.read.format("weaselwal").option("startingPosition", run.compacted.end)
        for turn in range(turns + 1):
            parts = seconds(lambda: drain(spark.read.format("delta").load(table)))
            parts += seconds(lambda: drain(wal.load(log)))
            whole = seconds(lambda: drain(sparkwal.read_current(spark, log)))
            report(f"{rows:,} + {rows // 4:,} rows: as one {whole:.2f} s, the parts {parts:.2f} s")
            if turn:
                ratios.append(whole / parts)
    return statistics.median(ratios)


@click.command("lake")
@click.option("--rows", default=8_000_000, help="To be compacted.", show_default=True)
@click.option(
    "--current-rows",
    default=4_000_000,
    help="In the table that is read with the log.",
    show_default=True,
)
@click.option(
    "--turns", default=5, help="Of each, after one that does not count.", show_default=True
)
def main(rows: int, current_rows: int, turns: int) -> None:
    """Compaction into Delta, and reading table and log as one; on local disk."""
    spark = start_session("sparkwal benchmark", delta=True)
    ratio = compaction(spark, rows, turns, click.echo)
    click.echo(f"compaction: {ratio:.2f} x of Parquet → Delta (goal: 0.8 or more)")
    ratio = current(spark, current_rows, [], turns, click.echo)
    click.echo(f"read_current, appended: {ratio:.2f} x of the two parts (goal: 1.15 or less)")
    ratio = current(spark, current_rows, ["id"], turns, click.echo)
    click.echo(f"read_current, by keys: {ratio:.2f} x of the two parts")
    spark.stop()
