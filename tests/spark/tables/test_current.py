"""Table and log as one DataFrame, at every stage of a compaction; and the same without Spark."""

from __future__ import annotations

import random
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

import sparkwal
from sparkwal.errors import ConfirmError
from sparkwal.format.lifecycle_record import FLOOR
from sparkwal.spark import read_current as reading
from tests.all_types import one_row
from tests.lifecycle.lakes import SCHEMA, STAGES, Lake, value


def rows(found: DataFrame) -> Counter[Any]:
    return Counter(repr(row.asDict(recursive=True)) for row in found.collect())


def arrow_rows(lake: Lake) -> Counter[Any]:
    found = sparkwal.Log(lake.path).current().to_arrow()
    return Counter(repr(row) for row in found.to_pylist(maps_as_pydicts="strict"))


def of(*expected: dict[str, Any]) -> Counter[Any]:
    return Counter(repr(row) for row in expected)


def test_appended_rows_are_read_once_at_every_stage(delta: SparkSession, tmp_path: Path) -> None:
    lake = Lake(tmp_path, spark=delta)
    lake.append([value(1), value(2)])
    assert rows(lake.current()) == of(value(1), value(2))
    expected = of(value(1), value(2))
    for number, stage in enumerate(STAGES, 3):
        lake.append([value(number)])
        expected += of(value(number))
        lake.compact(stage)
        found, plan = lake.current(include_position=True)
        assert arrow_rows(lake) == expected
        lake.append([value(10 * number)])
        # A pinned state stays, also in a view.
        found.createOrReplaceTempView("now")
        assert rows(delta.table("now")) == expected
        expected += of(value(10 * number))
        assert rows(lake.current()) == expected == arrow_rows(lake)
        head = sparkwal.Log(lake.path).head()
        assert head is not None
        assert plan.positions["default"] < head.position
        if lake.head().is_open:
            if stage == "intent":
                lake.write()
            lake.done()
            # Spark reads what is done in the last stage.
            assert arrow_rows(lake) == expected


