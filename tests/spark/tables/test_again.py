"""Rows that a Delta table refused are written again after it was changed."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from sparkwal.cli.main import main
from sparkwal.errors import PlanError, WriteError
from sparkwal.lifecycle.known_log import Again
from sparkwal.spark.delta import SparkDeltaTable
from tests.all_types import JSON_COLUMNS, json_rows
from tests.cli.logs import ran
from tests.jobs.lives import run_here
from tests.lifecycle.lakes import Lake
from tests.lifecycle.table import Died
from tests.spark.tables.test_refused_rows import (
    COLUMNS,
    LONG,
    aside,
    good,
    ids,
    life_of,
    make,
    run_alone,
)

Row = dict[str, Any]


def mend(delta: SparkSession, table: str, check: str = "") -> None:
    """Replace the CHECK of a table by another one, or by none."""
    delta.sql(f"ALTER TABLE delta.`{table}` DROP CONSTRAINT c")
    if check:
        delta.sql(f"ALTER TABLE delta.`{table}` ADD CONSTRAINT c {check}")


def again(lake: Lake) -> Again:
    return life_of(lake).refused_again()


def rows_of(delta: SparkSession, table: str) -> list[Row]:
    rows = delta.read.format("delta").load(table).collect()
    return sorted((row.asDict(recursive=True) for row in rows), key=lambda row: row["id"])


def test_rows_go_into_a_table_that_was_mended_and_others_stay(
    delta: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = Lake(tmp_path, spark=delta, schema=COLUMNS)
    table = lake.target.table
    # In Delta Lake a CHECK that is null is violated.
    make(delta, table, "CHECK (id < 10 AND length(v) > 0)")
    lake.append([good(1), good(10), good(11)], [{**good(2), "v": None}])
    run_alone(lake)
    assert ids(delta, table) == [1] and len(aside(delta, table)) == 3
    assert "--again writes them" in ran("refused", lake.path)
    mend(delta, table, "CHECK (id < 11)")
    job = (lake.path, table, "--refused-again")
    shown = run_here(delta, monkeypatch, "compact", *job)
    assert shown.exit_code == 0, shown.output
    assert "written again: 2, still refused: 1" in shown.output
    assert ids(delta, table) == [1, 2, 10]
    assert rows_of(delta, table)[1] == {**good(2), "v": None}
    ((_, values, reason),) = aside(delta, table)
    assert values["id"] == 11 and reason == "CHECK c: id < 11"
    assert "refused rows: 1" in ran("refused", lake.path)
    assert "1 rows stepped aside" in ran("status", lake.path)
    # Nothing changed, so nothing is written.
    assert again(lake) == Again(0, 1)
    mend(delta, table)
    assert again(lake) == Again(1, 0)
    assert ids(delta, table) == [1, 2, 10, 11] and aside(delta, table) == []
    assert "no refused rows" in ran("refused", lake.path)
    # The next range is an ordinary one.
    lake.append([good(3)])
    run_alone(lake)
    assert ids(delta, table) == [1, 2, 3, 10, 11]


TYPED = pa.schema([*JSON_COLUMNS, ("w", pa.map_(pa.decimal128(5, 2), pa.timestamp("us")))])
TYPES = (
    "id BIGINT, d DOUBLE, f FLOAT, n DECIMAL(38, 18), b BINARY, t TIMESTAMP, u TIMESTAMP_NTZ, "
    "day DATE, m MAP<BIGINT, STRUCT<x: STRING>>, k MAP<DATE, MAP<TIMESTAMP, BOOLEAN>>, "
    "w MAP<DECIMAL(5, 2), TIMESTAMP_NTZ>, l ARRAY<ARRAY<FLOAT>>, "
    "e STRUCT<y: BOOLEAN, z: MAP<INT, BINARY>>, `a.b ``c``` STRING"
)
LAST = datetime(9999, 12, 30, 23, 59, 59, 999_999, UTC)


def test_a_row_of_each_type_is_as_it_was_written(delta: SparkSession, tmp_path: Path) -> None:
    early = datetime(1583, 1, 1, 0, 0, 0, 1, UTC)
    first_row, *more = json_rows(early, LAST)
    rows = [{**first_row, "w": [(Decimal("-1.50"), early.replace(tzinfo=None))]}, *more]
    lake = Lake(tmp_path, spark=delta, schema=TYPED)
    table = lake.target.table
    delta.sql(
        f"CREATE TABLE delta.`{table}` ({TYPES}) USING delta "
        "TBLPROPERTIES ('delta.columnMapping.mode' = 'name')"
    )
    delta.sql(f"ALTER TABLE delta.`{table}` ADD CONSTRAINT c CHECK (id % 2 = 1)")
    others = [{**row, "id": row["id"] + 1} for row in rows]
    lake.append([*rows, *others])
    run_alone(lake)
    assert ids(delta, table) == [3, 5, 7]
    mend(delta, table)
    assert again(lake) == Again(3, 0)
    written = rows_of(delta, table)
    assert [{**row, "id": row["id"] + 1} for row in written[::2]] == written[1::2]
    # −0.0 equals 0.0.
    assert str(written[2]["d"]) == "-0.0" and written[0]["n"] == rows[0]["n"]


def test_by_keys_a_row_replaces_only_an_older_one(delta: SparkSession, tmp_path: Path) -> None:
    columns = pa.schema([("id", pa.int64()), ("n", pa.int64()), ("v", pa.string())])
    target: dict[str, Any] = {
        "sequence_by": "n",
        "delete_when": "v = 'gone'",
        "tombstone_horizon_ms": 10**9,
    }
    lake = Lake(tmp_path, "id", spark=delta, schema=columns, **target)
    table = lake.target.table
    row = lambda *values: dict(zip(columns.names, values, strict=True))  # noqa: E731
    make(delta, table, "CHECK (v <> 'bad')", "id BIGINT, n BIGINT, v STRING")
    lake.append(
        [row(1, 5, "bad"), row(2, 5, "bad"), row(3, 5, "bad"), row(4, 5, "bad")],
        [row(6, 3, "bad"), row(6, 4, "bad"), row(7, 1, "ok"), row(8, 5, "bad")],
    )
    run_alone(lake)
    assert len(aside(delta, table)) == 7
    # Later rows of these keys: older, of the same sequence, newer, a delete.
    lake.append([row(1, 4, "old"), row(2, 5, "same"), row(3, 6, "new"), row(4, 6, "gone")])
    # A delete of the same sequence.
    lake.append([row(8, 5, "gone")])
    run_alone(lake)
    mend(delta, table, "CHECK (v <> 'worse')")
    again(lake)
    found = [tuple(each.values()) for each in rows_of(delta, table)]
    assert found == [(1, 5, "bad"), (2, 5, "same"), (3, 6, "new"), (6, 4, "bad"), (7, 1, "ok")]
    assert aside(delta, table) == []


def test_a_column_that_came_later_keeps_its_value(delta: SparkSession, tmp_path: Path) -> None:
    columns = pa.schema([("id", pa.int64()), ("n", pa.int64())])
    lake = Lake(tmp_path, "id", spark=delta, schema=columns, sequence_by="n")
    table = lake.target.table
    make(delta, table, "CHECK (n < 100)", "id BIGINT, n BIGINT")
    lake.append([{"id": 1, "n": 100}, {"id": 2, "n": 100}, {"id": 3, "n": 1}])
    run_alone(lake)
    wider = columns.append(pa.field("w", pa.string()))
    lake.append([{"id": 1, "n": 2, "w": "kept"}], schema=wider)
    run_alone(lake)
    mend(delta, table, "CHECK (n < 200)")
    assert again(lake) == Again(2, 0)
    found = [tuple(each.values()) for each in rows_of(delta, table)]
    assert found == [(1, 100, "kept"), (2, 100, None), (3, 1, None)]


def test_a_row_that_fits_no_column_any_more_stays_aside(
    delta: SparkSession, tmp_path: Path
) -> None:
    lake = Lake(tmp_path, spark=delta, schema=COLUMNS)
    table = lake.target.table
    make(delta, table, "CHECK (id < 10)")
    lake.append([good(1), good(10), {**good(11), "v": "no date"}])
    run_alone(lake)
    # As if the column had been of another type once.
    delta.sql(
        f"UPDATE delta.`{table}_refused` SET values = replace(values, '\"id\":11', '\"id\":1.5')"
    )
    mend(delta, table)
    assert again(lake) == Again(1, 1)
    assert ids(delta, table) == [1, 10]
    ((_, values, reason),) = aside(delta, table)
    assert values["id"] == 1.5 and reason == "its id is no bigint"
    delta.sql(f"UPDATE delta.`{table}_refused` SET values = replace(values, '\"v\":', '\"old\":')")
    assert again(lake) == Again(0, 1)
    assert "its id" in aside(delta, table)[0][2]
    delta.sql(f"UPDATE delta.`{table}_refused` SET values = replace(values, '1.5', '11')")
    assert again(lake) == Again(0, 1)
    assert aside(delta, table)[0][2] == "the table has no column old"


@pytest.mark.parametrize("keys", [(), ("id",)], ids=["append", "keyed"])
def test_a_process_that_died_between_the_two_writes_is_finished_by_another(
    delta: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keys: tuple[str, ...]
) -> None:
    target = {"sequence_by": "id"} if keys else {}
    lake = Lake(tmp_path, *keys, spark=delta, schema=COLUMNS, **target)
    table = lake.target.table
    make(delta, table, "CHECK (id < 10)")
    lake.append([good(1), good(10), good(11)])
    run_alone(lake)
    mend(delta, table, "CHECK (id < 11)")

    def dies(*_: object) -> None:
        raise Died

    with monkeypatch.context() as patched:
        patched.setattr(SparkDeltaTable, "write", dies)
        with pytest.raises(Died):
            again(lake)
    assert ids(delta, table) == [1] and len(aside(delta, table)) == 2
    # What the table takes now does not count: the first write decided.
    mend(delta, table)
    lake.append([good(2)])
    run_alone(lake)
    assert ids(delta, table) == [1, 2, 10]
    assert [row[1]["id"] for row in aside(delta, table)] == [10, 11]
    assert "refused rows: 1" in ran("refused", lake.path)
    assert again(lake) == Again(1, 0)
    assert ids(delta, table) == [1, 2, 10, 11] and aside(delta, table) == []


def test_a_write_that_the_table_refuses_after_all_leaves_all_rows_aside(
    delta: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = Lake(tmp_path, spark=delta, schema=COLUMNS)
    table = lake.target.table
    make(delta, table, "CHECK (id < 10)")
    lake.append([good(1), good(10)])
    run_alone(lake)
    mend(delta, table)
    write = SparkDeltaTable.write

    def after_a_change(of: SparkDeltaTable, *arguments: Any) -> None:
        delta.sql(f"ALTER TABLE delta.`{table}` ADD CONSTRAINT c CHECK (id < 10)")
        write(of, *arguments)

    with monkeypatch.context() as patched:
        patched.setattr(SparkDeltaTable, "write", after_a_change)
        with pytest.raises(WriteError, match="they stay in .*_refused"):
            again(lake)
    assert ids(delta, table) == [1] and len(aside(delta, table)) == 1
    mend(delta, table)
    assert again(lake) == Again(1, 0) and ids(delta, table) == [1, 10]


def test_by_keys_without_a_sequence_nothing_is_written(delta: SparkSession, tmp_path: Path) -> None:
    lake = Lake(tmp_path, "id", spark=delta, schema=COLUMNS)
    table = lake.target.table
    make(delta, table, "CHECK (id < 10)")
    lake.append([good(1), good(10)])
    run_alone(lake)
    mend(delta, table)
    with pytest.raises(PlanError, match="keys and no sequence_by"):
        again(lake)
    assert [row[1]["id"] for row in aside(delta, table)] == [10]


def test_all_rows_of_a_log_may_still_be_refused_by_a_rule_that_cannot_be_asked(
    delta: SparkSession, tmp_path: Path
) -> None:
    lake = Lake(tmp_path, spark=delta, schema=COLUMNS)
    table = lake.target.table
    make(delta, table)
    lake.append([good(1), {**good(2), **LONG}])
    run_alone(lake)
    waiting = aside(delta, table)
    assert ids(delta, table) == [1] and len(waiting) == 1
    assert again(lake) == Again(0, 1)
    assert ids(delta, table) == [1] and aside(delta, table) == waiting


def test_the_command_starts_spark_and_writes_them_again(
    delta: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = Lake(tmp_path, "id", spark=delta, schema=COLUMNS, sequence_by="id")
    table = lake.target.table
    make(delta, table, "CHECK (id < 10)")
    lake.append([good(1), good(10), good(11)])
    run_alone(lake)
    mend(delta, table, "CHECK (id < 11)")
    monkeypatch.setattr(SparkSession, "stop", lambda session: None)
    ended = CliRunner().invoke(main, ["refused", lake.path, "--again", "--json"])
    assert ended.exit_code == 0, ended.output
    assert json.loads(ended.stdout) == {"sequencer": "default", "written": 1, "refused": 1}
    assert ids(delta, table) == [1, 10]


def test_the_command_takes_no_condition_from_a_log_that_spark_would_run(
    delta: SparkSession, tmp_path: Path
) -> None:
    lake = Lake(
        tmp_path, "id", spark=delta, schema=COLUMNS, sequence_by="id", delete_when="hex(id) = 'A0'"
    )
    table = lake.target.table
    make(delta, table, "CHECK (id < 10)")
    lake.append([good(1), good(10)])
    run_alone(lake)
    mend(delta, table)
    ended = CliRunner().invoke(main, ["refused", lake.path, "--again"])
    assert ended.exit_code == 2 and "more than this command takes from a log" in ended.stderr
    assert ids(delta, table) == [1]
