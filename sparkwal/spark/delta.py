"""Writes ranges of a log into a Delta table with Spark, each range as one version of the table.

`read_current` uses the same conversion of the log's rows.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import BinaryType, MapType, StringType, StructType, VariantType

from sparkwal.errors import PlanError, ReadError, SparkWalError
from sparkwal.format.keys import ROOT
from sparkwal.format.lifecycle_record import (
    APPEND,
    MERGE,
    NO_TABLE_VERSION,
    Promise,
    Target,
)
from sparkwal.format.schema import columns, normalize, quoted
from sparkwal.format.widening import widened
from sparkwal.lifecycle.delta.fitting import (
    GENERATED,
    NULL_PARTITIONS,
    adds_columns,
    filled_by_delta,
    log_problems,
    problems,
    type_problems,
)
from sparkwal.lifecycle.merging.merged_rows import partial_columns
from sparkwal.lifecycle.range_rows import REASON, RowsNotFound, range_name
from sparkwal.options.open import open_log
from sparkwal.options.parsing import from_keywords
from sparkwal.options.reading import SourceOptions
from sparkwal.reading.metadata import COLUMNS, COMMIT_TIME, name_text, with_hidden
from sparkwal.reading.planning import plan_ranges
from sparkwal.spark.conditions import deletes
from sparkwal.spark.datasource import PLANNED
from sparkwal.spark.delta_files import (
    FORGETS,
    check_put_if_absent,
    delta_log,
    spark_path,
    table_lock,
)
from sparkwal.spark.delta_writing import (
    WrittenHistory,
    create_table,
    delta_tables,
    explained,
    isolated_session,
    no_rows,
    range_session,
    refused,
)
from sparkwal.spark.interfaces import to_struct
from sparkwal.spark.json_rows import with_values
from sparkwal.spark.keyed_rows import (
    DELETES,
    InTable,
    Winners,
    after_merge,
    merged_partial_rows,
    passed_once,
    winning_rows,
    without_late,
)
from sparkwal.spark.readable import is_sparkwal_error, one_line
from sparkwal.spark.refused import PLACE, SparkRefused
from sparkwal.spark.refusing import CHECK, refused_rows, scratch_table
from sparkwal.spark.source import packed
from sparkwal.spark.tombstones import SparkTombstones
from sparkwal.store.base import LogStore


def as_stored(rows: DataFrame, table: Mapping[str, Any], partitioned: Sequence[str]) -> DataFrame:
    """Convert rows of the log to the values that a table stores.

    A column takes the table's type if that is wider. In a column that partitions the table, texts
    that Delta Lake stores as null become null.

    Args:
        rows: rows of the log.
        table: the types of the table's columns.
        partitioned: the columns that partition the table.
    """
    log_schema = normalize(rows.schema.jsonValue())
    partition_columns = {name.lower() for name in partitioned}
    stored = []
    for field in StructType.fromJson(json.loads(widened(log_schema, table))):
        column = F.col(quoted(field.name)).cast(field.dataType)
        is_text = isinstance(field.dataType, StringType | BinaryType)
        if is_text and field.name.lower() in partition_columns:
            column = F.when(~column.cast("string").isin(*NULL_PARTITIONS), column)
        stored.append(column.alias(field.name))
    return rows.select(*stored)


@dataclass(frozen=True)
class _RangeRows:
    """The rows of a range.

    Attributes:
        rows: the rows as the table stores them, in the order of logs and positions. For a MERGE
            they have COLUMNS.
        time: the name of their column with the commit times; "" without one.
        partial: the columns that not all records have, in lower case.
    """

    rows: DataFrame
    time: str
    partial: frozenset[str]


def _without_path(options: Mapping[str, str]) -> dict[str, str]:
    return {name: text for name, text in options.items() if name != "path"}


def _scala_sequence(session: SparkSession, names: Sequence[str]) -> Any:
    jvm: Any = session._jvm
    return jvm.PythonUtils.toSeq([*names])


class SparkDeltaTable(WrittenHistory):
    """A Delta table, as `sparkwal.lifecycle.table.Table`.

    Each write uses a new session, so the settings of `spark` do not change.

    Args:
        spark: a session with Delta Lake.
        target: the table.
        log_options: the options with which Spark reads the log.

    Raises:
        PlanError: the session is one of Spark Connect.
    """

    def __init__(self, spark: SparkSession, target: Target, log_options: Mapping[str, str]) -> None:
        if getattr(spark, "_jsparkSession", None) is None:
            raise PlanError(
                "a session of Spark Connect has no access to a table's transaction log: compact "
                "with a classic session"
            )
        self.target = target
        self._options = dict(log_options)
        self._path = spark_path(target.table)
        self._spark = spark
        # Several logs are read by a plan of their own.
        settings = from_keywords(SourceOptions, self._options["path"], _without_path(log_options))
        self._opened = open_log(settings)
        self._session = isolated_session(spark)
        super().__init__(delta_log(self._session, target.table))
        self.tombstones: SparkTombstones | None = None
        if target.keeps_tombstones:
            self.tombstones = SparkTombstones(spark, target, self._log, self._winners)
        self.refused = SparkRefused(spark, target, self._log, self._refused_rows)
        # The range that was read last, its winners, and all rows that are cached for it.
        self._read: tuple[Promise, _RangeRows] | None = None
        self._won: tuple[Promise, Winners] | None = None
        self._cached: list[DataFrame] = []

    def prepare(self, log: LogStore, spark_schema: str, *, first: bool = False) -> None:
        """Check or create the table, as `Table.prepare`."""
        schema = to_struct(spark_schema)
        self._check_target(schema)
        if first and (condition := self.target.delete_when):
            # The first intent fixes the condition. Try it now: if it failed later, when the range
            # is written, that range could never be finished.
            # One of several logs is enough. Its folder is that of a sequencer of this path.
            of_log = {} if log.name in (self._opened.name, ROOT) else {"sequencer": log.name}
            reader = self._session.read.format("weaselwal").options(**{**self._options, **of_log})
            rows = reader.load().limit(100)
            try:
                rows.select(deletes(condition, schema, is_own=True)).collect()
            except Exception as error:
                if is_sparkwal_error(error):
                    raise ReadError(f"the log is unreadable: {one_line(error)}") from error
                text = f"delete_when {condition!r} fails on rows of the log: {one_line(error)}"
                raise PlanError(text) from error
        try:
            check_put_if_absent(self._session, self._path)
            if not self._log.update():
                self._create(schema)
                self._log.update()
            self._check_table(schema)
            self._add_columns(schema)
            if self.tombstones is not None:
                self.tombstones.prepare()
        except PlanError:
            raise
        except Exception as error:
            raise PlanError(f"{self.target.table} is unusable: {one_line(error)}") from error

    def burn(self, promise: Promise) -> None:
        """Commit the transaction of an intent without its rows, as `Table.burn`."""
        session = range_session(self._spark, promise, is_burned=True)
        with explained(self.target.table, promise), table_lock(self._path):
            self._log.update()
            empty = no_rows(session, self._log.spark_schema)
            empty.write.format("delta").mode("append").save(self._path)

    def write(self, promise: Promise, tombstones_version: int = NO_TABLE_VERSION) -> None:
        """Write the range of an intent as one version of the table, as `Table.write`."""
        session = range_session(self._spark, promise)
        try:
            with explained(self.target.table, promise):
                if self.target.mode == APPEND:
                    rows = self._rows(session, promise).rows
                    with table_lock(self._path):
                        writer = rows.write.format("delta").mode("append")
                        writer.option("mergeSchema", "true").save(self._path)
                    return
                source = self._source(session, promise, tombstones_version)
                with table_lock(self._path):
                    self._merge(session, source, is_again=promise.is_again)
        finally:
            self._forget_range()

    def _rows(self, session: SparkSession, promise: Promise) -> _RangeRows:
        """The rows of the open range that the table gets. The range is planned once."""
        if self._read is None or self._read[0] != promise:
            range_rows = self._whole(session, promise)
            if promise.is_again:
                # The first write left none that cannot be converted.
                why = F.col(REASON)
                is_wrong = F.when(why.isNotNull(), F.raise_error(why).cast("boolean"))
                rows = range_rows.rows.where(F.coalesce(is_wrong, F.lit(True)))
                if self.target.mode == MERGE:
                    rows = rows.orderBy(*PLACE)
                rows = rows.drop(*PLACE, COMMIT_TIME, REASON)
                range_rows = replace(range_rows, rows=rows, time="")
            elif promise.is_aside:
                # A broadcast keeps the order of the rows.
                places = F.broadcast(self.refused.places(session, promise))
                rows = range_rows.rows.join(places, [*PLACE], "left_anti").drop(*PLACE, COMMIT_TIME)
                range_rows = replace(range_rows, rows=rows, time="")
            self._read = promise, range_rows
        return self._read[1]

    def _whole(self, session: SparkSession, promise: Promise) -> _RangeRows:
        """The rows of the open range as the table stores them; with their places if some of them
        step aside."""
        if promise.is_again:
            return self._waiting(session, promise)
        hidden: list[str] = [*PLACE, COMMIT_TIME] if promise.is_aside else []
        if self.target.mode == MERGE:
            hidden += [*([COMMIT_TIME] if len(promise.ranges) > 1 else []), COLUMNS]
        try:
            # Spark would plan each log by itself.
            parallelism = session.sparkContext.defaultParallelism
            root, read_records = self._opened.root, promise.read
            read = plan_ranges(
                root, promise.ranges, parallelism=parallelism, read_records=read_records
            )
        except SparkWalError as error:
            raise ReadError(f"{range_name(promise)} is unreadable: {error}") from error
        schema = to_struct(with_hidden(read.spark_schema, *hidden))
        reader = session.read.format("weaselwal").options(**self._options)
        rows = reader.option(PLANNED, packed(read.tasks)).schema(schema).load()
        if len(read.tasks) == 1:
            # Spark does not know the number of tasks. One needs no shuffle to find the winners.
            rows = rows.coalesce(1)
        in_table = self._log.spark_schema
        for problem in type_problems(rows.drop(*hidden).schema.json(), in_table, self.target.table):
            raise refused(self.target.table, promise, problem)
        stored = as_stored(rows, columns(in_table), self._log.partitioned)
        time = COMMIT_TIME if COMMIT_TIME in hidden else ""
        writable = columns(in_table).keys() - {*filled_by_delta(in_table)}
        partial = partial_columns(self.target, read.common, read.spark_schema, writable)
        return _RangeRows(stored, time, partial)

    def _waiting(self, session: SparkSession, promise: Promise) -> _RangeRows:
        """The refused rows that the open range writes again, with their places and REASON: why a
        row cannot be converted to the table's columns."""
        # An expression that two columns share must fail inside of each.
        session.conf.set("spark.sql.subexpressionElimination.enabled", "false")
        waiting, in_table = self.refused.waiting(session, promise), self._log.spark_schema
        of_row = F.json_object_keys("values")
        names_of_rows = [{*row[0]} for row in waiting.select(of_row).distinct().collect()]
        writable = columns(in_table).keys() - {*filled_by_delta(in_table)}
        names = sorted(set[str]().union(*names_of_rows) or writable)
        if self.target.mode == MERGE:
            has = [F.when(F.array_contains(of_row, x), F.lit(name_text(x))) for x in names]
            waiting = waiting.withColumn(COLUMNS, F.concat_ws(" ", *has))
        rows = with_values(waiting, names, to_struct(in_table))
        common = [{name.lower() for name in row} for row in names_of_rows]
        schema = rows.drop(*PLACE, COMMIT_TIME, COLUMNS, REASON).schema.json()
        in_all = frozenset[str](set.intersection(*common) if common else columns(schema).keys())
        return _RangeRows(rows, COMMIT_TIME, partial_columns(self.target, in_all, schema, writable))

    def _refused_rows(self, promise: Promise) -> DataFrame:
        """The rows of the open range that the table refuses, each by itself.

        Raises:
            WriteError: they cannot be found, or the table takes some rows only with others.
        """
        session = isolated_session(self._spark)
        # An expression that two rules share must fail inside of each.
        session.conf.set("spark.sql.subexpressionElimination.enabled", "false")
        of = self._whole(session, promise)
        table = self._log
        rows = of.rows.drop(COLUMNS)
        unread = rows.where(F.col(REASON).isNotNull()) if promise.is_again else None
        if unread is not None:
            rows = rows.where(F.col(REASON).isNull()).drop(REASON)
        if self.target.mode == MERGE:
            if (why := self._depends_on_table(of)) and unread is not None:
                # Whether the table takes the others, only the write shows.
                return unread.persist()
            if why:
                raise refused(self.target.table, promise, why)
            if self.target.delete_when:
                in_log = rows.drop(*PLACE, COMMIT_TIME).schema
                rows = rows.where(~deletes(self.target.delete_when, in_log, is_own=True))
        rows = rows.persist()
        try:
            folder = spark_path(self.target.refused)
            with scratch_table(session, self._path, folder, promise.table.k) as scratch:
                schema, properties = table.spark_schema, table.properties
                are_aside = promise.is_again
                aside = refused_rows(rows, schema, properties, scratch, are_aside=are_aside)
                aside = (aside if unread is None else aside.unionByName(unread)).persist()
                aside.count()
                return aside
        except RowsNotFound as error:
            why = f"{error}, so none of its rows steps aside"
            raise refused(self.target.table, promise, why) from error
        finally:
            rows.unpersist()

    def _depends_on_table(self, of: _RangeRows) -> str:
        """Why only a MERGE shows whether the table takes a row; "" if the row alone shows it."""
        if of.partial:
            return f"records of it lack columns ({', '.join(sorted(of.partial))})"
        log_columns = {name.lower() for name in of.rows.columns}
        fields = json.loads(self._log.spark_schema)["fields"]
        own = [
            field["name"]
            for field in fields
            if field["name"].lower() not in log_columns
            and GENERATED not in (field.get("metadata") or {})
        ]
        has_rules = any(name.startswith(CHECK) for name in self._log.properties)
        has_rules = has_rules or any(GENERATED in (field.get("metadata") or {}) for field in fields)
        if own and has_rules:
            return f"its rules may use columns that the log lacks ({', '.join(own)})"
        return ""

    def _winners(self, session: SparkSession, promise: Promise) -> Winners:
        """The winners of the open range. With tombstones two tables take them."""
        if self._won is None or self._won[0] != promise:
            self._uncache()
            of = self._rows(session, promise)
            winners = winning_rows(of.rows, self.target, is_own=True, time=of.time)
            self._won = promise, self._passed_once(winners)
        return self._won[1]

    def _passed_once(self, rows: DataFrame) -> Winners:
        """Cache the rows that win while going over them, so that the log is read once.

        Spark knows the size of cached rows. It sends few of them to each task, instead of
        shuffling the table.
        """
        self._cached.append(rows.persist())
        return passed_once(rows, self.target)

    def _source(self, session: SparkSession, promise: Promise, tombstones_version: int) -> Winners:
        """One row for each key of the open range, without those that tombstones outlive."""
        of = self._rows(session, promise)
        tombstones: DataFrame | None = None
        if self.tombstones is not None and tombstones_version != NO_TABLE_VERSION:
            tombstones = self.tombstones.rows(session, tombstones_version)
        if of.partial:
            in_table = InTable(
                session.read.format("delta").load(self._path),
                tombstones,
                only_newer=promise.is_again,
            )
            merged = merged_partial_rows(
                of.rows, self.target, in_table, of.partial, is_own=True, time=of.time
            )
            return self._passed_once(merged)
        winners = self._winners(session, promise)
        if tombstones is None:
            return winners
        is_again = promise.is_again
        rows = without_late(winners.rows, tombstones, self.target, only_newer=is_again)
        return replace(winners, rows=rows)

    def _forget_range(self) -> None:
        self._read = self._won = None
        self._uncache()

    def _uncache(self) -> None:
        while self._cached:
            self._cached.pop().unpersist()

    def _merge(self, session: SparkSession, winners: Winners, *, is_again: bool) -> None:
        target, source = self.target, winners.rows
        names = [name for name in source.columns if name not in (DELETES, COLUMNS)]
        # Spark joins faster by `=`, which finds no null.
        signs = ["<=>" if key in winners.null_keys else "=" for key in target.keys]
        if target.delete_when and "=" not in signs:
            source = self._without_null_key_delete(session, source)
        # py4j converts a dict to a Java map.
        values = {quoted(name): f"s.{quoted(name)}" for name in names}
        in_table = columns(self._log.spark_schema)
        after: dict[str, Any] = after_merge(names, target.keys, names, in_table)
        updates = {quoted(name): value._jc for name, value in after.items()}
        pairs = zip(map(quoted, target.keys), signs, strict=True)
        same = " AND ".join(f"t.{key} {sign} s.{key}" for key, sign in pairs)
        by = quoted(target.sequence_by)
        newer = f"(t.{by} IS NULL OR s.{by} >= t.{by})" if target.sequence_by else None
        if is_again:
            # A row of the same sequence may have come later than the refused one.
            newer = f"(s.{by} > t.{by} OR t.{by} IS NULL AND s.{by} IS NOT NULL)"
        table = delta_tables(session).forPath(session._jsparkSession, self._path).alias("t")
        merge = table.merge(source.alias("s")._jdf, same).withSchemaEvolution()
        if target.delete_when:
            is_deleted = f"s.{DELETES}" + (f" AND {newer}" if newer else "")
            merge = merge.whenMatched(is_deleted).delete()
        merge = merge.whenMatched(newer or "true").update(updates)
        inserts = f"NOT s.{DELETES}" if target.delete_when else "true"
        merge.whenNotMatched(inserts).insertExpr(values).execute()

    def _without_null_key_delete(self, session: SparkSession, source: DataFrame) -> DataFrame:
        """Drop the delete of the key whose values are all null, if the table has no such row.

        A MERGE of Delta 4.4 that writes deletion vectors fails on such a delete: after its outer
        join it takes a missing row, whose keys are null, for a row of this key.
        """
        keys = [quoted(key) for key in self.target.keys]
        if self._log.properties.get("delta.enableDeletionVectors", "").lower() != "true":
            return source
        if not all(field.nullable for field in source.select(*keys).schema):
            return source
        nulls = reduce(Column.__and__, (F.col(key).isNull() for key in keys))
        # A subquery in the MERGE's source reads the same snapshot that the MERGE changes.
        has_row = session.read.format("delta").load(self._path).where(nulls).exists()
        return source.where(~(F.col(DELETES) & nulls) | has_row)

    def _check_target(self, schema: StructType) -> None:
        target = self.target
        if FORGETS in dict(target.properties):
            raise PlanError(_forgets(target.table))
        if reasons := [*log_problems(schema.json())]:
            raise PlanError(f"{target.table} does not take the log: {'; '.join(reasons)}")
        self._check_partitions(target.partition_by)
        fields = {field.name.lower(): field for field in schema.fields}
        sequence = (target.sequence_by,) if target.sequence_by else ()
        for name in (*target.keys, *sequence, *target.partition_by, *target.cluster_by):
            # A table may be clustered by a field of a struct.
            if name.lower() not in fields and name.partition(".")[0].lower() not in fields:
                names = ", ".join(schema.names)
                raise PlanError(f"the log has no column {name!r}; its columns are {names}")
        for name in (*target.keys, *sequence):
            if isinstance(fields[name.lower()].dataType, MapType | VariantType):
                raise PlanError(f"column {name} can be no key: Spark does not compare its values")
        if target.delete_when:
            try:
                empty = no_rows(self._session, schema.json())
                condition = deletes(target.delete_when, schema, is_own=True)
                empty.select(condition).schema  # noqa: B018
            except Exception as error:
                raise PlanError(f"delete_when {target.delete_when!r}: {one_line(error)}") from error

    def _check_partitions(self, names: Sequence[str]) -> None:
        """Refuse partition columns with which each MERGE of Delta 4.4 fails."""
        dotted = [name for name in names if "." in name]
        if dotted and self.target.mode == MERGE:
            raise PlanError(
                f"{self.target.table} is partitioned by {dotted[0]!r}, and Delta cannot write by "
                "keys into a table whose partition column has a dot in its name: partition by "
                "another column, or rename it"
            )

    def _create(self, schema: StructType) -> None:
        target = self.target
        session: Any = self._session._jsparkSession
        builder = delta_tables(self._session).createIfNotExists(session).location(self._path)
        builder = builder.addColumns(session.parseDataType(schema.json()))
        if target.partition_by:
            builder = builder.partitionedBy(_scala_sequence(self._session, target.partition_by))
        if target.cluster_by:
            builder = builder.clusterBy(_scala_sequence(self._session, target.cluster_by))
        for name, value in target.properties:
            builder = builder.property(name, value)
        create_table(builder, self._log)

    def _add_columns(self, schema: StructType) -> None:
        """Add the log's new columns before the intent.

        Then a table that refuses the columns has no open range.
        """
        if not adds_columns(schema.json(), self._log.spark_schema):
            return
        empty = no_rows(self._session, schema.json())
        try:
            with table_lock(self._path):
                writer = empty.write.format("delta").mode("append")
                writer.option("mergeSchema", "true").save(self._path)
        except Exception as error:
            # Another compaction may have added them at the same time.
            self._log.update()
            if adds_columns(schema.json(), self._log.spark_schema):
                text = f"{self.target.table} does not take the log's new columns: {one_line(error)}"
                raise PlanError(text) from error
        self._log.update()

    def _check_table(self, schema: StructType) -> None:
        target = self.target
        table = self._log
        for problem in problems(schema.json(), table.spark_schema, target, table.properties):
            raise PlanError(problem)
        self._check_partitions(table.partitioned)
        # §10: the table has no setting that forgets transactions
        if FORGETS in table.properties:
            raise PlanError(_forgets(target.table))
        if expected := [*target.partition_by, *target.cluster_by]:
            session: Any = self._session._jsparkSession
            delta_table = delta_tables(self._session).forPath(session, self._path)
            detail = DataFrame(delta_table.detail(), self._session)
            layout = "partitioned" if target.partition_by else "clustered"
            column = "partitionColumns" if target.partition_by else "clusteringColumns"
            actual = detail.select(column).collect()[0][0]
            if actual != expected:
                raise PlanError(
                    f"{target.table} is {layout} by {', '.join(actual) or 'nothing'}, and not by "
                    f"{', '.join(expected)}: name the same columns, or another table"
                )
        names = {name.lower() for name in columns(table.spark_schema)}
        for name in (*target.keys, target.sequence_by):
            if name and name.lower() not in names:
                raise PlanError(f"{target.table} has no column {name!r}")


def _forgets(table: str) -> str:
    return (
        f"{table} has the property {FORGETS}: it would forget the last range of the log, and "
        f"compaction would write that range twice. Run ALTER TABLE delta.`{table}` UNSET "
        f"TBLPROPERTIES ('{FORGETS}')"
    )
