"""A stateful query with its checkpoint on S3, as a process: CHECKPOINT LOG SETTINGS.

Prints `batch N` after each microbatch, and in the end `failed: …`.
"""

from __future__ import annotations

import json
import sys
import time

from pyspark.sql import SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

import sparkwal
from tests.spark.tables.session import start


def stateful(spark: SparkSession, checkpoint: str, log: str) -> DataStreamWriter:
    """A query that writes 10 more numbers, none twice, in each microbatch."""
    source = spark.readStream.format("rate-micro-batch")
    # The watermark begins at 0: rows of that time would be late.
    rows = source.options(rowsPerBatch=10, startTimestamp=1_800_000_000_000).load()
    rows = rows.withWatermark("timestamp", "1 hour").dropDuplicates(["value", "timestamp"])
    writer = rows.select("value").writeStream.format("weaselwal")
    return writer.option("checkpointLocation", checkpoint).option("path", log)


def main(checkpoint: str, log: str, settings: str) -> None:
    spark = start(json.loads(settings))
    sparkwal.register(spark)
    query = stateful(spark, checkpoint, log).start()
    seen = -1
    while query.isActive:
        last = query.lastProgress
        if last is not None and last.batchId > seen:
            seen = last.batchId
            print(f"batch {seen}", flush=True)
        time.sleep(0.05)
    print(f"failed: {query.exception()}".replace("\n", " "), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
