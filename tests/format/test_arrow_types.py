"""Arrow's types as Spark's: the inverse of `to_arrow`, and what is refused."""

from __future__ import annotations

from datetime import date
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkwal.errors import OptionError
from sparkwal.format import schema
from sparkwal.format.arrow_types import pandas_frame

LEAVES = st.sampled_from(
    [
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
        "decimal(10,2)",
        "decimal(38,0)",
        "interval day to second",
        "time(6)",
    ]
)


def nested(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(
        inner.map(lambda t: {"type": "array", "elementType": t, "containsNull": True}),
        st.tuples(st.sampled_from(["string", "long"]), inner).map(
            lambda t: {
                "type": "map",
                "keyType": t[0],
                "valueType": t[1],
                "valueContainsNull": True,
            }
        ),
        st.lists(inner, min_size=1, max_size=3).map(
            lambda kinds: {
                "type": "struct",
                "fields": [{"name": f"f{i}", "type": kind} for i, kind in enumerate(kinds)],
            }
        ),
    )


@given(st.lists(st.recursive(LEAVES, nested, max_leaves=6), max_size=4))
def test_from_arrow_is_the_inverse_of_to_arrow(kinds: list[Any]) -> None:
    fields = [{"name": f"c{i}", "type": kind} for i, kind in enumerate(kinds)]
    spark_schema = schema.normalize({"type": "struct", "fields": fields})
    assert schema.from_arrow(schema.to_arrow(spark_schema)) == spark_schema


@pytest.mark.parametrize(
    ("arrow", "spark"),
    [
        (pa.large_string(), "string"),
        (pa.string_view(), "string"),
        (pa.dictionary(pa.int8(), pa.large_string()), "string"),
        (pa.large_binary(), "binary"),
        (pa.binary(16), "binary"),
        (pa.uint8(), "short"),
        (pa.uint16(), "integer"),
        (pa.uint32(), "long"),
        (pa.float16(), "float"),
        (pa.date64(), "date"),
        (pa.time32("s"), "time(6)"),
        (pa.timestamp("s"), "timestamp_ntz"),
        (pa.timestamp("ms", "Asia/Tokyo"), "timestamp"),
        (pa.duration("ms"), "interval day to second"),
        (pa.decimal256(38, 4), "decimal(38,4)"),
    ],
)
def test_types_with_the_same_values_become_one(arrow: pa.DataType, spark: str) -> None:
    given_schema = pa.schema([("c", arrow)])
    found = schema.from_arrow(given_schema)
    assert schema.columns(found) == {"c": spark}
    # And rows of that type can be stored as it.
    batch = pa.record_batch([pa.nulls(2, arrow)], schema=given_schema)
    assert schema.conform(batch, schema.to_arrow(found)).num_rows == 2


def test_an_empty_struct_keeps_its_values_beside_a_field_of_another_type() -> None:
    inner = pa.struct([("none", pa.struct([])), ("at", pa.timestamp("us", "Asia/Tokyo"))])
    rows = pa.array([[{"none": {}, "at": None}, {"none": None, "at": None}], None], pa.list_(inner))
    batch = pa.record_batch([rows], names=["c"])
    stored = schema.conform(batch, schema.to_arrow(schema.from_arrow(batch.schema)))
    stored.validate(full=True)
    assert stored.to_pylist() == batch.to_pylist()


@pytest.mark.parametrize(
    ("arrow", "says"),
    [
        (pa.uint64(), "64 unsigned bits"),
        (pa.timestamp("ns"), "nanoseconds"),
        (pa.timestamp("ns", "UTC"), "nanoseconds"),
        (pa.duration("ns"), "nanoseconds"),
        (pa.month_day_nano_interval(), "no type for it"),
        (pa.decimal256(60, 2), "38 digits"),
        (pa.decimal128(5, -2), "38 digits"),
        (pa.uuid(), "no type for it"),
    ],
)
def test_a_type_that_would_lose_is_refused_by_its_columns_name(
    arrow: pa.DataType, says: str
) -> None:
    for kind, path in (
        (arrow, "c"),
        (pa.list_(arrow), "c.element"),
        (pa.struct([("x", arrow)]), "c.x"),
        (pa.map_(pa.string(), arrow), "c.value"),
    ):
        with pytest.raises(OptionError) as caught:
            schema.from_arrow(pa.schema([("c", kind)]))
        assert f"column {path!r}" in str(caught.value) and says in str(caught.value)


def test_nullability_and_metadata_do_not_count() -> None:
    strict = pa.schema([pa.field("v", pa.int64(), nullable=False, metadata={"a": "b"})], {"x": "y"})
    assert schema.from_arrow(strict) == schema.from_arrow(pa.schema([("v", pa.int64())]))


FAR = 2**31 - 1  # days since 1970: a day of the year 5881580


def test_a_date_beyond_the_year_9999_makes_its_column_datetime64() -> None:
    days = {"far": [FAR, None], "near": [0, None]}
    dates = {name: pa.array(values, pa.int32()).cast(pa.date32()) for name, values in days.items()}
    frame = pandas_frame(pa.table({**dates, "n": [1, None]}))
    assert str(frame["far"][0]) == "5881580-07-11 00:00:00"
    assert frame["near"][0] == date(1970, 1, 1) and frame["n"].tolist() == [1, None]


def test_a_nested_date_beyond_the_year_9999_names_its_column() -> None:
    nested = pa.array([[FAR]], pa.list_(pa.int32())).cast(pa.list_(pa.date32()))
    with pytest.raises(OptionError, match=r"column 'd' has a value in row 0 .* read it as Arrow"):
        pandas_frame(pa.table({"d": nested}))
