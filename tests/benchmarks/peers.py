"""The peers that are measured side by side: sparkwal and other ways to write a stream to S3."""

from __future__ import annotations

import functools
import io
import os
import sys
import tempfile
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyspark

import sparkwal
from jars import Module, fetch
from sparkwal.checkpoints.rebuild import FILE_MANAGER
from sparkwal.options import spark_versions
from sparkwal.spark import s3a
from sparkwal.testing.servers import ACCESS_KEY, REGION, SECRET_KEY, log_options, s3_client
from support.session import ROOT

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter


# What S3A needs to reach the server at all.
S3A = {
    "fs.s3a.access.key": ACCESS_KEY,
    "fs.s3a.secret.key": SECRET_KEY,
    "fs.s3a.aws.credentials.provider": "org.apache.hadoop.fs.s3a.SimpleAWSCredentialsProvider",
    "fs.s3a.endpoint.region": REGION,
    "fs.s3a.path.style.access": "true",
    "fs.s3a.connection.ssl.enabled": "false",
}
# S3A at its best: no request that only checks for objects of others, connections enough, uploads
# from memory.
S3A_AT_BEST = {
    "fs.s3a.performance.flags": "*",
    "fs.s3a.connection.maximum": "200",
    "fs.s3a.threads.max": "64",
    "fs.s3a.fast.upload.buffer": "bytebuffer",
}
# Spark's checkpoint manager for stores that show an object only when its upload is complete: it
# writes a file in place, where the default writes a temporary one and copies it. It is no part of
# PySpark. Its newest release also fits Spark 4.2.
CLOUD = Module("org.apache.spark", "spark-hadoop-cloud_2.13", "4.1.1")
ABORTABLE = {
    FILE_MANAGER: "org.apache.spark.internal.io.cloud.AbortableStreamBasedCheckpointFileManager"
}


def best_bucket(bucket: str) -> str:
    """S3A keeps one client for each bucket, so a second configuration needs a second bucket."""
    return f"{bucket}-best"


@dataclass(frozen=True)
class Place:
    """The target of one run of one peer.

    Attributes:
        endpoint: the URL of the S3 server, or of a proxy in front of it.
        bucket: S3A knows its endpoint by this name.
        key: a prefix that no other run uses.
    """

    endpoint: str
    bucket: str
    key: str

    @property
    def at_best(self) -> Place:
        """The same key in the bucket that S3A reaches with the settings `S3A_AT_BEST`."""
        return replace(self, bucket=best_bucket(self.bucket))

    @property
    def s3(self) -> str:
        return f"s3://{self.bucket}/{self.key}"

    @property
    def s3a(self) -> str:
        return f"s3a://{self.bucket}/{self.key}"

    @property
    def options(self) -> dict[str, str]:
        """sparkwal's options to get there."""
        return log_options(self.endpoint, hedge=True)


Writer = Callable[["DataStreamWriter", Place], "DataStreamWriter"]
Reader = Callable[["SparkSession", Place], "DataFrame"]


@dataclass(frozen=True)
class Peer:
    """One way to write a stream to S3 and, if it has one, to read it back.

    Attributes:
        jvm: writes by S3A and needs its jars. Its checkpoint is on S3 too.
        best: S3A has the settings `S3A_AT_BEST`, and Spark the checkpoint manager `ABORTABLE`.
        conf: settings of Spark while its query starts.
        microbatches, bulk: whether it differs from the other peers in this benchmark.
    """

    title: str
    write: Writer
    read: Reader | None = None
    jvm: bool = False
    best: bool = False
    conf: Mapping[str, str] = field(default_factory=dict)
    microbatches: bool = True
    bulk: bool = True

    def at(self, place: Place) -> Place:
        """Where this peer writes."""
        return place.at_best if self.best else place


def _weaselwal(writer: DataStreamWriter, place: Place, **more: str) -> DataStreamWriter:
    return writer.format("weaselwal").options(path=place.s3, **place.options, **more)


def _read_weaselwal(spark: SparkSession, place: Place) -> DataFrame:
    return spark.read.format("weaselwal").options(**place.options).load(place.s3)


def _noop(writer: DataStreamWriter, place: Place) -> DataStreamWriter:
    return writer.format("python-noop")


def _parquet(writer: DataStreamWriter, place: Place) -> DataStreamWriter:
    return writer.format("parquet").option("path", place.s3a)


def _delta(writer: DataStreamWriter, place: Place) -> DataStreamWriter:
    return writer.format("delta").option("path", place.s3a)


def _read_parquet(spark: SparkSession, place: Place) -> DataFrame:
    return spark.read.parquet(place.s3a)


def _read_delta(spark: SparkSession, place: Place) -> DataFrame:
    return spark.read.format("delta").load(place.s3a)


@functools.cache
def _client(endpoint: str) -> Any:
    return s3_client(endpoint)


