"""Deleted keys whose older rows come late: wherever the ranges are cut, the table, and table and
log as one with and without Spark, are the same."""

from __future__ import annotations

import datetime as dt
import random
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import sparkwal
from sparkwal.errors import ConfirmError, PlanError
from sparkwal.lifecycle.table import SEQUENCE
from sparkwal.spark import tombstones
from sparkwal.spark.delta import SparkDeltaTable
from sparkwal.spark.delta_files import spark_path
from tests.lifecycle.lakes import STAGES, Lake

NAN = float("nan")
WEEK_MS = 7 * 86_400_000
SEQUENCES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "number": (pa.int64(), [None, 1, 2, 3, 4, 5]),
    "float": (pa.float64(), [None, -1.0, 0.0, -0.0, 2.5, NAN]),
    "text": (pa.string(), [None, "", "a", "ä", "b"]),
    "moment": (
        pa.timestamp("us", "UTC"),
        [None, *(dt.datetime(2024, 2, 29, hour, tzinfo=dt.UTC) for hour in range(5))],
    ),
    "day": (pa.date32(), [None, *(dt.date(1969, 12, 28 + n) for n in range(4))]),
}


def schema_with(kind: pa.DataType) -> pa.Schema:
    return pa.schema([("a", pa.int64()), ("b", pa.string()), ("n", kind), ("op", pa.string())])


NUMBERS = schema_with(pa.int64())


def row(n: Any, op: str = "u", a: int | None = 1) -> dict[str, Any]:
    return {"a": a, "b": None, "n": n, "op": op}


def rank(value: Any) -> tuple[Any, ...]:
    """Order sequences as Spark does: null first, NaN last, texts by their bytes."""
    if value is None:
        return (0,)
    if value != value:
        return (2,)
    return (1, value.encode() if isinstance(value, str) else value)


def rows(found: list[dict[str, Any]]) -> Counter[str]:
    return Counter(repr(sorted((k, utc(v)) for k, v in each.items())) for each in found)


def utc(value: Any) -> Any:
    if isinstance(value, dt.datetime):
        return value.astimezone(dt.UTC)
    # Equal to its positive.
    return 0.0 if isinstance(value, float) and value == 0 else value


def of(*expected: dict[str, Any]) -> Counter[str]:
    return rows([*expected])


def table(lake: Lake) -> Counter[str]:
    found = lake.spark.read.format("delta").load(lake.target.table).collect()
    return rows([each.asDict() for each in found])


def current(lake: Lake) -> Counter[str]:
    """By Spark, and the same without it."""
    found = rows([each.asDict() for each in lake.current().collect()])
    assert rows(sparkwal.Log(lake.path).current().to_arrow().to_pylist()) == found
    return found


def lake_of(delta: SparkSession, folder: Path, **how: Any) -> Lake:
    given = {"sequence_by": "n", "delete_when": "op = 'd'", "tombstone_horizon_ms": WEEK_MS}
    return Lake(folder, "a", "B", spark=delta, **given, **how)


def kept(lake: Lake) -> Counter[Any]:
    """The sequences of the tombstones."""
    found = lake.spark.read.format("delta").load(lake.target.tombstones).collect()
    return Counter(utc(each[SEQUENCE]) for each in found)


def lifecycle(lake: Lake, **options: Any) -> sparkwal.Lifecycle:
    return sparkwal.Lifecycle(
        lake.path,
        spark=lake.spark,
        table=lake.target.table,
        keys=["a", "B"],
        sequence_by="n",
        delete_when="op = 'd'",
        lateArriveWindowSeconds=0,
        **options,
    )


@pytest.mark.parametrize(
    "cuts", [(2, 3), *(pytest.param(c, marks=pytest.mark.slow) for c in [(3,), (1, 3), (1, 2, 3)])]
)
def test_a_late_row_does_not_bring_a_deleted_key_back(
    delta: SparkSession, tmp_path: Path, cuts: tuple[int, ...]
) -> None:
    lake = lake_of(delta, tmp_path)
    changes = [row(1), row(10, "d"), row(5)]
    done = 0
    for cut in cuts:
        lake.append(changes[done:cut], schema=NUMBERS)
        lifecycle(lake).run_once(whole=True)
        done = cut
    assert table(lake) == current(lake) == of()
    lake.append([row(11)], schema=NUMBERS)
    assert current(lake) == of(row(11))
    lifecycle(lake).run_once(whole=True)
    assert table(lake) == of(row(11))


