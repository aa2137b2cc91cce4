"""Makes the data source known to a session that does not know it yet."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from weakref import WeakSet

from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from sparkwal.spark.datasource import WeaselWalDataSource

_registered: WeakSet[SparkSession] = WeakSet()


def register_once(spark: SparkSession) -> None:
    """Spark warns of each source that replaces another, so do not register it again."""
    if spark in _registered or _knows(spark):
        return
    source = WeaselWalDataSource
    # A client of Spark Connect cannot ask.
    if (context := getattr(spark, "sparkContext", None)) is not None:
        source = source.with_parallelism(context.defaultParallelism)
    try:
        with _active(spark):
            spark.dataSource.register(source)
    except AnalysisException as error:
        # Spark had found it by itself: an installed sparkwal needs no registering.
        if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
            raise
    _registered.add(spark)


@contextmanager
def _active(spark: SparkSession) -> Iterator[None]:
    """Spark refuses a name that the active session has, whichever session is to get it."""
    session = getattr(spark, "_jsparkSession", None)
    if session is None:  # Spark Connect
        yield
        return
    assert spark._jvm is not None
    sessions = spark._jvm.org.apache.spark.sql.SparkSession
    before = sessions.getActiveSession()
    sessions.setActiveSession(session)
    try:
        yield
    finally:
        sessions.clearActiveSession()
        if before.isDefined():
            sessions.setActiveSession(before.get())


def _knows(spark: SparkSession) -> bool:
    # Another wrapper around the same session, foreachBatch's for example. Spark Connect has
    # no such object; there each session has one wrapper.
    session = getattr(spark, "_jsparkSession", None)
    if session is None:
        return False
    sources = session.sessionState().dataSourceManager()
    return bool(sources.dataSourceExists(WeaselWalDataSource.name()))