def _foreach_batch(writer: DataStreamWriter, place: Place) -> DataStreamWriter:
    """A common handwritten sink: the driver writes one object for each microbatch.

    The object's name is the microbatch's number, so a repeated one replaces itself.
    """

    def put(rows: DataFrame, batch_id: int) -> None:
        import pyarrow.parquet as pq

        body = io.BytesIO()
        pq.write_table(rows.toArrow(), body, compression="zstd")
        _client(place.endpoint).put_object(
            Bucket=place.bucket, Key=f"{place.key}/{batch_id:020d}.parquet", Body=body.getvalue()
        )

    return writer.foreachBatch(put)


def _jvm_noop(writer: DataStreamWriter, place: Place) -> DataStreamWriter:
    return writer.format("noop")


PEERS: Mapping[str, Peer] = {
    "jvm-noop": Peer("Spark's no-op sink", _jvm_noop, bulk=False),
    "noop": Peer("no-op Python sink", _noop),
    "weaselwal": Peer(
        "sparkwal, rows as objects",
        functools.partial(_weaselwal, inlineThreshold="0"),
        _read_weaselwal,
    ),
    "inlined": Peer(
        "sparkwal",
        _weaselwal,
        bulk=False,
    ),
    "lz4": Peer(
        "sparkwal, lz4",
        functools.partial(_weaselwal, compression="lz4"),
        _read_weaselwal,
        microbatches=False,
    ),
    "uncompressed": Peer(
        "sparkwal, uncompressed",
        functools.partial(_weaselwal, compression="none"),
        _read_weaselwal,
        microbatches=False,
    ),
    # In bulk all rows at once do not fit the driver.
    "foreachbatch": Peer("foreachBatch + boto3", _foreach_batch, bulk=False),
    "parquet": Peer("parquet sink, as installed", _parquet, _read_parquet, jvm=True),
    "parquet-best": Peer(
        "parquet sink, at its best", _parquet, _read_parquet, jvm=True, best=True, conf=ABORTABLE
    ),
    # Out of the box Delta reads its own log in 50 tasks, which cost two cores more than S3 does.
    # conf/ sets fewer.
    "delta": Peer(
        "Delta sink, as installed",
        _delta,
        _read_delta,
        jvm=True,
        conf={"spark.databricks.delta.snapshotPartitions": "50"},
    ),
    "delta-best": Peer(
        "Delta sink, at its best",
        _delta,
        _read_delta,
        jvm=True,
        best=True,
        conf={**ABORTABLE, "spark.databricks.delta.snapshotPartitions": "2"},
    ),
}


def start_session(peers: Collection[str], endpoints: Mapping[str, str]) -> SparkSession:
    """Spark on two cores with what these peers need.

    Args:
        endpoints: bucket → the URL by which S3A reaches it and its twin of `best_bucket`.
    """
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_CONF_DIR", str(ROOT / "conf"))
    # Workers import the no-op sink from here, and sparkwal from where this process does.
    places = [str(ROOT / "tests"), str(Path(sparkwal.__file__).parents[1])]
    os.environ["PYTHONPATH"] = os.pathsep.join([*places, os.environ.get("PYTHONPATH", "")])
    builder = SparkSession.builder.appName("sparkwal-benchmark").master("local[2]")
    builder = builder.config("spark.driver.memory", "4g").config("spark.driver.maxResultSize", "4g")
    if any(PEERS[name].jvm for name in peers):
        for key, value in S3A.items():
            builder = builder.config(f"spark.hadoop.{key}", value)
        for bucket, endpoint in endpoints.items():
            as_installed = {"fs.s3a.endpoint": endpoint}
            of_buckets = {
                bucket: as_installed,
                best_bucket(bucket): {**as_installed, **S3A_AT_BEST},
            }
            for name, settings in of_buckets.items():
                for key, value in settings.items():
                    own = key.replace("fs.s3a.", f"fs.s3a.bucket.{name}.")
                    builder = builder.config(f"spark.hadoop.{own}", value)
        # This jar alone: what it depends on is of another Hadoop than Spark's own.
        with tempfile.TemporaryDirectory() as home:
            jars = fetch([CLOUD], Path(home), transitive=False)
        jars.append(str(s3a.jar()))
        builder = builder.config("spark.driver.extraClassPath", os.pathsep.join(jars))
        packages = [spark_versions.hadoop_connector("s3", pyspark.__version__)]
        if {"delta", "delta-best"} & set(peers):
            packages.append(spark_versions.delta_package(pyspark.__version__))
            for key, value in spark_versions.DELTA_SETTINGS.items():
                builder = builder.config(key, value)
        builder = builder.config("spark.jars.packages", ",".join(packages))
    from benchmarks.noop import NoopDataSource

    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    sparkwal.register(spark)
    spark.dataSource.register(NoopDataSource)
    return spark
