"""Rows whose records have different columns: however ranges are cut, one row after another."""

from __future__ import annotations

import random
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from sparkwal.format.lifecycle_record import MERGE, Target
from sparkwal.format.schema import from_arrow
from sparkwal.lifecycle.merging.keyed import older_rows, winners
from sparkwal.lifecycle.merging.merged_rows import merged
from sparkwal.reading.metadata import COLUMNS, name_text
from tests.lifecycle.lakes import Lake
from tests.lifecycle.partial_cases import CASES, LATE
from tests.lifecycle.partial_model import Model, Row, counted

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NAN = float("nan")
# The columns that a record may lack. The table has `own`, which no record has.
PARTIAL = ["v", "w", "own"]
SCHEMA = pa.schema(
    [
        ("k", pa.int64()),
        ("n", pa.float64()),
        ("gone", pa.bool_()),
        ("v", pa.int64()),
        ("w", pa.list_(pa.int64())),
        ("own", pa.string()),
        (COLUMNS, pa.string()),
    ]
)
IN_TABLE = SCHEMA.remove(SCHEMA.get_field_index(COLUMNS))


def random_row(random_: random.Random, number: int, has: Iterable[str] | None = None) -> Row:
    """A row whose record has k, n, gone and these of PARTIAL; without them some but `own`."""
    if has is None:
        has = [name for name in PARTIAL[:2] if random_.random() < 0.5]
    has = ["k", "n", "gone", *has]
    row = {
        "k": random_.choice([1, 2, None]),
        "n": random_.choice([None, -0.0, 0.0, 1.0, 2.0, NAN]),
        "gone": random_.random() < 0.2,
        "v": number,
        "w": random_.choice([None, [number]]),
        "own": None,
    }
    lacking = {name: None for name in PARTIAL if name not in has}
    return {**row, **lacking, COLUMNS: " ".join(map(name_text, has))}


def by_arrow(
    before: Iterable[Row],
    tail: list[Row],
    by: str,
    deleted: Iterable[tuple[Any, Any]] = (),
    *,
    only_winners: bool = False,
) -> list[Row]:
    """The table's rows after a MERGE of these rows of the log.

    Args:
        before: the table's rows.
        tail: the rows of the log, with COLUMNS.
        by: the column whose greater value wins, or "".
        deleted: the tombstones: keys and their sequences.
        only_winners: merge only the winning row of each key.
    """
    rows = pa.Table.from_pylist(tail, SCHEMA)
    if only_winners:
        rows = winners(rows.to_batches(), SCHEMA, ["k"], by)
    table = pa.Table.from_pylist([*before], IN_TABLE)
    deletes = rows["gone"]
    if by:
        pairs = [{"k": key, "n": n} for key, n in deleted]
        tombstones = pa.Table.from_pylist(pairs, IN_TABLE)
        counts = pc.or_(deletes, pc.invert(older_rows(tombstones.to_batches(), rows, ["k"], by)))
        rows, deletes = rows.filter(counts), deletes.filter(counts)
    batches = merged(table.to_batches(), rows, deletes, ["k"], by)
    return pa.Table.from_batches(batches, IN_TABLE).to_pylist()


def by_spark(spark: SparkSession, before: Iterable[Row], tail: list[Row], by: str) -> list[Row]:
    """As `by_arrow`, by Spark."""
    from sparkwal.spark import read_current
    from sparkwal.spark.interfaces import to_struct
    from sparkwal.spark.keyed_rows import InTable, merged_partial_rows

    in_table = to_struct(from_arrow(IN_TABLE))
    table = spark.createDataFrame([*before], in_table)
    # No record has `own`.
    in_log = to_struct(from_arrow(SCHEMA.remove(SCHEMA.get_field_index("own"))))
    rows = spark.createDataFrame(tail, in_log)
    target = Target("table", MERGE, ("k",), by, "gone")
    last = merged_partial_rows(rows, target, InTable(table), PARTIAL, is_own=True)
    found = read_current.joined(table, last, target.keys, by, in_table)
    return [row.asDict() for row in found.collect()]


