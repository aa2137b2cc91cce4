"""The fingerprint of rows: equal for equal rows in any order and any batches."""

from __future__ import annotations

import json
from decimal import Decimal

import pyarrow as pa
from hypothesis import example, given
from hypothesis import strategies as st

from sparkwal.format.content import Content
from sparkwal.format.schema import normalize, to_arrow

INNER = st.none() | st.fixed_dictionaries(
    {"a": st.none() | st.integers(0, 3), "b": st.none() | st.text("äb", max_size=2)}
)
KINDS = {
    "long": pa.int64(),
    "bool": pa.bool_(),
    "text": pa.string(),
    "void": pa.null(),
    "list": pa.list_(pa.list_(pa.string())),
    "struct": pa.struct([("a", pa.int16()), ("b", pa.string())]),
    "map": pa.map_(pa.string(), pa.list_(pa.struct([("a", pa.int16()), ("b", pa.string())]))),
    "decimal": pa.decimal128(38, 2),
    "double": pa.float64(),
}
ROW = st.fixed_dictionaries(
    {
        "long": st.none() | st.integers(0, 2),
        "bool": st.none() | st.booleans(),
        "text": st.none() | st.text("aä", max_size=2),
        "void": st.none(),
        "list": st.none() | st.lists(st.none() | st.lists(st.none() | st.text("a", max_size=1))),
        "struct": INNER,
        "map": st.none() | st.dictionaries(st.text("ab", max_size=1), st.none() | st.lists(INNER)),
        "decimal": st.none() | st.integers(-1, 1).map(Decimal),
        "double": st.none() | st.sampled_from([0.0, -0.0, 1.5]),
    }
)
ROWS = st.lists(ROW, max_size=6)


def batch(rows: list[dict[str, object]]) -> pa.RecordBatch:
    columns = {
        name: pa.array(
            [
                list(row[name].items())
                if isinstance(row[name], dict) and name == "map"
                else row[name]  # type: ignore[union-attr]
                for row in rows
            ],
            kind,
        )
        for name, kind in KINDS.items()
    }
    return pa.record_batch(columns)


def content(*batches: pa.RecordBatch) -> Content:
    return Content.of(batches)


def alike(row: object) -> object:
    """Equal for rows that are equal by every bit: 0.0 is not -0.0, and dicts have no order."""
    if isinstance(row, dict):
        return sorted((name, alike(value)) for name, value in row.items())
    if isinstance(row, list):
        return [alike(value) for value in row]
    return repr(row)


def bag(rows: list[dict[str, object]]) -> list[str]:
    return sorted(repr(alike(row)) for row in rows)


@given(ROWS, st.data())
def test_rows_are_the_same_wherever_they_are_cut_and_in_any_order(
    rows: list[dict[str, object]], data: st.DataObject
) -> None:
    whole = batch(rows)
    cut = data.draw(st.integers(0, len(rows)))
    # Slices share buffers, with offsets into them; copies do not.
    assert content(whole.slice(0, cut), whole.slice(cut)) == content(whole)
    assert content(batch(rows[cut:]), batch(rows[:cut])) == content(whole)
    assert content(batch(data.draw(st.permutations(rows)))) == content(whole)


PLAIN: dict[str, object] = dict.fromkeys(KINDS)


@given(ROWS, ROWS)
@example(
    [{**PLAIN, "struct": {"a": 1, "b": None}}], [{**PLAIN, "struct": {"b": None, "a": 1}}]
).via("a dict's order of keys means nothing")
def test_other_rows_have_another_content(
    one: list[dict[str, object]], other: list[dict[str, object]]
) -> None:
    assert (content(batch(one)) == content(batch(other))) == (bag(one) == bag(other))


@given(ROW, ROW)
def test_one_different_value_gives_another_content(
    one: dict[str, object], other: dict[str, object]
) -> None:
    before = content(batch([one]))
    for name in KINDS:
        mixed = {**one, name: other[name]}
        same = alike(one[name]) == alike(other[name])
        assert (before == content(batch([mixed]))) == same


def test_bytes_under_a_null_do_not_count() -> None:
    validity = pa.py_buffer(b"\x01")
    one, other = (
        pa.Array.from_buffers(pa.int64(), 2, [validity, pa.array([1, hidden]).buffers()[1]])
        for hidden in (5, 6)
    )
    assert content(pa.record_batch({"v": one})) == content(pa.record_batch({"v": other}))


