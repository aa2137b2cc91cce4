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


# Rule → (the columns, what follows them, a statement after, the fields of a bad row).
RULES: dict[str, tuple[str, str, str, Row]] = {
    "a CHECK": (BASE, "", "ADD CONSTRAINT c CHECK (length(v) < 20)", {"v": "x" * 30}),
    "a CHECK that raises": (
        BASE,
        "",
        "ADD CONSTRAINT c CHECK (CAST(v AS DATE) > '1900-01-01')",
        {"v": "no date"},
    ),
    "a generated column that raises": (
        f"{BASE}, d DATE GENERATED ALWAYS AS (CAST(v AS DATE))",
        "",
        "",
        {"v": "no date"},
    ),
    "a CHECK on a generated column": (
        f"{BASE}, d INT GENERATED ALWAYS AS (length(v))",
        "",
        "ADD CONSTRAINT c CHECK (d < 20)",
        {"v": "x" * 30},
    ),
    "NOT NULL on a generated column": (
        f"{BASE}, d INT NOT NULL GENERATED ALWAYS AS (length(v))",
        "",
        "",
        {"v": None},
    ),
    "VARCHAR": (BASE.replace("v STRING", "v VARCHAR(12)"), "", "", {"v": "x" * 13}),
    "VARCHAR inside a struct": (
        BASE.replace("a: STRING", "a: VARCHAR(3)"),
        "",
        "",
        {"x": {"a": "toolong"}},
    ),
    "a long partition value": (BASE, "PARTITIONED BY (v)", "", {"v": "y" * 300}),
}


def make(delta: SparkSession, table: str, rule: str) -> Row:
    columns, layout, after, bad = RULES[rule]
    delta.sql(f"CREATE TABLE delta.`{table}` ({columns}) USING delta {layout}")
    if after:
        delta.sql(f"ALTER TABLE delta.`{table}` {after}")
    return bad


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


def logs(delta: SparkSession, folder: Path, *keys: str, **target: Any) -> dict[str, Lake]:
    return {
        name: Lake(folder, *keys, spark=delta, schema=COLUMNS, sequencer=name, **target)
        for name in "ab"
    }


@pytest.mark.parametrize(
    "keys", [(), pytest.param(("id",), marks=pytest.mark.slow)], ids=["append", "keyed"]
)
@pytest.mark.parametrize("rule", RULES)
def test_a_row_that_the_table_refuses_steps_aside(
    delta: SparkSession, tmp_path: Path, rule: str, keys: tuple[str, ...]
) -> None:
    lakes = logs(delta, tmp_path, *keys)
    table = lakes["a"].target.table
    bad = make(delta, table, rule)
    lakes["a"].append([good(1)])
    lakes["b"].append([good(2), {**good(3), **bad}, good(4)], [good(5)])
    results = run(lakes["a"])
    assert not [each for each in results.values() if isinstance(each, SparkWalError)], results
    assert ids(delta, table) == [1, 2, 4, 5]
    ((name, values, reason),) = aside(delta, table)
    assert (name, values) == ("b", {**good(3), **bad}) and reason
    # The next run is an ordinary one, and no scratch table is left.
    lakes["b"].append([good(6)])
    run(lakes["a"])
    assert ids(delta, table) == [1, 2, 4, 5, 6] and len(aside(delta, table)) == 1
    assert not [*Path(f"{table}_refused").glob("_try_*")]


def test_many_rows_step_aside_and_the_command_shows_them(
    delta: SparkSession, tmp_path: Path
) -> None:
    lakes = logs(delta, tmp_path)
    table = lakes["a"].target.table
    make(delta, table, "a CHECK that raises")
    lakes["a"].append([good(1)])
    rows = [good(n) if n % 3 else {**good(n), "v": f"no date {n}"} for n in range(300)]
    lakes["b"].append(rows[:100], rows[100:])
    results = run(lakes["a"])
    assert not [each for each in results.values() if isinstance(each, SparkWalError)], results
    assert ids(delta, table) == sorted([1, *(n for n in range(300) if n % 3)])
    assert [row[1]["id"] for row in aside(delta, table)] == [*range(0, 300, 3)]
    shown = ran("refused", lakes["a"].path, "--all", "--limit", "2")
    assert "100 refused rows, 1 reasons" in shown and "CHECK c:" in shown
    assert "100 rows stepped aside" in ran("status", lakes["a"].path, "--sequencer", "b")


def test_rows_that_no_rule_shows_are_found_by_halving(delta: SparkSession, tmp_path: Path) -> None:
    lakes = logs(delta, tmp_path)
    table = lakes["a"].target.table
    bad = make(delta, table, "a long partition value")
    lakes["a"].append([good(1)])
    rows = [{**good(n), **(bad if n in (7, 23) else {})} for n in range(10, 30)]
    lakes["b"].append(rows[:5], [{**good(7), **bad}], rows[5:])
    run(lakes["a"])
    assert ids(delta, table) == sorted([1, *(n for n in range(10, 30) if n != 23)])
    assert [row[1]["id"] for row in aside(delta, table)] == [7, 23]


def test_nothing_steps_aside_if_each_row_seems_refused(delta: SparkSession, tmp_path: Path) -> None:
    lakes = logs(delta, tmp_path)
    table = lakes["a"].target.table
    bad = make(delta, table, "a long partition value")
    lakes["a"].append([good(1)])
    lakes["b"].append([{**good(2), **bad}])
    results = run(lakes["a"])
    assert "each row of the range" in str(results["b"]) and isinstance(results["b"], SparkWalError)
    assert ids(delta, table) == [1] and aside(delta, table) == []
    # With a row that the table takes it is clear that the other one is the cause.
    lakes["b"].append([good(3)])
    run_alone(lakes["b"])
    assert ids(delta, table) == [1, 3] and [row[1]["id"] for row in aside(delta, table)] == [2]


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
    lake.append([{"id": 1}])
    run_alone(lake)
    delta.sql(f"ALTER TABLE delta.`{table}` ADD CONSTRAINT c CHECK (id <> 2)")
    lake.append([row, {"id": 3}])
    run_alone(lake)
    assert ids(delta, table) == [1, 3]
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
    lake.append([row(1, 1, False), row(2, 1, False), row(3, 1, False)])
    run_alone(lake)
    delta.sql(f"ALTER TABLE delta.`{table}` ADD CONSTRAINT c CHECK (n < 100)")
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
    bad = make(delta, table, "a CHECK")
    lakes["a"].append([good(1)])
    narrow = pa.schema([COLUMNS.field("id"), COLUMNS.field("v")])
    lakes["b"].append([{"id": 2, "v": "v"}], schema=narrow)
    lakes["b"].append([{**good(3), **bad}])
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
    lake.append([good(1)])
    run_alone(lake)
    delta.sql(f"ALTER TABLE delta.`{table}` ADD CONSTRAINT c CHECK (id <> 2)")
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
    assert [row[1]["id"] for row in aside(delta, table)] == [2] and ids(delta, table) == [1]
    delta.sql(f"ALTER TABLE delta.`{table}` DROP CONSTRAINT c")
    delta.sql(f"ALTER TABLE delta.`{table}` ADD CONSTRAINT c CHECK (id <> 3)")
    # The range as it was promised leaves out row 2, which the table takes now, and not row 3.
    with pytest.raises(WriteError):
        run_alone(lake)
    assert [row[1]["id"] for row in aside(delta, table)] == [2]
    run_alone(lake)
    assert [row[1]["id"] for row in aside(delta, table)] == [3] and ids(delta, table) == [1, 2, 4]
