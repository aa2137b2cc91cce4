"""Finds the rows that a Delta table refuses.

Only the table decides. Its rules are asked of each row in one pass, where they can be asked: the
same expressions that Delta evaluates in a write. What they do not show is found by halving: a
scratch table that has the table's columns, constraints and partitions takes a part of the rows, or
refuses it. A rule counts only if the scratch table refuses a row that it names. No row is found
while the scratch table takes nothing: then the rows are not the cause. Rows that are aside already
may all be refused again, for none of them moves then.
"""

import json
import re
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from pyspark import SparkContext
from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructField

from sparkwal.format.schema import quoted
from sparkwal.lifecycle.delta.fitting import DECLARED_TYPE, GENERATED
from sparkwal.lifecycle.range_rows import LONGEST_REASON, MOST_TRIES, REASON, RowsNotFound
from sparkwal.reading.metadata import COMMIT_TIME, PARTITION, POSITION, ROW
from sparkwal.spark.delta_files import DELTA, LOG_FOLDER
from sparkwal.spark.readable import is_sparkwal_error, one_line

_PLACE = (POSITION, PARTITION, ROW)
CHECK = "delta.constraints."
_PADDED = re.compile(r"\bchar\(", re.IGNORECASE)
_VARCHAR = re.compile(r"varchar\((\d+)\)", re.IGNORECASE)
_CAUSE = re.compile(r"Caused by: (.+)")
# The number of bits of a row's hash, by which rows are halved.
_BITS = 62


@contextmanager
def scratch_table(session: SparkSession, table: str, folder: str, k: int) -> Iterator["Scratch"]:
    """A table without rows that takes what a table takes, for as long as it is needed.

    Args:
        session: a session with Delta Lake, whose writes carry no transaction.
        table: the table.
        folder: it is made there.
        k: the number of the range. Those of former ranges are removed: their processes died.
    """
    jvm: Any = session._jvm
    path_of = getattr(jvm, "org.apache.hadoop.fs.Path")
    path = f"{folder}/_try_{k:020d}_{uuid.uuid4().hex[:8]}"
    conf = session._jsparkSession.sessionState().newHadoopConf()
    files = path_of(folder).getFileSystem(conf)
    for leftover in files.globStatus(path_of(f"{folder}/_try_*")) or ():
        if str(leftover.getPath().getName()) < f"_try_{k:020d}":
            files.delete(leftover.getPath(), True)
    # py4j passes no default arguments, and this method has none.
    opened = getattr(jvm, f"{DELTA}.DeltaLog").forTableWithSnapshot(session._jsparkSession, table)
    snapshot = opened._2()
    metadata = json.loads(snapshot.metadata().json())
    metadata["metaData"]["id"] = str(uuid.uuid4())
    info = {"timestamp": 0, "inCommitTimestamp": 0, "operation": "CREATE TABLE"}
    info |= {"operationParameters": {}, "isBlindAppend": True}
    lines = [json.dumps({"commitInfo": info}), snapshot.protocol().json(), json.dumps(metadata)]
    try:
        stream = files.create(path_of(f"{path}/{LOG_FOLDER}/{0:020d}.json"), False)
        try:
            stream.write(bytearray("\n".join(lines).encode()))
        finally:
            stream.close()
        yield Scratch(path)
    finally:
        files.delete(path_of(path), True)


@dataclass
class Scratch:
    """A table that only shows whether a table takes rows.

    Attributes:
        path: where it is.
        tries: how often it was asked.
    """

    path: str
    tries: int = field(default=0, init=False)

    def refusal(self, rows: DataFrame) -> str:
        """Why it does not take these rows, "" if it takes them.

        Raises:
            RowsNotFound: it was asked too often.
        """
        self.tries += 1
        if self.tries > MOST_TRIES:
            raise RowsNotFound(
                "it refuses more rows than can be found one by one, by a rule that its constraints "
                "and columns do not show"
            )
        try:
            writer = rows.drop(*_PLACE, COMMIT_TIME, REASON).write.format("delta").mode("append")
            writer.option("mergeSchema", "true").save(self.path)
        except Exception as error:
            if is_sparkwal_error(error):
                raise
            # The message of Spark's command names its own objects, and this one the row's.
            causes = _CAUSE.findall(str(error))
            why = causes[-1].strip() if causes else one_line(error)
            return why.replace(self.path.removeprefix("file:"), "the table")[:LONGEST_REASON]
        return ""


def refused_rows(
    rows: DataFrame,
    table_schema: str,
    properties: Mapping[str, str],
    scratch: Scratch,
    *,
    are_aside: bool,
) -> DataFrame:
    """Find the rows that a table refuses.

    Args:
        rows: rows as the table stores them, with the place of each in its log. They are read often.
        table_schema: the table's columns with their metadata, as Delta keeps them.
        properties: the table's properties.
        scratch: shows what the table takes.
        are_aside: the rows are aside already. So no row moves if the table refuses all of them.

    Returns:
        The refused rows, with REASON.

    Raises:
        RowsNotFound: the scratch table refuses all rows, or not only those that were found.
    """
    marked = _marked(rows, table_schema, properties)
    named = marked.select(REASON).where(F.col(REASON).isNotNull()).distinct().collect()
    for (reason,) in named:
        if not scratch.refusal(marked.where(F.col(REASON) == reason).limit(1)):
            marked = marked.withColumn(REASON, F.when(F.col(REASON) != reason, F.col(REASON)))
    unexplained = marked.where(F.col(REASON).isNull())
    why = scratch.refusal(unexplained)
    if not why:
        return marked.where(F.col(REASON).isNotNull())
    refusals = [*_halved(unexplained, scratch, why)]
    if not refusals:
        raise RowsNotFound(f"it refuses the rows together and each of them alone not: {why}")
    return _with_found(marked, refusals, scratch, are_aside=are_aside)