def test_rows_moved_between_columns_lists_or_texts_are_other_rows() -> None:
    for one, other in (
        ({"v": ["ab", "c"]}, {"v": ["a", "bc"]}),
        ({"v": [[1], [2, 3]]}, {"v": [[1, 2], [3]]}),
        ({"v": [[1, 2]]}, {"v": [[2, 1]]}),
        ({"v": [[0]]}, {"v": [[None]]}),
        ({"v": [[None, 1]]}, {"v": [[1, None]]}),
        ({"a": [1, 2], "b": [3, 4]}, {"a": [1, 2], "b": [4, 3]}),
        ({"a": [1], "b": [2]}, {"a": [2], "b": [1]}),
        ({"v": [1, 1]}, {"v": [1]}),
    ):
        assert content(pa.record_batch(one)) != content(pa.record_batch(other)), (one, other)


def test_a_column_of_nulls_and_the_order_of_columns_do_not_count() -> None:
    one = pa.record_batch({"a": [1, 2], "b": ["x", "y"]})
    other = pa.record_batch({"new": pa.nulls(2, pa.int64()), "b": ["x", "y"], "a": [1, 2]})
    assert content(one) == content(other)
    inner = pa.record_batch({"s": pa.array([{"a": 1}, None])})
    wider = pa.record_batch({"s": pa.array([{"a": 1, "b": None}, None])})
    assert content(inner) == content(wider)
    assert content(inner) != content(pa.record_batch({"s": pa.array([{"a": 1}, {"a": None}])}))


def test_a_sum_of_doubles_in_another_order_is_the_same_value() -> None:
    one, other = sum([0.1] * 10 + [1e6]), sum([1e6] + [0.1] * 10)
    assert one != other
    assert content(pa.record_batch({"v": [one]})) == content(pa.record_batch({"v": [other]}))
    assert content(pa.record_batch({"v": [one]})) != content(pa.record_batch({"v": [one + 0.01]}))


def test_entries_of_a_map_have_no_order() -> None:
    kind = pa.map_(pa.string(), pa.int64())
    one, other, third = (
        content(pa.record_batch({"v": pa.array([entries], kind)}))
        for entries in ([("a", 1), ("b", 2)], [("b", 2), ("a", 1)], [("a", 2), ("b", 1)])
    )
    assert one == other != third


def test_rows_of_every_plain_type_have_a_content() -> None:
    kinds = json.loads(
        normalize(
            {
                "type": "struct",
                "fields": [
                    {"name": kind, "type": kind}
                    for kind in (
                        "boolean",
                        "byte",
                        "short",
                        "integer",
                        "long",
                        "float",
                        "double",
                        "string",
                        "binary",
                        "date",
                        "timestamp",
                        "timestamp_ntz",
                        "void",
                        "variant",
                        "decimal(38,2)",
                        "interval day to second",
                        "time(6)",
                        "geometry(OGC:CRS84)",
                    )
                ],
            }
        )
    )
    schema = to_arrow(json.dumps(kinds))
    for kind in schema.types:
        filled = [pa.array([0], pa.int8()).cast(kind)] if pa.types.is_boolean(kind) else []
        for column in [pa.nulls(2, kind), *filled]:
            assert content(pa.record_batch([column], ["v"])).rows == len(column)
    binary = {"float": [1.5], "date": [1], "time(6)": [1], "decimal(38,2)": [1]}
    for name, value in binary.items():
        kind = schema.field(name).type
        columns = [
            pa.array(value).cast(kind)
            if name != "date"
            else pa.array(value, pa.int32()).cast(kind),
            pa.nulls(1, kind),
        ]
        assert len({content(pa.record_batch([column], ["v"])).hash for column in columns}) == 2


def test_no_rows_have_a_content() -> None:
    assert content() == Content(0, 0)
    assert content(pa.record_batch({"v": pa.array([], pa.list_(pa.string()))})) == Content(0, 0)


def test_equal_values_in_columns_of_other_width_have_the_same_content() -> None:
    for kinds, values in (
        ((pa.int8(), pa.int16(), pa.int32(), pa.int64()), [-128, -1, None, 0, 127]),
        ((pa.float32(), pa.float64()), [-1.5, None, 0.1, float("inf"), 3e38]),
        ((pa.decimal128(5, 2), pa.decimal128(38, 2)), [Decimal("-1.25"), None, Decimal("9")]),
    ):
        stored = pa.array(values, kinds[0])
        columns = [stored.cast(kind) for kind in kinds]
        assert len({content(pa.record_batch([column], ["v"])) for column in columns}) == 1
        nested = [pa.array([column.to_pylist()], pa.list_(column.type)) for column in columns]
        assert len({content(pa.record_batch([column], ["v"])) for column in nested}) == 1
