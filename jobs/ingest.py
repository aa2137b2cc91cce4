"""Streams rows that Spark can read into a log."""

from __future__ import annotations

try:
    import support.installed  # noqa: F401
except ModuleNotFoundError:
    raise SystemExit(
        "jobs/support cannot be imported: keep that folder beside this file, run Python without "
        "-P, or give it to spark-submit --py-files (sparkwal/docs/deploying.md)"
    ) from None

# isort: split
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console

from sparkwal.cli.exit_codes import Refused, Stopped
from sparkwal.cli.flags import key_values, options, takes_log_options
from sparkwal.errors import SparkWalError
from sparkwal.options import spark_versions
from sparkwal.options.parsing import parse
from sparkwal.options.writing import SinkOptions
from sparkwal.spark import jvm
from support.checkpoints import check_checkpoint, checkpoint_from_log, write_without_forks
from support.follow import Meter, Signals, run_query, trigger
from support.session import EXIT_CODES, exit_for, open_log_at, start_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# Formats that read the files of a folder. They need a schema, and take maxFilesPerTrigger.
FILES = ("csv", "json", "parquet", "orc", "text", "xml")
KAFKA = f"org.apache.spark:spark-sql-kafka-0-10_{spark_versions.SCALA}:{{spark}}"

console = Console(stderr=True)


@dataclass(frozen=True)
class Source:
    """The source of the rows.

    Attributes:
        fmt: a format of Spark.
        location: a folder, URL or other argument for `load`.
        options: options of the format.
        schema: the schema of files as DDL.
        infer_schema: read the schema from the existing files.
        jars: the paths of jars, separated by commas.
    """

    fmt: str
    location: str | None
    options: dict[str, str]
    schema: str | None
    infer_schema: bool
    jars: str | None

    def read(self, spark: SparkSession) -> DataFrame:
        """The rows as a stream."""
        reader = spark.readStream.format(self.fmt).options(**self.options)
        if self.infer_schema:
            batch = spark.read.format(self.fmt).options(**self.options)
            if self.fmt == "csv":
                batch = batch.option("inferSchema", "true")
            schema = batch.load(self.location).schema
            return reader.schema(schema).load(self.location)
        if self.schema is not None:
            reader = reader.schema(self.schema)
        return reader.load(self.location) if self.location is not None else reader.load()


@dataclass(frozen=True)
class Query:
    """How the query runs.

    Attributes:
        name: the name under which the log carries the checkpoint, or None.
        checkpoint: the checkpoint of a query without a name.
        trigger: keywords for DataStreamWriter.trigger.
        repartition: the number of tasks that write, or None.
        drain_timeout: the seconds for which a signal waits for the running microbatch.
    """

    name: str | None
    checkpoint: str | None
    trigger: dict[str, Any]
    repartition: int | None
    drain_timeout: float


def _source(
    fmt: str,
    source: str | None,
    schema: str | None,
    jars: str | None,
    source_options: tuple[str, ...],
    max_files_per_trigger: int | None,
    *,
    infer_schema: bool,
) -> dict[str, Source]:
    parsed = key_values(source_options, "--option")
    if schema is not None and infer_schema:
        raise Refused("--schema and --infer-schema: give one of them")
    if fmt in FILES:
        if source is None:
            raise Refused(f"--format {fmt} needs --source, a folder of files")
        if schema is None and not infer_schema and fmt != "text":
            raise Refused(f"--format {fmt} needs --schema DDL or --infer-schema")
        if max_files_per_trigger is not None:
            parsed["maxFilesPerTrigger"] = str(max_files_per_trigger)
    elif max_files_per_trigger is not None or infer_schema:
        raise Refused("--max-files-per-trigger and --infer-schema are for files")
    if jars is not None and jvm.started_by_spark_submit():
        raise Refused("--jars here is too late: give it to spark-submit")
    result = Source(fmt, source, parsed, schema, infer_schema, jars)
    if fmt == "kafka" and source is not None:
        result = replace(
            result, location=None, options={**parsed, "kafka.bootstrap.servers": source}
        )
    return {"source": result}


_takes_source = options(
    _source,
    click.option(
        "--format",
        "fmt",
        required=True,
        help="The format of the source: json, csv, parquet, text, rate, rate-micro-batch, kafka, "
        "weaselwal, or any other that Spark streams from.",
    ),
    click.option("--source", help="A folder or URL of files; for kafka the bootstrap servers."),
    click.option(
        "--option",
        "source_options",
        multiple=True,
        metavar="NAME=VALUE",
        help="An option of the source; repeatable. Kafka: subscribe=topic, "
        "startingOffsets=earliest.",
    ),
    click.option(
        "--jars",
        metavar="FILE,FILE",
        help="Jars that the source needs. Without it, Kafka's connector comes from Maven Central.",
    ),
    click.option("--schema", help='The schema of files, as DDL: "id BIGINT, name STRING".'),
    click.option("--infer-schema", is_flag=True, help="Read the schema from the existing files."),
    click.option(
        "--max-files-per-trigger", type=click.IntRange(1), help="Files in each microbatch."
    ),
)


