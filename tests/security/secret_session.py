"""A session of Spark that is given secrets, and shows all that it can show.

python secret_session.py PATH FOLDER < options
"""

from __future__ import annotations

import sys
from pathlib import Path

from pyspark.sql import SparkSession

import sparkwal


def main(path: str, folder: Path) -> None:
    given = dict(line.split("=", 1) for line in sys.stdin.read().splitlines())
    (folder / "events").mkdir()
    (folder / "local").mkdir()
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .config("spark.eventLog.enabled", "true")
        .config("spark.eventLog.compress", "false")
        .config("spark.eventLog.dir", f"file://{folder}/events")
        .config("spark.local.dir", str(folder / "local"))
        .config("spark.hadoop.fs.s3a.secret.key", given["secretAccessKey"])
        .getOrCreate()
    )
    sparkwal.register(spark)
    rows = spark.range(10).selectExpr("id AS v")
    rows.write.format("weaselwal").mode("append").options(**given).save(path)
    stream = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 5).load()
    query = (
        stream.selectExpr("value AS v")
        .writeStream.format("weaselwal")
        .options(**given)
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start(path)
    )
    query.awaitTermination()
    print(query.lastProgress.json if query.lastProgress else "", query.status)
    query.explain(True)
    log = spark.read.format("weaselwal").options(**given).load(path)
    log.explain(True)
    log.explain("formatted")
    print(log.count(), log._jdf.queryExecution().toString())
    options = ", ".join(f"`{name}` '{value}'" for name, value in given.items())
    view = f"CREATE TEMPORARY VIEW wal USING weaselwal OPTIONS (path '{path}', {options})"
    made = spark.sql(view)
    made.explain(True)
    spark.sql("DESCRIBE EXTENDED wal").show(100, False)
    print(spark.sql("SELECT count(*) FROM wal").collect())
    spark.sql("EXPLAIN EXTENDED SELECT * FROM wal").show(1, False)
    for wrong in ({"endpoint": "http://127.0.0.1:1", "maxRetryAttempts": "0"}, {"lease": "x"}):
        try:
            spark.read.format("weaselwal").options(**{**given, **wrong}).load(path).count()
        except Exception as error:
            print(type(error).__name__, error)
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
