"""Reads the transaction log of a Delta table through Hadoop, and checks that commits are safe."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pyspark.sql import SparkSession

from sparkwal import events
from sparkwal.errors import OptionError, PlanError, TableReadError
from sparkwal.lifecycle.delta import files as table_files
from sparkwal.lifecycle.delta.transaction_log import DeltaLog
from sparkwal.options import spark_versions
from sparkwal.options.store import StoreOptions
from sparkwal.protocol.clock import SYSTEM, Clock
from sparkwal.spark import s3a
from sparkwal.spark.readable import one_line, with_java_error
from sparkwal.store.path import absolute, is_local

# Seconds between two reports of a process that waits for the lock of a table.
_REPORT_SECONDS = 60
_WAIT = "wait if it works; if it is stopped or hangs, resume it (kill -CONT) or end it"
# With this property, a table forgets the transaction of a log that was idle for that time.
FORGETS = "delta.setTransactionRetentionDuration"

# The folder of a table's transaction log.
LOG_FOLDER = "_delta_log"
DELTA = "org.apache.spark.sql.delta"
_STORAGE = "io.delta.storage."

# The LogStores of Delta that put a version only if it is absent, for each file system. On a local
# disk, `table_lock` excludes two processes of one machine.
_ATOMIC = {
    "file": {"HDFSLogStore", "LocalLogStore"},
    "hdfs": {"HDFSLogStore"},
    "viewfs": {"HDFSLogStore"},
    "abfs": {"AzureLogStore"},
    "abfss": {"AzureLogStore"},
    "gs": {"GCSLogStore"},
    "s3a": {"S3DynamoDBLogStore"},
}


def spark_path(table: str) -> str:
    """The URL of a table, as Spark and Hadoop write it."""
    if is_local(table):
        return f"file:{absolute(table)}"
    scheme, _, path = table.partition("://")
    if scheme.lower() == "az":
        raise OptionError(
            f"Spark reads no az://: write the table {table} as "
            "abfss://container@account.dfs.core.windows.net/folder"
        )
    return f"s3a://{path}" if scheme.lower() == "s3" else table.rstrip("/")


class HadoopFiles:
    """Reads the files of a table's transaction log through Hadoop."""

    def __init__(self, session: SparkSession, path: str) -> None:
        self._session = session
        self._path = path
        # Look up classes once: for each part of a dotted name, the JVM searches all jars.
        jvm: Any = session._jvm
        self._file_name = getattr(jvm, "org.apache.hadoop.fs.Path")
        self._pattern = getattr(jvm, "org.apache.hadoop.fs.GlobFilter")
        self._bytes = getattr(jvm, "org.apache.commons.io.IOUtils").toByteArray

    def sizes(self, start: int) -> Mapping[str, int]:
        """The sizes of the files of versions from `start` on, by name."""
        digits = f"{start:020d}"
        # A glob for numbers >= start: the same first digits, then a greater digit.
        greater = (
            f"{digits[:index]}[{int(digit) + 1}-9]"
            for index, digit in enumerate(digits)
            if digit < "9"
        )
        pattern = self._pattern(f"{{{','.join([digits, *greater])}}}*")
        with suppress(FileNotFoundError), self._hadoop_errors():
            files = self._system().listStatus(self._file(""), pattern)
            return {str(file.getPath().getName()): int(file.getLen()) for file in files}
        return {}

    def read(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
        """Read a file, or a range of it.

        Raises:
            FileNotFoundError: the file does not exist.
            TableReadError: the file system failed.
        """
        with self._hadoop_errors():
            stream = self._system().open(self._file(name))
            try:
                if length is None:
                    return bytes(self._bytes(stream))
                stream.seek(offset)
                return bytes(self._bytes(stream, length))
            finally:
                stream.close()

    def _file(self, name: str) -> Any:
        return self._file_name(f"{self._path}/{LOG_FOLDER}/{name}".rstrip("/"))

    def _system(self) -> Any:
        conf = self._session._jsparkSession.sessionState().newHadoopConf()
        return self._file("").getFileSystem(conf)

    @contextmanager
    def _hadoop_errors(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            if "FileNotFoundException" in with_java_error(error):
                raise FileNotFoundError(one_line(error)) from error
            message = f"the table {self._path} is unreadable: {one_line(error)}"
            raise TableReadError(message) from error


def delta_log(session: SparkSession, table: str) -> DeltaLog:
    """The transaction log of a table.

    Raises:
        OptionError: the session has no Delta Lake.
    """
    _require_delta(session)
    if is_local(table):
        # Not through Hadoop, which checks .crc files: a writer without Hadoop replaces a file but
        # not its .crc file.
        return table_files.delta_log(table, StoreOptions())
    return DeltaLog(HadoopFiles(session, spark_path(table)), table)


def _require_delta(session: SparkSession) -> None:
    jvm: Any = session._jvm
    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    try:
        loader.loadClass(spark_versions.DELTA_EXTENSION)
    except Exception:
        package = spark_versions.delta_package(session.version)
        settings = {"spark.jars.packages": package, **spark_versions.DELTA_SETTINGS}
        raise OptionError(
            "this session has no Delta Lake: start it with "
            f"{', '.join(f'{name}={value}' for name, value in settings.items())} "
            "(sparkwal.Log(path).current() reads table and log without Spark)"
        ) from None


def _require_conditional_create(session: SparkSession) -> None:
    info = getattr(session._jvm, "org.apache.hadoop.util.VersionInfo")
    hadoop = str(info.getVersion())
    if not spark_versions.has(spark_versions.CONDITIONAL_CREATE, hadoop):
        needed = spark_versions.text(spark_versions.CONDITIONAL_CREATE)
        raise PlanError(
            f"{s3a.LOG_STORE} needs Hadoop {needed}, which Spark 4.1 has, and Spark "
            f"{session.version} has {hadoop}: compact into a table on S3 with a newer Spark, or "
            f"with {_STORAGE}S3DynamoDBLogStore as {s3a.LOG_STORE_SETTING}"
        )


def check_put_if_absent(session: SparkSession, path: str) -> None:
    """Check that two writers of a table cannot both commit the same version.

    Raises:
        PlanError: they can.
    """
    store = _log_store(session, path)
    scheme = urlsplit(path).scheme
    if store == s3a.LOG_STORE and scheme == "s3a":
        _require_conditional_create(session)
    # Trust a class that is not Delta's own: the user configured it.
    is_deltas = store.startswith((_STORAGE, DELTA))
    if not is_deltas or store.removeprefix(_STORAGE) in _ATOMIC.get(scheme, ()):
        return
    advice = (
        f"Start Spark with --jars {s3a.jar()} --conf {s3a.LOG_STORE_SETTING}="
        f"{s3a.LOG_STORE}, and every other writer of the table too"
        if scheme == "s3a"
        else f"Set spark.delta.logStore.{scheme}.impl to a LogStore that does"
    )
    raise PlanError(
        f"for {scheme}:// Delta uses {store}, which does not put a version of the table only if it "
        f"is absent: one of two writers could overwrite the other's commit. {advice}"
    )


@contextmanager
def table_lock(path: str, clock: Clock = SYSTEM) -> Iterator[None]:
    """Exclude other processes of this library from writing the table at `path`.

    Only a table on a local disk needs it: there Delta checks that a version is absent, and then
    renames a file to it.
    """
    if urlsplit(path).scheme != "file":
        yield
        return
    import fcntl

    folder = os.open(path.removeprefix("file:"), os.O_RDONLY)
    try:
        began = clock.boot_ms()
        next_report = 0
        while True:
            with suppress(BlockingIOError):
                fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            waited = (clock.boot_ms() - began) // 1000
            if waited >= next_report:
                next_report = waited + _REPORT_SECONDS
                events.emit(events.CompactionWaits(path, waited, _lock_holder(folder), _WAIT))
            clock.sleep(0.1)
        yield
    finally:
        os.close(folder)


def _lock_holder(descriptor: int) -> str:
    """The process that holds the lock of an open file, if Linux shows it."""
    with suppress(OSError):
        locks = map(str.split, Path("/proc/locks").read_text().splitlines())
        inode = f":{os.fstat(descriptor).st_ino}"
        holders = [int(lock[4]) for lock in locks if lock[1] == "FLOCK" and lock[5].endswith(inode)]
        # For a process in another container, Linux prints 0.
        if len(holders) == 1 and holders[0] > 0:
            return f"process {holders[0]}"
    return "another process"


def _log_store(session: SparkSession, path: str) -> str:
    jvm = session._jvm
    assert jvm is not None
    stores = getattr(getattr(jvm, f"{DELTA}.storage.LogStore$"), "MODULE$")
    store = stores.apply(session._jsparkSession)
    if store.getClass().getSimpleName() == "DelegatingLogStore":
        store = store.getDelegate(getattr(jvm, "org.apache.hadoop.fs.Path")(path))
    if store.getClass().getSimpleName() == "LogStoreAdaptor":
        store = store.logStoreImpl()
    return str(store.getClass().getName())
