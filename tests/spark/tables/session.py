"""A small local Spark with Delta Lake, which Ivy downloads the first time."""

from __future__ import annotations

import os
from collections.abc import Mapping

from pyspark.sql import SparkSession

from sparkwal.spark.s3a import LOG_STORE, LOG_STORE_SETTING
from sparkwal.testing.servers import ACCESS_KEY, REGION, SECRET_KEY
from tests import classes

SETTINGS = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    LOG_STORE_SETTING: LOG_STORE,
    **classes.DELTA,
}


def start(settings: Mapping[str, str]) -> SparkSession:
    """The session of this process; PYSPARK_PYTHON names its workers' Python."""
    os.environ.update(classes.with_delta())
    builder = SparkSession.builder.master("local[2]").appName("sparkwal-tables")
    for name, value in {**SETTINGS, **settings}.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
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
