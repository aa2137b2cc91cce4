"""A table refuses a promised range: the user changes the table, or gives the range up."""

from __future__ import annotations

import re
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from jobs.lives import run_here
from pyspark.sql import SparkSession

import sparkwal
from sparkwal.errors import PlanError, WriteError
from sparkwal.lifecycle.cycle import Run
from sparkwal.spark.delta_files import spark_path
from tests.lifecycle.lakes import SCHEMA, Lake, value
from tests.spark.tables.gate import Gate
from tests.spark.tables.test_many_logs import Path20

pytestmark = pytest.mark.slow
# The way out that each error of a refused range names.
WAY = r"ALTER TABLE delta\.`.*run again; or give the range up with --give-up-range"


def life(lake: Lake) -> sparkwal.Lifecycle:
    return sparkwal.Lifecycle(
        lake.path, spark=lake.spark, table=lake.target.table, keys=lake.target.keys
    )


def refused(delta: SparkSession, folder: Path, *keys: str) -> Lake:
    """A log whose second range violates a CHECK of its table."""
    lake = Lake(folder, *keys, spark=delta)
    lake.append([value(1)])
    life(lake).run_once(whole=True)
    delta.sql(f"ALTER TABLE {name(lake)} ADD CONSTRAINT small CHECK (id < 10)")
    lake.append([value(2), value(20)])
    for _ in range(2):
        with pytest.raises(WriteError, match=WAY):
            life(lake).run_once(whole=True)
    assert lake.head().is_open
    return lake


def name(lake: Lake) -> str:
    return f"delta.`{lake.target.table}`"


def rows(lake: Lake) -> list[tuple[Any, ...]]:
    found = lake.spark.read.format("delta").load(spark_path(lake.target.table)).collect()
    return sorted(tuple(row)[:2] for row in found)


ALL = [(1, "v1"), (2, "v2"), (20, "v20")]


@pytest.mark.parametrize("keys", [(), ("id",)], ids=str)
def test_a_range_that_violates_a_check_passes_after_the_check_is_dropped(
    delta: SparkSession, tmp_path: Path, keys: tuple[str, ...]
) -> None:
    lake = refused(delta, tmp_path, *keys)
    promised = lake.head()
    delta.sql(f"ALTER TABLE {name(lake)} DROP CONSTRAINT small")
    done = life(lake).run_once(whole=True)
    assert done.finished is not None
    assert (done.finished.k, done.finished.start) == (promised.k, promised.cut)
    assert rows(lake) == ALL


@pytest.mark.parametrize("keys", [(), ("id",)], ids=str)
def test_a_range_that_is_given_up_is_promised_again_with_more_rows_and_columns(
    delta: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keys: tuple[str, ...]
) -> None:
    lake = refused(delta, tmp_path, *keys)
    promised = lake.head()
    flags = [flag for key in keys for flag in ("--key", key)]
    job = lake.path, lake.target.table, *flags
    ran = run_here(delta, monkeypatch, "compact", *job, "--give-up-range")
    assert ran.exit_code == 0, ran.output
    assert re.search(r"range 2 of .* \(default 2…\d+\) was given up", " ".join(ran.output.split()))
    again = run_here(delta, monkeypatch, "compact", *job, "--give-up-range")
    assert again.exit_code == 0 and "no range is open" in again.output
    assert rows(lake) == [(1, "v1")]
    delta.sql(f"ALTER TABLE {name(lake)} DROP CONSTRAINT small")
    wider = pa.schema([*SCHEMA, ("w", pa.int64())])
    lake.append([{**value(3), "w": 3}], schema=wider)
    done = life(lake).run_once(whole=True)
    assert done.compacted is not None
    assert (done.compacted.k, done.compacted.start) == (promised.k + 1, promised.cut)
    assert rows(lake) == [(1, "v1"), (2, "v2"), (3, "v3"), (20, "v20")]


def test_a_range_is_written_before_a_column_that_joined_after_its_promise_is_refused(
    delta: SparkSession, tmp_path: Path
) -> None:
    lake = Lake(tmp_path, spark=delta)
    lake.append([value(1)])
    life(lake).run_once(whole=True)
    lake.append([value(2)])
    lake.intent()
    wider = pa.schema([*SCHEMA, pa.field("two words", pa.int64())])
    lake.append([{**value(3), "two words": 3}], schema=wider)
    with pytest.raises(PlanError, match="does not take the log's new columns"):
        life(lake).run_once(whole=True)
    assert not lake.head().is_open
    assert rows(lake) == [(1, "v1"), (2, "v2")]
    delta.sql(f"ALTER TABLE {name(lake)} SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name')")
    life(lake).run_once(whole=True)
    assert rows(lake) == [(1, "v1"), (2, "v2"), (3, "v3")]