def test_without_a_horizon_a_late_row_brings_it_back(delta: SparkSession, tmp_path: Path) -> None:
    lake = lake_of(delta, tmp_path)
    for changes in ([row(1), row(10, "d")], [row(5)]):
        lake.append(changes, schema=NUMBERS)
        lifecycle(lake, tombstoneHorizon=0).run_once(whole=True)
    assert table(lake) == current(lake) == of(row(5))
    assert not Path(lake.target.tombstones).exists()
    with pytest.raises(PlanError, match="tombstone_horizon_ms: 0 there"):
        lifecycle(lake).run_once(whole=True)


@pytest.mark.slow
@pytest.mark.parametrize("kind", SEQUENCES)
def test_the_greatest_row_of_each_key_stays_at_every_stage(
    delta: SparkSession, tmp_path: Path, kind: str
) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    random_ = random.Random(seed)
    type_, values = SEQUENCES[kind]
    schema = schema_with(type_)
    lake = lake_of(delta, tmp_path)
    model: dict[Any, dict[str, Any]] = {}
    for number in range(6):
        batch = []
        for _ in range(random_.randrange(1, 8)):
            each = {
                "a": random_.choice([1, 2, None]),
                "b": random_.choice(["x", None]),
                "n": random_.choice(values),
                "op": random_.choice(["d", "u", None]),
            }
            batch.append(each)
            key = (each["a"], each["b"])
            if key not in model or rank(each["n"]) >= rank(model[key]["n"]):
                model[key] = each
        lake.append(batch, schema=schema)
        expected = of(*(each for each in model.values() if each["op"] != "d"))
        if number:
            assert current(lake) == expected, seed
        stage = random_.choice(["none", "intent", "kept", "written", "done"]) if number else "done"
        if stage == "kept":
            lake.intent()
            lake.keep()
        else:
            lake.compact(stage)
        assert current(lake) == expected, (seed, stage) if number else seed
        if lake.head().is_open:
            if stage != "written":
                lake.write()
                assert current(lake) == expected, (seed, stage)
            lake.done()
        if stage != "none":
            assert table(lake) == expected, (seed, stage)


class Killed(BaseException):
    """The process is killed: nothing of the library catches it."""


