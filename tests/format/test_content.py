"""The fingerprint of rows: the same for the same rows, whatever batches they come in."""

from __future__ import annotations

import json
from decimal import Decimal

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from sparkwal.format.content import Content, in_any_order
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
                else row[name]  # type: ignore[union-attr]  # noqa: E501
                for row in rows
            ],
            kind,
        )
        for name, kind in KINDS.items()
    }
    return pa.record_batch(columns)


def content(*batches: pa.RecordBatch) -> Content:
    return Content.of(batches)


def bits(rows: list[dict[str, object]]) -> str:
    return repr(rows)  # tells 0.0 from -0.0


@given(ROWS, st.data())
def test_rows_are_the_same_wherever_they_are_cut(
    rows: list[dict[str, object]], data: st.DataObject
) -> None:
    whole = batch(rows)
    cut = data.draw(st.integers(0, len(rows)))
    # Slices share buffers, with offsets into them; copies do not.
    assert content(whole.slice(0, cut), whole.slice(cut)) == content(whole)
    assert content(batch(rows[:cut]), batch(rows[cut:])) == content(whole)


@given(ROWS, ROWS)
def test_other_rows_have_another_content(
    one: list[dict[str, object]], other: list[dict[str, object]]
) -> None:
    assert (content(batch(one)) == content(batch(other))) == (bits(one) == bits(other))


def test_what_lies_under_a_null_does_not_count() -> None:
    validity = pa.py_buffer(b"\x01")
    one, other = (
        pa.Array.from_buffers(pa.int64(), 2, [validity, pa.array([1, hidden]).buffers()[1]])
        for hidden in (5, 6)
    )
    assert content(pa.record_batch({"v": one})) == content(pa.record_batch({"v": other}))


def test_rows_moved_between_columns_or_texts_are_other_rows() -> None:
    assert content(pa.record_batch({"v": ["ab", "c"]})) != content(
        pa.record_batch({"v": ["a", "bc"]})
    )
    assert content(pa.record_batch({"v": [[1], [2, 3]]})) != content(
        pa.record_batch({"v": [[1, 2], [3]]})
    )


@given(rows=ROWS, data=st.data())
def test_rows_in_another_order_are_the_same_once_sorted(
    rows: list[dict[str, object]], data: st.DataObject
) -> None:
    # Of rows that differ in nested columns alone the order stays.
    rows = [{**row, "long": place} for place, row in enumerate(rows)]
    other = data.draw(st.permutations(rows))
    cut = data.draw(st.integers(0, len(rows)))
    parts = [batch(other[:cut]), batch(other[cut:])]
    assert in_any_order(parts) == in_any_order([batch(rows)])


@given(one=ROWS, other=ROWS)
def test_other_rows_are_others_in_any_order(
    one: list[dict[str, object]], other: list[dict[str, object]]
) -> None:
    if in_any_order([batch(one)]) == in_any_order([batch(other)]):
        assert sorted(map(repr, batch(one).to_pylist())) == sorted(
            map(repr, batch(other).to_pylist())
        )


def test_rows_of_every_plain_type_can_be_sorted() -> None:
    kinds = json.loads(normalize({"type": "struct", "fields": [
        {"name": kind, "type": kind} for kind in (
            "boolean", "byte", "short", "integer", "long", "float", "double", "string", "binary",
            "date", "timestamp", "timestamp_ntz", "void", "variant", "decimal(38,2)",
            "interval day to second", "time(6)", "geometry(OGC:CRS84)",
        )
    ]}))  # fmt: skip
    everything = pa.record_batch([pa.nulls(2, kind) for kind in to_arrow(json.dumps(kinds)).types],
                                 schema=to_arrow(json.dumps(kinds)))  # fmt: skip
    assert in_any_order([everything]) == Content.of([everything])