def _query(name: str | None, checkpoint: str | None, **flags: Any) -> dict[str, Query]:
    if (name is None) == (checkpoint is None):
        # There is no default: two queries with one name would overwrite each other's progress.
        raise Refused(
            "give --name, by which this query continues where it ended, or --checkpoint, a folder "
            "or URL for that" + ("" if name is None else "; not both")
        )
    return {"query": Query(name, checkpoint, flags.pop("query_trigger"), **flags)}


_takes_query = options(
    _query,
    click.option(
        "--name",
        help="The name of this query. No other query of the log may have it. Every run with this "
        "name continues where the last one ended, on any machine. The log carries the checkpoint; "
        "Spark writes it below $XDG_STATE_HOME/sparkwal or ~/.local/state/sparkwal.",
    ),
    click.option(
        "--checkpoint",
        help="Instead of --name: a folder or URL where only Spark keeps the progress. Every run "
        "with this checkpoint continues there.",
    ),
    click.option(
        "--trigger",
        "query_trigger",
        default="available-now",
        show_default=True,
        callback=trigger,
        help="available-now: run until all present rows are in the log. Or an interval such as "
        '"5 seconds": run until stopped.',
    ),
    click.option("--repartition", type=click.IntRange(1), help="The number of tasks that write."),
    click.option(
        "--drain-timeout",
        type=click.FloatRange(0),
        default=60.0,
        show_default=True,
        help="Seconds for which a signal waits for the running microbatch.",
    ),
    names=("name", "checkpoint", "query_trigger", "repartition", "drain_timeout"),
)


@click.command(epilog=EXIT_CODES)
@_takes_source
@click.option("--log", required=True, help="s3://bucket/prefix, file:///folder or a folder.")
@takes_log_options(like=", as in conf/options.example.conf")
@_takes_query
def main(log: str, log_options: dict[str, str], source: Source, query: Query) -> None:
    """Stream rows that Spark can read into a log: every row once, in one total order.

    Each microbatch becomes one position of the log. Run it again with the same name and it
    continues where it stopped, also after a crash and after the loss of the machine.

    After SIGTERM or Ctrl-C it finishes the running microbatch; a second signal stops it at once.
    Even then, and after kill -9, no row is lost or written twice. Under spark-submit send the
    signal to the Python process: its parent, the JVM, does not wait.

    \b
    python jobs/ingest.py --format json --source in/ --schema "id BIGINT, name STRING" \\
        --log s3://bucket/wal --name orders
    """
    try:
        # Check before Spark starts, which takes ten seconds.
        parse(SinkOptions, {**log_options, "path": log})
        before = open_log_at(log, log_options).head()
        rebuilt = None
        if query.checkpoint is None:
            location, rebuilt = checkpoint_from_log(log, query.name or "", log_options)
        else:
            location = query.checkpoint
            check_checkpoint(location, log, log_options)
    except SparkWalError as error:
        raise exit_for(error) from None
    if before is not None and rebuilt is not None:
        last = rebuilt.batch_id
        start = f"after microbatch {last}" if last >= 0 else "at the beginning"
        console.print(
            f"query {query.name} continues {start} with a checkpoint rebuilt from the log: on this "
            f"machine {rebuilt.reason}",
            highlight=False,
        )

    packages = [KAFKA] if source.fmt == "kafka" and source.jars is None else []
    spark = start_session("sparkwal ingest", packages=packages, jars=source.jars)
    try:
        with Signals() as signals, Meter(console, "ingest") as meter:
            try:
                write_without_forks(spark, location)
                rows = source.read(spark)
                if query.repartition is not None:
                    rows = rows.repartition(query.repartition)
                writer = rows.writeStream.format("weaselwal").options(**log_options)
                writer = writer.option("checkpointLocation", location)
                running = writer.trigger(**query.trigger).start(log)
            except Exception as error:
                raise exit_for(error) from None
            totals = run_query(running, meter, signals, query.drain_timeout)
        try:
            after = open_log_at(log, log_options).head()
        except SparkWalError as error:
            raise exit_for(error) from None
    finally:
        jvm.end(spark)
    first = before.position + 1 if before else 0
    last = after.position if after else -1
    positions = f"positions {first}…{last}" if last >= first else "no new position"
    console.print(
        f"{totals.rows:,} rows in {totals.microbatches:,} microbatches: {positions} of {log}",
        highlight=False,
    )
    if signals.received is not None:
        raise Stopped(signals.received)


if __name__ == "__main__":
    main()
