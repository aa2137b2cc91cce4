"""From log to lake: compaction beside Spark's own way to Delta, table and log read as one."""

from __future__ import annotations

import os
import random
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import pyarrow as pa
import pyarrow.parquet as pq

import sparkwal
from benchmarks.bulk import family, local_source, rows_of
from sparkwal.spark.delta_writing import isolated_session
from support.session import start_session

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, SparkSession


Report = Callable[[str], None]
# The ways in which rows with keys go into a table.
SHAPES: dict[str, dict[str, Any]] = {
    "keys": {},
    "a sequence": {"sequence_by": "n"},
    "a sequence and deletes": {"sequence_by": "n", "delete_when": "v = 'D'"},
}


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


def cpu_seconds() -> float:
    """The CPU time of this process and of those that it started, also of those that ended."""
    ticks = 0
    for process in family():
        with suppress(OSError):
            # The name of the process comes first and may have spaces.
            text = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2]
            ticks += sum(map(int, text.split()[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


def measured(work: Callable[[], Any]) -> tuple[float, float]:
    """The seconds and the CPU seconds of some work."""
    before = cpu_seconds()
    return seconds(work), cpu_seconds() - before


def merge(
    spark: SparkSession, rows: int, updates: int, shape: str, turns: int, report: Report
) -> tuple[float, float]:
    """How much longer a cycle takes than one MERGE of the same rows from Parquet; in turns.

    Both merge into a table of so many keys. The rows of the MERGE have each key once, so it does
    not look for the winners.

    Returns:
        The ratio of the seconds, and that of the CPU seconds.
    """
    options = SHAPES[shape]
    ratios = []
    with folder() as work:
        for name in ("ours", "theirs"):
            made = spark.range(rows).selectExpr("id", "0L AS n", "concat('value ', id) AS v")
            made.repartition(8).write.format("delta").save(f"{work}/{name}")
        peer = isolated_session(spark)
        choose = random.Random(1)
        newer = " AND s.n >= t.n" if "sequence_by" in options else ""
        gone = f"WHEN MATCHED AND s.v = 'D'{newer} THEN DELETE" if "delete_when" in options else ""
        unless = " AND s.v <> 'D'" if gone else ""
        for turn in range(turns + 1):
            ids = choose.sample(range(rows + rows // 500), updates)
            texts = ["D" if gone and at % 50 == 0 else f"new {turn} {at}" for at in ids]
            table = pa.table({"id": ids, "n": [turn + 1] * updates, "v": texts})
            with sparkwal.Appender(f"{work}/log", table.schema, producer_id="p") as wal:
                for begin in range(0, updates, 500):
                    wal.append(table.slice(begin, 500))
            pq.write_table(table, f"{work}/rows.parquet")
            life = sparkwal.Lifecycle(
                f"{work}/log", spark=spark, table=f"{work}/ours", keys=["id"], **options
            )
            ours = measured(lambda: life.run_once(whole=True))  # noqa: B023
            statement = f"""MERGE INTO delta.`{work}/theirs` t
                USING parquet.`{work}/rows.parquet` s ON t.id = s.id {gone}
                WHEN MATCHED{newer} THEN UPDATE SET * WHEN NOT MATCHED{unless} THEN INSERT *"""
            theirs = measured(lambda: peer.sql(statement).collect())  # noqa: B023
            report(
                f"{shape}: {updates:,} rows into {rows:,}: ours {ours[0]:.2f} s, CPU {ours[1]:.1f} "
                f"s; MERGE {theirs[0]:.2f} s, CPU {theirs[1]:.1f} s"
            )
            if turn:
                ratios.append((ours[0] / theirs[0], ours[1] / theirs[1]))
        left, right = (spark.read.format("delta").load(f"{work}/{x}") for x in ("ours", "theirs"))
        if left.exceptAll(right).count() or right.exceptAll(left).count():
            raise RuntimeError("the two tables differ")
    wall, cpu = zip(*ratios, strict=True)
    return statistics.median(wall), statistics.median(cpu)


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
@click.option("--merge-rows", default=5_000_000, help="In a table by keys.", show_default=True)
@click.option("--updates", default=50_000, help="Of them in one cycle.", show_default=True)
def main(rows: int, current_rows: int, turns: int, merge_rows: int, updates: int) -> None:
    """Compaction into Delta, also by keys, and reading table and log as one; on local disk."""
    spark = start_session("sparkwal benchmark", delta=True)
    ratio = compaction(spark, rows, turns, click.echo)
    click.echo(f"compaction: {ratio:.2f} x of Parquet → Delta (goal: 0.8 or more)")
    ratio = current(spark, current_rows, [], turns, click.echo)
    click.echo(f"read_current, appended: {ratio:.2f} x of the two parts (goal: 1.15 or less)")
    ratio = current(spark, current_rows, ["id"], turns, click.echo)
    click.echo(f"read_current, by keys: {ratio:.2f} x of the two parts")
    for shape in SHAPES:
        wall, cpu = merge(spark, merge_rows, updates, shape, turns, click.echo)
        click.echo(
            f"a cycle, {shape}: {wall:.2f} x of one MERGE, CPU {cpu:.2f} x (goal: 1.1 or less)"
        )
    spark.stop()
