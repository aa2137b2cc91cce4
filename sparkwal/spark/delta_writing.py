"""How a range of a log is written into a Delta table: one transaction, and errors of few kinds."""

import json
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from sparkwal.errors import PlanError, ReadError, TableReadError, WriteError
from sparkwal.format.lifecycle_record import Promise
from sparkwal.lifecycle import range_rows
from sparkwal.lifecycle.delta.data_files import added
from sparkwal.lifecycle.delta.transaction_log import DeltaLog
from sparkwal.lifecycle.range_rows import range_name
from sparkwal.lifecycle.table import (
    Held,
    TableConflict,
    TableFile,
    TableState,
    check_owner,
    named_range,
)
from sparkwal.spark.delta_files import DELTA, FORGETS
from sparkwal.spark.readable import is_sparkwal_error, one_line, with_java_error
from sparkwal.spark.registering import register_once

# With deletion vectors, MERGE fails on a row whose key is null (Delta 4.4).
VECTORS = "delta.enableDeletionVectors"
# The errors of Delta if another writer of the table committed first.
_CONFLICT = re.compile(
    r"\[DELTA_(?:CONCURRENT_|METADATA_CHANGED|PROTOCOL_CHANGED|SCHEMA_CHANGE_SINCE_ANALYSIS)"
    r"|Concurrent\w+Exception|(?:Metadata|Protocol)ChangedException"
)


def isolated_session(spark: SparkSession) -> SparkSession:
    """A new session, so that the settings of readers and of compaction do not affect each other."""
    session = spark.newSession()
    # The meaning of a delete condition depends on these three settings.
    session.conf.set("spark.sql.session.timeZone", "UTC")
    session.conf.set("spark.sql.ansi.enabled", "true")
    session.conf.set("spark.sql.caseSensitive", "false")
    # By default Spark writes INT96, and delta-rs misreads INT96 outside of the years 1678…2262.
    session.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
    register_once(session, listen=False)
    return session


def range_session(
    spark: SparkSession,
    promise: Promise,
    *,
    is_repeated: bool = False,
    is_burned: bool = False,
) -> SparkSession:
    """A session whose writes name the open range, and carry its transaction (log_id, k) unless
    they are repeated."""
    session = isolated_session(spark)
    # Settings and not options: a MERGE takes no options.
    delta = "spark.databricks.delta"
    if not is_repeated:
        session.conf.set(f"{delta}.write.txnAppId", promise.table.app_id)
        session.conf.set(f"{delta}.write.txnVersion", str(promise.table.k))
    named = named_range(promise) | ({"is_burned": True} if is_burned else {})
    session.conf.set(f"{delta}.commitInfo.userMetadata", json.dumps(named))
    return session


@contextmanager
def explained(table: str, promise: Promise) -> Iterator[None]:
    """Write the open range into a table, and turn errors of Spark into those of a range.

    Raises:
        TableConflict: another writer committed first.
        ReadError: the log could not be read.
        WriteError: the table did not take the range.
    """
    try:
        yield
    except (TableConflict, ReadError, WriteError):
        raise
    except Exception as error:
        if _CONFLICT.search(f"{type(error).__name__} {with_java_error(error)}"):
            raise TableConflict(f"{table}: {one_line(error)}") from error
        if is_sparkwal_error(error):
            raise ReadError(f"{range_name(promise)} cannot be read: {one_line(error)}") from error
        raise refused(table, promise, one_line(error)) from error


def refused(table: str, promise: Promise, why: str) -> WriteError:
    """The error for a table that did not take the open range, with the ways to continue."""
    return range_rows.refused(table, promise, why, f"change it (ALTER TABLE delta.`{table}` …)")


class WrittenHistory:
    """The history of a Delta table that Spark writes, as `WrittenTable` reads it.

    Args:
        log: the table's transaction log.
    """

    def __init__(self, log: DeltaLog) -> None:
        self._log = log

    def snapshot(self, log_id: str, since: int | None, k: int | None = None) -> TableState | None:
        """Read the newest snapshot. See `Snapshots.snapshot`.

        Raises:
            WriteError: the transaction log is unreadable.
        """
        with self._updated():
            return self._log.snapshot(log_id, since, k)

    def held(self, log_id: str, since: int, k: int | None = None) -> Held | None:
        """Find the ranges that the newest snapshot holds. See `WrittenTable.held`.

        Raises:
            WriteError: the transaction log is unreadable.
        """
        with self._updated():
            return self._log.held(log_id, since, k)

    @contextmanager
    def _updated(self) -> Iterator[None]:
        with read_of_log():
            self._log.update()
            yield


@contextmanager
def read_of_log() -> Iterator[None]:
    """Read the transaction log of a table that takes the open range.

    Raises:
        WriteError: it is unreadable.
    """
    try:
        yield
    except TableReadError as error:
        raise WriteError(str(error)) from error


def no_rows(session: SparkSession, spark_schema: str) -> DataFrame:
    """A frame of a session with these columns and without rows, which needs no task."""
    of_session: Any = session._jsparkSession
    jvm: Any = session._jvm
    columns = of_session.parseDataType(spark_schema)
    return DataFrame(of_session.createDataFrame(jvm.java.util.ArrayList(), columns), session)


def rows_of_files(session: SparkSession, path: str, files: Iterable[TableFile]) -> DataFrame:
    """The rows of data files of a Delta table.

    Args:
        session: a session with Delta Lake.
        path: the table.
        files: the files, as `listed_files` lists them.
    """
    jvm: Any = session._jvm
    opened = getattr(jvm, f"{DELTA}.DeltaLog").forTableWithSnapshot(session._jsparkSession, path)
    action = getattr(jvm, f"{DELTA}.actions.Action")
    adds = jvm.PythonUtils.toSeq([action.fromJson(json.dumps({"add": added(x)})) for x in files])
    # py4j passes no default arguments: a batch, whose kind needs no name.
    no_name = getattr(jvm, "scala.Option").empty()
    rows = opened._1().createDataFrame(opened._2(), adds, False, no_name)
    return DataFrame(rows, session)


def create_table(builder: Any, log: DeltaLog) -> None:
    """Create a table, unless another process creates it at the same time."""
    try:
        builder.execute()
    except Exception:
        if not log.update():
            raise


def check_beside(log: DeltaLog, url: str, keeps: str, owner: str, table_id: str) -> None:
    """Check that a table beside a table belongs to it, and keeps its transactions.

    Args:
        log: its transaction log.
        url: its URL.
        keeps: what it keeps, for people.
        owner: the property that names the id of its table.
        table_id: that id.

    Raises:
        PlanError: it does not.
    """
    way_out = "delete that folder if it is left from an earlier table"
    check_owner(log.properties.get(owner), table_id, url, keeps, way_out)
    if FORGETS in log.properties:
        raise PlanError(
            f"{url} has {FORGETS}, and would forget which ranges it holds. ALTER TABLE "
            f"delta.`{url}` UNSET TBLPROPERTIES ('{FORGETS}')"
        )


def delta_tables(session: SparkSession) -> Any:
    """The class DeltaTable in Delta's jars.

    Delta's Python package is not used: it pins PySpark, so its installation could change the
    user's version.
    """
    return getattr(session._jvm, "io.delta.tables.DeltaTable")
