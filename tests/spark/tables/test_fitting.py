"""A table that cannot take the rows of a log is refused before a range is promised to it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import sparkwal
from sparkwal.errors import OptionError, PlanError
from tests.lifecycle.lakes import SCHEMA, Lake, value


def run(delta: SparkSession, lake: Lake, table: str | None = None) -> sparkwal.Lifecycle:
    target = lake.target
    return sparkwal.Lifecycle(lake.path, spark=delta, table=table or target.table, keys=target.keys)


def test_a_table_with_a_required_column_is_refused_and_another_one_is_taken(
    delta: SparkSession, tmp_path: Path
) -> None:
    lake = Lake(tmp_path, spark=delta)
    name = lake.target.table
    delta.sql(f"CREATE TABLE delta.`{name}` (id BIGINT, tenant STRING NOT NULL) USING delta")
    lake.append([value(1)])
    with pytest.raises(PlanError, match="'tenant'.* is NOT NULL"):
        run(delta, lake).run_once(whole=True)
    done = run(delta, lake, str(tmp_path / "other")).run_once(whole=True)
    assert done.compacted is not None


def test_a_column_whose_name_the_table_refuses_leaves_no_open_range(
    delta: SparkSession, tmp_path: Path
) -> None:
    lake = Lake(tmp_path, "id", spark=delta)
    lake.append([value(1)])
    run(delta, lake).run_once(whole=True)
    wider = pa.schema([*SCHEMA, pa.field("two words", pa.int64())])
    lake.append([{**value(2), "two words": 2}], schema=wider)
    with pytest.raises(PlanError, match="does not take the log's new columns"):
        run(delta, lake).run_once(whole=True)
    assert not lake.head().is_open
    name = lake.target.table
    delta.sql(f"ALTER TABLE delta.`{name}` SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name')")
    run(delta, lake).run_once(whole=True)
    rows = {tuple(row) for row in delta.read.format("delta").load(name).collect()}
    assert rows == {(1, "v1", None), (2, "v2", 2)}


@pytest.mark.slow
@pytest.mark.parametrize("is_new", [True, False])
def test_a_partition_column_with_a_dot_is_refused_with_keys(
    delta: SparkSession, tmp_path: Path, *, is_new: bool
) -> None:
    schema = pa.schema([("id", pa.int64()), ("d.n", pa.string())])
    lake = Lake(tmp_path, "id", spark=delta, partition_by=("d.n",) if is_new else ())
    lake.append([{"id": 1, "d.n": "x"}], schema=schema)
    name = lake.target.table
    if not is_new:
        columns = "id BIGINT, `d.n` STRING"
        delta.sql(f"CREATE TABLE delta.`{name}` ({columns}) USING delta PARTITIONED BY (`d.n`)")
    life = sparkwal.Lifecycle(
        lake.path, spark=delta, table=name, keys=["id"], partition_by=lake.target.partition_by
    )
    with pytest.raises(PlanError, match=r"partitioned by 'd\.n'"):
        life.run_once(whole=True)
    assert not lake.head().is_open


def slow(*values: object) -> Any:
    return pytest.param(*values, marks=pytest.mark.slow)


COLUMNS = "id BIGINT, v STRING"


@pytest.mark.parametrize("keys", [["id"], slow([])])
@pytest.mark.parametrize(
    ("columns", "alter", "wrong", "cause"),
    [
        (COLUMNS, "ADD CONSTRAINT few CHECK (id < 5)", value(5), "'few' is CHECK"),
        slow(COLUMNS, "ADD CONSTRAINT x CHECK (v != 'b')", {"id": 2, "v": None}, "'x' is CHECK"),
        slow(f"{COLUMNS}, n INT", "ADD CONSTRAINT n CHECK (n > 0)", value(2), "'n' is CHECK"),
        slow("id BIGINT, v STRING NOT NULL", "", {"id": 2, "v": None}, "column `v` is NOT NULL"),
        slow("id BIGINT, v VARCHAR(3)", "", {"id": 2, "v": "v2  "}, "'v' is VARCHAR"),
        slow("id BIGINT, v CHAR(3)", "", {"id": 2, "v": "abcd"}, "'v' is CHAR"),
        slow(
            "id BIGINT, v STRING GENERATED ALWAYS AS (concat('v', id))",
            "",
            {"id": 2, "v": "x"},
            "'v' is GENERATED",
        ),
    ],
)
def test_a_row_that_the_table_refuses_is_found_before_its_range_is_promised(
    delta: SparkSession,
    tmp_path: Path,
    keys: list[str],
    columns: str,
    alter: str,
    wrong: dict[str, Any],
    cause: str,
) -> None:
    lake = Lake(tmp_path, *keys, spark=delta)
    table = f"delta.`{lake.target.table}`"
    delta.sql(f"CREATE TABLE {table} ({columns}) USING delta")
    lake.append([value(1)])
    run(delta, lake).run_once(whole=True)
    if "n INT" in columns:
        delta.sql(f"UPDATE {table} SET n = 1")
    if alter:
        delta.sql(f"ALTER TABLE {table} {alter}")
    if keys:
        # A row that replaces another keeps the values of the table's own columns.
        lake.append([value(1)])
        run(delta, lake).run_once(whole=True)
    before = lake.head()
    lake.append([wrong])
    with pytest.raises(PlanError, match=f"refuses 1 rows of positions .*, because .*{cause}"):
        run(delta, lake).run_once(whole=True)
    assert lake.head() == before and not before.is_open


@pytest.mark.slow
def test_a_row_that_the_table_does_not_get_may_break_its_rules(
    delta: SparkSession, tmp_path: Path
) -> None:
    """One that loses against another row, and one that deletes its key."""
    schema = pa.schema([("id", pa.int64()), ("n", pa.int64()), ("gone", pa.bool_())])
    lake = Lake(tmp_path, "id", spark=delta, sequence_by="n", delete_when="gone")
    life = sparkwal.Lifecycle(
        lake.path,
        spark=delta,
        table=lake.target.table,
        keys=["id"],
        sequence_by="n",
        delete_when="gone",
    )
    lake.append([{"id": 1, "n": 5, "gone": False}], schema=schema)
    lake.append([{"id": 2, "n": 5, "gone": True}], schema=schema)
    life.run_once(whole=True)
    table = f"delta.`{lake.target.table}`"
    delta.sql(f"ALTER TABLE {table} ADD CONSTRAINT odd CHECK (n = 5 OR n = 7)")
    # In this order: it loses against the table, against a tombstone, against its range; it deletes.
    for number, n, gone in (
        (1, 4, False),
        (2, 3, False),
        (3, 6, False),
        (3, 7, False),
        (1, 8, True),
    ):
        lake.append([{"id": number, "n": n, "gone": gone}], schema=schema)
    life.run_once(whole=True)
    rows = {tuple(row) for row in delta.read.format("delta").load(lake.target.table).collect()}
    assert rows == {(3, 7, False)}


def test_rows_that_lack_a_generated_column_are_refused_until_the_table_has_them(
    delta: SparkSession, tmp_path: Path
) -> None:
    lake = Lake(tmp_path, "id", spark=delta)
    name = lake.target.table
    delta.sql(
        f"CREATE TABLE delta.`{name}` (id BIGINT, v STRING, "
        "twice BIGINT GENERATED ALWAYS AS (id * 2)) USING delta"
    )
    lake.append([value(1)])
    run(delta, lake).run_once(whole=True)
    assert [row.twice for row in lake.current().collect()] == [2]
    lake.append([value(2)])
    with pytest.raises(OptionError, match="only a write computes the column 'twice'"):
        lake.current()
    with pytest.raises(OptionError, match="only a write computes the column 'twice'"):
        sparkwal.Log(lake.path).current()
    run(delta, lake).run_once(whole=True)
    assert sorted(row.twice for row in lake.current().collect()) == [2, 4]
