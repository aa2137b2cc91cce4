"""Registers the data source in a Spark session, and the listener of its queries."""

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
from sparkwal.spark.pyspark_methods import check_methods
from sparkwal.spark.query_start import refuse_at_start
from sparkwal.spark.sink import ended_runs_file

_registered: WeakSet[SparkSession] = WeakSet()
# Sessions that have a listener, by their ids in the JVM: one session may have several wrappers.
_with_listener: set[str] = set()
_lock = threading.Lock()
AVAILABLE_NOW = "spark.sql.streaming.triggerAvailableNowWrapper.enabled"
# File systems of object stores. If none of these classes exists, checkpoints are on local disks.
_OBJECT_STORES = (
    "org.apache.hadoop.fs.s3a.S3AFileSystem",
    "org.apache.hadoop.fs.azurebfs.AzureBlobFileSystem",
    # Of Google's connector, and of Hadoop's own.
    "com.google.cloud.hadoop.fs.gcs.GoogleHadoopFileSystem",
    "org.apache.hadoop.fs.gs.GoogleHadoopFileSystem",
)


def register_once(spark: SparkSession, *, listen: bool = True) -> None:
    """Register the data source, unless this session has it: Spark warns of a second registration.

    Args:
        spark: the session.
        listen: add the listener of queries. Spark keeps listeners after their session has ended,
            so do not add one to a session without streams.
    """
    if spark in _registered:
        return
    _warn_of_untried(spark.version)
    has_limits = spark_versions.has(spark_versions.READ_LIMITS, spark.version)
    if not has_limits and spark.conf.get(AVAILABLE_NOW, None) is None:
        # Otherwise availableNow runs one microbatch. After a failure that is the failed one, and
        # newer rows stay unread.
        spark.conf.set(AVAILABLE_NOW, "true")
    session = getattr(spark, "_jsparkSession", None)
    if session is None:  # Spark Connect: the server plans, and takes no listener from here
        _register(spark, WeaselWalDataSource)
    else:
        _register_classic(spark, session, listen=listen)
    check_methods(spark, WeaselWalDataSource.name())
    _registered.add(spark)


@cache
def _warn_of_untried(version: str) -> None:
    if not spark_versions.is_tried(version):
        newest = spark_versions.text(spark_versions.NEWEST)
        events.emit(events.UntriedSpark(version=version, newest=newest))


def _register_classic(spark: SparkSession, session: Any, *, listen: bool) -> None:
    context = spark.sparkContext
    _choose_python(context)
    is_unset = spark.conf.get(FILE_MANAGER, None) is None
    if _is_local(context) and is_unset and has_only_disks(context._jsc.hadoopConfiguration()):
        # Checkpoints are on the disk. Write them without starting a process for each file.
        manager = spark_versions.checkpoint_file_manager(spark.version)
        spark.conf.set(FILE_MANAGER, manager)
    if listen and (name := str(session.sessionUUID())) not in _with_listener:
        _with_listener.add(name)
        listener = _QueryRuns(ended_runs_file(), partial(refuse_at_start, session, spark._jvm))
        spark.streams.addListener(listener)  # type: ignore[arg-type]
    # Another wrapper of this session, for example in foreachBatch, may have registered the source.
    if session.sessionState().dataSourceManager().dataSourceExists(WeaselWalDataSource.name()):
        return
    assert spark._jvm is not None
    sessions = getattr(spark._jvm, "org.apache.spark.sql.SparkSession")
    before = sessions.getActiveSession()
    # Spark checks for duplicate names in the active session, not in the session that registers.
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
        # Spark has already found the source in the installed package `pyspark_weaselwal`.
        if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
            raise


def has_only_disks(hadoop: Any) -> bool:
    """Whether this configuration of Hadoop's has no file system of an object store."""
    on_disk = str(hadoop.get("fs.defaultFS", "file:///")).startswith("file:")
    return on_disk and all(hadoop.getClassByNameOrNull(name) is None for name in _OBJECT_STORES)


def _choose_python(context: SparkContext) -> None:
    """Let Spark's workers run this Python, unless the user chose one. Spark runs `python3`."""
    if os.environ.get("PYSPARK_PYTHON") or context.getConf().get("spark.pyspark.python"):
        return
    if _is_local(context):
        context.pythonExec = sys.executable
        return
    python = shutil.which(context.pythonExec)
    if python is None or Path(python).parent != Path(sys.executable).parent:
        advice = (
            "Spark's workers, on the driver too, run this Python and not the one that runs this "
            "program: before the session starts set PYSPARK_PYTHON to a Python that has sparkwal "
            "on each machine"
        )
        events.emit(events.OtherPython(python=python or context.pythonExec, advice=advice))


def _is_local(context: SparkContext) -> bool:
    return str(context.master).startswith("local")


class _QueryRuns(JStreamingQueryListener):
    """Checks each run of a query when it starts, and records its end.

    Threads of Spark call it, and the start of a query waits for the call. It is no
    StreamingQueryListener, for which PySpark converts each progress in 457 calls of the JVM (100 ms
    or more). On two cores that made each trigger 50 ms longer.
    """

    def __init__(self, file: Path, check: Callable[[str], None]) -> None:
        self._file = file
        self._check = check
        self._running = dict[str, str]()

    @property
    def _jlistener(self) -> Any:
        assert SparkContext._jvm is not None
        return SparkContext._jvm.PythonStreamingQueryListenerWrapper(self)

    def onQueryStarted(self, jevent: Any) -> None:
        # A query has one run at a time. Spark may report the end of the previous run later.
        self._record_end(self._running.pop(jevent.id().toString(), None))
        self._running[jevent.id().toString()] = jevent.runId().toString()
        self._check(jevent.id().toString())

    def onQueryProgress(self, jevent: Any) -> None:
        pass

    onQueryIdle = onQueryProgress

    def onQueryTerminated(self, jevent: Any) -> None:
        if self._running.get(jevent.id().toString()) == jevent.runId().toString():
            self._record_end(self._running.pop(jevent.id().toString()))

    def _record_end(self, run_id: str | None) -> None:
        # An error of a listener fails the start of its query, so ignore a full or broken disk.
        with _lock, suppress(OSError):
            if run_id is not None:
                note_ended(self._file, run_id)
