"""Values that a table stores in another form than the log: null partitions, and wider types."""

from __future__ import annotations

import re
from collections import Counter
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import sparkwal
from sparkwal.errors import OptionError, PlanError, WriteError
from tests.lifecycle.lakes import SCHEMA, Lake, value
from tests.spark.tables.test_current import arrow_rows, of, rows

# Texts that Delta keeps as null in a partition column.
NOTHING = ("", None, "__HIVE_DEFAULT_PARTITION__")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("keys", "kind"),
    [
        (("part", "id"), pa.string()),
        pytest.param((), pa.binary(), marks=pytest.mark.slow),
        pytest.param((), pa.string(), marks=pytest.mark.slow),
        pytest.param(("part", "id"), pa.binary(), marks=pytest.mark.slow),
    ],
)
def test_a_partition_column_of_texts_holds_null_for_what_delta_cannot_store(
    delta: SparkSession, tmp_path: Path, keys: tuple[str, ...], kind: pa.DataType
) -> None:
    schema = pa.schema([("part", kind), ("id", pa.int64()), ("v", pa.int64())])
    lake = Lake(tmp_path, *keys, spark=delta, partition_by=("part",))
    expected: list[tuple[Any, ...]] = []
    for v in range(3):
        texts = pa.array([*NOTHING, "a", " "]).cast(kind).to_pylist()
        given = [{"part": part, "id": 1, "v": v} for part in texts]
        lake.append(given, schema=schema)
        if v:
            # The first compaction makes the table: till then the log is all.
            both = rows(lake.current()), arrow_rows(lake)
        lake.compact()
        parts = pa.array([None, None, None, "a", " "]).cast(kind).to_pylist()
        stored = [(part, 1, v) for part in parts]
        expected = [*dict.fromkeys(stored)] if keys else expected + stored
        table = rows(delta.read.format("delta").load(lake.target.table))
        assert table == of(*(dict(zip(schema.names, each, strict=True)) for each in expected))
        if v:
            assert both == (table, table)


WIDENED: list[tuple[pa.DataType, Any, str, str]] = [
    (pa.int8(), -1, "{0}", "smallint"),
    (pa.int16(), -1, "{0}", "int"),
    (pa.int32(), -1, "{0}", "bigint"),
    (pa.int32(), -1, "{0}", "double"),
    (pa.int32(), -1, "{0}", "decimal(12,2)"),
    (pa.float32(), 1.5, "{0}", "double"),
    (pa.decimal128(5, 2), Decimal("-1.25"), "{0}", "decimal(9,4)"),
    (pa.date32(), date(2024, 2, 29), "{0}", "timestamp_ntz"),
    (pa.list_(pa.int32()), [1, None], "{0}.element", "bigint"),
    (pa.struct([("x", pa.int32()), ("y", pa.string())]), {"x": 1, "y": "z"}, "{0}.x", "bigint"),
    (pa.map_(pa.string(), pa.int16()), [("a", 1)], "{0}.value", "int"),
]


@pytest.mark.slow
@pytest.mark.parametrize("keys", [pytest.param((), marks=pytest.mark.slow), ("id", "c2")])
def test_rows_go_into_a_table_whose_columns_were_widened(
    delta: SparkSession, tmp_path: Path, keys: tuple[str, ...]
) -> None:
    names = [f"c{n}" for n in range(len(WIDENED))]
    schema = pa.schema(
        [("id", pa.int64()), *zip(names, (each[0] for each in WIDENED), strict=True)]
    )
    row = dict(zip(names, (each[1] for each in WIDENED), strict=True))
    properties = (
        ("delta.enableTypeWidening", "true"),
        ("delta.feature.timestampNtz", "supported"),
    )
    lake = Lake(tmp_path, *keys, spark=delta, properties=properties)
    lake.append([{"id": 1, **row}, {"id": 2, **row}], schema=schema)
    lake.compact()
    table = f"delta.`{lake.target.table}`"
    for name, (_, _, where, kind) in zip(names, WIDENED, strict=True):
        delta.sql(f"ALTER TABLE {table} ALTER COLUMN {where.format(name)} TYPE {kind}")
    lake.append([{"id": 2, **row}, {"id": 3, **row}], schema=schema)
    before = lake.current()
    found = rows(before)
    assert arrow_rows(lake) == found
    lake.compact()
    assert arrow_rows(lake) == found
    after = delta.read.format("delta").load(lake.target.table)
    assert dict(before.dtypes) == dict(after.dtypes)
    assert dict(after.dtypes)["c3"] == "double"
    assert found == rows(after) and found.total() == (3 if keys else 4)