@pytest.mark.proves("burn-in-table")
@pytest.mark.parametrize("keys", [(), ("id",)], ids=str)
def test_a_user_gives_a_range_up_under_a_slow_writer(
    delta: SparkSession, tmp_path: Path, keys: tuple[str, ...]
) -> None:
    lake = Lake(tmp_path, *keys, spark=delta)
    lake.append([value(1)])
    life(lake).run_once(whole=True)
    lake.append([value(2)])
    gate = Gate(tmp_path / "gate")
    slow = life(lake)
    results: list[Run | Exception] = []

    def write() -> None:
        try:
            results.append(slow.run_once(whole=True))
        except Exception as error:
            results.append(error)

    thread = threading.Thread(target=write)
    with pytest.MonkeyPatch.context() as patch:
        gate.between_the_writes(patch)
        thread.start()
        while not gate.reached() and thread.is_alive():
            thread.join(0.05)
        closed = life(lake).give_up_range()
        gate.open()
        thread.join()
    assert closed is not None and closed.k == 2
    assert len(results) == 1 and isinstance(results[0], Run), results
    life(lake).run_once(whole=True)
    assert rows(lake) == [(1, "v1"), (2, "v2")]


def test_a_log_whose_columns_do_not_fit_stops_no_other(delta: SparkSession, tmp_path: Path) -> None:
    path = Path20(delta, tmp_path)
    path.append("a", {"id": 1, "v": "a"})
    path.append("b", {"id": 2, "v": "b"})
    path.run()
    table = f"delta.`{path.table}`"
    delta.sql(f"ALTER TABLE {table} ADD COLUMN tenant STRING")
    text = pa.schema([("id", pa.string()), ("v", pa.string())])
    strange = pa.schema([*SCHEMA, pa.field("two words", pa.int64())])
    path.append("a", {"id": 3, "v": "a"})
    path.append("c", {"id": "x", "v": "c"}, schema=text)
    path.append("d", {"id": 4, "v": "d", "two words": 1}, schema=strange)
    results = path.life().run_all()
    assert {log for log, run in results.items() if isinstance(run, Run)} == {"a", "b"}
    assert isinstance(results["c"], PlanError) and "'id'" in str(results["c"])
    assert isinstance(results["d"], PlanError) and "two words" in str(results["d"])
    assert [(row["id"], row["v"]) for row in path.rows()] == [(1, "a"), (2, "b"), (3, "a")]
    delta.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name')")
    results = path.life().run_all()
    assert {log for log, run in results.items() if not isinstance(run, Run)} == {"c"}
    assert [row["id"] for row in path.rows()] == [1, 2, 3, 4]


def test_a_log_without_a_column_that_the_table_requires_stops_no_other(
    delta: SparkSession, tmp_path: Path
) -> None:
    path = Path20(delta, tmp_path)
    delta.sql(
        f"CREATE TABLE delta.`{path.table}` (id BIGINT, v STRING, tenant STRING NOT NULL) "
        "USING delta"
    )
    with_tenant = pa.schema([*SCHEMA, ("tenant", pa.string())])
    path.append("a", {"id": 1, "v": "a", "tenant": "t"}, schema=with_tenant)
    path.append("b", {"id": 2, "v": "b"})
    # Together they have each column that the table requires.
    results = path.life().run_all()
    assert isinstance(results["a"], Run) and isinstance(results["b"], PlanError)
    assert [(row["id"], row["v"]) for row in path.rows()] == [(1, "a")]


def test_a_condition_that_fails_on_a_later_row_is_changed(
    delta: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = Lake(tmp_path, "id", spark=delta)
    job = [lake.path, lake.target.table, "--key", "id", "--now", "--delete-when"]
    lake.append([{"id": 1, "v": "1"}, {"id": 4, "v": "4"}])
    former = [*job, "CAST(v AS INT) < 0"]
    ran = run_here(delta, monkeypatch, "compact", *former)
    assert ran.exit_code == 0, ran.output
    lake.append([{"id": 2, "v": "x"}, {"id": 1, "v": "-1"}])
    ran = run_here(delta, monkeypatch, "compact", *former)
    assert ran.exit_code == 3 and "with --change-target" in ran.output
    new = [*job, "TRY_CAST(v AS INT) < 0"]
    ran = run_here(delta, monkeypatch, "compact", *new)
    assert ran.exit_code == 2 and "with --change-target" in ran.output
    ran = run_here(delta, monkeypatch, "compact", *job, "no_column < 0", "--change-target")
    assert ran.exit_code == 1 and lake.head().is_open
    ran = run_here(delta, monkeypatch, "compact", *new, "--change-target")
    assert ran.exit_code == 0, ran.output
    now = sparkwal.read_current(delta, lake.path, delete_when=new[-1])
    assert sorted(row["id"] for row in now.collect()) == [2, 4]
    ran = run_here(delta, monkeypatch, "compact", *new)
    assert ran.exit_code == 0, ran.output
    assert rows(lake) == [(2, "x"), (4, "4")]
    ran = run_here(delta, monkeypatch, "compact", *former)
    assert ran.exit_code == 2 and "with --change-target" in ran.output
