"""A table that cannot take the rows of a log is refused before a range is promised to it."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import sparkwal
from sparkwal.errors import OptionError, PlanError
from tests.spark.tables.lake import SCHEMA, Lake, value


def run(delta: SparkSession, lake: Lake, table: str | None = None) -> sparkwal.Lifecycle:
    target = lake.target
    return sparkwal.Lifecycle(lake.path, spark=delta, table=table or target.table, keys=target.keys)


def test_a_table_with_a_required_column_is_refused_and_another_one_is_taken(
    delta: SparkSession, tmp_path: Path
) -> None:
    lake = Lake(delta, tmp_path)
    name = lake.target.table
    delta.sql(f"CREATE TABLE delta.`{name}` (id BIGINT, tenant STRING NOT NULL) USING delta")
    lake.append(value(1))
    with pytest.raises(PlanError, match="'tenant'.* is NOT NULL"):
        run(delta, lake).run_once(whole=True)
    done = run(delta, lake, str(tmp_path / "other")).run_once(whole=True)
    assert done.compacted is not None


def test_a_column_whose_name_the_table_refuses_leaves_no_open_range(
    delta: SparkSession, tmp_path: Path
) -> None:
    lake = Lake(delta, tmp_path, "id")
    lake.append(value(1))
    run(delta, lake).run_once(whole=True)
    wider = pa.schema([*SCHEMA, pa.field("two words", pa.int64())])
    lake.append({**value(2), "two words": 2}, schema=wider)
    with pytest.raises(PlanError, match="does not take the log's new columns"):
        run(delta, lake).run_once(whole=True)
    assert not lake.head().is_open
    name = lake.target.table
    delta.sql(f"ALTER TABLE delta.`{name}` SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name')")
    run(delta, lake).run_once(whole=True)
    rows = {tuple(row) for row in delta.read.format("delta").load(name).collect()}
    assert rows == {(1, "v1", None), (2, "v2", 2)}


def test_rows_that_lack_a_generated_column_are_refused_until_the_table_has_them(
    delta: SparkSession, tmp_path: Path
) -> None:
    lake = Lake(delta, tmp_path, "id")
    name = lake.target.table
    delta.sql(
        f"CREATE TABLE delta.`{name}` (id BIGINT, v STRING, "
        "twice BIGINT GENERATED ALWAYS AS (id * 2)) USING delta"
    )
    lake.append(value(1))
    run(delta, lake).run_once(whole=True)
    assert [row.twice for row in lake.current().collect()] == [2]
    lake.append(value(2))
    with pytest.raises(OptionError, match="Delta computes the column 'twice'"):
        lake.current()
    with pytest.raises(OptionError, match="Delta computes the column 'twice'"):
        sparkwal.Log(lake.path).current()
    run(delta, lake).run_once(whole=True)
    assert sorted(row.twice for row in lake.current().collect()) == [2, 4]
