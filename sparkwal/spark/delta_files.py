"""How Spark reaches the transaction log of a Delta table, and whether it may be written."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pyspark.sql import SparkSession

from sparkwal import events
from sparkwal.errors import OptionError, PlanError, TableReadError
from sparkwal.lifecycle import snapshot
from sparkwal.lifecycle.delta_log import DeltaLog
from sparkwal.options import spark_versions
from sparkwal.options.store import StoreOptions
from sparkwal.protocol.clock import SYSTEM, Clock
from sparkwal.spark import log_store
from sparkwal.spark.readable import cause, line
from sparkwal.store.path import absolute, is_local

# So many seconds later who waits for a table says so again.
_REPORT_EACH = 60
_WAIT = "wait if it is at work; if it is stopped or hangs, let it go on (kill -CONT) or end it"
# With it a table forgets the transactions of logs that were quiet for long.
FORGETS = "delta.setTransactionRetentionDuration"

_DELTA = "org.apache.spark.sql.delta"
_STORAGE = "io.delta.storage."

# Which of Delta's LogStores put a version only if it is absent, and on which file systems. On a
# local disk two processes of one machine are kept apart by `held`.
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
    if is_local(table):
        return f"file:{absolute(table)}"  # as Hadoop writes it
    scheme, _, rest = table.partition("://")
    return f"s3a://{rest}" if scheme.lower() == "s3" else table.rstrip("/")


class HadoopFiles:
    def __init__(self, session: SparkSession, path: str) -> None:
        self._session, self._path = session, path
        # py4j would ask the JVM for each part of a name, every time: it looks through all jars.
        jvm: Any = session._jvm
        self._file_name = getattr(jvm, "org.apache.hadoop.fs.Path")
        self._pattern = getattr(jvm, "org.apache.hadoop.fs.GlobFilter")
        self._bytes = getattr(jvm, "org.apache.commons.io.IOUtils").toByteArray

    def sizes(self, start: int) -> Mapping[str, int]:
        digits = f"{start:020d}"
        later = (f"{digits[:at]}[{int(d) + 1}-9]" for at, d in enumerate(digits) if d < "9")
        pattern = self._pattern(f"{{{','.join([digits, *later])}}}*")
        with suppress(FileNotFoundError), self._readable():
            found = self._system().listStatus(self._file(""), pattern)
            return {str(each.getPath().getName()): int(each.getLen()) for each in found}
        return {}

    def read(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
        with self._readable():
            stream = self._system().open(self._file(name))
            try:
                if length is None:
                    return bytes(self._bytes(stream))
                stream.seek(offset)
                return bytes(self._bytes(stream, length))
            finally:
                stream.close()

    def _file(self, name: str) -> Any:
        return self._file_name(f"{self._path}/_delta_log/{name}".rstrip("/"))

    def _system(self) -> Any:
        conf = self._session._jsparkSession.sessionState().newHadoopConf()
        return self._file("").getFileSystem(conf)

    @contextmanager
    def _readable(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            if "FileNotFoundException" in cause(error):
                raise FileNotFoundError(line(error)) from error
            message = f"the table {self._path} cannot be read: {line(error)}"
            raise TableReadError(message) from error


def delta_log(session: SparkSession, table: str) -> DeltaLog:
    """Raises OptionError in a session without Delta Lake."""
    _require_delta(session)
    if is_local(table):
        # Not by Hadoop: a writer without it leaves the checksum of the file that it replaced.
        return snapshot.delta_log(table, StoreOptions())
    return DeltaLog(HadoopFiles(session, spark_path(table)), table)


def _require_delta(session: SparkSession) -> None:
    jvm: Any = session._jvm
    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    try:
        loader.loadClass(spark_versions.DELTA_EXTENSION)
    except Exception:
        package = spark_versions.delta_package(session.version)
        given = {"spark.jars.packages": package, **spark_versions.DELTA_SETTINGS}
        raise OptionError(
            "this session has no Delta Lake: start it with "
            f"{', '.join(f'{name}={value}' for name, value in given.items())} "
            "(sparkwal.Log(path).current() reads table and log without Spark)"
        ) from None


def _require_conditional_create(session: SparkSession) -> None:
    info = getattr(session._jvm, "org.apache.hadoop.util.VersionInfo")
    hadoop = str(info.getVersion())
    if not spark_versions.has(spark_versions.CONDITIONAL_CREATE, hadoop):
        needed = spark_versions.text(spark_versions.CONDITIONAL_CREATE)
        raise PlanError(
            f"{log_store.CLASS} needs Hadoop {needed}, which Spark 4.1 has, and Spark "
            f"{session.version} has {hadoop}: compact into a table on S3 with a newer Spark, or "
            f"with {_STORAGE}S3DynamoDBLogStore as {log_store.SETTING}"
        )


def check_put_if_absent(session: SparkSession, path: str) -> None:
    """Raises PlanError where two writers of the table could both believe to have made a version."""
    found, scheme = _log_store(session, path), urlsplit(path).scheme
    # A class that is not Delta's was chosen by somebody who knows what it does.
    is_deltas = found.startswith((_STORAGE, _DELTA))
    if found == log_store.CLASS and scheme == "s3a":
        _require_conditional_create(session)
    if not is_deltas or found.removeprefix(_STORAGE) in _ATOMIC.get(scheme, ()):
        return
    advice = (
        f"Start Spark with --jars {log_store.jar()} --conf {log_store.SETTING}="
        f"{log_store.CLASS}, and every other writer of the table too"
        if scheme == "s3a"
        else f"Set spark.delta.logStore.{scheme}.impl to a LogStore that does"
    )
    raise PlanError(
        f"for {scheme}:// Delta uses {found}, which does not put a version of the "
        f"table only if it is absent: of two writers one could undo the other. {advice}"
    )


@contextmanager
def held(path: str, clock: Clock = SYSTEM) -> Iterator[None]:
    """Nobody else of this library writes the table at `path` meanwhile. Needed on a local disk
    only: there Delta looks whether a version is absent and then renames a file over it."""
    if urlsplit(path).scheme != "file":
        yield
        return
    import fcntl

    place = os.open(path.removeprefix("file:"), os.O_RDONLY)
    try:
        began, due = clock.boot_ms(), 0
        while True:
            with suppress(BlockingIOError):
                fcntl.flock(place, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            waited = (clock.boot_ms() - began) // 1000
            if waited >= due:
                due = waited + _REPORT_EACH
                events.emit(events.CompactionWaits(path, waited, _holder(place), _WAIT))
            clock.sleep(0.1)
        yield
    finally:
        os.close(place)


def _holder(place: int) -> str:
    """The process that has the lock of an open file, where Linux shows it."""
    with suppress(OSError):
        locks = map(str.split, Path("/proc/locks").read_text().splitlines())
        # Of a process in another container the number is none that helps.
        held_by = [
            int(each[4])
            for each in locks
            if each[1] == "FLOCK" and each[5].endswith(f":{os.fstat(place).st_ino}")
        ]
        if len(held_by) == 1 and held_by[0] > 0:
            return f"process {held_by[0]}"
    return "another process"


def _log_store(session: SparkSession, path: str) -> str:
    jvm = session._jvm
    assert jvm is not None
    stores = getattr(getattr(jvm, f"{_DELTA}.storage.LogStore$"), "MODULE$")
    store = stores.apply(session._jsparkSession)
    if store.getClass().getSimpleName() == "DelegatingLogStore":
        store = store.getDelegate(getattr(jvm, "org.apache.hadoop.fs.Path")(path))
    if store.getClass().getSimpleName() == "LogStoreAdaptor":
        store = store.logStoreImpl()
    return str(store.getClass().getName())
