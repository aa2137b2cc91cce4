"""Watches a stream, forks, and ends Spark."""

import os
import sys
import threading

from pyspark.sql import SparkSession

from sparkwal.metrics.prometheus import new_meter
from sparkwal.metrics.stream import watch_stream

spark = (
    SparkSession.builder.master("local[1]")
    .config("spark.ui.enabled", "false")
    .config("spark.driver.host", "127.0.0.1")
    .config("spark.driver.bindAddress", "127.0.0.1")
    .getOrCreate()
)
meter = new_meter()
watch_stream(spark, sys.argv[1], meter)
(thread,) = [t for t in threading.enumerate() if t.name == "sparkwal-metrics"]
child = os.fork()
if not child:
    # A fork has none of its threads, and may begin anew.
    from sparkwal.metrics.writers import watch_lifecycle

    assert "sparkwal-metrics" not in [t.name for t in threading.enumerate()]
    watch_lifecycle(meter)()
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
spark.stop()
thread.join()
print("ended")
