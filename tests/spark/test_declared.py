"""Columns that a caller declares: read as nullable, or refused with one sentence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T

from sparkwal.errors import OptionError
from sparkwal.spark.declared import check_declared, nullable
from sparkwal.spark.pyspark_methods import check_statement
from tests.spark.queries import assert_one_error, refused, write

LONG = T.LongType()
STRICT = T.StructType(
    [
        T.StructField("a", LONG, False),
        T.StructField("items", T.ArrayType(LONG, False), False),
        T.StructField("texts", T.MapType(T.StringType(), LONG, False), False),
        T.StructField("part", T.StructType([T.StructField("x", LONG, False)]), False),
    ]
)
NULLS = {
    "a": "a is null",
    "items": "exists(items, x -> x is null)",
    "texts": "exists(map_values(texts), x -> x is null)",
    "part": "part.x is null",
}
ROWS = """
    SELECT CAST(null AS BIGINT) AS a, array(CAST(null AS BIGINT)) AS items,
      map('k', CAST(null AS BIGINT)) AS texts, named_struct('x', CAST(null AS BIGINT)) AS part
    UNION ALL SELECT 1L, array(1L), map('k', 1L), named_struct('x', 1L)
"""


@pytest.fixture(scope="module")
def log(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A log of two rows: one of nulls, at each depth, and one without."""
    path = str(tmp_path_factory.mktemp("declared") / "log")
    write(spark.sql(ROWS), path)
    return path


def _nulls(rows: DataFrame) -> list[int]:
    """The rows with a null in each column, twice: filtered, which Spark may decide, and counted."""
    counted = rows.selectExpr(*(f"count_if({each})" for each in NULLS.values())).collect()[0]
    return [rows.where(each).count() for each in NULLS.values()] + [*counted]


@pytest.mark.spark
def test_a_column_that_is_declared_not_null_is_read_as_nullable(
    spark: SparkSession, tmp_path: Path, log: str
) -> None:
    right = [1] * 8
    assert _nulls(spark.read.schema(STRICT).format("weaselwal").load(log)) == right
    assert _nulls(spark.read.load(log, format="weaselwal", schema=STRICT)) == right
    text = "a BIGINT NOT NULL, part STRUCT<x: BIGINT NOT NULL>"
    rows = spark.read.format("weaselwal").schema(text).load(log)
    assert rows.where("a is null and part.x is null").count() == 1

    seen: list[list[int]] = []
    stream = spark.readStream.format("weaselwal").schema(STRICT).load(log)
    writer = stream.writeStream.foreachBatch(lambda rows, _: seen.append(_nulls(rows)))
    writer = writer.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True)
    writer.start().awaitTermination()
    assert seen == [right]


@pytest.mark.spark
def test_a_schema_that_is_declared_past_pyspark_is_refused_by_the_source(
    spark: SparkSession, log: str
) -> None:
    reader = spark.read.format("weaselwal").schema(STRICT)
    rows = DataFrame(reader._jreader.load(log), spark)
    assert_one_error(refused(rows.collect), "OptionError", "'a' is declared NOT NULL")


@pytest.mark.spark
def test_a_view_with_char_names_the_type_that_can_be_read(spark: SparkSession, log: str) -> None:
    spark.sql(
        f"CREATE OR REPLACE TEMPORARY VIEW chars (a CHAR(5)) USING weaselwal OPTIONS (path '{log}')"
    )
    try:
        shown = refused(lambda: spark.table("chars").collect())
        assert_one_error(shown, "OptionError", "'a' is declared char(5)", "declare it string")
    finally:
        spark.catalog.dropTempView("chars")


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        (T.StructType([T.StructField("x", LONG, False)]), "column 'c.x' is declared NOT NULL"),
        (T.ArrayType(LONG, False), "what column 'c' holds is declared NOT NULL"),
        (T.MapType(LONG, LONG, False), "what column 'c' holds is declared NOT NULL"),
        (T.ArrayType(T.MapType(LONG, T.ArrayType(LONG, False))), "what column 'c' holds"),
        (T.ArrayType(T.StructType([T.StructField("x", LONG, False)])), "column 'c.x'"),
        (T.MapType(T.StringType(), T.VarcharType(3)), "column 'c' is declared varchar(3)"),
    ],
)
def test_each_promise_inside_of_a_column_is_refused(kind: T.DataType, says: str) -> None:
    with pytest.raises(OptionError) as caught:
        check_declared(T.StructType([T.StructField("c", kind)]))
    assert says in str(caught.value)
    check_declared(nullable(T.StructType([T.StructField("c", kind)])))


@pytest.mark.parametrize(
    ("statement", "says"),
    [
        ("create or replace table `a b`.t\nusing `weaselwal` location 'x'", "table of the catalog"),
        ("CREATE EXTERNAL TABLE t (a INT) /* x */ USING /* y */ WeaselWal", "table of the catalog"),
        (
            "BEGIN CREATE TABLE a (x INT) USING parquet; CREATE TABLE b USING weaselwal; END",
            "table of the catalog",
        ),
        (
            "CREATE GLOBAL TEMPORARY VIEW v (a STRUCT<x: INT NOT NULL>) USING weaselwal",
            "declared NOT NULL",
        ),
        ("CREATE TEMP VIEW v (a INT) USING weaselwal OPTIONS (path 'not null')", None),
        ("CREATE TABLE t USING parquet AS SELECT 'using weaselwal' AS x", None),
        ("CREATE TABLE t -- using weaselwal\n USING delta", None),
        ("CREATE TABLE weaselwal (x INT NOT NULL) USING parquet", None),
        ("SELECT * FROM weaselwal WHERE a IS NOT NULL", None),
        (
            "CREATE TABLE a (x INT NOT NULL) USING delta; CREATE TEMP VIEW v USING weaselwal",
            None,
        ),
    ],
)
def test_a_statement_is_refused_for_what_it_creates(statement: str, says: str | None) -> None:
    given: dict[str, Any] = {"sqlQuery": statement}
    if says is None:
        check_statement("weaselwal", None, given)
        return
    with pytest.raises(OptionError, match=says):
        check_statement("weaselwal", None, given)
