"""What the transaction log of a Delta table tells: its newest snapshot, its history, its store."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from pyspark.sql import SparkSession

from sparkwal import events
from sparkwal.errors import PlanError
from sparkwal.format.schema import columns
from sparkwal.lifecycle.delta_history import history
from sparkwal.lifecycle.table import Change, TableState
from sparkwal.spark import log_store
from sparkwal.spark.readable import cause
from sparkwal.store.path import absolute, is_local

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
    """A table's URL as Spark's file systems call it."""
    if is_local(table):
        return f"file:{absolute(table)}"  # as Hadoop writes it
    scheme, _, rest = table.partition("://")
    return f"s3a://{rest}" if scheme.lower() == "s3" else table.rstrip("/")


@dataclass(frozen=True)
class Layout:
    """What a table is made of.

    Attributes:
        columns: of all of them the type, as Spark's JSON of it.
        clustered: the names of the columns that it is clustered by; asked for only where that
            is wanted, since Delta reads all of the table's log to tell.
    """

    columns: dict[str, Any]
    partitioned: tuple[str, ...]
    clustered: tuple[str, ...]
    properties: frozenset[str]


class DeltaLog:
    """The transaction log of the table at `path`."""

    def __init__(self, session: SparkSession, path: str) -> None:
        self._session, self._path = session, path
        self._scheme = path.partition(":")[0].lower()

    def exists(self) -> bool:
        """Whether there is a Delta table now."""
        return bool(self._newest().tableExists())

    def look(self, log_id: str, since: int) -> TableState | None:
        """The newest snapshot and the versions after `since`; None where there is no table."""
        log = self._newest()
        if not log.tableExists():
            return None
        snapshot = log.unsafeVolatileSnapshot()
        version = int(snapshot.version())
        changes, whole = self._changes(log, since, version)
        return TableState(
            table_id=str(snapshot.metadata().id()),
            version=version,
            k=_last_range(snapshot, log_id),
            changes=changes,
            whole=whole,
        )

    def layout(self, *, clustering: bool = False, newest: bool = True) -> Layout | None:
        """Of the newest version; None where there is no table.

        Args:
            clustering: whether to find out what it is clustered by.
            newest: else the version that was read last will do.
        """
        log = self._newest() if newest else self._known()
        if not log.tableExists():
            return None
        snapshot = log.unsafeVolatileSnapshot()
        metadata = snapshot.metadata()
        clustered: tuple[str, ...] = ()
        if clustering:
            jvm = self._session._jvm
            assert jvm is not None
            info = getattr(jvm, f"{_DELTA}.skipping.clustering.ClusteringColumnInfo")
            clustered = tuple(map(str, _each(info.extractLogicalNames(snapshot))))
        return Layout(
            columns=columns(metadata.schema().json()),
            partitioned=tuple(map(str, _each(metadata.partitionColumns()))),
            clustered=clustered,
            properties=frozenset(map(str, _each(metadata.configuration().keys()))),
        )

    def has_deletion_vectors(self) -> bool:
        """Whether a MERGE writes deletion vectors, by the snapshot that was read last."""
        configuration = self._known().unsafeVolatileSnapshot().metadata().configuration()
        found = configuration.get("delta.enableDeletionVectors")
        return found.isDefined() and str(found.get()).lower() == "true"

    def check_put_if_absent(self) -> None:
        """Raises PlanError where two writers could both believe to have made one version."""
        found = self._log_store()
        allowed = _ATOMIC.get(self._scheme, set())
        name = found.removeprefix(_STORAGE)
        # A class that is not Delta's was chosen by somebody who knows what it does.
        if name in allowed or not found.startswith((_STORAGE, _DELTA)):
            return
        advice = (
            f"Start Spark with --jars {log_store.jar()} --conf {log_store.SETTING}="
            f"{log_store.CLASS}, and so whoever else writes the table"
            if self._scheme == "s3a"
            else f"Set spark.delta.logStore.{self._scheme}.impl to a LogStore that does"
        )
        raise PlanError(
            f"for {self._scheme}:// Delta uses {found}, which does not put a version of the "
            f"table only if it is absent: of two writers one could undo the other. {advice}"
        )

    @contextmanager
    def held(self) -> Iterator[None]:
        """Nobody else of this library writes the table meanwhile.

        Needed on a local disk only: there Delta looks whether a version is absent and then
        renames a file over it.
        """
        if self._scheme != "file":
            yield
            return
        import fcntl

        place = os.open(self._path.removeprefix("file:"), os.O_RDONLY)
        try:
            try:
                fcntl.flock(place, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                events.emit(events.CompactionWaits(self._path))
                fcntl.flock(place, fcntl.LOCK_EX)
            yield
        finally:
            os.close(place)

    def _log_store(self) -> str:
        """The class that writes the table's versions."""
        jvm = self._session._jvm
        assert jvm is not None
        stores = getattr(getattr(jvm, f"{_DELTA}.storage.LogStore$"), "MODULE$")
        store = stores.apply(self._session._jsparkSession)
        if _is(store, "DelegatingLogStore"):
            store = store.getDelegate(jvm.org.apache.hadoop.fs.Path(self._path))
        if _is(store, "LogStoreAdaptor"):
            store = store.logStoreImpl()
        return str(store.getClass().getName())

    def _known(self) -> Any:
        """Delta's own object, at the version that was read last."""
        jvm = self._session._jvm
        assert jvm is not None
        return getattr(jvm, f"{_DELTA}.DeltaLog").forTable(self._session._jsparkSession, self._path)

    def _newest(self) -> Any:
        """Delta's own object, at the newest version.

        What it remembers counts only where it is what is there: a table may have been dropped
        and made again at the same path.
        """
        jvm, session = self._session._jvm, self._session._jsparkSession
        assert jvm is not None
        logs = getattr(jvm, f"{_DELTA}.DeltaLog")
        log = self._known()
        if not self._is_there(log):
            logs.invalidateCache(session, jvm.org.apache.hadoop.fs.Path(self._path))
            log = logs.forTable(session, self._path)
        return log

    def _is_there(self, log: Any) -> bool:
        """Whether the table has the very versions that Delta remembers, and none after them."""
        snapshot = log.unsafeVolatileSnapshot()
        checksum = snapshot.checksumOpt()
        known = {_name(file): _stamp(file) for file in _each(snapshot.logSegment().deltas())}
        if not known or not checksum.isDefined() or not checksum.get().txnId().isDefined():
            return False
        try:
            files = log.store().listFrom(self._file(log, min(known)), log.newDeltaHadoopConf())
            found = {_name(file): _stamp(file) for file in _each(files) if _is_version(_name(file))}
            info = self._commit_info(log, self._file(log, max(known)))
        except Exception as error:
            if "FileNotFoundException" in cause(error):
                return False
            raise
        # Drawn anew for each commit: two of one length and one moment are told apart.
        return found == known and (info or {}).get("txnId") == checksum.get().txnId().get()

    def _file(self, log: Any, name: str) -> Any:
        """The path of a file of the transaction log."""
        jvm = self._session._jvm
        assert jvm is not None
        return jvm.org.apache.hadoop.fs.Path(log.logPath(), name)

    def _changes(self, log: Any, since: int, version: int) -> tuple[tuple[Change, ...], bool]:
        def read(each: int) -> dict[str, Any] | None:
            try:
                return self._commit_info(log, self._file(log, f"{each:020d}.json"))
            except Exception as error:
                if "FileNotFoundException" in cause(error):
                    raise FileNotFoundError(str(each)) from error
                raise

        return history(since, version, map(read, range(version, since, -1)))

    def _commit_info(self, log: Any, path: Any) -> dict[str, Any] | None:
        """What a version says of itself; None where its writer left that out."""
        lines = log.store().readAsIterator(path, log.newDeltaHadoopConf())
        try:
            # It is the first line of what Spark writes.
            while lines.hasNext():
                info = json.loads(lines.next()).get("commitInfo")
                if info is not None:
                    return dict(info)
        finally:
            lines.close()
        return None