@pytest.mark.parametrize("by", ["", pytest.param("n", marks=pytest.mark.slow)])
def test_keyed_rows_are_a_dictionary_at_every_stage(
    delta: SparkSession, tmp_path: Path, by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    schema = pa.schema(
        [("a", pa.int64()), ("b", pa.string()), ("n", pa.int64()), ("op", pa.string())]
    )
    lake = Lake(tmp_path, "A", "b", spark=delta, delete_when="op = 'd'", sequence_by=by)
    random_ = random.Random(7)
    model: dict[Any, dict[str, Any]] = {}
    number = 0
    for stage in STAGES[1:]:
        batch = []
        for _ in range(10):
            number += 1
            row = {
                "a": random_.choice([1, 2, None]),
                "b": random_.choice(["x", None]),
                # Only what is greatest deletes: a table remembers no deletes.
                "n": random_.choice([None, *range(50)]) if by else number,
                "op": None if by else random_.choice(["d", "u", None]),
            }
            batch.append(row)
            key = (row["a"], row["b"])
            if (
                by
                and key in model
                and (model[key]["n"] or -1) > (-1 if row["n"] is None else row["n"])
            ):
                continue
            if row["op"] == "d":
                model.pop(key, None)
            else:
                model[key] = row
        lake.append(batch, schema=schema)
        expected = of(*model.values())
        lake.compact(stage)
        assert rows(lake.current()) == expected, stage
        assert arrow_rows(lake) == expected, stage
        if not by:
            # Its keys go to every task; and the same for one that is too large for that.
            with monkeypatch.context() as patch:
                patch.setattr(reading, "BROADCAST_BYTES", -1)
                assert rows(lake.current()) == expected, stage
        if lake.head().is_open:
            if stage == "intent":
                lake.write()
                assert rows(lake.current()) == expected
            lake.done()


@pytest.mark.slow
def test_columns_that_the_log_gained_and_those_that_only_the_table_has(
    delta: SparkSession, tmp_path: Path
) -> None:
    wide = pa.schema([*SCHEMA, ("w", pa.float64())])
    lake = Lake(tmp_path, "id", spark=delta)
    lake.append([value(1), value(2)])
    lake.compact()
    delta.sql(f"ALTER TABLE delta.`{lake.target.table}` ADD COLUMN extra STRING")
    delta.sql(f"UPDATE delta.`{lake.target.table}` SET extra = 'kept'")
    lake.append([{"id": 2, "v": "new", "w": 0.5}, {"id": 3, "v": "v3", "w": 1.5}], schema=wide)
    before = rows(lake.current())
    assert before == of(
        {"id": 1, "v": "v1", "w": None, "extra": "kept"},
        {"id": 2, "v": "new", "w": 0.5, "extra": "kept"},
        {"id": 3, "v": "v3", "w": 1.5, "extra": None},
    )
    assert arrow_rows(lake) == before
    lake.compact()
    # The table has its columns in another order; the log's come first all the same.
    assert rows(lake.current()) == before == arrow_rows(lake)


def test_all_types_are_equal_on_both_sides(delta: SparkSession, tmp_path: Path) -> None:
    table = one_row("UTC")
    lake = Lake(tmp_path, spark=delta)
    lake.append([*table.to_pylist()], schema=table.schema)
    lake.compact()
    lake.append([*table.to_pylist()], schema=table.schema)
    found = lake.current()
    log = delta.read.format("weaselwal").load(lake.path)
    assert found.schema == log.schema
    first, second = found.collect()
    assert first == second == log.first()
    whole = sparkwal.Log(lake.path).current()
    assert whole.schema == sparkwal.Log(lake.path).scan().schema
    first, second = whole.to_arrow().to_pylist()
    assert first == second == sparkwal.Log(lake.path).scan().read_all().to_pylist()[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    "how",
    [
        {"properties": (("delta.enableDeletionVectors", "true"),), "cluster_by": ("id",)},
        pytest.param(
            {"properties": (("delta.columnMapping.mode", "name"),), "partition_by": ("v",)},
            marks=pytest.mark.slow,
        ),
    ],
)
def test_tables_of_every_feature_are_read_without_spark(
    delta: SparkSession, tmp_path: Path, how: dict[str, Any]
) -> None:
    lake = Lake(tmp_path, spark=delta, **how)
    lake.append([*({"id": n, "v": f"v{n % 2}"} for n in range(20))])
    lake.compact()
    delta.sql(f"DELETE FROM delta.`{lake.target.table}` WHERE id % 3 = 0").collect()
    lake.append([value(0)])
    expected = of(value(0), *({"id": n, "v": f"v{n % 2}"} for n in range(20) if n % 3))
    assert rows(lake.current()) == expected == arrow_rows(lake)


@pytest.mark.slow
def test_a_table_that_was_restored_is_an_error(delta: SparkSession, tmp_path: Path) -> None:
    lake = Lake(tmp_path, spark=delta)
    for number in (1, 2):
        lake.append([value(number)])
        lake.compact()
    delta.sql(f"OPTIMIZE delta.`{lake.target.table}`").collect()
    assert rows(lake.current()) == of(value(1), value(2)) == arrow_rows(lake)
    delta.sql(f"RESTORE delta.`{lake.target.table}` TO VERSION AS OF 1").collect()
    for read in (lake.current, sparkwal.Log(lake.path).current):
        with pytest.raises(ConfirmError, match="RESTORE"):
            read()


@pytest.mark.slow
def test_several_logs_in_one_table(delta: SparkSession, tmp_path: Path) -> None:
    one, two = (Lake(tmp_path, spark=delta, sequencer=name) for name in "ab")
    one.append([value(1)])
    one.compact()
    two.append([value(2)])
    two.compact("written")
    one.append([value(3)])
    wide = pa.schema([*SCHEMA, ("w", pa.int64())])
    two.append([{**value(4), "w": 4}], schema=wide)
    found, plan = sparkwal.read_current(delta, one.path, sequencers="*", include_position=True)
    expected = [{**value(number), "w": 4 if number == 4 else None} for number in (1, 2, 3, 4)]
    assert rows(found) == of(*expected)
    assert set(plan.positions) == {"a", "b"}


@pytest.mark.slow
def test_a_pinned_state_outlives_later_compactions(delta: SparkSession, tmp_path: Path) -> None:
    """Its rows are deleted a grace later at the earliest."""
    lake = Lake(tmp_path, spark=delta)
    lake.append([value(1)])
    lake.compact()
    lake.append([value(2)])
    found = lake.current()
    lake.compact()
    head = lake.head()
    lake.put(FLOOR, floor=head.cut)
    assert rows(found) == of(value(1), value(2))
    assert rows(lake.current()) == of(value(1), value(2))


def test_a_lease_holds_the_floors_of_the_logs_with_newer_rows(
    delta: SparkSession, tmp_path: Path
) -> None:
    one, two = (Lake(tmp_path, spark=delta, sequencer=name) for name in "ab")
    for lake in (one, two):
        lake.append([value(1)])
    lake.compact()
    found = sparkwal.read_current(delta, one.path, sequencers="*", lease="1h")
    (lease,) = sparkwal.consumers(one.path, sequencers="*")
    assert (lease.sequencer, lease.position, lease.live) == ("a", 0, True)
    assert rows(found) == of(value(1), value(1))


@pytest.mark.parametrize("by", [pytest.param("", marks=pytest.mark.slow), "n"])
def test_the_current_rows_are_those_of_the_table_after_the_merge(
    delta: SparkSession, tmp_path: Path, by: str
) -> None:
    """A key that the table has twice, a struct as key, NaN, and any name of the table's own."""
    nan = float("nan")
    schema = pa.schema(
        [("k", pa.struct([("a", pa.string())])), ("n", pa.float64()), ("v", pa.string())]
    )

    def row(key: str | None, n: float | None, v: str) -> dict[str, Any]:
        return {"k": {"a": key}, "n": n, "v": v}

    lake = Lake(tmp_path, "k", spark=delta, sequence_by=by, delete_when="v = 'gone'")
    lake.append(
        [
            *(row(key, n, "old") for key, n in zip("abcd", (nan, 1.0, nan, 2.0), strict=True)),
            row(None, 1.0, "old"),
        ],
        schema=schema,
    )
    lake.compact()
    table = f"delta.`{lake.target.table}`"
    delta.sql(f"INSERT INTO {table} SELECT k, 5.0, 'again' FROM {table} WHERE k.a IN ('b', 'd')")
    tail = [
        row("a", 5.0, "new"),
        row("b", 3.0, "new"),
        row("c", nan, "new"),
        row("d", 7.0, "gone"),
        row(None, nan, "new"),
        row("e", nan, "first"),
        row("e", 1.0, "new"),
    ]
    lake.append(tail, schema=schema)
    small, without = rows(lake.current()), arrow_rows(lake)
    delta.sql(f"ALTER TABLE {table} ADD COLUMN `order` STRING")
    delta.sql(f"UPDATE {table} SET `order` = 'kept'").collect()
    before, without_ = rows(lake.current()), arrow_rows(lake)
    lake.compact()
    after = rows(delta.table(table))
    assert before == after == without_
    expected = rows(delta.table(table).drop("order"))
    assert small == expected == without


def test_a_delete_condition_means_what_it_means_to_the_compaction(
    delta: SparkSession, tmp_path: Path
) -> None:
    """The time zone and the settings of the reading session do not matter."""
    schema = pa.schema(
        [("id", pa.int64()), ("at", pa.timestamp("us", "UTC")), ("tags", pa.list_(pa.string()))]
    )
    when = (
        "(at < TIMESTAMP '2024-01-01 05:00:00' AND hour(at) > 1) OR size(tags) = -1"
        " OR CAST(at AS STRING) = '2024-01-01 12:00:00'"
    )
    lake = Lake(tmp_path, "id", spark=delta, delete_when=when)
    lake.append([{"id": 0, "at": None, "tags": None}], schema=schema)
    lake.compact()
    hours = [
        {"id": hour, "at": datetime(2024, 1, 1, hour, tzinfo=UTC), "tags": None}
        for hour in range(24)
    ]
    lake.append(hours, schema=schema)
    session = delta.newSession()
    session.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    session.conf.set("spark.sql.ansi.enabled", "false")
    found = sparkwal.read_current(session, lake.path, delete_when=when)
    found.createOrReplaceTempView("now")

    def ids(rows: DataFrame) -> list[int]:
        return sorted(row.id for row in rows.select("id").collect())

    before = ids(found), ids(session.table("now"))
    lake.compact()
    after = ids(lake.current(delete_when=when))
    assert after == [hour for hour in range(24) if hour not in (2, 3, 4, 12)]
    assert before == (after, after)
    assert session.conf.get("spark.sql.session.timeZone") == "Asia/Tokyo"
