"""One Spark of a chain: it continues a log, its checkpoint folders, its reader and its table.

    python continue_log.py FOLDER ROUND

Ends with code 9: it kills its JVM in the middle of a stream.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import pyspark
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery
from whole_life import session

import sparkwal
from sparkwal.errors import OptionError

ROWS = 10


def ingest(spark: SparkSession, folder: Path, **trigger: object) -> StreamingQuery:
    """Stream numbers, ten in each microbatch; a lost checkpoint is rebuilt from the log."""
    stream = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", ROWS).load()
    made = sparkwal.checkpoint(str(folder / "wal"), "numbers", folder=folder / "checkpoint")
    writer = stream.writeStream.format("weaselwal").option("checkpointLocation", made)
    return writer.trigger(**trigger).start(str(folder / "wal"))  # type: ignore[arg-type]


def follow(spark: SparkSession, folder: Path) -> None:
    stream = spark.readStream.format("weaselwal").option("maxCommitsPerTrigger", 1)
    writer = stream.load(str(folder / "wal")).writeStream.format("weaselwal")
    writer = writer.option("checkpointLocation", str(folder / "copied")).trigger(availableNow=True)
    writer.start(str(folder / "copy")).awaitTermination()


def nightly(spark: SparkSession, folder: Path, number: int) -> None:
    """The last transaction of the Spark before, repeated, and the next one, twice."""
    for version in (max(number - 1, 0), number, number):
        rows = spark.createDataFrame([(version,)], "id bigint")
        writer = rows.write.format("weaselwal").mode("append").option("sequencer", "nightly")
        writer = writer.option("txnAppId", "nightly").option("txnVersion", version)
        writer.save(str(folder / "wal"))


def compact(spark: SparkSession, folder: Path) -> None:
    """The log into a table by keys, where this Spark has Delta Lake."""
    try:
        life = sparkwal.Lifecycle(
            str(folder / "wal"), spark=spark, table=str(folder / "table"), keys=["value"]
        )
    except OptionError as error:
        print(f"refused: {error}", flush=True)
        return
    life.run_once(whole=True)
    rows = sparkwal.read_current(spark, str(folder / "wal")).select("value").collect()
    whole = sorted(row.value for row in rows) == [*range(len(rows))]
    # The process is killed later, and with it what is not flushed.
    print(f"current {whole} {len(rows)}", flush=True)


def main(folder: Path, number: int) -> None:
    spark = session()
    sparkwal.register(spark)
    ingest(spark, folder, availableNow=True).awaitTermination()
    follow(spark, folder)
    nightly(spark, folder, number)
    compact(spark, folder)
    query = ingest(spark, folder, processingTime="0 seconds")
    first = None
    while (progress := query.lastProgress) is None or progress["batchId"] < (first or 0) + 2:
        if progress is not None and first is None:
            first = progress["batchId"]
        time.sleep(0.05)
    gateway = spark.sparkContext._gateway
    assert gateway is not None
    os.kill(gateway.proc.pid, signal.SIGKILL)
    os._exit(9)


if __name__ == "__main__":
    print(f"Spark {pyspark.__version__}", flush=True)
    main(Path(sys.argv[1]), int(sys.argv[2]))
