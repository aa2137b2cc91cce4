"""The last row for each key, against a dictionary."""

from __future__ import annotations

import random
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from sparkwal.errors import OptionError
from sparkwal.lifecycle.merging import keyed, merged_rows
from sparkwal.lifecycle.merging.keyed import winners
from sparkwal.lifecycle.merging.merged_rows import merged
from sparkwal.reading.metadata import COLUMNS, name_text

KEYS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "long": (pa.int64(), [0, 1, -1, 2**62, None]),
    "text": (pa.string(), ["", "a", "ä", None]),
    "bytes": (pa.binary(), [b"", b"\x00", None]),
    "decimal": (pa.decimal128(10, 2), [Decimal("1.00"), Decimal("-1.00"), None]),
    "flag": (pa.bool_(), [True, False, None]),
    "float": (pa.float64(), [0.0, -0.0, 1.5, None]),
}


def with_all(rows: pa.Table) -> pa.Table:
    """The rows with COLUMNS, as of records that have all columns."""
    names = " ".join(map(name_text, rows.column_names))
    return rows.append_column(COLUMNS, pa.repeat(names, rows.num_rows))


@pytest.mark.parametrize("by", ["", "n"])
@pytest.mark.parametrize("seed", range(8))
def test_a_merge_is_a_dictionary(seed: int, by: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Table and tail together give one row for each key, for every size of a part."""
    for module in (keyed, merged_rows):
        monkeypatch.setattr(module, "PART_ROWS", 7)
    random_ = random.Random(seed)
    names = random_.sample(sorted(KEYS), random_.randrange(1, 4))
    fields = [(name, KEYS[name][0]) for name in names]
    schema = pa.schema([*fields, ("n", pa.int64()), ("gone", pa.bool_()), ("row", pa.int64())])
    numbers = iter(range(10_000))

    def row() -> dict[str, Any]:
        return {
            **{name: random_.choice(KEYS[name][1]) for name in names},
            "n": random_.choice([1, 2, 3, None]),
            "gone": random_.random() < 0.3,
            "row": next(numbers),
        }

    def key(of: dict[str, Any]) -> tuple[Any, ...]:
        return tuple(of[name] for name in names)

    def rank(of: dict[str, Any]) -> int:
        return of["n"] or 0

    table = {key(one): one for one in [row() for _ in range(20)]}
    tail = [row() for _ in range(random_.choice([0, 5, 60]))]
    last: dict[Any, dict[str, Any]] = {}
    for one in tail:
        if not by or rank(one) >= rank(last.get(key(one), one)):
            last[key(one)] = one
    expected = dict(table)
    for one in last.values():
        there = table.get(key(one))
        if by and there is not None and rank(there) > rank(one):
            continue
        expected.pop(key(one), None)
        if not one["gone"]:
            expected[key(one)] = one

    def batches(rows: list[dict[str, Any]]) -> Any:
        for start in range(0, len(rows), 3):
            yield pa.RecordBatch.from_pylist(rows[start : start + 3], schema)

    won = winners(batches(tail), schema, names, by)
    assert won.num_rows == len(last)
    found = merged(batches([*table.values()]), with_all(won), won.column("gone"), names, by)
    rows = [one["row"] for batch in found for one in batch.to_pylist()]
    assert sorted(rows) == sorted(one["row"] for one in expected.values())


def test_nan_is_one_key() -> None:
    schema = pa.schema([("k", pa.float64()), ("row", pa.int64())])
    nan = float("nan")
    table = pa.RecordBatch.from_pylist([{"k": nan, "row": 1}], schema)
    tail = pa.RecordBatch.from_pylist([{"k": nan, "row": 2}, {"k": -nan, "row": 3}], schema)
    won = winners(iter([tail]), schema, ["k"], "")
    no = pa.chunked_array([[False] * won.num_rows])
    found = pa.Table.from_batches(merged(iter([table]), with_all(won), no, ["k"], ""))
    assert found.column("row").to_pylist() == [3]


def after_merge(
    table: list[dict[str, Any]],
    tail: list[dict[str, Any]],
    schema: pa.Schema,
    by: str = "",
    columns_of: list[str] | None = None,
) -> list[dict[str, Any]]:
    """The table's rows after a MERGE of `tail` by the column k; a row with v = "gone" deletes."""
    rows = [pa.RecordBatch.from_pylist(each, schema) for each in (table, tail)]
    won = winners(iter([rows[1]]), schema, ["k"], by)
    gone = pa.chunked_array([[row["v"] == "gone" for row in won.to_pylist()]], pa.bool_())
    marked = with_all(won)
    if columns_of is not None:
        marked = won.append_column(COLUMNS, pa.array(columns_of))
    batches = merged(iter([rows[0]]), marked, gone, ["k"], by)
    return sorted(pa.Table.from_batches(batches, schema).to_pylist(), key=repr)


LONG = pa.schema([("k", pa.int64()), ("v", pa.string())])


def test_a_key_that_the_table_has_twice_is_updated_twice() -> None:
    twice = [{"k": 1, "v": "a"}, {"k": 1, "v": "b"}]
    assert after_merge(twice, [{"k": 1, "v": "new"}], LONG) == [{"k": 1, "v": "new"}] * 2
    assert after_merge(twice, [{"k": 1, "v": "gone"}], LONG) == []
    # Each for itself: the one that is newer than the log's stays.
    schema = pa.schema([*LONG, ("n", pa.int64())])
    table = [{"k": 1, "v": "old", "n": 1}, {"k": 1, "v": "newer", "n": 3}]
    tail = [{"k": 1, "v": "new", "n": 2}]
    assert after_merge(table, tail, schema, "n") == [*tail, table[1]]


@pytest.mark.parametrize("name", ["order", 'a "b\\', "V2", "ä"])
@pytest.mark.parametrize("kind", [pa.string(), pa.list_(pa.struct([("x", pa.string())]))])
def test_a_row_keeps_the_values_of_the_columns_that_its_record_lacks(
    name: str, kind: pa.DataType
) -> None:
    kept, other = ("kept", "other") if kind == pa.string() else ([{"x": "kept"}], [None])
    schema = pa.schema([*LONG, (name, kind)])
    table = [{"k": k, "v": "a", name: kept} for k in (1, 2)]
    tail = [{"k": k, "v": "new", name: other if k == 2 else None} for k in (1, 2, 3)]
    # Names of other columns contain this name or are contained in it.
    of = ["k", "v", f"{name}x", f"x{name}", name[:-1] or "x"]
    lacking, full = (" ".join(map(name_text, names)) for names in (of, [*of, name.upper()]))
    found = after_merge(table, tail, schema, columns_of=[lacking, full, lacking])
    assert found == sorted([{**tail[0], name: kept}, tail[1], tail[2]], key=repr)


@pytest.mark.parametrize("kind", [pa.float32(), pa.float64()])
def test_nan_is_the_greatest_value_as_in_spark(kind: pa.DataType) -> None:
    schema = pa.schema([*LONG, ("n", kind)])
    nan, inf = float("nan"), float("inf")

    def winner(*values: float | None) -> str:
        """The winner among rows of one key, of which the first is the table's."""
        rows = [{"k": 1, "v": str(place), "n": value} for place, value in enumerate(values)]
        (found,) = after_merge(rows[:1], rows[1:], schema, "n")
        return str(found["v"])

    assert winner(nan, 1.0, inf) == "0"
    assert winner(1.0, nan, inf) == "1"
    assert winner(nan, nan) == "1"
    assert winner(nan, nan, nan) == "2"
    assert winner(nan, None) == "0"
    assert winner(None, nan) == "1"
    assert winner(0.0, -0.0) == "1"


def test_a_struct_is_a_key() -> None:
    inner = pa.struct([("x", pa.float64()), ("y", pa.struct([("z", pa.string())]))])
    schema = pa.schema([("k", inner), ("v", pa.string())])
    values: list[Any] = [
        None,
        {"x": None, "y": None},
        {"x": None, "y": {"z": None}},
        {"x": 0.0, "y": {"z": "a"}},
        {"x": float("inf"), "y": {"z": "a"}},
    ]
    table = [{"k": key, "v": "old"} for key in values]
    for place, key in enumerate(values):
        found = after_merge(table, [{"k": key, "v": "gone"}], schema)
        assert found == sorted(table[:place] + table[place + 1 :], key=repr), key
    found = after_merge(table[3:4], [{"k": {"x": -0.0, "y": {"z": "a"}}, "v": "new"}], schema)
    assert [row["v"] for row in found] == ["new"]


@pytest.mark.parametrize(("key", "by"), [("list", ""), ("k", "list"), ("k", "struct")])
def test_types_that_arrow_cannot_compare_need_spark(key: str, by: str) -> None:
    schema = pa.schema(
        [("k", pa.int64()), ("list", pa.list_(pa.int64())), ("struct", pa.struct([LONG.field(0)]))]
    )
    row = pa.RecordBatch.from_pylist([{"k": 1, "list": [1], "struct": {"k": 1}}], schema)
    with pytest.raises(OptionError, match="read_current"):
        winners(iter([row]), schema, [key], by)
    no = pa.chunked_array([[False]])
    with pytest.raises(OptionError, match="read_current"):
        list(merged([row], with_all(pa.Table.from_batches([row])), no, [key], by))
