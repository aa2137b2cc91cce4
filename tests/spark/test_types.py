"""Every type that Spark's Python data source API carries, there and back bit by bit."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from sparkwal.format import schema
from sparkwal.spark.interfaces import to_arrow_schema
from tests import capabilities
from tests.spark.queries import append, assert_one_error, numbers, read, refused, start, write
from tests.values.awkward import bits

ALL_BYTES = "X'" + bytes(range(256)).hex() + "'"
POINT = "X'0101000000000000000000F03F0000000000000040'"


def cast(kind: str, *literals: str) -> list[str]:
    return [f"cast('{literal}' as {kind})" for literal in literals]


# Spark's type → values of it; every column also gets a null.
ALL_VALUES: dict[str, list[str]] = {
    "boolean": ["true", "false"],
    "tinyint": cast("tinyint", "-128", "127", "0"),
    "smallint": cast("smallint", "-32768", "32767"),
    "int": cast("int", "-2147483648", "2147483647"),
    "bigint": cast("bigint", "-9223372036854775808", "9223372036854775807"),
    "float": cast(
        "float", "NaN", "0.0", "-0.0", "Infinity", "-Infinity", "1.4E-45", "3.4028235E38"
    ),
    "double": cast(
        "double",
        "NaN",
        "0.0",
        "-0.0",
        "Infinity",
        "-Infinity",
        "4.9E-324",
        "1.7976931348623157E308",
    ),
    "decimal(38,18)": cast(
        "decimal(38,18)",
        "99999999999999999999.999999999999999999",
        "-99999999999999999999.999999999999999999",
        "0.000000000000000001",
    ),
    "decimal(38,0)": cast("decimal(38,0)", "9" * 38, "-" + "9" * 38),
    "decimal(5,2)": cast("decimal(5,2)", "-999.99", "0.01"),
    "string": ["''", "'𝄞 ä'", "concat('a', char(0), 'b')", "repeat('long', 100000)"],
    "char(5)": cast("char(5)", "ab"),
    "varchar(5)": cast("varchar(5)", "ab", ""),
    "binary": ["X''", ALL_BYTES],
    "date": cast("date", "0001-01-01", "9999-12-31", "1969-12-31"),
    "timestamp": [
        "timestamp_micros(9223372036854775807)",
        "timestamp_micros(-9223372036854775808)",
        "timestamp_micros(-1)",
        *cast("timestamp", "2026-03-29 02:30:00.123456 Europe/Berlin"),
    ],
    "timestamp_ntz": cast("timestamp_ntz", "0001-01-01 00:00:00", "9999-12-31 23:59:59.999999"),
    "interval day": ["interval '-3' day", "interval '106751991' day"],
    "interval day to hour": ["interval '-3 04' day to hour"],
    "interval day to minute": ["interval '-3 04:05' day to minute"],
    "interval day to second": [
        "interval '-3 04:05:06.000007' day to second",
        "interval '106751991 04:00:54.775807' day to second",
    ],
    "interval hour": ["interval '-25' hour"],
    "interval hour to minute": ["interval '-25:06' hour to minute"],
    "interval hour to second": ["interval '25:06:07.000008' hour to second"],
    "interval minute": ["interval '-61' minute"],
    "interval minute to second": ["interval '61:07.000008' minute to second"],
    "interval second": ["interval '-0.000001' second"],
    "time(0)": ["cast('23:59:59' as time(0))"],
    "time(6)": ["time'00:00:00'", "time'23:59:59.999999'"],
    "variant": ["parse_json('null')", """parse_json('{"a": [1, 2.5, null, "x"], "b": {}}')"""],
    "geometry(0)": [f"st_geomfromwkb({POINT})"],
    "geometry(any)": [f"cast(st_setsrid(st_geomfromwkb({POINT}), 4326) as geometry(any))"],
    "geography(4326)": [f"st_geogfromwkb({POINT})"],
    "struct<>": ["named_struct()"],
    "struct<a: int, b: struct<c: string>>": [
        "named_struct('a', 1, 'b', named_struct('c', 'x'))",
        "named_struct('a', null, 'b', named_struct('c', null))",
        "named_struct('a', 2, 'b', null)",
    ],
    "array<double>": ["array()", "array(cast('-0.0' as double), null, cast('NaN' as double))"],
    "array<struct<t: timestamp, v: variant>>": [
        "array(named_struct('t', timestamp'2026-01-01', 'v', parse_json('1')), null, "
        "named_struct('t', null, 'v', null))"
    ],
    "array<array<string>>": ["array(array('a', null), null, array())"],
    "map<string, array<int>>": ["map()", "map('a', array(1, null), 'b', null, '', array())"],
    "map<struct<k: int>, map<date, binary>>": [
        "map(named_struct('k', 1), map(date'2026-01-01', X'00', date'2026-01-02', null), "
        "named_struct('k', null), null)"
    ],
    "array<map<string, geography(4326)>>": [f"array(map('g', st_geogfromwkb({POINT})), null)"],
}
# What is in the name of a type, and the capability that it needs.
NEWER = {"time(": "TIME", "geo": "SPATIAL"}
VALUES = {
    kind: literals
    for kind, literals in ALL_VALUES.items()
    if all(part not in kind or capabilities.has(needed) for part, needed in NEWER.items())
}
ROWS = 1 + max(len(literals) for literals in VALUES.values())


def every_type(numbered: DataFrame, number: str) -> DataFrame:
    """A column of each type; the last row holds nothing but nulls."""
    columns = []
    for kind, literals in VALUES.items():
        cases = [*(f"cast({literal} as {kind})" for literal in literals), f"cast(null as {kind})"]
        index = f"cast(least({number}, {len(cases) - 1}) as int) + 1"
        choice = f"element_at(array({', '.join(cases)}), {index})"
        columns.append(f"{choice} as `{kind}`")
    return numbered.selectExpr(f"{number} as id", *columns)


def content(rows: DataFrame) -> dict[str, list[Any]]:
    # toArrow() itself fails on null variants: it casts what it collected.
    table = pa.Table.from_batches(rows.orderBy("id")._collect_as_arrow())
    return {name: bits(table[name].combine_chunks()) for name in table.column_names}


@pytest.fixture(scope="module", autouse=True)
def types_enabled(spark: SparkSession) -> Iterator[None]:
    settings = {
        "spark.sql.timeType.enabled": "true",
        # Spark 4.1 has the types and leaves them off.
        "spark.sql.geospatial.enabled": "true",
        "spark.sql.session.timeZone": "America/New_York",
    }
    before = {name: spark.conf.get(name, None) for name in settings}
    for name, value in settings.items():
        spark.conf.set(name, value)
    yield
    for name, old in before.items():
        if old is None:
            spark.conf.unset(name)
        else:
            spark.conf.set(name, old)


@pytest.fixture(scope="module")
def rows(spark: SparkSession, types_enabled: None) -> DataFrame:
    return every_type(spark.range(ROWS), "id")


@pytest.fixture(scope="module")
def written(rows: DataFrame) -> dict[str, list[Any]]:
    """The rows that every log must return; checked to contain the hard values."""
    expected = content(rows)
    assert -(2**63) in expected["double"]  # the bits of −0.0
    assert expected["timestamp"][0] == 2**63 - 1
    assert all(column[-1] is None for name, column in expected.items() if name != "id")
    return expected


def test_batch_write_and_batch_read_keep_every_bit(
    spark: SparkSession, rows: DataFrame, written: dict[str, list[Any]], tmp_path: Path
) -> None:
    write(rows.repartition(2), tmp_path)
    back = read(spark, tmp_path)
    assert [f.dataType for f in back.schema] == [
        f.dataType for f in StructType.fromJson(nullable(rows.schema))
    ]
    assert content(back) == written


def test_stream_write_and_stream_read_keep_every_bit(
    spark: SparkSession, written: dict[str, list[Any]], tmp_path: Path
) -> None:
    append(every_type(numbers(spark, ROWS), "value"), tmp_path / "log", tmp_path / "cp")
    stream = spark.readStream.format("weaselwal").load(str(tmp_path / "log"))
    found: list[dict[str, list[Any]]] = []
    query = stream.writeStream.foreachBatch(lambda rows, _: found.append(content(rows)))
    query.trigger(availableNow=True).start().awaitTermination()
    assert found == [written]


def test_inlined_rows_and_large_arrow_strings_keep_every_bit(
    spark: SparkSession, rows: DataFrame, written: dict[str, list[Any]], tmp_path: Path
) -> None:
    spark.conf.set("spark.sql.execution.arrow.useLargeVarTypes", "true")
    try:
        write(rows, tmp_path, inlineThreshold="4mb")
    finally:
        spark.conf.unset("spark.sql.execution.arrow.useLargeVarTypes")
    assert content(read(spark, tmp_path)) == written


def test_another_session_time_zone_reads_the_same_instants(
    spark: SparkSession, rows: DataFrame, written: dict[str, list[Any]], tmp_path: Path
) -> None:
    times = ["id", "timestamp", "timestamp_ntz", "date", "array<struct<t: timestamp, v: variant>>"]
    write(rows.select([f"`{name}`" for name in times]), tmp_path)
    spark.conf.set("spark.sql.session.timeZone", "Asia/Kathmandu")
    try:
        assert content(read(spark, tmp_path)) == {name: written[name] for name in times}
    finally:
        spark.conf.set("spark.sql.session.timeZone", "America/New_York")


def test_the_arrow_schema_is_the_one_pyspark_makes(rows: DataFrame) -> None:
    ours = schema.to_arrow(schema.normalize(rows.schema.jsonValue()))
    theirs = to_arrow_schema(StructType.fromJson(nullable(rows.schema)))
    assert ours == theirs


def nullable(spark_schema: StructType) -> dict[str, Any]:
    """Spark's asNullable, which Python lacks."""
    text = spark_schema.json()
    for name in ("nullable", "containsNull", "valueContainsNull"):
        text = text.replace(f'"{name}":false', f'"{name}":true')
    document: dict[str, Any] = json.loads(text)
    return document


