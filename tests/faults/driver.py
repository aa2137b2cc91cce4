"""One Spark application to be killed: streams numbered rows into a log until it must stop.

Prints `started`, then `batch N` for each microbatch that Spark has noted as done; `rebuilt` when
its checkpoint was made from the log. The rows are those of rate-micro-batch: microbatch N holds
the values N·rows … (N+1)·rows − 1, plus --base; or those of --files.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import click

import sparkwal
from sparkwal.cli.flags import key_values
from sparkwal.spark.readable import readable
from sparkwal.testing.servers import log_options
from support.checkpoints import checkpoint_from_log, write_without_forks
from support.session import EXIT_CODES

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

_KIND = re.compile(r"sparkwal\.errors\.\w+: ")


def say(line: str) -> None:
    """One line that the parent may be waiting for."""
    print(line, flush=True)


def session(master: str, java: str, settings: dict[str, str]) -> SparkSession:
    """Spark on `master`, started fast rather than to run for long."""
    from pyspark.sql import SparkSession

    here = str(Path(sparkwal.__file__).parents[1])
    temporary = os.environ.get("TMPDIR", "/tmp")
    # Executors of a cluster inherit nothing; a local master's workers take the environment.
    os.environ["PYTHONPATH"] = os.pathsep.join([here, *os.environ.get("PYTHONPATH", "").split(":")])
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    java += " -XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData"
    java += f" -Djava.io.tmpdir={temporary}"
    builder = SparkSession.builder.master(master).appName("sparkwal soak")
    for name, value in {
        "spark.driver.extraJavaOptions": java,
        "spark.executor.extraJavaOptions": java,
        "spark.driver.memory": "512m",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.executor.memory": "512m",
        "spark.executorEnv.PYTHONPATH": here,
        "spark.local.dir": temporary,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        **settings,
    }.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    if find_spec("pyspark_weaselwal") is None:
        sparkwal.register(spark)
    return spark


def executor() -> int:
    """In one of Spark's Python workers: the process of its JVM."""
    # The daemon that forked this worker is the JVM's child.
    daemon = Path(f"/proc/{os.getppid()}/stat").read_text()
    return int(daemon.rpartition(")")[2].split()[1])