Place = tuple[int, int, int]


def _with_found(
    marked: DataFrame, refusals: list[tuple[Place, str]], scratch: Scratch, *, are_aside: bool
) -> DataFrame:
    """The refused rows, after the scratch table took all others and refused each again.

    Raises:
        RowsNotFound: it did not.
    """
    session = marked.sparkSession
    columns = f"{POSITION} BIGINT, {PARTITION} INT, {ROW} BIGINT, _wal_why STRING"
    listed = session.createDataFrame([(*place, why) for place, why in refusals], columns)
    both = marked.join(F.broadcast(listed), [*_PLACE], "left")
    both = both.withColumn(REASON, F.coalesce(REASON, "_wal_why")).drop("_wal_why")
    others = both.where(F.col(REASON).isNull())
    one = others.limit(1)
    if one.isEmpty() and not are_aside:
        raise RowsNotFound(
            f"it refuses each row of the range, so a row may not be the cause: {refusals[0][1]}"
        )
    if why := scratch.refusal(others):
        raise RowsNotFound(f"it also refuses the rows that it takes one by one: {why}")
    for place, _ in refusals:
        if not scratch.refusal(_at(marked, place)):
            raise RowsNotFound("it refused a row, and takes it now: something else was the cause")
    if why := scratch.refusal(one):
        raise RowsNotFound(f"it refuses each row now: {why}")
    return both.where(F.col(REASON).isNotNull())


def _at(rows: DataFrame, place: Place) -> DataFrame:
    position, partition, row = (F.lit(number) for number in place)
    is_there = (F.col(POSITION) == position) & (F.col(PARTITION) == partition)
    return rows.where(is_there & (F.col(ROW) == row))


def _halved(
    rows: DataFrame, scratch: Scratch, why: str, bit: int = 0
) -> Iterator[tuple[Place, str]]:
    """Halve rows that the scratch table refuses, until each part is one row.

    Args:
        rows: the rows, by whose hash they were halved so far.
        scratch: shows what the table takes.
        why: the refusal of these rows.
        bit: the bit of the hash that halves them.
    """
    two = rows.select(*_PLACE).limit(2).collect()
    if len(two) == 1:
        yield (two[0][0], two[0][1], two[0][2]), why
        return
    if bit > _BITS:
        raise RowsNotFound(f"rows cannot be told apart: {why}")
    half = F.shiftright(F.xxhash64(*_PLACE), bit).bitwiseAND(1)
    for value in (0, 1):
        part = rows.where(half == value)
        if why_not := scratch.refusal(part):
            yield from _halved(part, scratch, why_not, bit + 1)


def _marked(rows: DataFrame, table_schema: str, properties: Mapping[str, str]) -> DataFrame:
    """The rows with REASON: a rule of the table that a row violates, or null if none is found."""
    fields = json.loads(table_schema)["fields"]
    declared = [str(_metadata(schema_field).get(DECLARED_TYPE, "")) for schema_field in fields]
    if any(_PADDED.search(text) for text in declared):
        # A write pads such values, and rules see the padded ones.
        return rows.withColumn(REASON, F.lit(None).cast("string"))
    column_names = {name.lower() for name in rows.columns}
    wide, rules = rows, list[tuple[str, Column]]()
    for number, schema_field in enumerate(fields):
        name, generated = schema_field["name"], _metadata(schema_field).get(GENERATED)
        column = F.col(quoted(name))
        if generated and name.lower() in column_names:
            rules.append((f"{name} is not {generated}", column.eqNullSafe(F.expr(generated))))
        elif generated:
            kind = StructField.fromJson(schema_field).dataType
            helper, value = f"_wal_value_{number}", F.expr(generated).cast(kind)
            # A rule that cannot be asked here is left to the scratch table.
            with suppress(AnalysisException):
                wide = wide.withColumn(helper, tried(value))
                wide = wide.withColumn(name, F.col(helper)["value"])
                rules.append((f"{name}: {generated} fails", F.col(helper).isNotNull()))
        if not schema_field.get("nullable", True):
            rules.append((f"{name} is null, and NOT NULL", column.isNotNull()))
        if length := _VARCHAR.fullmatch(declared[number]):
            limit = int(length[1])
            fits = (F.length(column) <= limit) | (F.length(F.rtrim(column)) <= limit)
            rules.append((f"{name} is longer than {limit}", column.isNull() | fits))
    for key, text in properties.items():
        if key.startswith(CHECK):
            rules.append((f"CHECK {key.removeprefix(CHECK)}: {text}", F.expr(text)))
    violated = list[Column]()
    for reason, rule in rules:
        holds = F.coalesce(tried(rule)["value"].cast("boolean"), F.lit(False))
        with suppress(AnalysisException):
            wide.select(holds).schema  # noqa: B018
            violated.append(F.when(~holds, F.lit(reason)))
    violated.append(F.lit(None).cast("string"))
    return wide.withColumn(REASON, F.coalesce(*violated)).select(*map(quoted, rows.columns), REASON)


def tried(column: Column) -> Column:
    """A struct with the value of an expression, or null for a row on which it fails."""
    jvm: Any = SparkContext._jvm
    columns = getattr(jvm, "org.apache.spark.sql.classic.ExpressionUtils")
    tried = getattr(jvm, "org.apache.spark.sql.catalyst.expressions.TryEval")
    value = columns.expression(F.struct(column.alias("value"))._jc)
    return Column(columns.column(tried(value)))


def _metadata(field_: dict[str, Any]) -> dict[str, Any]:
    return field_.get("metadata") or {}
