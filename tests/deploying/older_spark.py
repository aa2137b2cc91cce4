"""What a Spark that the data source does not know can do with a log.

python older_spark.py FOLDER
"""

from __future__ import annotations

import sys

import pyarrow as pa
from pyspark.sql import SparkSession

import sparkwal
from sparkwal.errors import OptionError

log = f"{sys.argv[1]}/wal"
with sparkwal.Appender(log, pa.schema([("id", pa.int64())]), producer_id="p") as wal:
    wal.append([{"id": 1}, {"id": 2}])
spark = (
    SparkSession.builder.master("local[1]")
    .config("spark.driver.host", "127.0.0.1")
    .config("spark.ui.enabled", "false")
    .getOrCreate()
)
spark.sparkContext.setLogLevel("ERROR")
try:
    sparkwal.register(spark)
except OptionError as error:
    print(f"refused: {error}")
# The session is as good as before.
print("rows", spark.createDataFrame(sparkwal.Log(log).scan().read_all()).count())
spark.stop()
