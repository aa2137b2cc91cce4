"""Any stream or files that Spark reads, into a log."""

from __future__ import annotations

try:
    import support.installed  # noqa: F401
except ModuleNotFoundError:
    raise SystemExit(
        "jobs/support cannot be imported: keep that folder beside this file, run Python without "
        "-P, or give it to spark-submit --py-files (sparkwal/docs/deploying.md)"
    ) from None

# isort: split
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console

from sparkwal.cli.exit_codes import Refused, Stopped
from sparkwal.cli.flags import key_values, takes_log_options
from sparkwal.errors import SparkWalError
from sparkwal.options import spark_versions
from sparkwal.options.parsing import parse
from sparkwal.options.writing import SinkOptions
from support import jvm
from support.checkpoints import check_checkpoint, made_from_log, write_plainly
from support.follow import Meter, Signals, run_query, trigger
from support.session import EXIT_CODES, as_exit, open_log_at, start_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# Formats that list a folder: they need a schema, and know maxFilesPerTrigger.
FILES = ("csv", "json", "parquet", "orc", "text", "xml")
KAFKA = f"org.apache.spark:spark-sql-kafka-0-10_{spark_versions.SCALA}:{{spark}}"

console = Console(stderr=True)


def _read(
    spark: SparkSession,
    fmt: str,
    source: str | None,
    options: dict[str, str],
    schema: str | None,
    infer: bool,
) -> DataFrame:
    if infer:
        reader = spark.read.format(fmt).options(**options)
        if fmt == "csv":
            reader = reader.option("inferSchema", "true")
        found = reader.load(source).schema
        return spark.readStream.format(fmt).options(**options).schema(found).load(source)
    stream = spark.readStream.format(fmt).options(**options)
    if schema is not None:
        stream = stream.schema(schema)
    return stream.load(source) if source is not None else stream.load()


