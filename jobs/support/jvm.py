"""Spark's JVM: which classes and logging spark-submit gave it, and whether it still runs."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SPARKS_OWN_LOGGING = "org/apache/spark/log4j2-defaults.properties"


def started_by_spark_submit() -> bool:
    """Whether a JVM runs already: this variable is how spark-submit informs its Python process."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def has_class(name: str) -> bool:
    """Whether spark-submit's JVM can load this class, of a package given with --packages."""
    from py4j.protocol import Py4JJavaError

    try:
        _jvm().java.lang.Thread.currentThread().getContextClassLoader().loadClass(name)
    except Py4JJavaError:
        return False
    return True


def logs_by_default() -> bool:
    """Whether Spark's default logging, with hundreds of lines, is in use: spark-submit was given no
    other."""
    context = _jvm().org.apache.logging.log4j.LogManager.getContext(False)
    return _SPARKS_OWN_LOGGING in str(context.getConfiguration().getConfigurationSource())


def warn_only() -> None:
    """Let spark-submit's JVM drop what Spark logs about itself before it reads its settings."""
    jvm = _jvm()
    # Spark's own class reads the logging configuration once, at its first line.
    utils = getattr(jvm.org.apache.spark.util, "Utils$")
    getattr(utils, "MODULE$").initializeLogIfNecessary(False)  # noqa: B009
    log4j = jvm.org.apache.logging.log4j
    log4j.core.config.Configurator.setLevel("org.apache.spark.SparkContext", log4j.Level.WARN)


def at_work() -> bool:
    """Whether the JVM runs and its Spark is not stopped."""
    from pyspark import SparkContext

    try:
        context = SparkContext._active_spark_context
        return context is not None and not context._jsc.sc().isStopped()
    except Exception:  # py4j has many ways to say that nobody answers
        return False


def end(spark: SparkSession) -> None:
    """Stop a session whose JVM may be gone."""
    if at_work():
        spark.stop()


def _jvm() -> Any:
    from pyspark import SparkContext

    SparkContext._ensure_initialized()
    return SparkContext._jvm