@pytest.mark.parametrize(("by", "cases"), [("", CASES), ("n", {**CASES, **LATE})])
@pytest.mark.parametrize(
    "engine",
    ["arrow", pytest.param("spark", marks=(pytest.mark.spark, pytest.mark.xdist_group("spark")))],
)
def test_a_column_that_a_record_lacks_keeps_the_value_of_the_row_before(
    request: pytest.FixtureRequest,
    engine: str,
    by: str,
    cases: dict[str, tuple[Row | None, list[Row], Row | None]],
) -> None:
    table, tail = list[Row](), list[Row]()
    for key, (before, rows, _) in enumerate(cases.values()):
        common = {"k": key, "n": 1.0, "gone": False}
        table += [{**common, **before}] if before else []
        for row in rows:
            has = [*common, *row]
            tail.append({**common, **row, COLUMNS: " ".join(map(name_text, has))})
    merge = partial(by_spark, request.getfixturevalue("spark")) if engine == "spark" else by_arrow
    found = {row["k"]: row for row in merge(table, tail, by)}
    for key, (case, (_, _, after)) in enumerate(cases.items()):
        expected = [{"k": key, "n": 1.0, "gone": False, **after}] if after else []
        assert counted(expected) == counted([found[key]] if key in found else []), case


@pytest.mark.parametrize("by", ["", "n"])
@pytest.mark.parametrize("seed", range(30))
def test_a_range_is_the_same_as_one_range_for_each_row(seed: int, by: str) -> None:
    random_ = random.Random(seed)
    model = Model("k", by)
    for key in (1, None):
        row = {"k": key, "n": 1.0, "gone": False, "v": 0, "w": [0], "own": "own"}
        model.apply(row)
    number = 0
    for _ in range(6):
        tail = []
        for _ in range(random_.randrange(1, 9)):
            number += 1
            tail.append(random_row(random_, number))
        found = by_arrow(model.rows.values(), tail, by, model.tombstones.items())
        for row in tail:
            has = [name for name in IN_TABLE.names if name_text(name) in row[COLUMNS]]
            model.apply({name: row[name] for name in has})
        assert counted(found) == counted([*model.rows.values()])


@pytest.mark.parametrize("by", ["", "n"])
@pytest.mark.parametrize("seed", range(30))
def test_the_winning_rows_suffice_if_all_records_have_the_same_columns(seed: int, by: str) -> None:
    random_ = random.Random(seed)
    model = Model("k", by)
    for key in (1, None):
        model.apply({"k": key, "n": 1.0, "gone": False, "v": 0, "w": [0], "own": "own"})
    for first in range(0, 60, 10):
        # A row may delete another only if the records have all columns of the table.
        deletes = random_.random() < 0.5
        has = PARTIAL if deletes else [name for name in PARTIAL if random_.random() < 0.5]
        rows = range(first, first + random_.randrange(1, 9))
        tail = [random_row(random_, number, has) for number in rows]
        if not deletes:
            tail = [{**row, "gone": False} for row in tail]
        before, tombstones = model.rows.values(), model.tombstones.items()
        found = by_arrow(before, tail, by, tombstones, only_winners=True)
        for row in tail:
            model.apply(
                {name: row[name] for name in IN_TABLE.names if name_text(name) in row[COLUMNS]}
            )
        assert counted(found) == counted([*model.rows.values()])


def test_a_reader_of_one_log_merges_rows_of_records_with_other_columns(tmp_path: Path) -> None:
    """The log gains a column between two records, and an older column is not in the next one."""
    narrow = pa.schema([("k", pa.int64()), ("v", pa.string()), ("gone", pa.bool_())])
    wide = narrow.append(pa.field("w", pa.int64()))
    lake = Lake(tmp_path, "k", delete_when="gone")
    lake.append([{"k": 1, "v": "a", "w": 1, "gone": False}], schema=wide)
    lake.compact()
    other = Lake(tmp_path, "k", sequencer="other", delete_when="gone")
    other.append(
        [{"k": 1, "v": "b", "gone": True}, {"k": 2, "v": "b", "gone": False}], schema=narrow
    )
    other.append([{"k": 1, "v": "c", "gone": False}], schema=narrow)
    lake.append([{"k": 2, "v": "d", "w": 2, "gone": False}], schema=wide)
    other.append([{"k": 2, "v": "e", "gone": False}], schema=narrow)
    found = lake.reader().current(sequencers="*").to_arrow().to_pylist()
    assert sorted(found, key=lambda row: row["k"]) == [
        {"k": 1, "v": "c", "w": None, "gone": False},
        {"k": 2, "v": "e", "w": 2, "gone": False},
    ]
