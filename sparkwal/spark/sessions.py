"""Starts a Spark session, with Delta Lake and the connector of a store."""

from __future__ import annotations

import base64
import logging
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlencode

from sparkwal.errors import OptionError, SparkWalError, install_extra, require_library
from sparkwal.options import spark_versions
from sparkwal.options.store import StoreOptions
from sparkwal.spark import jvm, s3a
from sparkwal.spark.readable import readable
from sparkwal.store.azure_account import account_of
from sparkwal.store.path import bucket_and_prefix, kind_of_store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_ENCRYPTION = {"aes256": "AES256", "aws:kms": "SSE-KMS", "aws:kms:dsse": "DSSE-KMS"}
_S3A = "spark.hadoop.fs.s3a."
_AZURE = "spark.hadoop.fs.azure."
_GOOGLE = {
    # Hadoop names its own connector for gs://, which a session does not load.
    "spark.hadoop.fs.gs.impl": "com.google.cloud.hadoop.fs.gcs.GoogleHadoopFileSystem",
    # Its sizes are numbers. Hadoop 3.5 has texts such as 64m.
    "spark.hadoop.fs.gs.block.size": str(64 << 20),
    "spark.hadoop.fs.gs.rewrite.max.chunk.size": str(512 << 20),
    "spark.hadoop.fs.gs.outputstream.buffer.size": str(8 << 20),
    "spark.hadoop.fs.gs.inputstream.inplace.seek.limit": str(8 << 20),
    "spark.hadoop.fs.gs.inputstream.min.range.request.size": str(2 << 20),
    # Its reads of several ranges call a method that Hadoop 3.5 lacks.
    "spark.hadoop.parquet.hadoop.vectored.io.enabled": "false",
    # The credentials that the log's requests use.
    "spark.hadoop.fs.gs.auth.type": "APPLICATION_DEFAULT",
}
# How the names of settings with secrets begin.
_SECRETS = (
    *(_S3A + name for name in ("access.key", "secret.key", "session.token")),
    *(_AZURE + name for name in ("account.key.", "sas.fixed.token.")),
)


def need_spark() -> None:
    """Check that a supported PySpark is installed.

    Raises:
        OptionError: PySpark is not installed, or too old.
    """
    require_library("pyspark", install_extra("spark"))
    import pyspark

    spark_versions.require(pyspark.__version__, "pyspark here")


def need_delta(what: str) -> None:
    """Check that Delta Lake is available. Call `need_spark` first.

    Args:
        what: what needs Delta Lake, for the message.

    Raises:
        OptionError: spark-submit did not load it, or no version fits this Spark.
    """
    import pyspark

    if jvm.started_by_spark_submit() and jvm.has_class(spark_versions.DELTA_EXTENSION):
        return
    try:
        package = spark_versions.delta_package(pyspark.__version__)
    except OptionError as error:
        raise OptionError(f"{what}: {error}") from None
    if jvm.started_by_spark_submit():
        raise OptionError(f"{what} needs Delta Lake's jars: spark-submit --packages {package} …")


