"""Run a log's whole life under the Spark of this Python, over S3.

Prints each step that ran, or the step that this Spark lacks.

    python whole_life.py LOGS FOLDER

LOGS is a path such as s3://bucket/logs; AWS_… variables give its endpoint and keys.
"""

from __future__ import annotations

import shutil
import sys
from contextlib import suppress
from pathlib import Path
from typing import TypeGuard

import pyspark
from pyspark.sql import SparkSession

import sparkwal
from sparkwal.errors import OptionError
from sparkwal.format.header import CommitHeader
from sparkwal.options import spark_versions


def session() -> SparkSession:
    """A session with Delta Lake, if it has jars for this Spark."""
    builder = (
        SparkSession.builder.master("local[2]")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", "2")
    )
    with suppress(OptionError):
        package = spark_versions.delta_package(pyspark.__version__)
        builder = builder.config("spark.jars.packages", package)
        for name, value in spark_versions.DELTA_SETTINGS.items():
            builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def main(logs: str, folder: Path) -> None:
    spark = session()
    log = f"{logs}/wal"
    copy = f"{logs}/copy"
    checkpoint = folder / "checkpoint"
    sparkwal.register(spark)
    sparkwal.register(spark)
    say("register")

    def ingest() -> None:
        numbers = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 10)
        made = sparkwal.checkpoint(log, "numbers", folder=checkpoint)
        writer = numbers.option("numPartitions", 2).load().writeStream.format("weaselwal")
        writer = writer.option("checkpointLocation", made).trigger(availableNow=True)
        writer.start(log).awaitTermination()

    def follow(to: str) -> None:
        reader = spark.readStream.format("weaselwal").option("maxCommitsPerTrigger", 1)
        stream = reader.option("consumer", to).load(log)
        writer = stream.writeStream.format("weaselwal").trigger(availableNow=True)
        writer = writer.option("checkpointLocation", str(folder / to))
        writer.start(f"{logs}/{to}").awaitTermination()
        lags = {each.name: each.lag for each in sparkwal.consumers(log)}
        assert lags[to] == 0, lags

    def values(path: str, **options: object) -> list[int]:
        rows = spark.read.format("weaselwal").options(**options).load(path)  # type: ignore[arg-type]
        return sorted(row.value for row in rows.select("value").collect())

    ingest()
    say("stream write")
    assert values(log) == [*range(10)]
    say("batch read")
    follow("copy")
    assert values(copy) == [*range(10)]
    say("stream read")
    ingest()
    follow("copy")
    assert values(log) == values(copy) == [*range(20)]
    say("restart")
    shutil.rmtree(checkpoint)
    ingest()
    assert values(log) == [*range(30)]
    say("checkpoint from the log")
    more = spark.createDataFrame([(None, 30)], "timestamp timestamp, value bigint")
    for _ in range(2):
        writer = more.write.format("weaselwal").mode("append")
        writer.option("txnAppId", "nightly").option("txnVersion", 1).save(log)
    assert values(log) == [*range(31)]
    say("batch append, once")
    commits = [each for each in sparkwal.Log(log).records() if is_commit(each)]
    assert [each.rows for each in commits] == [10, 10, 10, 1]
    assert values(log, startingPosition=commits[-1].position) == [30]
    spark.sql(f"CREATE TEMPORARY VIEW wal USING weaselwal OPTIONS (path '{log}')")
    assert spark.sql("SELECT count(DISTINCT value) FROM wal").collect()[0][0] == 31
    say("SQL")
    follow("limited")
    taken = [each.rows for each in sparkwal.Log(f"{logs}/limited").records() if is_commit(each)]
    assert sum(taken) == 31
    say("limits of each microbatch", lacks="" if taken == [10, 10, 10, 1] else f"took {taken}")
    table = str(folder / "table")
    try:
        life = sparkwal.Lifecycle(log, spark=spark, table=table, keys=["value"], collects=False)
        life.run_once(whole=True)
        current = sparkwal.read_current(spark, log).select("value").collect()
        assert sorted(row.value for row in current) == [*range(31)]
        say("Delta table by keys")
    except OptionError as error:
        say("Delta table by keys", lacks=str(error))
    spark.stop()

    report = sparkwal.verify(log)
    assert report.ok and report.orphans == [], report
    assert sorted(sparkwal.Log(copy).to_pandas()["value"]) == [*range(20)]
    say("verify")


def is_commit(record: object) -> TypeGuard[CommitHeader]:
    return isinstance(record, CommitHeader)


def say(step: str, lacks: str = "") -> None:
    print(f"lacks {step}: {lacks}" if lacks else f"did {step}", flush=True)


if __name__ == "__main__":
    print(f"Spark {pyspark.__version__}, Python {sys.version.split()[0]}", flush=True)
    main(sys.argv[1], Path(sys.argv[2]))
