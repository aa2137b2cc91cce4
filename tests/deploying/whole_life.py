"""A log's whole life under the Spark of this Python, over S3; says each step that it did.

    python whole_life.py LOGS FOLDER

LOGS is a path such as s3://bucket/logs; how to reach it comes from AWS_… variables.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pyspark
from pyspark.sql import SparkSession

import sparkwal
from sparkwal.format.header import CommitHeader


def main(logs: str, folder: Path) -> None:
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
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

    def follow() -> None:
        stream = spark.readStream.format("weaselwal").option("maxCommitsPerTrigger", 1).load(log)
        writer = stream.writeStream.format("weaselwal").trigger(availableNow=True)
        writer.option("checkpointLocation", str(folder / "copied")).start(copy).awaitTermination()

    def values(path: str, **options: object) -> list[int]:
        rows = spark.read.format("weaselwal").options(**options).load(path)  # type: ignore[arg-type]
        return sorted(row.value for row in rows.select("value").collect())

    ingest()
    say("stream write")
    assert values(log) == [*range(10)]
    say("batch read")
    follow()
    assert values(copy) == [*range(10)]
    say("stream read")
    ingest()
    follow()
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
    commits = [each for each in sparkwal.Log(log).records() if isinstance(each, CommitHeader)]
    assert [each.rows for each in commits] == [10, 10, 10, 1]
    assert values(log, startingPosition=commits[-1].position) == [30]
    spark.sql(f"CREATE TEMPORARY VIEW wal USING weaselwal OPTIONS (path '{log}')")
    assert spark.sql("SELECT count(DISTINCT value) FROM wal").collect()[0][0] == 31
    say("SQL")
    spark.stop()

    report = sparkwal.verify(log)
    assert report.ok and report.orphans == [], report
    assert sorted(sparkwal.Log(copy).to_pandas()["value"]) == [*range(20)]
    say("verify")


def say(step: str) -> None:
    print(f"did {step}", flush=True)


if __name__ == "__main__":
    print(f"Spark {pyspark.__version__}, Python {sys.version.split()[0]}", flush=True)
    main(sys.argv[1], Path(sys.argv[2]))
