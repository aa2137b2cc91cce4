"""MERGE by keys against a model: a dict to which one range after the other is applied."""

from __future__ import annotations

import datetime as dt
import math
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import sparkwal
from sparkwal.errors import OptionError, PlanError
from sparkwal.format.lifecycle_record import MERGE, Target
from sparkwal.spark.keyed_rows import winning_rows
from tests.lifecycle.lakes import Lake, Rows, as_set

SCHEMA = pa.schema(
    [
        ("name", pa.string()),
        ("day", pa.date32()),
        ("number", pa.int32()),
        ("at", pa.timestamp("us", "UTC")),
        ("share", pa.float64()),
        ("seq", pa.int64()),
        ("op", pa.string()),
        ("v", pa.int64()),
    ]
)
DAYS = (None, dt.date(2024, 2, 29), dt.date(1969, 12, 31))
MOMENTS = (
    None,
    dt.datetime(2024, 2, 29, 23, 59, 59, 1, dt.UTC),
    dt.datetime(1960, 1, 1, tzinfo=dt.UTC),
)


def drawn(draw: random.Random, v: int) -> dict[str, Any]:
    return {
        "name": draw.choice((None, "", "a", "ß`\"'")),
        "day": draw.choice(DAYS),
        "number": draw.choice((None, 0, -1)),
        "at": draw.choice(MOMENTS),
        "share": draw.choice((None, 0.0, math.inf, -1.5)),
        "seq": draw.choice((None, 1, 2, 3, 4)),
        "op": draw.choice(("u", "u", "d", None)),
        "v": v,
    }


class Model:
    """A model of the table after each range."""

    def __init__(self, keys: tuple[str, ...], sequence_by: str, deletes: bool) -> None:
        self.keys = keys
        self.sequence_by = sequence_by
        self.deletes = deletes
        self.rows: dict[tuple[object, ...], dict[str, Any]] = {}

    def apply(self, rows: Rows) -> None:
        last: dict[tuple[object, ...], dict[str, Any]] = {}
        for row in rows:
            key = tuple(row[name] for name in self.keys)
            if key not in last or self._at(row) >= self._at(last[key]):
                last[key] = row
        for key, row in last.items():
            there = self.rows.get(key)
            if there is not None and self._at(row) < self._at(there):
                continue
            if self.deletes and row["op"] == "d":
                self.rows.pop(key, None)
            else:
                self.rows[key] = row

    def _at(self, row: dict[str, Any]) -> int:
        found = row[self.sequence_by] if self.sequence_by else 0
        return -1 if found is None else int(found)


SHAPES: dict[str, dict[str, Any]] = {
    "sequence": {"keys": ("at",), "sequence_by": "seq", "delete_when": "op = 'd'"},
    "by date": {"keys": ("day", "share"), "partition_by": ("day",), "delete_when": "op = 'd'"},
    "by int": {"keys": ("name", "number"), "partition_by": ("number",), "sequence_by": "seq"},
    "by moment": {
        "keys": ("at", "name"),
        "partition_by": ("at",),
        "properties": (("delta.enableDeletionVectors", "true"),),
    },
    "clustered": {
        "keys": ("name", "day"),
        "cluster_by": ("name", "day"),
        "properties": (("delta.enableDeletionVectors", "true"),),
        "delete_when": "op = 'd'",
    },
}


def ranges(draw: random.Random) -> Iterator[list[Rows]]:
    """Commits of each range; the number `v` is that of the row."""
    v = 0
    for _ in range(3):
        commits = []
        for _ in range(draw.randrange(3)):
            size = draw.choice((1, 5, 40))
            commits.append([drawn(draw, v + n) for n in range(size)])
            v += size
        yield commits


# Partitions and keys of each type take long: one of the shapes runs always.
OFTEN = ("sequence",)
# Seeds that once failed.
FOUND = [("clustered", 47)]


