"""One process that moves a log's life on, to be killed and put to sleep: compacts and collects.

Prints `ready`, then `run` before and `ran {json}` or `failed …` after each run of the lifecycle.
"""

from __future__ import annotations

import json
import random
import time
from contextlib import suppress

import click
import pyspark
from pyspark.sql import SparkSession

from faults.driver import error_line, say, session
from sparkwal.errors import SparkWalError
from sparkwal.format.lifecycle_record import Target
from sparkwal.lifecycle.coordinator import Coordinator
from sparkwal.lifecycle.cycle import Run
from sparkwal.lifecycle.policy import Policy
from sparkwal.options import spark_versions
from sparkwal.options.open import open_log
from sparkwal.options.parsing import parse
from sparkwal.options.reading import SourceOptions
from sparkwal.spark.delta import SparkDeltaTable
from sparkwal.spark.delta_files import delta_log, spark_path, table_lock
from sparkwal.testing.servers import log_options

SETTINGS = {
    **spark_versions.DELTA_SETTINGS,
    "spark.jars.packages": spark_versions.delta_package(pyspark.__version__),
    "spark.driver.memory": "768m",
    "spark.sql.shuffle.partitions": "2",
    "spark.databricks.delta.snapshotPartitions": "2",
    # The table keeps removed files for so long that no write lasts longer, see TABLE.
    "spark.databricks.delta.retentionDurationCheck.enabled": "false",
}
TABLE = (("delta.deletedFileRetentionDuration", "interval 5 minutes"),)


def maintain(spark: SparkSession, table: str, rng: random.Random) -> None:
    """Another user's work on the table: now and then OPTIMIZE or VACUUM."""
    statement = rng.choices(["", "OPTIMIZE", "VACUUM"], [8, 2, 1])[0]
    if not statement or not delta_log(spark, table).update():
        return
    # On a local disk Delta itself does not keep the writers of two processes apart.
    with table_lock(spark_path(table)):
        spark.sql(f"{statement} delta.`{table}`").collect()
    say(f"maintained {statement}")


def reported(run: Run, seconds: float) -> str:
    """A run as one line."""
    done, gone = run.compacted or run.finished, run.collection
    return json.dumps(
        {
            "seconds": round(seconds, 2),
            "found": run.found,
            "k": done.k if done else 0,
            "end": done.end if done else 0,
            "version": done.table_version if done else -1,
            "floor": run.floor,
            "objects": gone.objects if gone else 0,
            "uploads": gone.uploads if gone else 0,
            "bytes": gone.bytes if gone else 0,
            "held": gone.held_by if gone else "",
        }
    )


@click.command()
@click.option("--log", required=True)
@click.option("--endpoint", required=True)
@click.option("--table", required=True, help="A folder.")
@click.option("--late", type=int, required=True, help="lateArriveWindowSeconds.")
@click.option("--age", type=int, required=True, help="persistAgeThresholdSeconds.")
@click.option("--grace", type=float, required=True, help="Seconds from the floor to deletion.")
@click.option("--interval", type=float, required=True, help="Seconds from run to run.")
@click.option("--seed", type=int, required=True, help="Of what happens to the table.")
@click.option("--recover", is_flag=True, help="Only finish what was begun, and end.")
def main(
    log: str,
    endpoint: str,
    table: str,
    late: int,
    age: int,
    grace: float,
    interval: float,
    seed: int,
    recover: bool,
) -> None:
    """A compactor for tests/soak.sh --lifetimes."""
    rng = random.Random(seed)
    spark = session("local[2]", "", SETTINGS)
    given = {**log_options(endpoint), "maxRetryAttempts": "16", "retryBaseDelayMs": "20"}
    given["path"] = log
    target = Target(table, properties=TABLE)
    lifecycle = Coordinator(
        open_log(parse(SourceOptions, given)),
        Policy(late_window_seconds=late, persist_age_seconds=age),
        table=SparkDeltaTable(spark, target, given),
        gc_grace_ms=int(grace * 1000),
    )
    say("ready")
    if recover:
        say(f"recovered {lifecycle.recover().found}")
        return
    while True:
        began = time.monotonic()
        say("run")
        try:
            say(f"ran {reported(lifecycle.run_once(), time.monotonic() - began)}")
        except SparkWalError as error:
            say(f"failed {type(error).__name__}: {error_line(error)}")
        with suppress(Exception):  # a VACUUM may meet what the other one does
            maintain(spark, table, rng)
        time.sleep(max(0.0, interval - (time.monotonic() - began)))


if __name__ == "__main__":
    main()
