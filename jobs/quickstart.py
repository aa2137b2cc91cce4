"""Streams 336,776 real flights into a log, with a stop in the middle, and compares the result."""

from __future__ import annotations

import support.installed  # noqa: F401

# isort: split
import fcntl
import hashlib
import shlex
import shutil
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING

import click
import pyarrow as pa
from rich.console import Console

import sparkwal
from sparkwal.cli.exit_codes import Failed, Refused
from sparkwal.cli.flags import takes_log_options
from sparkwal.cli.output import table as print_table
from sparkwal.errors import SparkWalError
from sparkwal.format.header import CommitHeader, LeaderHeader, SlotHeader
from sparkwal.options.parsing import parse
from sparkwal.options.writing import SinkOptions
from support.checkpoints import checkpoint_from_log, write_without_forks
from support.flights import WITH_SEQ, checks, load, stage
from support.follow import Meter, Totals
from support.session import ROOT, exit_for, open_log_at, start_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.types import StructType

CACHE = ROOT / ".cache" / "quickstart"
# The name of the query.
NAME = "flights"
# The first and last records of the log, and those around a restart.
_CONTENTS = """
SELECT position, kind, batch, rows, bytes, term, epoch_ms(time) AS timestamp_ms
FROM records WINDOW around AS (ORDER BY position ROWS BETWEEN 4 PRECEDING AND 4 FOLLOWING)
QUALIFY count(*) OVER around < 9 OR bool_or(kind = 'leader') OVER around ORDER BY position
"""

console = Console(highlight=False)


@dataclass(frozen=True)
class Run:
    """One run of the quickstart.

    Attributes:
        log: the path of the log.
        options: the options of the log.
        work: the folder of the staged flights and the checkpoint.
        table: the flights.
        files: the number of staged files.
    """

    log: str
    options: Mapping[str, str]
    work: Path
    table: pa.Table
    files: int

    @property
    def checkpoint(self) -> Path:
        return self.work / "checkpoint"

    def start(self, spark: SparkSession) -> StreamingQuery:
        """Start the query without its former checkpoint folder, as on a new machine."""
        shutil.rmtree(self.checkpoint, ignore_errors=True)
        location, _ = checkpoint_from_log(self.log, NAME, self.options, self.checkpoint)
        write_without_forks(spark, location)
        flights = spark.readStream.schema(spark_schema()).option("maxFilesPerTrigger", "1")
        return (
            flights.parquet(str(self.work / "flights"))
            .writeStream.format("weaselwal")
            .options(**self.options)
            .option("checkpointLocation", location)
            .trigger(availableNow=True)
            .start(self.log)
        )

    def committed(self) -> int:
        """The number of microbatches in the log."""
        records = sparkwal.Log(self.log, **self.options).records()
        return sum(isinstance(record, CommitHeader) for record in records)


def spark_schema() -> StructType:
    """The columns of the flights."""
    from pyspark.sql.pandas.types import from_arrow_schema

    # Its default differs between versions of Spark.
    return from_arrow_schema(WITH_SEQ, prefer_timestamp_ntz=True)


def _until(query: StreamingQuery, meter: Meter, totals: Totals, microbatches: int) -> None:
    """Wait for this many microbatches, or the end of the query. Raise the query's error."""
    while query.isActive and totals.update(query).microbatches < microbatches:
        meter.totals(totals)
        time.sleep(0.05)
    meter.totals(totals.update(query))
    if (failed := query.exception()) is not None:
        raise failed


