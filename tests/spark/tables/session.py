"""A small local Spark with Delta Lake, which Ivy downloads the first time."""

from __future__ import annotations

from collections.abc import Mapping

from delta import configure_spark_with_delta_pip
from pyspark.sql import SparkSession

from sparkwal.spark import log_store
from sparkwal.testing.servers import ACCESS_KEY, REGION, SECRET_KEY

HADOOP_AWS = "org.apache.hadoop:hadoop-aws:3.5.0"
SETTINGS = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.jars": str(log_store.jar()),
    log_store.SETTING: log_store.CLASS,
    # For some rows Spark would take longer to plan and to compile than to go through them.
    "spark.default.parallelism": "2",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.databricks.delta.snapshotPartitions": "2",
    # VACUUM would list and delete in 10,000 tasks.
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "2",
}


def start(settings: Mapping[str, str]) -> SparkSession:
    """The session of this process; PYSPARK_PYTHON names its workers' Python."""
    builder = SparkSession.builder.master("local[2]").appName("sparkwal-tables")
    for name, value in {**SETTINGS, **settings}.items():
        builder = builder.config(name, value)
    session = configure_spark_with_delta_pip(builder, [HADOOP_AWS]).getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


def s3a(url: str) -> dict[str, str]:
    """How Hadoop reaches the server at `url`."""
    given = {
        "endpoint": url,
        "endpoint.region": REGION,
        "access.key": ACCESS_KEY,
        "secret.key": SECRET_KEY,
        "path.style.access": "true",
        "connection.ssl.enabled": "false",
        "aws.credentials.provider": "org.apache.hadoop.fs.s3a.SimpleAWSCredentialsProvider",
    }
    return {f"fs.s3a.{name}": value for name, value in given.items()}