@pytest.mark.parametrize("place", ["before", pytest.param("after", marks=pytest.mark.slow)])
def test_a_range_whose_process_died_between_the_two_writes_is_finished_with_the_same_rows(
    delta: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    lake = lake_of(delta, tmp_path)
    lake.append([row(1), row(1, a=2)], schema=NUMBERS)
    lifecycle(lake).run_once(whole=True)
    lake.append([row(10, "d"), row(3, a=2)], schema=NUMBERS)
    write = SparkDeltaTable.write

    def die(*arguments: Any) -> None:
        if place == "after":
            write(*arguments)
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(SparkDeltaTable, "write", die)
        with pytest.raises(Killed):
            lifecycle(lake).run_once(whole=True)
    assert kept(lake) == {10: 1}
    lake.append([row(5)], schema=NUMBERS)
    assert current(lake) == of(row(3, a=2))
    assert lifecycle(lake).recover().found == "an open range"
    assert table(lake) == of(row(3, a=2))
    lifecycle(lake).run_once(whole=True)
    assert table(lake) == current(lake) == of(row(3, a=2))
    history = lake.spark.sql(f"DESCRIBE HISTORY delta.`{lake.target.tombstones}`")
    operations = [each.operation for each in history.collect()]
    # A range that deletes no key brings its transaction only.
    assert operations == ["WRITE", "WRITE", "WRITE", "CREATE TABLE"]


@pytest.mark.slow
def test_a_table_that_was_restored_gets_its_range_again(
    delta: SparkSession, tmp_path: Path
) -> None:
    """Its tombstones are ahead of it: they are of the rows that it gets again."""
    lake = lake_of(delta, tmp_path)
    lake.append([row(1), row(2, a=2)], schema=NUMBERS)
    lake.compact()
    lake.append([row(10, "d"), row(10, "d", a=3)], schema=NUMBERS)
    lake.compact("written")
    delta.sql(f"RESTORE delta.`{lake.target.table}` TO VERSION AS OF 1").collect()
    with pytest.raises(ConfirmError, match="Restore it to version 1"):
        lifecycle(lake).run_once()
    lifecycle(lake).accept_table()
    lake.append([row(5), row(9, a=3)], schema=NUMBERS)
    assert current(lake) == of(row(2, a=2))
    lifecycle(lake).run_once(whole=True)
    assert table(lake) == current(lake) == of(row(2, a=2))


@pytest.mark.slow
@pytest.mark.parametrize("stage", ["done", "kept", "written"])
def test_tombstones_that_were_restored_stop_it_until_they_are_accepted(
    delta: SparkSession, tmp_path: Path, stage: str
) -> None:
    lake = lake_of(delta, tmp_path)
    lake.append([row(1)], schema=NUMBERS)
    lake.append([row(10, "d")], schema=NUMBERS)
    lake.compact()
    lake.append([row(10, "d", a=2)], schema=NUMBERS)
    if stage == "kept":
        lake.intent()
        lake.keep()
    else:
        lake.compact(stage)
    lake.append([row(5), row(5, a=2)], schema=NUMBERS)
    wanted = 2 if stage == "done" else 1
    path = f"delta.`{lake.target.tombstones}`"
    delta.sql(f"RESTORE {path} TO VERSION AS OF 0").collect()
    for read in (
        lake.current,
        sparkwal.Log(lake.path).current,
        lifecycle(lake).run_once,
    ):
        with pytest.raises(ConfirmError, match=rf"Restore .*_tombstones to version {wanted}, or"):
            read()
    with pytest.raises(PlanError, match=f"less than its version {wanted}"):
        lifecycle(lake).accept_table()
    delta.sql(f"RESTORE {path} TO VERSION AS OF {wanted}").collect()
    lifecycle(lake).accept_table()
    assert current(lake) == of()
    lifecycle(lake).run_once(whole=True)
    assert table(lake) == current(lake) == of()
    assert kept(lake) == {10: 2}


@pytest.mark.slow
def test_missing_tombstones_begin_anew_once_they_are_accepted(
    delta: SparkSession, tmp_path: Path
) -> None:
    lake = lake_of(delta, tmp_path)
    lake.append([row(10, "d")], schema=NUMBERS)
    lake.compact()
    lake.append([row(10, "d", a=2)], schema=NUMBERS)
    lake.compact("written")
    shutil.rmtree(lake.target.tombstones)
    with pytest.raises(ConfirmError, match="which keeps the deleted keys of .* is missing"):
        lifecycle(lake).run_once()
    lifecycle(lake).accept_table()
    # The open range wrote its keys again.
    lake.append([row(5), row(5, a=2)], schema=NUMBERS)
    assert current(lake) == of(row(5))
    lifecycle(lake).run_once(whole=True)
    assert table(lake) == current(lake) == of(row(5))
    lake.append([row(4, "d", a=3)], schema=NUMBERS)
    lifecycle(lake).run_once(whole=True)
    assert kept(lake) == {10: 1, 4: 1}


@pytest.mark.slow
def test_a_folder_of_somebody_else_is_no_place_for_tombstones(
    delta: SparkSession, tmp_path: Path
) -> None:
    lake = lake_of(delta, tmp_path)
    lake.append([row(1)], schema=NUMBERS)
    delta.range(1).write.format("delta").save(lake.target.tombstones)
    with pytest.raises(PlanError, match="should keep the deleted keys of .*, and it is of none"):
        lifecycle(lake).run_once(whole=True)


def test_a_key_may_have_several_tombstones_and_the_greatest_counts(
    delta: SparkSession, tmp_path: Path
) -> None:
    lake = lake_of(delta, tmp_path)
    for changes in ([row(9, "d")], [row(12, "d"), row(7, a=2)], [row(10, "d")]):
        lake.append(changes, schema=NUMBERS)
        lake.compact()
    assert kept(lake) == {9: 1, 12: 1, 10: 1}
    lake.append([row(11)], schema=NUMBERS)
    assert current(lake) == of(row(7, a=2))
    lake.compact()
    assert table(lake) == current(lake) == of(row(7, a=2))
    lake.append([row(12)], schema=NUMBERS)
    lake.compact()
    assert table(lake) == current(lake) == of(row(7, a=2), row(12))


def test_a_tombstone_that_a_user_deleted_counts_no_more(
    delta: SparkSession, tmp_path: Path
) -> None:
    """A deletion vector hides it in a file with another, and a checkpoint names that file."""
    lake = lake_of(delta, tmp_path)
    lake.append([row(10, "d"), row(10, "d", a=2)], schema=NUMBERS)
    lake.compact()
    of_kept = f"delta.`{lake.target.tombstones}`"
    properties = "'delta.enableDeletionVectors' = 'true', 'delta.checkpointInterval' = '1'"
    delta.sql(f"ALTER TABLE {of_kept} SET TBLPROPERTIES ({properties})")
    delta.sql(f"DELETE FROM {of_kept} WHERE a = 2")
    lake.append([row(5), row(5, a=2)], schema=NUMBERS)
    lake.compact()
    assert table(lake) == current(lake) == of(row(5, a=2))


MOMENTS = schema_with(pa.timestamp("us", "UTC"))


@pytest.mark.slow
def test_a_tombstone_is_dropped_after_its_horizon(delta: SparkSession, tmp_path: Path) -> None:
    """By the newest sequence, so that rows of long ago are no different; a sequence ahead of the
    clock drops nothing. The range that drops some adds its own all the same."""
    lake = lake_of(delta, tmp_path)
    begin = dt.datetime(2001, 2, 3, tzinfo=dt.UTC)
    ahead = dt.datetime(9999, 1, 1, tzinfo=dt.UTC)

    def compact(*changes: dict[str, Any]) -> None:
        lake.append(changes, schema=MOMENTS)
        # Each range looks for them: a part of this horizon is shorter than a range takes.
        lifecycle(lake, tombstoneHorizon="7ms").run_once(whole=True)

    def ms(number: float) -> dt.datetime:
        return begin + dt.timedelta(milliseconds=number)

    compact(row(ms(1), "d"), row(ms(0), "d", a=2))
    assert kept(lake) == {ms(1): 1, ms(0): 1}
    compact(row(ms(8), a=3), row(ms(0.5)))
    assert kept(lake) == {ms(1): 1}
    assert table(lake) == of(row(ms(8), a=3))
    # One that is beyond the horizon already is not kept.
    compact(row(ms(9), a=3), row(ms(1), "d", a=4))
    assert kept(lake) == {}
    compact(row(ms(10), "d", a=5))
    compact(row(ms(20), "d", a=6))
    assert kept(lake) == {ms(20): 1}
    compact(row(ahead, a=3))
    assert kept(lake) == {}


@pytest.mark.slow
def test_tombstones_beyond_the_horizon_are_not_looked_for_by_each_range(
    delta: SparkSession, tmp_path: Path
) -> None:
    lake = lake_of(delta, tmp_path)
    old, new = (dt.datetime(year, 1, 1, tzinfo=dt.UTC) for year in (1800, 2020))

    for changes in ([row(old, "d")], [row(new, a=2)]):
        lake.append(changes, schema=MOMENTS)
        # A 64th part of it is longer than a year.
        lifecycle(lake, tombstoneHorizon="36500d").run_once(whole=True)
    assert kept(lake) == {old: 1}


@pytest.mark.slow
def test_many_files_of_tombstones_become_one(
    delta: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tombstones, "_MOST_FILES", 2)
    lake = lake_of(delta, tmp_path)
    same = dt.datetime(2001, 2, 3, tzinfo=dt.UTC)
    for a in range(4):
        lake.append([row(same, "d", a=a)], schema=MOMENTS)
        lifecycle(lake, tombstoneHorizon="1ms").run_once(whole=True)
    assert kept(lake) == {same: 4}
    (detail,) = delta.sql(f"DESCRIBE DETAIL delta.`{lake.target.tombstones}`").collect()
    assert detail["numFiles"] == 2


@pytest.mark.slow
def test_a_tombstone_without_a_time_is_dropped_after_its_compaction(
    delta: SparkSession, tmp_path: Path
) -> None:
    lake = lake_of(delta, tmp_path)
    life = lifecycle(lake, tombstoneHorizon=1)
    for changes in ([row(10, "d")], [row(1, "d", a=2)], [row(5)]):
        lake.append(changes, schema=NUMBERS)
        life.run_once(whole=True)
    assert kept(lake) == {}
    assert table(lake) == of(row(5))


@pytest.mark.slow
def test_a_delete_of_one_log_counts_for_the_rows_of_another(
    delta: SparkSession, tmp_path: Path
) -> None:
    one, two = (lake_of(delta, tmp_path, sequencer=name) for name in "xy")
    one.append([row(1)], schema=NUMBERS)
    one.compact()
    one.append([row(10, "d")], schema=NUMBERS)
    one.compact()
    two.append([row(5), row(6, a=2)], schema=NUMBERS)
    found = sparkwal.read_current(delta, one.path, sequencers="*").collect()
    assert rows([each.asDict() for each in found]) == of(row(6, a=2))
    two.compact()
    assert table(one) == of(row(6, a=2))
    two.append([row(12), row(7, "d", a=2)], schema=NUMBERS)
    two.compact()
    one.append([row(6, a=2)], schema=NUMBERS)
    one.compact()
    assert table(one) == of(row(12))
    assert [*STAGES] and kept(one) == {10: 1, 7: 1}


@pytest.mark.slow
@pytest.mark.parametrize(
    "how",
    [
        {"properties": (("delta.enableDeletionVectors", "true"),), "cluster_by": ("a",)},
        {"properties": (("delta.columnMapping.mode", "name"),), "partition_by": ("b",)},
    ],
)
def test_tables_of_every_feature_have_tombstones(
    delta: SparkSession, tmp_path: Path, how: dict[str, Any]
) -> None:
    """A key may be all null, and a text that no partition can have."""
    lake = lake_of(delta, tmp_path, **how)
    changes = ([row(10, "d", a=None), {**row(10, "d"), "b": ""}], [row(5, a=None), row(5)])
    for batch in changes:
        lake.append(batch, schema=NUMBERS)
        lake.compact()
    expected = of() if "partition_by" in how else of(row(5))
    assert table(lake) == expected == current(lake)


@pytest.mark.parametrize("also_log", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_the_tombstones_follow_columns_of_the_table_that_become_wider(
    delta: SparkSession, tmp_path: Path, *, also_log: bool
) -> None:
    narrow = pa.schema(
        [("a", pa.int32()), ("b", pa.string()), ("n", pa.int32()), ("op", pa.string())]
    )
    lake = lake_of(delta, tmp_path)
    lake.append([row(1), row(10, "d"), row(3, a=2)], schema=narrow)
    lifecycle(lake).run_once(whole=True)
    of_table, of_kept = f"delta.`{lake.target.table}`", f"delta.`{lake.target.tombstones}`"
    before = delta.sql(f"DESCRIBE DETAIL {of_kept}").collect()[0]["id"]
    commits = Path(spark_path(lake.target.tombstones).removeprefix("file://")) / "_delta_log"
    assert not any("minValues" in file.read_text() for file in commits.glob("*.json"))
    delta.sql(f"ALTER TABLE {of_table} SET TBLPROPERTIES ('delta.enableTypeWidening' = 'true')")
    for name in "a", "n":
        delta.sql(f"ALTER TABLE {of_table} ALTER COLUMN {name} TYPE BIGINT")
    big = 2**40 if also_log else 7
    late = [row(5), row(big, "d", a=2), row(big - 1, a=2)]
    lake.append(late, schema=NUMBERS if also_log else narrow)
    assert rows([each.asDict() for each in lake.current().collect()]) == of()
    lifecycle(lake).run_once(whole=True)
    assert table(lake) == of() and kept(lake) == Counter([10, big])
    types = dict(delta.table(of_kept).dtypes)
    assert (types["a"], types[SEQUENCE]) == ("bigint", "bigint")
    assert delta.sql(f"DESCRIBE DETAIL {of_kept}").collect()[0]["id"] == before
    lake.append([row(big - 2, a=2)], schema=NUMBERS if also_log else narrow)
    lifecycle(lake).run_once(whole=True)
    assert table(lake) == of()