def test_a_vector_is_refused_with_the_way_to_convert_it(
    spark: SparkSession, tmp_path: Path
) -> None:
    from pyspark.ml.linalg import Vectors

    rows = spark.createDataFrame([(1, Vectors.dense([1.0]))], ["id", "v"])
    shown = refused(lambda: write(rows, tmp_path / "log"))
    assert_one_error(shown, "OptionError", "column 'v'", "vector_to_array")
    assert not (tmp_path / "log").exists()


REFUSED = {
    "c": "interval '1-2' year to month",
    "c.element": "array(interval '3' year)",
    "c.inner.key": "named_struct('inner', map(interval '3' month, 1))",
    "c.value.deep": "map('a', named_struct('deep', interval '3' month))",
}


@pytest.mark.parametrize("path", REFUSED)
def test_a_type_that_spark_cannot_carry_is_refused_before_any_task(
    spark: SparkSession, tmp_path: Path, path: str
) -> None:
    log = tmp_path / "log"
    spark.sparkContext.setJobGroup(str(tmp_path), "refused")
    shown = refused(lambda: write(spark.range(3).selectExpr("id", f"{REFUSED[path]} as c"), log))
    assert_one_error(shown, "OptionError", f"column '{path}' has type interval")
    query = start(numbers(spark, 3).selectExpr(f"{REFUSED[path]} as c"), log, tmp_path / "cp")
    shown = refused(query.awaitTermination)
    assert_one_error(shown, "OptionError", f"column '{path}' has type interval")
    tracker = spark.sparkContext.statusTracker()
    assert not tracker.getJobIdsForGroup(str(tmp_path))
    assert not tracker.getJobIdsForGroup(query.runId)
    assert not log.exists()


def test_a_calendar_interval_is_refused_by_spark_itself(
    spark: SparkSession, tmp_path: Path
) -> None:
    rows = spark.range(3).selectExpr("make_interval(1, 2, 3, 4, 5, 6, 7) as c")
    assert "INTERVAL" in refused(lambda: write(rows, tmp_path / "log"))
    assert not (tmp_path / "log").exists()
