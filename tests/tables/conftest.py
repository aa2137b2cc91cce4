"""Tests with Delta Lake run in a process of their own: see tests/spark/test_delta.py.

A JVM has one Spark context, and that of the other tests has no Delta Lake.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import sparkwal
from sparkwal.spark import log_store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

collect_ignore_glob = [] if os.environ.get("SPARKWAL_TABLES") else ["test_*.py"]

HADOOP_AWS = "org.apache.hadoop:hadoop-aws:3.5.0"


@pytest.fixture(scope="session")
def delta() -> Iterator[SparkSession]:
    """A small local Spark with Delta Lake, which Ivy downloads the first time."""
    from delta import configure_spark_with_delta_pip
    from pyspark.sql import SparkSession

    source = str(Path(sparkwal.__file__).parents[1])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        patch.setenv("PYTHONPATH", source, prepend=os.pathsep)
        extensions = "io.delta.sql.DeltaSparkSessionExtension"
        catalog = "org.apache.spark.sql.delta.catalog.DeltaCatalog"
        builder = (
            SparkSession.builder.master("local[2]")
            .appName("sparkwal-tables")
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.driver.bindAddress", "127.0.0.1")
            .config("spark.ui.enabled", "false")
            .config("spark.ui.showConsoleProgress", "false")
            .config("spark.sql.shuffle.partitions", "2")
            .config("spark.sql.extensions", extensions)
            .config("spark.sql.catalog.spark_catalog", catalog)
            .config("spark.databricks.delta.snapshotPartitions", "2")
            # VACUUM would list and delete in 10,000 tasks.
            .config("spark.jars", str(log_store.jar()))
            .config(log_store.SETTING, log_store.CLASS)
            .config("spark.sql.sources.parallelPartitionDiscovery.parallelism", "2")
        )
        session = configure_spark_with_delta_pip(builder, [HADOOP_AWS]).getOrCreate()
        session.sparkContext.setLogLevel("ERROR")
        yield session
        session.stop()