def slowed(
    seconds: float, notes: str
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Passes rows on; the first attempt of partition 0 takes its time after the last one.

    Each attempt leaves a line in `notes`: stage, partition, attempt and the executor's process.
    """

    def passing(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        partition, attempt = context.partitionId(), context.attemptNumber()
        with open(notes, "a") as file:
            print(context.stageId(), partition, attempt, executor(), file=file)
        yield from batches
        if (partition, attempt) == (0, 0):
            time.sleep(seconds)

    return passing


def noted(checkpoint: Path) -> list[int]:
    """The microbatches that Spark's checkpoint knows as done; Spark keeps the last hundred."""
    try:
        names = os.listdir(checkpoint / "commits")
    except FileNotFoundError:  # not written yet, or being replaced
        names = []
    return sorted(int(name) for name in names if name.isdigit())


def follow(query: StreamingQuery, checkpoint: Path, batches: int, reported: int) -> int:
    """Report of each microbatch until the query ends or `batches` are done; returns the last."""
    while True:
        active = query.isActive
        for number in noted(checkpoint):
            if number > reported:
                say(f"batch {number}")
                reported = number
        if batches and reported + 1 >= batches:
            query.stop()
        elif active:
            time.sleep(0.02)
            continue
        return reported


def error_line(error: BaseException) -> str:
    """The line with the error, with its class if it is one of sparkwal's."""
    message, _ = readable(error)
    kind = _KIND.search(str(error))
    return f"{kind[0] if kind else ''}{message.splitlines()[0]}"


@dataclass(frozen=True)
class Work:
    """The source and the target of a stream; main's options describe the fields."""

    log: str
    endpoint: str | None
    checkpoint: str
    batches: int
    rows: int
    base: int
    partitions: int
    shuffle: int
    inline: str
    restarts: int
    slow: float
    options: list[str]
    name: str = ""
    files: str = ""
    per_trigger: int = 1
    every: float = 0.0

    def source(self, spark: SparkSession) -> DataFrame:
        """The numbered rows."""
        if self.files:
            stream = spark.readStream.schema("timestamp TIMESTAMP, value BIGINT")
            return stream.option("maxFilesPerTrigger", self.per_trigger).json(self.files)
        stream = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", self.rows)
        numbers = stream.option("numPartitions", self.partitions).load()
        numbers = numbers.selectExpr("timestamp", f"value + {self.base} as value")
        if self.shuffle:
            numbers = numbers.repartition(self.shuffle)
        if not self.slow:
            return numbers
        attempts = slowed(self.slow, f"{self.checkpoint}.attempts")
        return numbers.mapInArrow(attempts, numbers.schema)

    def start(self, spark: SparkSession) -> StreamingQuery:
        """Start a query, which continues from its checkpoint."""
        given = {"inlineThreshold": self.inline, **key_values(self.options, "--option")}
        if self.endpoint is not None:
            given |= log_options(self.endpoint, hedge=True)
        location = self.checkpoint
        if self.name:
            location, made = checkpoint_from_log(self.log, self.name, given, Path(location))
            if made is not None:
                say(f"rebuilt {made.batch_id}: {made.reason}")
            write_without_forks(spark, location)
        writer = self.source(spark).writeStream.format("weaselwal").options(**given)
        if self.every:
            writer = writer.trigger(processingTime=f"{round(self.every * 1000)} milliseconds")
        return writer.option("checkpointLocation", location).start(self.log)


def run(spark: SparkSession, work: Work) -> BaseException | None:
    """Stream until enough is done or no restart is left, and return the last query's error."""
    checkpoint = Path(work.checkpoint)
    reported = max(noted(checkpoint), default=-1)
    failure: BaseException | None = None
    for _ in range(work.restarts + 1):
        try:
            query = work.start(spark)
            say("started")
            reported = follow(query, checkpoint, work.batches, reported)
            failure = query.exception()
        except Exception as error:  # Spark itself may refuse to start a query
            failure = error
        if failure is None:
            break
        say(f"failed {error_line(failure)}")
    return failure


def warm_up(spark: SparkSession) -> None:
    """Write one microbatch into a separate log, so that the next query starts at full speed."""
    with TemporaryDirectory() as folder:
        work = Work(f"{folder}/log", None, f"{folder}/cp", 1, 1, 0, 1, 0, "0", 0, 0.0, [])
        query = work.start(spark)
        while query.isActive and not noted(Path(work.checkpoint)):
            time.sleep(0.02)
        query.stop()


@click.command(epilog=EXIT_CODES)
@click.option("--log", default="", help="s3://bucket/prefix, file:///folder or a folder.")
@click.option("--endpoint", help="URL of a local S3 server; the tests' credentials go with it.")
@click.option("--checkpoint", default="", help="A folder.")
@click.option("--name", default="", help="Of the query, to make --checkpoint from the log.")
@click.option("--files", default="", help="A folder of json files to read, in the order of time.")
@click.option("--per-trigger", type=int, default=1, help="Files of each microbatch, at most.")
@click.option("--every", type=float, default=0.0, help="Seconds from microbatch to microbatch.")
@click.option("--batches", type=int, default=0, help="Stop when so many are done in all; 0: never.")
@click.option("--rows", type=int, default=100, show_default=True, help="Of each microbatch.")
@click.option("--base", type=int, default=0, help="Added to every value.")
@click.option("--partitions", type=int, default=2, show_default=True, help="Of each microbatch.")
@click.option("--shuffle", type=int, default=0, help="Deal the rows out anew over so many; 0: no.")
@click.option("--inline", default="0", show_default=True, help="The log's inlineThreshold.")
@click.option("--restarts", type=int, default=0, help="Start a failed query so many times again.")
@click.option("--slow", type=float, default=0.0, help="Seconds of partition 0's first attempt.")
@click.option("--option", "options", multiple=True, metavar="NAME=VALUE", help="Of the log.")
@click.option(
    "--master",
    default="local[2,8]",
    show_default=True,
    help="local[2,8] (a killed worker is a failed task, tried 8 times), local-cluster[2,1,2048] "
    "or spark://host:port.",
)
@click.option("--conf", "confs", multiple=True, metavar="NAME=VALUE", help="Of Spark.")
@click.option("--java", default="", help="More options of Spark's JVMs.")
@click.option(
    "--standby",
    is_flag=True,
    help="Print `ready` when Spark has started, and then whenever a work is done; each line of "
    "stdin is another, as a JSON object of the options from --log to --option.",
)
def main(master: str, confs: tuple[str, ...], java: str, standby: bool, **given: Any) -> None:
    """A Spark application for tests/soak.sh and the tests to kill at any moment."""
    spark = session(master, java, key_values(confs, "--conf"))
    failure = None
    if standby:
        warm_up(spark)
        say("ready")
        for line in sys.stdin:
            failure = run(spark, Work(**{**given, **json.loads(line)}))
            say("ready")
    else:
        failure = run(spark, Work(**given))
    spark.stop()
    if failure is not None:
        print(error_line(failure), file=sys.stderr, flush=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
