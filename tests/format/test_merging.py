"""Which columns a log has after a writer with others: new ones, and wider ones."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from sparkwal.errors import OptionError
from sparkwal.format import schema
from sparkwal.format.merging import merge, narrower, union_of, wider

WHOLE = ("byte", "short", "integer", "long")
OTHERS = (
    "float",
    "double",
    "decimal(5,2)",
    "decimal(9,2)",
    "decimal(38,2)",
    "decimal(9,4)",
    "string",
    "date",
    "timestamp_ntz",
)
WIDER = {
    **{(one, other): other for n, one in enumerate(WHOLE) for other in WHOLE[n:]},
    ("float", "double"): "double",
    ("decimal(5,2)", "decimal(9,2)"): "decimal(9,2)",
    ("decimal(5,2)", "decimal(38,2)"): "decimal(38,2)",
    ("decimal(9,2)", "decimal(38,2)"): "decimal(38,2)",
}


@pytest.mark.parametrize("one", WHOLE + OTHERS)
def test_only_what_arrow_and_spark_read_without_loss_is_wider(one: str) -> None:
    for other in WHOLE + OTHERS:
        expected = one if one == other else WIDER.get((one, other), WIDER.get((other, one)))
        assert wider(one, other) == expected


def text(**columns: Any) -> str:
    return schema.normalize(struct(**columns))


def struct(**fields: Any) -> dict[str, Any]:
    named = [
        {"name": name, "type": kind, "nullable": True, "metadata": {}}
        for name, kind in fields.items()
    ]
    return {"type": "struct", "fields": named}


def array(kind: Any) -> dict[str, Any]:
    return {"type": "array", "elementType": kind, "containsNull": True}


def mapped(key: Any, value: Any) -> dict[str, Any]:
    return {"type": "map", "keyType": key, "valueType": value, "valueContainsNull": True}


NESTED = {
    "array": (array("integer"), array("long")),
    "map": (mapped("short", array("float")), mapped("integer", array("double"))),
    "struct": (struct(a="integer", b=struct(c="long")), struct(b=struct(c="byte"), a="long")),
}


@pytest.mark.parametrize("one, other", NESTED.values(), ids=NESTED)
def test_nested_types_are_as_wide_as_all_their_parts_need(one: Any, other: Any) -> None:
    found, back = wider(one, other), wider(other, one)
    assert [name for name, _ in schema.inside(found)] == [name for name, _ in schema.inside(one)]
    arrow = schema.to_arrow(text(v=found))
    for kind in (one, other, back):
        assert narrower(schema.to_arrow(text(v=kind)), arrow) is None
    assert narrower(arrow, schema.to_arrow(text(v=one))) == "v"


@pytest.mark.parametrize(
    "one, other",
    [
        (array("integer"), "integer"),
        (array("integer"), array("string")),
        (array("integer"), struct(element="integer")),
        (struct(a="integer"), struct(a="long", b="long")),
        (struct(a="integer"), struct(b="integer")),
        ("void", "integer"),
    ],
)
def test_other_types_have_none_that_holds_both(one: Any, other: Any) -> None:
    assert wider(one, other) is None and wider(other, one) is None


def test_a_writer_with_mergeschema_widens_the_logs_columns() -> None:
    log, writer = text(a="integer", b="double", c="string"), text(b="float", a="long", d="date")
    merged = merge(log, writer, allow_new=True)
    assert merged == text(a="long", b="double", c="string", d="date")
    # And a writer with the former columns continues.
    assert merge(merged, log, allow_new=True) == merged


def test_the_schema_of_a_log_stays_equal_byte_for_byte() -> None:
    log = text(a="integer", b=mapped("string", struct(ä="decimal(5,2)")))
    assert merge(log, log, allow_new=False) == log == merge(log, log, allow_new=True)


@pytest.mark.parametrize(
    "writer, allow_new, advice",
    [
        (text(a="long"), False, "'a' is int in the log and bigint in these rows; set mergeSchema"),
        (text(a="string"), True, "'a' is int in the log and string in these rows; .* cannot"),
        (text(a="string"), False, "a column's type cannot change this way: cast it"),
        (text(A="long"), True, "'A' and the log's 'a' differ only in case"),
    ],
)
def test_a_column_that_does_not_fit_is_named_with_advice(
    writer: str, allow_new: bool, advice: str
) -> None:
    with pytest.raises(OptionError, match=advice):
        merge(text(a="integer"), writer, allow_new=allow_new)


def test_several_logs_have_columns_as_wide_as_all_need() -> None:
    logs = [(text(a="integer"), "one"), (text(a="long", b="date"), "two")]
    assert union_of(logs) == text(a="long", b="date") and union_of([]) == ""
    with pytest.raises(OptionError, match="'b' is date in the log and string in three"):
        union_of([*logs, (text(b="string"), "three")])


def test_a_read_that_began_with_a_narrower_column_notices() -> None:
    arrow = {
        name: pa.schema([("id", pa.string()), ("v", kind)])
        for name, kind in {
            "int": pa.int32(),
            "long": pa.int64(),
            "small": pa.decimal128(5, 2),
            "large": pa.decimal128(9, 2),
        }.items()
    }
    assert narrower(arrow["long"], arrow["int"]) == narrower(arrow["large"], arrow["small"]) == "v"
    assert narrower(arrow["int"], arrow["long"]) is None
    assert narrower(arrow["long"], arrow["int"].remove(1)) is None
