"""Rows that a Delta table refuses step aside, and the others go to the table."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import sparkwal
from sparkwal.errors import SparkWalError, WriteError
from sparkwal.format.lifecycle_record import Promise
from sparkwal.spark.delta import SparkDeltaTable
from sparkwal.spark.delta_files import spark_path
from tests.cli.logs import ran
from tests.lifecycle.lakes import Lake
from tests.lifecycle.table import Died

COLUMNS = pa.schema(
    [("id", pa.int64()), ("v", pa.string()), ("x", pa.struct([("a", pa.string())]))]
)
BASE = "id BIGINT, v STRING, x STRUCT<a: STRING>"
Row = dict[str, Any]


def good(number: int) -> Row:
    return {"id": number, "v": "2024-01-01", "x": {"a": "ab"}}


CHECK = "CHECK (CAST(v AS DATE) > '1900-01-01')"
# Column of the log → (the columns of the table for it, a rule of ALTER TABLE, a refused value).
RULES: dict[str, tuple[str, str, Any]] = {
    "few": ("few STRING", "CHECK (length(few) < 20)", "x" * 30),
    "day": ("day STRING", "CHECK (CAST(day AS DATE) > '1900-01-01')", "no date"),
    "born": ("born STRING, born_on DATE GENERATED ALWAYS AS (CAST(born AS DATE))", "", "no date"),
    "name": (
        "name STRING, letters INT GENERATED ALWAYS AS (length(name))",
        "CHECK (letters < 20)",
        "x" * 30,
    ),
    "word": ("word STRING, size INT NOT NULL GENERATED ALWAYS AS (length(word))", "", None),
    "short": ("short VARCHAR(12)", "", "x" * 13),
    "inner": ("inner STRUCT<a: VARCHAR(3)>", "", {"a": "toolong"}),
}


def make(delta: SparkSession, table: str, check: str = "", columns: str = BASE) -> None:
    """Make a table with a CHECK. Without one it is partitioned, so that it takes no long text."""
    layout = "" if check else "PARTITIONED BY (v)"
    delta.sql(f"CREATE TABLE delta.`{table}` ({columns}) USING delta {layout}")
    if check:
        delta.sql(f"ALTER TABLE delta.`{table}` ADD CONSTRAINT c {check}")


LONG = {"v": "y" * 300}


def ids(delta: SparkSession, table: str) -> list[int]:
    return sorted(row.id for row in delta.read.format("delta").load(spark_path(table)).collect())


def aside(delta: SparkSession, table: str) -> list[tuple[str, Row, str]]:
    """The sequencer, the values and the reason of each refused row."""
    rows = delta.read.format("delta").load(spark_path(f"{table}_refused")).collect()
    found = [(row.sequencer, json.loads(row["values"]), row.reason) for row in rows]
    return sorted(found, key=lambda row: row[1]["id"])


def run_alone(lake: Lake) -> None:
    life_of(lake).run_once(whole=True)


def life_of(lake: Lake) -> sparkwal.Lifecycle:
    target = lake.target
    return sparkwal.Lifecycle(
        lake.path,
        spark=lake.spark,
        table=target.table,
        keys=target.keys,
        sequence_by=target.sequence_by,
        delete_when=target.delete_when,
        refusedRows="aside",
        **lake.options,
    )


def run(lake: Lake) -> dict[str, Any]:
    return life_of(lake).run_all(whole=True)


def logs(
    delta: SparkSession, folder: Path, *keys: str, columns: pa.Schema = COLUMNS
) -> dict[str, Lake]:
    return {name: Lake(folder, *keys, spark=delta, schema=columns, sequencer=name) for name in "ab"}


@pytest.mark.parametrize(
    "keys", [(), pytest.param(("id",), marks=pytest.mark.slow)], ids=["append", "keyed"]
)
def test_a_row_that_a_rule_of_the_table_refuses_steps_aside(
    delta: SparkSession, tmp_path: Path, keys: tuple[str, ...]
) -> None:
    kinds = {"inner": pa.struct([("a", pa.string())])}
    of_rules = [(name, kinds.get(name, pa.string())) for name in RULES]
    taken = {name: {"a": "ab"} if name == "inner" else "2024-01-01" for name in RULES}
    lakes = logs(delta, tmp_path, *keys, columns=pa.schema([("id", pa.int64()), *of_rules]))
    table = lakes["a"].target.table
    columns = ", ".join(["id BIGINT", *(columns for columns, _, _ in RULES.values())])
    delta.sql(f"CREATE TABLE delta.`{table}` ({columns}) USING delta")
    for name, (_, check, _) in RULES.items():
        if check:
            delta.sql(f"ALTER TABLE delta.`{table}` ADD CONSTRAINT of_{name} {check}")
    lakes["a"].append([{"id": 1, **taken}])
    # One row for each rule, and many for one.
    broken = [*RULES, *["day"] * 100]
    rows = [
        {"id": 10 + number, **taken, name: RULES[name][2]} for number, name in enumerate(broken)
    ]
    lakes["b"].append([{"id": 2, **taken}, *rows[:50], {"id": 4, **taken}])
    lakes["b"].append([{"id": 5, **taken}, *rows[50:]])
    results = run(lakes["a"])
    assert not [each for each in results.values() if isinstance(each, SparkWalError)], results
    assert ids(delta, table) == [1, 2, 4, 5]
    refused = aside(delta, table)
    assert [(name, values) for name, values, _ in refused] == [("b", row) for row in rows]
    for (_, _, reason), name in zip(refused, broken, strict=True):
        assert reason and (f"CHECK of_{name}:" in reason or not RULES[name][1]), (name, reason)
    shown = ran("refused", lakes["a"].path, "--all", "--limit", "2")
    assert f"refused rows: {len(broken)}, reasons: {len(RULES)}" in shown and "of_day:" in shown
    assert f"{len(broken)} rows stepped aside" in ran("status", lakes["a"].path, "--sequencer", "b")
    # The next run is an ordinary one, and no scratch table is left.
    lakes["b"].append([{"id": 6, **taken}])
    run(lakes["a"])
    assert ids(delta, table) == [1, 2, 4, 5, 6] and len(aside(delta, table)) == len(broken)
    assert not [*Path(f"{table}_refused").glob("_try_*")]


def test_rows_that_no_rule_shows_are_found_by_halving_if_the_table_takes_one(
    delta: SparkSession, tmp_path: Path
) -> None:
    lakes = logs(delta, tmp_path)
    table = lakes["a"].target.table
    make(delta, table)
    lakes["a"].append([good(1)])
    lakes["b"].append([{**good(2), **LONG}])
    results = run(lakes["a"])
    assert "each row of the range" in str(results["b"]) and isinstance(results["b"], SparkWalError)
    assert ids(delta, table) == [1] and aside(delta, table) == []
    # With a row that the table takes it is clear that the others are the cause.
    rows = [{**good(n), **(LONG if n == 5 else {})} for n in range(3, 8)]
    lakes["b"].append(rows[:1], rows[1:])
    run_alone(lakes["b"])
    assert ids(delta, table) == [1, 3, 4, 6, 7]
    assert [row[1]["id"] for row in aside(delta, table)] == [2, 5]


def test_a_row_of_each_type_steps_aside(delta: SparkSession, tmp_path: Path) -> None:
    columns = pa.schema(
        [
            ("id", pa.int64()),
            ("d", pa.float64()),
            ("n", pa.decimal128(38, 18)),
            ("b", pa.binary()),
            ("t", pa.timestamp("us", "UTC")),
            ("u", pa.timestamp("us")),
            ("day", pa.date32()),
            ("m", pa.map_(pa.int64(), pa.struct([("x", pa.string())]))),
            ("l", pa.list_(pa.list_(pa.float32()))),
            ("e", pa.struct([("y", pa.bool_())])),
        ]
    )
    lake = Lake(tmp_path, spark=delta, schema=columns)
    table = lake.target.table
    moment = datetime(9999, 12, 31, 23, 59, 59, 999_999, UTC)
    row = {
        "id": 2,
        "d": float("nan"),
        "n": Decimal("-12345678901234567890.123456789012345678"),
        "b": b"\x00\xff",
        "t": moment,
        "u": moment.replace(tzinfo=None),
        "day": date(1, 1, 1),
        "m": [(1, {"x": 'a "quote" \n ü'}), (2, None)],
        "l": [[1.5, None], None],
        "e": {"y": None},
    }
    in_table = (
        "id BIGINT, d DOUBLE, n DECIMAL(38, 18), b BINARY, t TIMESTAMP, u TIMESTAMP_NTZ, day DATE, "
        "m MAP<BIGINT, STRUCT<x: STRING>>, l ARRAY<ARRAY<FLOAT>>, e STRUCT<y: BOOLEAN>"
    )
    make(delta, table, "CHECK (id <> 2)", in_table)
    lake.append([row, {"id": 3}])
    run_alone(lake)
    assert ids(delta, table) == [3]
    ((_, values, reason),) = aside(delta, table)
    assert values["t"] == "9999-12-31T23:59:59.999999Z" and reason == "CHECK c: id <> 2"
    assert values["m"] == {"1": {"x": 'a "quote" \n ü'}, "2": None} and values["d"] == "NaN"


def test_the_other_rows_of_a_refused_rows_key_are_merged(
    delta: SparkSession, tmp_path: Path
) -> None:
    columns = pa.schema([("id", pa.int64()), ("n", pa.int64()), ("gone", pa.bool_())])
    target: dict[str, Any] = {
        "sequence_by": "n",
        "delete_when": "gone",
        "tombstone_horizon_ms": 10**9,
    }
    lake = Lake(tmp_path, "id", spark=delta, schema=columns, **target)
    table = lake.target.table
    row = lambda *values: dict(zip(("id", "n", "gone"), values, strict=True))  # noqa: E731
    make(delta, table, "CHECK (n < 100)", "id BIGINT, n BIGINT, gone BOOLEAN")
    delta.sql(f"INSERT INTO delta.`{table}` VALUES (1, 1, false), (2, 1, false), (3, 1, false)")
    lake.append(
        [row(1, 200, False), row(1, 5, False)],  # the newest row of key 1 is refused
        [row(2, 300, True)],  # a delete is written by no row, so it is not refused
        [row(3, 400, False)],  # key 3 keeps its row
    )
    run_alone(lake)
    found = {(each.id, each.n) for each in delta.read.format("delta").load(table).collect()}
    assert found == {(1, 5), (3, 1)}
    values = [each[1] for each in aside(delta, table)]
    assert [(each["id"], each["n"]) for each in values] == [(1, 200), (3, 400)]
    # The delete of key 2 counts also for later rows.
    lake.append([row(2, 299, False), row(1, 6, False)])
    run_alone(lake)
    found = {(each.id, each.n) for each in delta.read.format("delta").load(table).collect()}
    assert found == {(1, 6), (3, 1)}


def test_a_log_waits_whose_records_lack_columns_of_a_keyed_table(
    delta: SparkSession, tmp_path: Path
) -> None:
    lakes = logs(delta, tmp_path, "id")
    table = lakes["a"].target.table
    make(delta, table, CHECK)
    lakes["a"].append([good(1)])
    narrow = pa.schema([COLUMNS.field("id"), COLUMNS.field("v")])
    lakes["b"].append([{"id": 2, "v": "2024-01-01"}], schema=narrow)
    lakes["b"].append([{**good(3), "v": "no date"}])
    results = run(lakes["a"])
    assert "records of it lack columns (x)" in str(results["b"])
    assert ids(delta, table) == [1] and aside(delta, table) == []


def test_what_stepped_aside_from_a_range_that_was_given_up_is_replaced(
    delta: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process dies between its two writes. Then the table has other rules, and the process
    that died writes once more what it finds now."""
    lake = Lake(tmp_path, spark=delta, schema=COLUMNS)
    table = lake.target.table
    make(delta, table, "CHECK (id <> 2)")
    lake.append([good(2), good(3), good(4)])
    write = SparkDeltaTable.write
    opened: list[Promise] = []

    def write_beside(of: SparkDeltaTable, promise: Promise, *others: int) -> None:
        if promise.is_aside and not opened:
            opened.append(promise)
            raise Died
        if promise.is_aside:
            of.refused.write(opened[0])
        write(of, promise, *others)

    monkeypatch.setattr(SparkDeltaTable, "write", write_beside)
    with pytest.raises(Died):
        run_alone(lake)
    assert [row[1]["id"] for row in aside(delta, table)] == [2] and ids(delta, table) == []
    delta.sql(f"ALTER TABLE delta.`{table}` DROP CONSTRAINT c")
    delta.sql(f"ALTER TABLE delta.`{table}` ADD CONSTRAINT c CHECK (id <> 3)")
    # The range as it was promised leaves out row 2, which the table takes now, and not row 3.
    with pytest.raises(WriteError):
        run_alone(lake)
    assert [row[1]["id"] for row in aside(delta, table)] == [2]
    run_alone(lake)
    assert [row[1]["id"] for row in aside(delta, table)] == [3] and ids(delta, table) == [2, 4]
