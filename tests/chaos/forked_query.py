"""A driver that forks a query and runs it over files until it has read all.

python forked_query.py NEW LOG AT SOURCE
"""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession

import sparkwal


def main(new: str, log: str, at: str, source: str) -> None:
    spark = (
        SparkSession.builder.master("local[1]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "1")
        .getOrCreate()
    )
    sparkwal.register(spark)
    fork = sparkwal.Fork(log, "orders", at=int(at))
    place = sparkwal.checkpoint(new, "orders-v2", folder=f"{new}-checkpoint", fork=fork)
    rows = spark.readStream.option("maxFilesPerTrigger", 1).text(source)
    query = (
        rows.selectExpr("cast(value as bigint) as value")
        .writeStream.format("weaselwal")
        .option("checkpointLocation", f"file://{place}")
        .option("path", new)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
