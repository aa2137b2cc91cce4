"""Makes the data source known to a session that does not know it yet."""

import os
import shutil
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import Any
from weakref import WeakSet

from pyspark import SparkContext
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import JStreamingQueryListener

from sparkwal import events
from sparkwal.checkpoints.rebuild import FILE_MANAGER
from sparkwal.options import spark_versions
from sparkwal.protocol.hint import note_ended
from sparkwal.spark.datasource import WeaselWalDataSource
from sparkwal.spark.query_start import refuse_at_start
from sparkwal.spark.sink import ended_runs

_registered: WeakSet[SparkSession] = WeakSet()
# By the id that the JVM gives it: a session may have many wrappers.
_listened: set[str] = set()
_noting = threading.Lock()
AVAILABLE_NOW = "spark.sql.streaming.triggerAvailableNowWrapper.enabled"
# Whose jars a session must have before it reaches the store.
_OBJECT_STORES = (
    "org.apache.hadoop.fs.s3a.S3AFileSystem",
    "org.apache.hadoop.fs.azurebfs.AzureBlobFileSystem",
    "com.google.cloud.hadoop.fs.gcs.GoogleHadoopFileSystem",
)


def register_once(spark: SparkSession, listens: bool = True) -> None:
    """Spark warns of each source that replaces another, so do not register it again. Spark also
    keeps a session's listeners after the session: one that runs no stream gets none."""
    if spark in _registered:
        return
    _warn_of_untried(spark.version)
    takes_part = spark_versions.has(spark_versions.READ_LIMITS, spark.version)
    if not takes_part and spark.conf.get(AVAILABLE_NOW, None) is None:
        # Else availableNow runs one microbatch: after a failure the one that had failed, and not
        # what came since.
        spark.conf.set(AVAILABLE_NOW, "true")
    session = getattr(spark, "_jsparkSession", None)
    if session is None:  # Spark Connect: planners are on the server's machine, and nobody can ask
        _register(spark, WeaselWalDataSource)
    else:
        _register_classic(spark, session, listens)
    _registered.add(spark)


@cache
def _warn_of_untried(version: str) -> None:
    if not spark_versions.is_tried(version):
        newest = spark_versions.text(spark_versions.NEWEST)
        events.emit(events.UntriedSpark(version=version, newest=newest))


def _register_classic(spark: SparkSession, session: Any, listens: bool) -> None:
    context = spark.sparkContext
    _choose_python(context)
    if _is_local(context) and spark.conf.get(FILE_MANAGER, None) is None:
        # Checkpoints on its disk without a process for each file, if it knows no object store.
        hadoop = context._jsc.hadoopConfiguration()
        on_disk = str(hadoop.get("fs.defaultFS", "file:///")).startswith("file:")
        if on_disk and all(hadoop.getClassByNameOrNull(x) is None for x in _OBJECT_STORES):
            manager = spark_versions.checkpoint_file_manager(spark.version)
            spark.conf.set(FILE_MANAGER, manager)
    if listens and (name := str(session.sessionUUID())) not in _listened:
        _listened.add(name)
        listener = _Runs(ended_runs(), partial(refuse_at_start, session, spark._jvm))
        spark.streams.addListener(listener)  # type: ignore[arg-type]
    # Another wrapper around the same session, foreachBatch's for example, may have done it.
    if session.sessionState().dataSourceManager().dataSourceExists(WeaselWalDataSource.name()):
        return
    assert spark._jvm is not None
    sessions = getattr(spark._jvm, "org.apache.spark.sql.SparkSession")
    before = sessions.getActiveSession()
    # Spark refuses a name that the active session has, whichever session is to get it.
    sessions.setActiveSession(session)
    try:
        _register(spark, WeaselWalDataSource.with_parallelism(context.defaultParallelism))
    finally:
        sessions.clearActiveSession()
        if before.isDefined():
            sessions.setActiveSession(before.get())


def _register(spark: SparkSession, source: type[WeaselWalDataSource]) -> None:
    try:
        spark.dataSource.register(source)
    except AnalysisException as error:
        # Spark had found it by itself: an installed sparkwal needs no registering.
        if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
            raise


def _choose_python(context: SparkContext) -> None:
    """The Python of Spark's workers, unless the user chose one: Spark would take any python3."""
    if os.environ.get("PYSPARK_PYTHON") or context.getConf().get("spark.pyspark.python"):
        return
    if _is_local(context):
        context.pythonExec = sys.executable
        return
    found = shutil.which(context.pythonExec)
    if found is None or Path(found).parent != Path(sys.executable).parent:
        advice = (
            "Spark's workers, on the driver too, run this Python and not the one that runs this "
            "program: before the session starts set PYSPARK_PYTHON to a Python that has sparkwal "
            "on each machine"
        )
        events.emit(events.OtherPython(python=found or context.pythonExec, advice=advice))


def _is_local(context: SparkContext) -> bool:
    return str(context.master).startswith("local")


class _Runs(JStreamingQueryListener):
    """Checks each run of a query when it starts, and notes when it ends.

    Spark's threads call it, and a query's start waits for one of them. As a StreamingQueryListener
    it would get each progress converted in 457 calls of the JVM (100 ms or more). On two cores that
    made each trigger 50 ms longer.
    """

    def __init__(self, file: Path, check: Callable[[str], None]) -> None:
        self._file, self._check = file, check
        self._running = dict[str, str]()

    @property
    def _jlistener(self) -> Any:
        assert SparkContext._jvm is not None
        return SparkContext._jvm.PythonStreamingQueryListenerWrapper(self)

    def onQueryStarted(self, jevent: Any) -> None:
        # A query has one run at a time, and Spark may report the end of the one before later.
        self._note(self._running.pop(jevent.id().toString(), None))
        self._running[jevent.id().toString()] = jevent.runId().toString()
        self._check(jevent.id().toString())

    def onQueryProgress(self, jevent: Any) -> None:
        pass

    onQueryIdle = onQueryProgress

    def onQueryTerminated(self, jevent: Any) -> None:
        if self._running.get(jevent.id().toString()) == jevent.runId().toString():
            self._note(self._running.pop(jevent.id().toString()))

    def _note(self, run_id: str | None) -> None:
        # A start fails with what its listener raises, and nothing here is worth that.
        with _noting, suppress(OSError):
            if run_id is not None:
                note_ended(self._file, run_id)
