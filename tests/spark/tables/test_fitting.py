"""A table that cannot take the rows of a log is refused before a range is promised to it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import sparkwal
from sparkwal.errors import OptionError, PlanError, WriteError
from sparkwal.lifecycle.cycle import Run
from tests.lifecycle.lakes import SCHEMA, Lake, value
from tests.spark.tables.test_many_logs import Path20


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
    name = lake.target.table
    delta.sql(f"CREATE TABLE delta.`{name}` (id BIGINT, v STRING) USING delta")
    wider = pa.schema([*SCHEMA, pa.field("two words", pa.int64())])
    lake.append([{**value(2), "two words": 2}], schema=wider)
    with pytest.raises(PlanError, match="does not take the log's new columns"):
        run(delta, lake).run_once(whole=True)
    assert not lake.head().is_open
    delta.sql(f"ALTER TABLE delta.`{name}` SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name')")
    run(delta, lake).run_once(whole=True)
    rows = {tuple(row) for row in delta.read.format("delta").load(name).collect()}
    assert rows == {(2, "v2", 2)}


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


COLUMNS = "id BIGINT, v STRING, s STRUCT<a: STRING>"
WITH_STRUCT = pa.schema([*SCHEMA, pa.field("s", pa.struct([("a", pa.string())]))])


@pytest.mark.parametrize("keys", [("id",), slow(())], ids=str)
@pytest.mark.parametrize(
    ("columns", "after", "wrong"),
    [
        (f"{COLUMNS}, n INT GENERATED ALWAYS AS (CAST(v AS INT))", "", {"v": "x"}),
        slow(COLUMNS, "ADD CONSTRAINT few CHECK (length(v) < 5)", {"v": "11111"}),
        slow(COLUMNS, "ADD CONSTRAINT date CHECK (CAST(v AS INT) > 0)", {"v": "x"}),
        slow("id BIGINT, v STRING NOT NULL, s STRUCT<a: STRING>", "", {"v": None}),
        slow("id BIGINT, v VARCHAR(3), s STRUCT<a: STRING>", "", {"v": "1111"}),
        slow("id BIGINT, v STRING, s STRUCT<a: VARCHAR(3)>", "", {"s": {"a": "1111"}}),
        slow(f"{COLUMNS}, n INT NOT NULL GENERATED ALWAYS AS (length(v))", "", {"v": None}),
    ],
)
def test_a_row_that_the_table_refuses_stops_no_other_log(
    delta: SparkSession,
    tmp_path: Path,
    keys: tuple[str, ...],
    columns: str,
    after: str,
    wrong: dict[str, Any],
) -> None:
    path = Path20(delta, tmp_path, keys=keys)
    delta.sql(f"CREATE TABLE delta.`{path.table}` ({columns}) USING delta")
    if after:
        delta.sql(f"ALTER TABLE delta.`{path.table}` {after}")
    for number, name in enumerate("abc"):
        path.append(name, {"id": number, "v": "1", "s": {"a": "1"}}, schema=WITH_STRUCT)
    path.append("b", {"id": 3, "v": "1", "s": {"a": "1"}, **wrong}, schema=WITH_STRUCT)
    for _ in range(2):
        results = path.life().run_all(whole=True)
        assert isinstance(results["b"], WriteError), results
        assert {name for name, run in results.items() if isinstance(run, Run)} == {"a", "c"}
        assert [row["id"] for row in path.rows()] == [0, 2]


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
