"""Each awkward value through a compaction into a table of Delta Lake, which both readers read."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import sparkwal
from sparkwal.errors import PlanError
from tests.values.awkward import CANONICAL_NAN, VALUES
from tests.values.doors import NO_DELTA, of_table
from tests.values.log import TABLE, expected, write_table

pytestmark = pytest.mark.capability("TIME")
# So that a column may have any name.
MAPPED = {"delta.columnMapping.mode": "name"}


def test_each_value_is_the_same_in_a_table(delta: SparkSession, tmp_path: Path) -> None:
    awaited = {name: expected(name, CANONICAL_NAN) for name in VALUES if name not in NO_DELTA}
    log, lake = str(tmp_path / "log"), str(tmp_path / "lake")
    write_table(log, TABLE.select([*awaited]))
    life = sparkwal.Lifecycle(log, spark=delta, table=lake, properties=MAPPED)
    assert life.run_once(whole=True).compacted is not None
    rows = delta.read.format("delta").load(lake)
    by_spark = of_table(pa.Table.from_batches(rows._collect_as_arrow()))
    assert [name for name in awaited if by_spark[name] != awaited[name]] == []
    without_jvm = of_table(sparkwal.Log(log).current().to_arrow([*awaited]))
    assert [name for name in awaited if without_jvm[name] != awaited[name]] == []


@pytest.mark.parametrize("name", {error: name for name, error in NO_DELTA.items()}.values())
def test_a_column_that_delta_lacks_is_refused_before_anything_is_promised(
    delta: SparkSession, tmp_path: Path, name: str
) -> None:
    log = str(tmp_path / "log")
    write_table(log, TABLE.select([name]))
    life = sparkwal.Lifecycle(log, spark=delta, table=str(tmp_path / "lake"), properties=MAPPED)
    with pytest.raises(PlanError, match=NO_DELTA[name]):
        life.run_once(whole=True)
    assert sparkwal.Log(log).scan().read_all().num_rows == len(TABLE)
