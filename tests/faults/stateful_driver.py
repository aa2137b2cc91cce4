"""One Spark application to be killed: all queries of `faults.stateful`, each into a log of its own.

Each line of stdin is a work. Prints `started QUERY`, `failed QUERY: ERROR`, `rebuilt QUERY: WHY`,
`done QUERY` when a query has read all files, and `ready` when the work is done.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from faults.driver import error_line, say, session, warm_up
from faults.stateful import PROVIDERS, QUERIES, SCHEMA
from sparkwal.cli.flags import key_values
from sparkwal.testing.servers import log_options
from support.checkpoints import checkpoint_from_log, write_without_forks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

# A query that has failed starts again so many seconds later.
PAUSE = 0.2


@dataclass(frozen=True)
class Work:
    """What the queries read and write.

    Attributes:
        files: the folder with their input.
        logs: the folder or URL of their logs.
        checkpoints: the folder of their checkpoints, which the logs carry, or a URL.
        providers: the state store provider of each query.
        settings: settings of Spark.
        endpoint: the URL of a local S3 server.
        all_files: end when all files are read.
    """

    files: str
    logs: str
    checkpoints: str
    providers: dict[str, str]
    settings: dict[str, str]
    endpoint: str | None = None
    all_files: bool = False

    def start(self, spark: SparkSession, name: str) -> StreamingQuery:
        """Start a query, which continues from its checkpoint."""
        log = f"{self.logs}/{name}"
        options = {} if self.endpoint is None else log_options(self.endpoint, hedge=True)
        location = f"{self.checkpoints}/{name}"
        if "://" not in location:
            location, made = checkpoint_from_log(log, name, options, Path(location))
            if made is not None:
                say(f"rebuilt {name}: {made.batch_id}: {made.reason}")
            write_without_forks(spark, location)
        provider = PROVIDERS[self.providers[name]]
        for setting in {setting for each in PROVIDERS.values() for setting in each}:
            spark.conf.unset(setting)
        for setting, value in {**self.settings, **provider}.items():
            spark.conf.set(setting, value)
        rows = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(self.files)
        writer = QUERIES[name](rows).writeStream.format("weaselwal").options(**options)
        if self.all_files:
            writer = writer.trigger(availableNow=True)
        return writer.option("checkpointLocation", location).start(log)


def run(spark: SparkSession, work: Work) -> None:
    """Run all queries. One that fails starts again. Without `all_files` they never end."""
    running: dict[str, StreamingQuery | None] = dict.fromkeys(work.providers)
    while running:
        for name in [*running]:
            query = running[name]
            failure: BaseException | None = None
            try:
                if query is None:
                    running[name] = work.start(spark, name)
                    say(f"started {name}")
                    continue
                if query.isActive:
                    continue
                failure = query.exception()
            except Exception as error:  # Spark itself may refuse to start a query
                failure = error
            if failure is None:
                say(f"done {name}")
                del running[name]
            else:
                say(f"failed {name}: {error_line(failure)}")
                running[name] = None
        time.sleep(PAUSE)


@click.command()
@click.option("--conf", "confs", multiple=True, metavar="NAME=VALUE", help="Of Spark.")
def main(confs: tuple[str, ...]) -> None:
    """Run stateful queries for the tests to kill at any moment."""
    small = {
        "spark.sql.shuffle.partitions": "2",
        # For some rows Spark would take longer to compile than to go through them.
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    }
    given = key_values(confs, "--conf")
    master = given.get("spark.master", "local[2]")
    spark = session(master, "", {**small, **given})
    warm_up(spark)
    say("ready")
    for line in sys.stdin:
        run(spark, Work(**json.loads(line)))
        say("ready")
    spark.stop()


if __name__ == "__main__":
    main()