def _last_range(snapshot: Any, log_id: str) -> int:
    """The number of the transaction that the snapshot keeps of this log; 0 for none.

    Delta writes a few of them beside each version too: to gather them is a job of Spark's.
    """
    checksum = snapshot.checksumOpt()
    if checksum.isDefined() and not snapshot.metadata().configuration().contains(FORGETS):
        beside = checksum.get().setTransactions()
        if beside.isDefined():
            known = (each for each in _each(beside.get()) if each.appId() == log_id)
            return next((int(each.version()) for each in known), 0)
    k = snapshot.transactions().get(log_id)
    return int(k.get()) if k.isDefined() else 0


def _each(scala: Any) -> Iterator[Any]:
    """What a collection of Scala's holds."""
    iterator = scala.iterator()
    while iterator.hasNext():
        yield iterator.next()


def _name(file: Any) -> str:
    return str(file.getPath().getName())


def _stamp(file: Any) -> tuple[int, int]:
    """What differs when a file was written again."""
    return int(file.getLen()), int(file.getModificationTime())


def _is_version(name: str) -> bool:
    return name.endswith(".json") and name.removesuffix(".json").isdecimal()


def _is(java: Any, name: str) -> bool:
    """Whether a Java object is of the class of this simple name."""
    return bool(java.getClass().getSimpleName() == name)
