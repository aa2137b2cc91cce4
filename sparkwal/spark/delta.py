"""A Delta table that takes ranges of a log, by Spark: one range, one version of the table.

Who reads table and log as one makes the same rows of the log's.
"""

import json
import re
from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import BinaryType, MapType, StringType, StructType, VariantType

from sparkwal.errors import PlanError, ReadError, TableReadError, WriteError
from sparkwal.format.lifecycle_record import APPEND, LifecycleRecord, Target
from sparkwal.format.schema import columns, normalize
from sparkwal.format.widening import widened
from sparkwal.lifecycle.fitting import adds_columns, problems, type_problems
from sparkwal.lifecycle.table import NULL_PARTITIONS, TableConflict, TableState
from sparkwal.reading.metadata import check_reserved
from sparkwal.spark.conditions import deletes, quoted
from sparkwal.spark.datasource import PINNED
from sparkwal.spark.delta_files import FORGETS, check_put_if_absent, delta_log, held, spark_path
from sparkwal.spark.interfaces import to_struct
from sparkwal.spark.readable import cause, failure_of_ours, line
from sparkwal.spark.registering import register_once
from sparkwal.store.base import LogStore

# Another writer of the table was faster.
_CONFLICT = re.compile(
    r"\[DELTA_(?:CONCURRENT_|METADATA_CHANGED|PROTOCOL_CHANGED|SCHEMA_CHANGE_SINCE_ANALYSIS)"
    r"|Concurrent\w+Exception|(?:Metadata|Protocol)ChangedException"
)
# Columns of the rows that win; none of the log or the table.
_ORDER = "_wal_order"
_ROW = "_wal_row"
DELETES = "_wal_deletes"


def own_session(spark: SparkSession) -> SparkSession:
    """Its settings reach no other session, and those of a reader change no row that wins."""
    session = spark.newSession()
    # On these the meaning of a condition depends.
    session.conf.set("spark.sql.session.timeZone", "UTC")
    session.conf.set("spark.sql.ansi.enabled", "true")
    session.conf.set("spark.sql.caseSensitive", "false")
    # By default Spark writes INT96, of which delta-rs misreads what is not in 1678 … 2262.
    session.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
    register_once(session, listens=False)
    return session


def as_stored(rows: DataFrame, table: Mapping[str, Any], partitioned: Sequence[str]) -> DataFrame:
    """Rows of the log as a table keeps them: of its types where those are wider, and null for texts
    that no partition can have."""
    own = normalize(rows.schema.jsonValue())
    parts = {name.lower() for name in partitioned}
    stored = []
    for field in StructType.fromJson(json.loads(widened(own, table))):
        column = F.col(quoted(field.name)).cast(field.dataType)
        if isinstance(field.dataType, StringType | BinaryType) and field.name.lower() in parts:
            column = F.when(~column.cast("string").isin(*NULL_PARTITIONS), column)
        stored.append(column.alias(field.name))
    return rows.select(*stored)


def last_of_each(rows: DataFrame, target: Target, *, is_own: bool = False) -> DataFrame:
    """Of the rows of each key the one that wins, and whether it deletes the key. `is_own`: this
    process was given the target's condition, as in `conditions.deletes`."""
    check_reserved(rows.columns)
    # Read tasks come in the log's order, and the number counts first by task, then by row: safe
    # only over the scan itself, and what looks at one row after the other.
    numbered = rows.withColumn(_ORDER, F.monotonically_increasing_id())
    order = [quoted(target.sequence_by)] if target.sequence_by else []
    whole = F.struct(*(F.col(quoted(name)) for name in rows.columns))
    last = F.max_by(whole, F.struct(*order, _ORDER)).alias(_ROW)
    keys = (F.col(quoted(key)).alias(f"_wal_key_{n}") for n, key in enumerate(target.keys))
    latest = numbered.groupBy(*keys).agg(last).select(f"{_ROW}.*")
    if target.delete_when:
        condition = deletes(target.delete_when, rows.schema, is_own=is_own)
        latest = latest.withColumn(DELETES, condition)
    return latest


def delta_tables(session: SparkSession) -> Any:
    """Delta's tables in its jars. Its Python package pins PySpark: its installation could change
    the user's version."""
    return getattr(session._jvm, "io.delta.tables.DeltaTable")


def _sequence(session: SparkSession, names: Sequence[str]) -> Any:
    """A sequence of Scala."""
    jvm: Any = session._jvm
    return jvm.PythonUtils.toSeq([*names])


