"""Spark's JVM: its classes, its logging, and whether it runs."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_DEFAULT_LOGGING = "org/apache/spark/log4j2-defaults.properties"


def started_by_spark_submit() -> bool:
    """Whether spark-submit started this process and its JVM: it sets this variable."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def has_class(name: str) -> bool:
    """Whether spark-submit's JVM can load this class, for example from its --packages."""
    from py4j.protocol import Py4JJavaError

    try:
        _of_session().java.lang.Thread.currentThread().getContextClassLoader().loadClass(name)
    except Py4JJavaError:
        return False
    return True


def logs_by_default() -> bool:
    """Whether spark-submit uses Spark's default logging, which prints hundreds of lines."""
    context = _of_session().org.apache.logging.log4j.LogManager.getContext(False)
    return _DEFAULT_LOGGING in str(context.getConfiguration().getConfigurationSource())


def warn_only() -> None:
    """Suppress the lines that Spark logs at INFO before it reads `spark.log.level`."""
    jvm = _of_session()
    # Load the logging configuration now. Otherwise Spark loads it later and overrides the level.
    utils = getattr(jvm.org.apache.spark.util, "Utils$")
    getattr(utils, "MODULE$").initializeLogIfNecessary(False)  # noqa: B009
    log4j = jvm.org.apache.logging.log4j
    log4j.core.config.Configurator.setLevel("org.apache.spark.SparkContext", log4j.Level.WARN)


def is_running() -> bool:
    """Whether the JVM runs and its Spark is not stopped."""
    from pyspark import SparkContext

    try:
        context = SparkContext._active_spark_context
        return context is not None and not context._jsc.sc().isStopped()
    except Exception:  # py4j raises many classes of errors after the JVM has ended
        return False


def end(spark: SparkSession) -> None:
    """Stop a session. Its JVM may have ended already."""
    if is_running():
        spark.stop()


def _of_session() -> Any:
    from pyspark import SparkContext

    SparkContext._ensure_initialized()
    return SparkContext._jvm
