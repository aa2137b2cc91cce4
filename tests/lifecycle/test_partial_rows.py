"""Rows whose records have different columns: however ranges are cut, one row after another."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from sparkwal.lifecycle.merging.keyed import merged, older_rows
from sparkwal.lifecycle.merging.partial_rows import merge_partial
from sparkwal.reading.metadata import COLUMNS, name_text
from tests.lifecycle.lakes import Lake
from tests.lifecycle.partial_model import Model, Row, counted

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


def random_row(random_: random.Random, number: int) -> Row:
    has = ["k", "n", "gone", *(name for name in PARTIAL[:2] if random_.random() < 0.5)]
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


def after_range(model: Model, tail: list[Row], by: str) -> list[Row]:
    """The table's rows after a MERGE of these rows of the log."""
    rows = pa.Table.from_pylist(tail, SCHEMA)
    table = pa.Table.from_pylist([*model.rows.values()], IN_TABLE)
    deletes = rows["gone"]
    if by:
        pairs = [{"k": key, "n": n} for key, n in model.tombstones.items()]
        tombstones = pa.Table.from_pylist(pairs, IN_TABLE)
        counts = pc.or_(deletes, pc.invert(older_rows(tombstones.to_batches(), rows, ["k"], by)))
        rows = rows.filter(counts)
        is_older = older_rows(table.to_batches(), rows, ["k"], by, than_all=True)
        rows = rows.filter(pc.invert(is_older))
        deletes = rows["gone"]
    last, gone = merge_partial(rows, deletes, ["k"], by, PARTIAL)
    columns_of = last[COLUMNS]
    batches = merged(
        iter(table.to_batches()), last.select(IN_TABLE.names), gone, ["k"], by, columns_of
    )
    return pa.Table.from_batches(batches, IN_TABLE).to_pylist()


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
        found = after_range(model, tail, by)
        for row in tail:
            has = [name for name in IN_TABLE.names if name_text(name) in row[COLUMNS]]
            model.apply({name: row[name] for name in has})
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