class SparkDeltaTable:
    """A `sparkwal.lifecycle.table.Table`. The settings of `spark`, a session with Delta Lake, stay
    as they are: every write has a session of its own. `log_options` reach the log."""

    def __init__(self, spark: SparkSession, target: Target, log_options: Mapping[str, str]) -> None:
        if getattr(spark, "_jsparkSession", None) is None:
            raise PlanError(
                "a session of Spark Connect cannot see what a Delta table holds: compact with a "
                "session of Spark's own"
            )
        self.target = target
        self._options = dict(log_options)
        self._path = spark_path(target.table)
        self._spark = spark
        self._session = own_session(spark)
        self._log = delta_log(self._session, target.table)

    def prepare(self, log: LogStore, spark_schema: str, first: bool = False) -> None:
        schema = to_struct(spark_schema)
        self._check_target(schema)
        if first and (condition := self.target.delete_when):
            # The first intent fixes it: if it failed only when the range is written, that range
            # would stay open for ever.
            rows = self._session.read.format("weaselwal").options(**self._options).load().limit(100)
            try:
                rows.select(deletes(condition, schema, is_own=True)).collect()
            except Exception as error:
                if failure_of_ours(error):
                    raise ReadError(f"the log cannot be read: {line(error)}") from error
                text = f"delete_when {condition!r} fails on rows of the log: {line(error)}"
                raise PlanError(text) from error
        try:
            check_put_if_absent(self._session, self._path)
            if not self._log.update():
                self._create(schema)
                self._log.update()
            self._check_table(schema)
            self._add_columns(schema)
        except PlanError:
            raise
        except Exception as error:
            raise PlanError(f"{self.target.table} cannot be used: {line(error)}") from error

    def look(self, log_id: str, since: int, k: int | None = None) -> TableState | None:
        try:
            self._log.update()
            return self._log.look(log_id, since, k)
        except TableReadError as error:
            raise WriteError(str(error)) from error

    def write(self, state: LifecycleRecord) -> None:
        session = own_session(self._spark)
        delta = "spark.databricks.delta"  # a MERGE takes no options
        session.conf.set(f"{delta}.write.txnAppId", state.log_id)
        session.conf.set(f"{delta}.write.txnVersion", str(state.k))
        kept = {n: getattr(state, n) for n in ("log_id", "k", "cut", "to", "sequencer")}
        session.conf.set(f"{delta}.commitInfo.userMetadata", json.dumps(kept))
        asked = {"startingPosition": str(state.cut), "endingPosition": str(state.to - 1)}
        asked[PINNED] = json.dumps({"log_id": state.log_id})
        range_ = f"positions {state.cut}…{state.to - 1} (range {state.k})"
        try:
            # In the log's order, from one partition to the next.
            rows = session.read.format("weaselwal").options(**{**self._options, **asked}).load()
            for problem in type_problems(
                rows.schema.json(), self._log.spark_schema, self.target.table
            ):
                raise WriteError(f"{self.target.table} does not take {range_}: {problem}")
            rows = as_stored(rows, columns(self._log.spark_schema), self._log.partitioned)
            with held(self._path):
                if self.target.mode == APPEND:
                    writer = rows.write.format("delta").mode("append")
                    writer.option("mergeSchema", "true").save(self._path)
                else:
                    self._merge(session, rows)
        except (TableConflict, ReadError, WriteError):
            raise
        except Exception as error:
            if _CONFLICT.search(f"{type(error).__name__} {cause(error)}"):
                raise TableConflict(f"{self.target.table}: {line(error)}") from error
            if failure_of_ours(error):
                raise ReadError(f"{range_} cannot be read: {line(error)}") from error
            text = f"{self.target.table} did not take {range_}: {line(error)}"
            raise WriteError(text) from error

    def _merge(self, session: SparkSession, rows: DataFrame) -> None:
        target = self.target
        source = last_of_each(rows, target, is_own=True)
        if target.delete_when:
            source = self._without_idle_delete(session, source)
        # py4j makes a map of the JVM of it.
        values = {quoted(name): f"s.{quoted(name)}" for name in rows.columns}
        same = " AND ".join(f"t.{quoted(key)} <=> s.{quoted(key)}" for key in target.keys)
        by = quoted(target.sequence_by)
        newer = f"(t.{by} IS NULL OR s.{by} >= t.{by})" if target.sequence_by else None
        table = delta_tables(session).forPath(session._jsparkSession, self._path).alias("t")
        merge = table.merge(source.alias("s")._jdf, same).withSchemaEvolution()
        if target.delete_when:
            gone = f"s.{DELETES}" + (f" AND {newer}" if newer else "")
            merge = merge.whenMatched(gone).delete()
        merge = merge.whenMatched(newer or "true").updateExpr(values)
        inserts = f"NOT s.{DELETES}" if target.delete_when else "true"
        merge.whenNotMatched(inserts).insertExpr(values).execute()

    def _without_idle_delete(self, session: SparkSession, source: DataFrame) -> DataFrame:
        """Without the delete of the key of nulls where the table has no row of this key: a MERGE
        that writes deletion vectors would fail there (Delta 4.4). It compares the keys again after
        its outer join, where all are null of a row that is not there."""
        keys = [quoted(key) for key in self.target.keys]
        if self._log.properties.get("delta.enableDeletionVectors", "").lower() != "true":
            return source
        if not all(field.nullable for field in source.select(*keys).schema):
            return source
        nulls = reduce(Column.__and__, (F.col(key).isNull() for key in keys))
        # Inside the MERGE's transaction Delta reads the snapshot that the MERGE changes.
        there = session.read.format("delta").load(self._path).where(nulls).exists()
        return source.where(~(F.col(DELETES) & nulls) | there)

    def _check_target(self, schema: StructType) -> None:
        target = self.target
        if FORGETS in dict(target.properties):
            raise PlanError(_forgets(target.table))
        known = {field.name.lower(): field for field in schema.fields}
        sequence = (target.sequence_by,) if target.sequence_by else ()
        for name in (*target.keys, *sequence, *target.partition_by, *target.cluster_by):
            # A column that is clustered by may lie in another.
            if name.lower() not in known and name.partition(".")[0].lower() not in known:
                there = ", ".join(schema.names)
                raise PlanError(f"the log has no column {name!r}; its columns are {there}")
        for name in (*target.keys, *sequence):
            if isinstance(known[name.lower()].dataType, MapType | VariantType):
                raise PlanError(f"column {name} can be no key: Spark does not compare its values")
        if target.delete_when:
            try:
                empty = self._session.createDataFrame([], schema)
                condition = deletes(target.delete_when, schema, is_own=True)
                empty.select(condition).schema  # noqa: B018
            except Exception as error:
                raise PlanError(f"delete_when {target.delete_when!r}: {line(error)}") from error

    def _create(self, schema: StructType) -> None:
        target = self.target
        session: Any = self._session._jsparkSession
        making = delta_tables(self._session).createIfNotExists(session).location(self._path)
        making = making.addColumns(session.parseDataType(schema.json()))
        if target.partition_by:
            making = making.partitionedBy(_sequence(self._session, target.partition_by))
        if target.cluster_by:
            making = making.clusterBy(_sequence(self._session, target.cluster_by))
        for name, value in target.properties:
            making = making.property(name, value)
        try:
            making.execute()
        except Exception:
            # Another process may have made it at the same time.
            if not self._log.update():
                raise

    def _add_columns(self, schema: StructType) -> None:
        """Add the log's new columns. A table that refuses them does so before the promise."""
        if not adds_columns(schema.json(), self._log.spark_schema):
            return
        empty = self._session.createDataFrame([], schema)
        try:
            with held(self._path):
                writer = empty.write.format("delta").mode("append")
                writer.option("mergeSchema", "true").save(self._path)
        except Exception as error:
            # Another compaction may have added them at the same time.
            self._log.update()
            if adds_columns(schema.json(), self._log.spark_schema):
                text = f"{self.target.table} does not take the log's new columns: {line(error)}"
                raise PlanError(text) from error
        self._log.update()

    def _check_table(self, schema: StructType) -> None:
        target, there = self.target, self._log
        for problem in problems(schema.json(), there.spark_schema, target, there.properties):
            raise PlanError(problem)
        # §10: the table has no setting that forgets transactions
        if FORGETS in there.properties:
            raise PlanError(_forgets(target.table))
        if asked := [*target.partition_by, *target.cluster_by]:
            table = delta_tables(self._session).forPath(self._session._jsparkSession, self._path)
            detail = DataFrame(table.detail(), self._session)
            what = "partitioned" if target.partition_by else "clustered"
            column = "partitionColumns" if target.partition_by else "clusteringColumns"
            if (found := detail.select(column).collect()[0][0]) != asked:
                found = ", ".join(found) or "nothing"
                text = f"{target.table} is {what} by {found}, and {', '.join(asked)} was asked for"
                raise PlanError(text)
        known = {name.lower() for name in columns(there.spark_schema)}
        for name in (*target.keys, target.sequence_by):
            if name and name.lower() not in known:
                raise PlanError(f"{target.table} has no column {name!r}")


def _forgets(table: str) -> str:
    return (
        f"{table} has {FORGETS}: it would forget which range of the log it holds, and take it "
        f"a second time. ALTER TABLE delta.`{table}` UNSET TBLPROPERTIES ('{FORGETS}')"
    )
