"""Table and log as one, and a compaction, under a Spark that is too new for Delta Lake.

python delta_refused.py LOG TABLE
"""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession

import sparkwal
from sparkwal.errors import OptionError

spark = (
    SparkSession.builder.master("local[1]")
    .config("spark.driver.host", "127.0.0.1")
    .config("spark.ui.enabled", "false")
    .getOrCreate()
)
spark.sparkContext.setLogLevel("ERROR")
for attempt in (
    lambda: sparkwal.read_current(spark, sys.argv[1]),
    lambda: sparkwal.Lifecycle(sys.argv[1], spark=spark, table=sys.argv[2]),
):
    try:
        attempt()
    except OptionError as error:
        print(f"refused: {error}")
spark.stop()