@click.command(epilog=EXIT_CODES)
@click.option(
    "--format",
    "fmt",
    required=True,
    help="Of the source: json, csv, parquet, text, rate, rate-micro-batch, kafka, weaselwal, or "
    "any other that Spark streams from.",
)
@click.option("--source", help="Folder or URL of files; of kafka the bootstrap servers.")
@click.option(
    "--option",
    "source_options",
    multiple=True,
    metavar="NAME=VALUE",
    help="An option of the source; repeatable. Kafka: subscribe=topic, startingOffsets=earliest.",
)
@click.option(
    "--jars",
    metavar="FILE,FILE",
    help="Jars that the source needs. Without, Kafka's connector comes from Maven Central.",
)
@click.option("--log", required=True, help="s3://bucket/prefix, file:///folder or a folder.")
@takes_log_options(like=", as in conf/options.example.conf")
@click.option(
    "--name",
    help="Of this query: one that no other query of the log has. Every run with the same name goes "
    "on where the last ended, on any machine. The log carries the checkpoint; what Spark writes of "
    "it lies below $XDG_STATE_HOME/sparkwal or ~/.local/state/sparkwal.",
)
@click.option(
    "--checkpoint",
    help="Instead of --name: a folder or URL where Spark alone keeps how far it is. Every run with "
    "the same one goes on there.",
)
@click.option("--schema", help='Of files, as DDL: "id BIGINT, name STRING".')
@click.option("--infer-schema", is_flag=True, help="Read the files' schema from what is there now.")
@click.option(
    "--trigger",
    "trigger_given",
    default="available-now",
    show_default=True,
    callback=trigger,
    help="available-now: until all that is there now is in the log. Or an interval such as "
    '"5 seconds": run until stopped.',
)
@click.option("--max-files-per-trigger", type=click.IntRange(1), help="Files for each microbatch.")
@click.option("--repartition", type=click.IntRange(1), help="Write with so many tasks.")
@click.option(
    "--drain-timeout",
    type=click.FloatRange(0),
    default=60.0,
    show_default=True,
    help="Seconds a signal waits for the microbatch under way.",
)
def main(
    fmt: str,
    source: str | None,
    source_options: tuple[str, ...],
    jars: str | None,
    log: str,
    log_options: dict[str, str],
    name: str | None,
    checkpoint: str | None,
    schema: str | None,
    infer_schema: bool,
    trigger_given: dict[str, Any],
    max_files_per_trigger: int | None,
    repartition: int | None,
    drain_timeout: float,
) -> None:
    """Stream whatever Spark can read into a log: every row once, in one total order.

    Each microbatch becomes one position of the log. Run it again with the same name
    and it goes on where it stopped, after a crash too, and after the loss of the machine.

    SIGTERM and Ctrl-C let the microbatch under way finish and then stop; a second one stops
    at once. Even then, and after kill -9, nothing is lost or written twice. Under
    spark-submit send the signal to the Python process: its parent, the JVM, does not wait.

    \b
    python jobs/ingest.py --format json --source in/ --schema "id BIGINT, name STRING" \\
        --log s3://bucket/wal --name orders
    """
    options = key_values(source_options, "--option")
    if schema is not None and infer_schema:
        raise Refused("--schema and --infer-schema: give one of them")
    if (name is None) == (checkpoint is None):
        # No default: two queries with one name would overwrite each other's place in the source.
        raise Refused(
            "give --name, by which this query goes on where it ended, or --checkpoint, a folder or "
            "URL for that" + ("" if name is None else "; not both")
        )
    if fmt in FILES:
        if source is None:
            raise Refused(f"--format {fmt} needs --source, a folder of files")
        if schema is None and not infer_schema and fmt != "text":
            raise Refused(f"--format {fmt} needs --schema DDL or --infer-schema")
        if max_files_per_trigger is not None:
            options["maxFilesPerTrigger"] = str(max_files_per_trigger)
    elif max_files_per_trigger is not None or infer_schema:
        raise Refused("--max-files-per-trigger and --infer-schema are for files")
    if jars is not None and jvm.started_by_spark_submit():
        raise Refused("--jars here is too late: give it to spark-submit")
    if fmt == "kafka" and source is not None:
        options["kafka.bootstrap.servers"], source = source, None
    try:
        # Check before Spark starts: to report a wrong option should not take ten seconds.
        parse(SinkOptions, {**log_options, "path": log})
        before = open_log_at(log, log_options).head()
        location, made = checkpoint, None
        if location is None:
            location, made = made_from_log(log, name or "", log_options)
        else:
            check_checkpoint(location, log, log_options)
    except SparkWalError as error:
        raise as_exit(error) from None
    if before is not None and made is not None:
        whence = f"after microbatch {made.batch_id}" if made.batch_id >= 0 else "at the beginning"
        console.print(
            f"query {name} goes on {whence} with a checkpoint made from the log: on this machine "
            f"{made.reason}",
            highlight=False,
        )

    packages = [KAFKA] if fmt == "kafka" and jars is None else []
    spark = start_session("sparkwal ingest", packages=packages, jars=jars)
    try:
        with Signals() as signals, Meter(console, "ingest") as meter:
            try:
                write_plainly(spark, location)
                rows = _read(spark, fmt, source, options, schema, infer_schema)
                if repartition is not None:
                    rows = rows.repartition(repartition)
                writer = rows.writeStream.format("weaselwal").options(**log_options)
                writer = writer.option("checkpointLocation", location)
                query = writer.trigger(**trigger_given).start(log)
            except Exception as error:
                raise as_exit(error) from None
            totals = run_query(query, meter, signals, drain_timeout)
        try:
            after = open_log_at(log, log_options).head()
        except SparkWalError as error:
            raise as_exit(error) from None
    finally:
        jvm.end(spark)
    first = before.position + 1 if before else 0
    last = after.position if after else -1
    where = f"positions {first}…{last}" if last >= first else "no new position"
    console.print(
        f"{totals.rows:,} rows in {totals.microbatches:,} microbatches: {where} of {log}",
        highlight=False,
    )
    if signals.received is not None:
        raise Stopped(signals.received)


if __name__ == "__main__":
    main()