def start_session(
    app: str,
    *,
    delta: bool = False,
    packages: Sequence[str] = (),
    jars: str | None = None,
    settings: Mapping[str, str] | None = None,
    conf: Path | None = None,
) -> SparkSession:
    """Start a Spark session. Under spark-submit, use its session.

    Args:
        app: the name of the application.
        delta: add Delta Lake, which Spark downloads.
        packages: Maven coordinates that Spark downloads; {spark} stands for Spark's version.
        jars: the paths of jars, separated by commas.
        settings: settings of Spark, which override those of `conf`.
        conf: a folder with a configuration of Spark, if SPARK_CONF_DIR names none.

    Raises:
        SparkWalError: Spark did not start.
        OptionError: PySpark is not installed, or too old.
    """
    need_spark()
    import pyspark
    from pyspark.sql import SparkSession

    from sparkwal.spark.registering import register_once

    # These loggers repeat errors that the caller reports in one line.
    logging.getLogger("DataFrameQueryContextLogger").addFilter(lambda record: False)
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    builder = SparkSession.builder.appName(app)
    if jvm.started_by_spark_submit():
        if jvm.logs_by_default():
            jvm.warn_only()
            builder = builder.config("spark.log.level", "WARN")
    else:
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        if conf is not None and (conf / "spark-defaults.conf").is_file():
            os.environ.setdefault("SPARK_CONF_DIR", str(conf))
        downloads = [package.format(spark=pyspark.__version__) for package in packages]
        if delta:
            downloads.append(spark_versions.delta_package(pyspark.__version__))
            # With this LogStore, two writers of a table on S3 cannot overwrite each other.
            builder = builder.config(s3a.LOG_STORE_SETTING, s3a.LOG_STORE)
            jars = ",".join([*([jars] if jars else []), str(s3a.jar())])
        if downloads:
            builder = builder.config("spark.jars.packages", ",".join(downloads))
        if jars is not None:
            builder = builder.config("spark.jars", jars)
    settings = {**(spark_versions.DELTA_SETTINGS if delta else {}), **(settings or {})}
    # Other users of the machine see the JVM's command line, which contains the builder's settings.
    secrets = {name: settings.pop(name) for name in [*settings] if name.startswith(_SECRETS)}
    for name, value in settings.items():
        builder = builder.config(name, value)
    try:
        spark = builder.getOrCreate()
    except Exception as error:
        raise SparkWalError(_not_started(error)) from None
    for name, value in secrets.items():
        spark._jsc.hadoopConfiguration().set(name.removeprefix("spark.hadoop."), value)
    # Spark finds a format by itself only if it is installed: not in a zip of --py-files, and not if
    # Python's path has a space.
    register_once(spark)
    return spark


def _not_started(error: Exception) -> str:
    """The message about a session that Spark did not start."""
    message = f"Spark did not start: {readable(error)[0]}"
    if "JAVA_GATEWAY_EXITED" not in message:
        return message
    home = os.environ.get("JAVA_HOME")
    java = f"{home}/bin/java" if home else "java"
    if not shutil.which(java):
        return f"{java} does not exist: install Java 17 or newer, or set JAVA_HOME"
    return (
        "Spark did not start: the download of a connector failed, or Java is older than 17. See "
        "the messages of Ivy and Java above"
    )


def _store_of(table: str) -> str:
    """The kind of store whose connector the session of this process needs, or ""."""
    kind = kind_of_store(table)
    is_cloud = kind in ("s3", "azure", "google")
    return kind if is_cloud and not jvm.started_by_spark_submit() else ""


def packages(table: str) -> list[str]:
    """The Maven coordinates that a session needs for a table. Those of Google's connector have a
    classifier, which Spark cannot ask for: the user gives its jar.
    """
    import pyspark

    kind = _store_of(table)
    if kind in ("", "google"):
        return []
    return [spark_versions.hadoop_connector(kind, pyspark.__version__)]


def store_settings(table: str, log: StoreOptions) -> dict[str, str]:
    """The settings with which Spark reaches a table on the log's store. They may hold secrets.

    Raises:
        OptionError: the credentials of an Azure account are wrong.
    """
    match _store_of(table):
        case "s3":
            return _s3a_settings(log)
        case "azure" if log.reaches(table):
            return _azure_settings(table, log)
        case "google":
            return _GOOGLE
    return {}


def _azure_settings(table: str, log: StoreOptions) -> dict[str, str]:
    """The account's key or signature. Without one, the settings of Hadoop name an identity."""
    container, _ = bucket_and_prefix(table)
    account, _ = account_of(container, log.s3)
    host = container.rpartition("@")[2]
    if account.key is not None:
        return {f"{_AZURE}account.key.{host}": base64.b64encode(account.key).decode()}
    if account.sas:
        return {
            f"{_AZURE}account.auth.type.{host}": "SAS",
            f"{_AZURE}sas.fixed.token.{host}": urlencode(account.sas),
        }
    return {}


def _s3a_settings(log: StoreOptions) -> dict[str, str]:
    settings = {
        "endpoint": log.endpoint,
        "endpoint.region": log.region,
        "path.style.access": "true" if log.endpoint else None,
        "access.key": log.access_key_id,
        "secret.key": log.secret_access_key,
        "session.token": log.session_token,
        "encryption.algorithm": _ENCRYPTION[log.encryption] if log.encryption else None,
        "encryption.key": log.kms_key_id,
        "create.checksum.algorithm": "CRC32" if log.checksum == "crc32" else None,
        "requester.pays.enabled": "true" if log.requester_pays else None,
    }
    return {_S3A + name: value for name, value in settings.items() if value is not None}
