"""The roles of a history that need Spark: a query that writes the log, and compaction."""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

import sparkwal
from sparkwal.errors import SparkWalError
from sparkwal.format.lifecycle_record import Target
from sparkwal.spark.delta import SparkDeltaTable
from support.session import start_session

from .lake_worker import coordinator, run_lifecycle

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

    from .worker import Worker

# The values of one producer begin at a multiple of this; worker.PRODUCER is the same.
PRODUCER = 1_000_000
_ERRORS = (SparkWalError, PySparkException, Py4JError)


def _session(work: Path, *, delta: bool = False) -> SparkSession:
    settings = {
        "spark.master": "local[2]",
        "spark.driver.memory": "1g",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.local.dir": str(work),
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    }
    spark = start_session("histories", delta=delta, settings=settings)
    spark.sparkContext.setLogLevel("OFF")
    return spark


def compact(worker: Worker, options: dict[str, str]) -> None:
    """Compact the log into a table that Spark writes, move the floor and collect."""
    spark = _session(Path(options["work"]), delta=True)
    target = Target(options["table"])
    texts = {name: str(value) for name, value in worker.options.items()}
    while not worker.ended.is_set():
        table = SparkDeltaTable(spark, target, {**texts, "path": worker.path})
        lifecycle = coordinator(worker.path, worker.options, table)
        run_lifecycle(worker, lifecycle, None)


def stream(worker: Worker, options: dict[str, str]) -> None:
    """Write files that a query takes into the log, each file a value and a microbatch.

    A file that lies in the source counts as accepted: the query must take it once, whatever
    happens to this process. After an error, start the query again on the same log, now and then
    without its checkpoint folder.
    """
    work = Path(options["work"])
    source = work / "source"
    source.mkdir(exist_ok=True)
    spark = _session(work)
    first = int(options["producer"]) * PRODUCER
    while not worker.ended.is_set():
        query = None
        try:
            query = _started(worker, spark, work)
            _feed(worker, query, source, first)
        except _ERRORS as error:
            print(error, flush=True)
            worker.pause(1.0)
        finally:
            if query is not None:
                query.stop()
    # The last files, for a process that ends.
    _started(worker, spark, work).processAllAvailable()


def _started(worker: Worker, spark: SparkSession, work: Path) -> StreamingQuery:
    folder = work / "checkpoint"
    if worker.rng.random() < 0.3:
        shutil.rmtree(folder, ignore_errors=True)
    options = {name: str(value) for name, value in worker.options.items()}
    checkpoint = sparkwal.checkpoint(worker.path, "history", folder=folder, **worker.options)
    rows = spark.readStream.schema("v long").json(str(work / "source"))
    writer = rows.writeStream.format("weaselwal").options(**options)
    writer = writer.option("maxRetryAttempts", 4).option("retryBaseDelayMs", 5)
    return writer.option("checkpointLocation", checkpoint).start(worker.path)


def _feed(worker: Worker, query: StreamingQuery, source: Path, first: int) -> None:
    # What an earlier process left comes first: one file on the way at once keeps their order.
    query.processAllAvailable()
    value = first + sum(1 for _ in source.iterdir())
    while not worker.ended.is_set():
        value += 1
        noted = worker.notes.begin("append", values=[value])
        draft = source.parent / f"{value}.draft"
        draft.write_text(json.dumps({"v": value}))
        os.rename(draft, source / f"{value}.json")
        worker.notes.note(noted, accepted=time.monotonic_ns())
        try:
            query.processAllAvailable()
        except _ERRORS as error:
            worker.notes.end(noted, "unknown", error=type(error).__name__)
            raise
        worker.notes.end(noted, "ok")
        worker.pause(0.1)
