"""336,776 real flights through a write-ahead log, stopped in the middle, and the proof."""

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
from support.checkpoints import made_from_log, write_plainly
from support.flights import WITH_SEQ, checks, load, stage
from support.follow import Meter, Totals
from support.session import ROOT, as_exit, open_log_at, start_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.types import StructType

CACHE = ROOT / ".cache" / "quickstart"
NAME = "flights"  # of the query
# Of a long log the beginning, the end, and what is around a restart.
_CONTENTS = """
SELECT position, kind, batch, rows, bytes, term, epoch_ms(time) AS timestamp_ms
FROM records WINDOW around AS (ORDER BY position ROWS BETWEEN 4 PRECEDING AND 4 FOLLOWING)
QUALIFY count(*) OVER around < 9 OR bool_or(kind = 'leader') OVER around ORDER BY position
"""

console = Console(highlight=False)


@dataclass(frozen=True)
class Run:
    """Where this run reads, writes and keeps its checkpoint."""

    log: str
    options: Mapping[str, str]
    work: Path
    table: pa.Table
    files: int

    @property
    def checkpoint(self) -> Path:
        return self.work / "checkpoint"

    def start(self, spark: SparkSession) -> StreamingQuery:
        """Start the query as on a machine where it never ran: all its progress is in the log."""
        shutil.rmtree(self.checkpoint, ignore_errors=True)
        location, _ = made_from_log(self.log, NAME, self.options, self.checkpoint)
        write_plainly(spark, location)
        flights = spark.readStream.schema(spark_schema()).option("maxFilesPerTrigger", "1")
        return (
            flights.parquet(str(self.work / "flights"))
            .writeStream.format("weaselwal")
            .options(**self.options)
            .option("checkpointLocation", location)
            .trigger(availableNow=True)
            .start(self.log)
        )

    def done(self) -> int:
        """Microbatches in the log."""
        records = sparkwal.Log(self.log, **self.options).records()
        return sum(isinstance(record, CommitHeader) for record in records)


def spark_schema() -> StructType:
    """The columns of the flights."""
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(WITH_SEQ)


def _until(query: StreamingQuery, meter: Meter, totals: Totals, microbatches: int) -> None:
    """Wait for this many microbatches, or the query's end. Raises the query's error."""
    while query.isActive and totals.update(query).microbatches < microbatches:
        meter.totals(totals)
        time.sleep(0.05)
    meter.totals(totals.update(query))
    if (failed := query.exception()) is not None:
        raise failed


def write(run: Run) -> SparkSession:
    """Stream the flights in with a stop in the middle, which ends the Spark application while a
    microbatch runs. A new application then knows only the log. Returns its session."""
    left = run.files - run.done()
    totals = Totals()
    with Meter(console, "writing", run.table.num_rows) as meter:
        if left > 1:
            spark = start_session("sparkwal quickstart")
            query = run.start(spark)
            _until(query, meter, totals, left // 2)
            tracker = spark.sparkContext.statusTracker()
            while query.isActive and not tracker.getActiveJobsIds():
                time.sleep(0.002)
            query.stop()
            _until(query, meter, totals, left)
            spark.stop()
            console.print(
                f"Stopped while a microbatch was running; {run.done()} of {run.files} are in the "
                "log. Its checkpoint is deleted now, as if this machine were lost: a new Spark "
                "application rebuilds it from the log and goes on."
            )
        spark = start_session("sparkwal quickstart, restarted")
        query = run.start(spark)
        _until(query, meter, totals, run.files + 1)
    return spark


def print_restart(records: list[SlotHeader]) -> None:
    """Print what the restart left in the log."""
    leaders = [record for record in records if isinstance(record, LeaderHeader)]
    if len(leaders) > 1:
        last = leaders[-1]
        console.print(
            f"The restart found the log's end after position {last.prev_position} and took it over "
            f"with one record: position {last.position}, term {last.term} ({last.reason})."
        )


def what_next(log: str, endpoint: str | None) -> str:
    """Commands that look at the log which the quickstart leaves."""
    command = shlex.quote(str(Path(sys.executable).with_name("sparkwal")))
    where = shlex.quote(log) + (f" --endpoint {shlex.quote(endpoint)}" if endpoint else "")
    return "\n".join(
        [
            "What to try next:",
            f"  {command} status {where}",
            f"  {command} log {where} -n 5",
            f'  {command} tail {where} --where "dep_delay > 600" --columns seq,origin,dep_delay',
            f"  {command} verify {where}",
            "Then write a stream of your own: the section Write of README.md.",
        ]
    )


def _work(path: str | None, endpoint: str | None) -> Path:
    """The folder for a log's staged flights and checkpoint: beside the log if that is local."""
    if path is None:
        return CACHE / "default"
    if "://" not in path:
        return Path(f"{Path(path).resolve()}.quickstart")
    return CACHE / hashlib.sha256(f"{path}\0{endpoint}".encode()).hexdigest()[:12]


def _lock(work: Path) -> IO[str]:
    work.parent.mkdir(parents=True, exist_ok=True)
    file = open(f"{work}.lock", "w")  # noqa: SIM115 - held until the process ends
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        raise Refused(f"another quickstart is at work in {work}; wait, or give --path") from None
    return file


@click.command()
@click.option("--path", help="Of the log: a folder or s3://bucket/prefix.  [default: in .cache/]")
@takes_log_options()
@click.option("--keep", is_flag=True, help="Go on with the log of the last run.")
@click.option("--rows", type=click.IntRange(1), help="Only so many flights.  [default: all]")
@click.option(
    "--files",
    type=click.IntRange(1),
    default=40,
    show_default=True,
    help="Files to stage the flights in; each becomes one microbatch.",
)
def main(
    path: str | None,
    log_options: dict[str, str],
    keep: bool,
    rows: int | None,
    files: int,
) -> None:
    """Stream every flight that left New York City in 2013 into a write-ahead log, in time
    order; stop in the middle; go on; read all back and prove that it is the same.

    Exit codes: 0 proven, 1 it failed or the log differs, 2 wrong usage.
    """
    began = time.monotonic()
    endpoint = log_options.get("endpoint")
    work = _work(path, endpoint)
    log = path or str(work / "wal")
    try:
        parse(SinkOptions, {**log_options, "path": log})
    except SparkWalError as error:
        raise as_exit(error) from None
    with ExitStack() as closing:
        closing.enter_context(_lock(work))
        if not keep:
            shutil.rmtree(work, ignore_errors=True)
        try:
            held = open_log_at(log, log_options).head() is not None
            if held and not (work / "flights").is_dir():
                raise Refused(
                    f"there is a log at {log} that this quickstart cannot go on with: give "
                    "another --path" + ("" if keep else ", or --keep after a run with this one")
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
            with console.status("reading back and comparing"):
                found = list(checks(stored, run.table, reread, records))
            contents = reread.sql(_CONTENTS).read_all().to_pylist()
        except click.ClickException:
            raise
        except Exception as error:
            raise as_exit(error) from None
        print_restart(records)
        print_table(
            [{"what": each.what, "input": each.expected, "log": each.found} for each in found],
            "The log against its input",
        )
        print_table(contents, "What is in the log")
        if wrong := [check.what for check in found if not check.holds]:
            raise Failed(f"the log differs from its input in: {', '.join(wrong)}")
    console.print(
        f"[green]Proven:[/] {table.num_rows:,} flights, each exactly once, in order, "
        f"in {time.monotonic() - began:.0f} s. The log stays at {log}"
    )
    console.print(what_next(log, endpoint), soft_wrap=True, highlight=False, markup=False)


if __name__ == "__main__":
    main()