@pytest.mark.parametrize(
    ("shape", "seed"),
    [
        *(
            pytest.param(each, None, marks=[] if each in OFTEN else pytest.mark.slow, id=each)
            for each in SHAPES
        ),
        *(pytest.param(*each, marks=pytest.mark.slow, id="{}-{}".format(*each)) for each in FOUND),
    ],
)
def test_the_table_is_the_model_after_each_range(
    delta: SparkSession, tmp_path: Path, shape: str, seed: int | None
) -> None:
    if seed is None:
        seed = random.randrange(2**32)
    print(f"seed {seed}")
    given = dict(SHAPES[shape])
    keys = given.pop("keys")
    log = Lake(tmp_path, *keys, spark=delta, schema=SCHEMA, **given)
    model = Model(keys, given.get("sequence_by", ""), "delete_when" in given)
    log.append()
    expected: dict[int, list[str]] = {}
    for commits in ranges(random.Random(seed)):
        log.append(*commits)
        version = log.carry().version
        model.apply([row for commit in commits for row in commit])
        expected[version] = as_set(list(model.rows.values()))
    assert list(expected) == [1, 2, 3] and log.ranges() == [1, 2, 3]
    for version, rows in zip(expected, log.rows_of(*expected), strict=True):
        assert as_set([utc(row) for row in rows]) == expected[version]


def utc(row: dict[str, Any]) -> dict[str, Any]:
    """Spark hands out moments in the zone of this process."""
    at = row["at"]
    return row if at is None else {**row, "at": at.astimezone(dt.UTC)}


@pytest.mark.slow
def test_a_delete_of_a_null_key_works_with_and_without_a_row(
    delta: SparkSession, tmp_path: Path
) -> None:
    vectors = (("delta.enableDeletionVectors", "true"),)
    keys = ("name", "day")
    log = Lake(
        tmp_path, *keys, spark=delta, schema=SCHEMA, properties=vectors, delete_when="op = 'd'"
    )
    more = pa.schema([*SCHEMA, ("more", pa.int64())])
    # A row of nulls alone is what an outer join makes of a row that is not there.
    nothing: dict[str, Any] = dict.fromkeys(more.names)
    kept, delete = {**nothing, "name": "a", "v": 1}, {**nothing, "op": "d"}
    log.append([kept, nothing])
    log.carry()
    for schema, v in ((SCHEMA, 2), (more, 3), (more, 4)):
        kept["v"] = v
        log.schema = schema
        log.append([kept, delete])
        log.carry()
        columns = {name: kept[name] for name in schema.names}
        assert as_set(log.rows()) == as_set([columns]), v
    log.append([nothing, kept])
    log.carry()
    assert as_set(log.rows()) == as_set([nothing, kept])


@pytest.mark.slow
def test_a_condition_that_fails_on_rows_promises_no_range(
    delta: SparkSession, tmp_path: Path
) -> None:
    log = Lake(
        tmp_path, "id", spark=delta, schema=pa.schema([("id", pa.int64()), ("n", pa.int32())])
    )
    log.append([{"id": 1, "n": 1}, {"id": 2, "n": 0}])

    def compact(condition: str) -> None:
        sparkwal.Lifecycle(
            log.path,
            spark=delta,
            table=log.target.table,
            keys=["id"],
            delete_when=condition,
            collects=False,
        ).run_once(whole=True)

    for fails in ("n = 'abc'", "1 / n > 1"):
        with pytest.raises(PlanError, match="delete_when .* fails on rows of the log"):
            compact(fails)
    compact("n = 0")
    assert as_set(log.rows()) == as_set([{"id": 1, "n": 1}])


@pytest.mark.slow
def test_rows_are_appended_to_partitions(delta: SparkSession, tmp_path: Path) -> None:
    log = Lake(tmp_path, spark=delta, schema=SCHEMA, partition_by=("day", "number", "at"))
    rows = [drawn(random.Random(n), n) for n in range(12)]
    log.append(rows[:8], rows[8:])
    log.carry()
    assert as_set([utc(row) for row in log.rows()]) == as_set(rows)


def test_a_log_that_has_a_column_of_a_name_reserved_since_is_refused(delta: SparkSession) -> None:
    rows = delta.range(1).selectExpr("id", "id AS _wal_order")
    with pytest.raises(OptionError, match="_wal_order"):
        winning_rows(rows, Target("table", MERGE, ("id",)))