def write(run: Run) -> SparkSession:
    """Stream the flights into the log, and end the Spark application once during a microbatch.

    Returns:
        The session of a second application, which continues with only the log.
    """
    missing = run.files - run.committed()
    totals = Totals()
    with Meter(console, "writing", run.table.num_rows) as meter:
        if missing > 1:
            spark = start_session("sparkwal quickstart")
            query = run.start(spark)
            _until(query, meter, totals, missing // 2)
            tracker = spark.sparkContext.statusTracker()
            while query.isActive and not tracker.getActiveJobsIds():
                time.sleep(0.002)
            query.stop()
            _until(query, meter, totals, missing)
            spark.stop()
            console.print(
                f"Stopped during a microbatch; {run.committed()} of {run.files} are in the log. "
                "Now the checkpoint is deleted, as if this machine were lost: a new Spark "
                "application rebuilds it from the log and continues."
            )
        spark = start_session("sparkwal quickstart, restarted")
        query = run.start(spark)
        _until(query, meter, totals, run.files + 1)
    return spark


def print_restart(records: list[SlotHeader]) -> None:
    """Print the leader record of the restart."""
    leaders = [record for record in records if isinstance(record, LeaderHeader)]
    if len(leaders) > 1:
        last = leaders[-1]
        console.print(
            f"After the restart, the new writer took the log over behind position "
            f"{last.prev_position} with one record: position {last.position}, term {last.term} "
            f"({last.reason})."
        )


def next_steps(log: str, endpoint: str | None) -> str:
    """Commands to try with the log of the quickstart."""
    command = shlex.quote(str(Path(sys.executable).with_name("sparkwal")))
    path = shlex.quote(log) + (f" --endpoint {shlex.quote(endpoint)}" if endpoint else "")
    return "\n".join(
        [
            "Try these next:",
            f"  {command} status {path}",
            f"  {command} log {path} -n 5",
            f'  {command} tail {path} --where "dep_delay > 600" --columns seq,origin,dep_delay',
            f"  {command} verify {path}",
            "Then write your own stream: see the section Write of README.md.",
        ]
    )


def _work(path: str | None, endpoint: str | None) -> Path:
    """The folder for the staged flights and the checkpoint, beside the log if that is local."""
    if path is None:
        return CACHE / "default"
    if "://" not in path:
        return Path(f"{Path(path).resolve()}.quickstart")
    return CACHE / hashlib.sha256(f"{path}\0{endpoint}".encode()).hexdigest()[:12]


def _lock(work: Path) -> IO[str]:
    work.parent.mkdir(parents=True, exist_ok=True)
    file = open(f"{work}.lock", "w")  # noqa: SIM115 - it stays open until the process ends
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        raise Refused(f"another quickstart uses {work}; wait, or give --path") from None
    return file


@click.command()
@click.option(
    "--path", help="The log: a folder or s3://bucket/prefix.  [default: a folder in .cache/]"
)
@takes_log_options()
@click.option("--keep", is_flag=True, help="Continue with the log of the last run.")
@click.option("--rows", type=click.IntRange(1), help="The number of flights.  [default: all]")
@click.option(
    "--files",
    type=click.IntRange(1),
    default=40,
    show_default=True,
    help="The number of files of the flights; each becomes one microbatch.",
)
def main(
    path: str | None,
    log_options: dict[str, str],
    rows: int | None,
    files: int,
    *,
    keep: bool,
) -> None:
    """Stream every flight that left New York City in 2013 into a write-ahead log, in time order;
    stop in the middle; continue; then read all rows and prove that they equal the input.

    Exit codes: 0 proven, 1 it failed or the log differs, 2 wrong usage.
    """
    began = time.monotonic()
    endpoint = log_options.get("endpoint")
    work = _work(path, endpoint)
    log = path or str(work / "wal")
    try:
        parse(SinkOptions, {**log_options, "path": log})
    except SparkWalError as error:
        raise exit_for(error) from None
    with ExitStack() as closing:
        closing.enter_context(_lock(work))
        if not keep:
            shutil.rmtree(work, ignore_errors=True)
        try:
            exists = open_log_at(log, log_options).head() is not None
            if exists and not (work / "flights").is_dir():
                raise Refused(
                    f"there is already a log at {log}: give another --path"
                    + ("" if keep else ", or --keep after a run with this one")
                )
            table = load(rows)
            stage(table, work / "flights", min(files, table.num_rows))
            run = Run(log, log_options, work, table, min(files, table.num_rows))
            console.print(f"{table.num_rows:,} flights in {run.files} files → {log}")
            spark = write(run)
            closing.callback(spark.stop)
            stored = spark.read.format("weaselwal").options(**log_options).load(log)
            reread = sparkwal.Log(log, **log_options)
            records = list(reread.records())
            with console.status("reading the log and comparing"):
                results = list(checks(stored, run.table, reread, records))
            contents = reread.sql(_CONTENTS).read_all().to_pylist()
        except click.ClickException:
            raise
        except Exception as error:
            raise exit_for(error) from None
        print_restart(records)
        print_table(
            [
                {"what": check.what, "input": check.expected, "log": check.actual}
                for check in results
            ],
            "The log against its input",
        )
        print_table(contents, "Records of the log")
        if wrong := [check.what for check in results if not check.holds]:
            raise Failed(f"the log differs from its input in: {', '.join(wrong)}")
    console.print(
        f"[green]Proven:[/] {table.num_rows:,} flights, each exactly once, in order, "
        f"in {time.monotonic() - began:.0f} s. The log stays at {log}"
    )
    console.print(next_steps(log, endpoint), soft_wrap=True, highlight=False, markup=False)


if __name__ == "__main__":
    main()