@pytest.mark.parametrize(
    ("keys", "column", "kind", "advice"),
    [
        (("id",), "id", "int", "ALTER COLUMN `id` TYPE bigint"),
        pytest.param((), "v", "bigint", "RENAME COLUMN `v` TO v_before", marks=pytest.mark.slow),
        pytest.param((), "id", "int", "ALTER COLUMN `id` TYPE bigint", marks=pytest.mark.slow),
        pytest.param(
            ("id",), "v", "bigint", "RENAME COLUMN `v` TO v_before", marks=pytest.mark.slow
        ),
    ],
)
def test_a_table_that_does_not_hold_the_logs_values_is_refused_before_anything_is_promised(
    delta: SparkSession, tmp_path: Path, keys: tuple[str, ...], column: str, kind: str, advice: str
) -> None:
    lake = Lake(tmp_path, *keys, spark=delta)
    lake.append([value(1)])
    table = f"delta.`{lake.target.table}`"
    kinds = {"id": "bigint", "v": "string", column: kind}
    delta.sql(
        f"CREATE TABLE {table} (id {kinds['id']}, v {kinds['v']}) USING delta TBLPROPERTIES "
        "('delta.columnMapping.mode' = 'name', 'delta.enableTypeWidening' = 'true')"
    )
    with pytest.raises(PlanError, match=f"'{column}' is .* in the log and {kind}") as refused:
        lake.compact("intent")
    assert advice.partition(" TO ")[0] in str(refused.value)
    # Follow the advice of the error.
    delta.sql(f"ALTER TABLE {table} {advice}")
    lake.compact()
    assert rows(lake.current().select("id", "v")) == of(value(1))


def test_a_column_that_became_wider_is_compacted_after_the_advice(
    delta: SparkSession, tmp_path: Path
) -> None:
    """The log's own table has INT, and knows no widening of types."""
    lake = Lake(tmp_path, spark=delta)
    narrow = pa.schema([("id", pa.int32()), ("v", pa.string())])
    lake.append([value(1)], schema=narrow)
    life = sparkwal.Lifecycle(lake.path, spark=delta, table=lake.target.table)
    assert life.run_once(whole=True).compacted is not None
    large = {"id": 2**40, "v": "large"}
    lake.append([large])
    with pytest.raises(PlanError, match="'id' is bigint in the log and int in") as refused:
        life.run_once(whole=True)
    advice = str(refused.value)
    statements = re.findall(r"ALTER TABLE delta\.`[^`]+` .*?(?=, then|$)", advice)
    assert len(statements) == 2
    for statement in statements:
        delta.sql(statement)
    assert arrow_rows(lake) == of(value(1), large)
    assert life.run_once(whole=True).compacted is not None
    assert rows(lake.current().select("id", "v")) == of(value(1), large) == arrow_rows(lake)


@pytest.mark.slow
def test_a_table_that_was_changed_after_the_promise_raises_with_advice(
    delta: SparkSession, tmp_path: Path
) -> None:
    lake = Lake(tmp_path, spark=delta, properties=(("delta.columnMapping.mode", "name"),))
    lake.append([value(1)])
    lake.compact()
    lake.append([value(2)])
    lake.compact("intent")
    table = f"delta.`{lake.target.table}`"
    delta.sql(f"ALTER TABLE {table} DROP COLUMN v")
    delta.sql(f"ALTER TABLE {table} ADD COLUMN v BIGINT")
    with pytest.raises(WriteError, match="'v' is string in the log and bigint.*RENAME"):
        lake.write()
    with pytest.raises(OptionError, match="'v' is string in the log and bigint"):
        lake.current()
    delta.sql(f"ALTER TABLE {table} RENAME COLUMN v TO w")
    expected = [{"id": 1, "v": None, "w": None}, {**value(2), "w": None}]
    assert rows(lake.current()) == of(*expected)
    lake.write()
    lake.done()
    assert rows(lake.current()) == of(*expected) == Counter(of(*expected))


def test_moments_of_all_years_are_read_without_spark(delta: SparkSession, tmp_path: Path) -> None:
    moment = pa.schema([("id", pa.int64()), ("at", pa.timestamp("us", "UTC"))])
    years = [{"id": n, "at": datetime(n, 12, 31, tzinfo=UTC)} for n in (1600, 2026, 9998)]
    lake = Lake(tmp_path, "id", spark=delta)
    lake.append(years, schema=moment)
    lake.compact()
    found = sparkwal.Log(lake.path).current().to_arrow().sort_by("id")
    assert found.equals(pa.Table.from_pylist(years, moment))


@pytest.mark.slow
def test_a_table_made_with_wider_types_is_read_without_spark(
    delta: SparkSession, tmp_path: Path
) -> None:
    schema = pa.schema([("id", pa.int32()), SCHEMA.field("v")])
    lake = Lake(tmp_path, "id", spark=delta)
    delta.sql(f"CREATE TABLE delta.`{lake.target.table}` (id BIGINT, v STRING) USING delta")
    lake.append([value(1), value(2)], schema=schema)
    lake.compact()
    lake.append([{"id": 2, "v": "new"}, value(3)], schema=schema)
    expected = of(value(1), {"id": 2, "v": "new"}, value(3))
    assert rows(lake.current()) == expected == arrow_rows(lake)
    lake.compact()
    assert rows(lake.current()) == expected == arrow_rows(lake)
