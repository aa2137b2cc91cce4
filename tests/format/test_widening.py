"""Which type holds every value of another."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from sparkwal.errors import OptionError
from sparkwal.format import schema
from sparkwal.format.widening import contradictions, contradicts, holds, widened, wider_parts
from sparkwal.lifecycle.current import with_table

LEAVES = (
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
    "decimal(5,2)",
    "decimal(7,4)",
    "decimal(9,4)",
    "decimal(10,0)",
    "decimal(20,0)",
    "decimal(38,18)",
)
# For each type the wider ones that Delta Lake accepts.
WIDER = {
    "byte": {
        "short",
        "integer",
        "long",
        "double",
        "decimal(10,0)",
        "decimal(20,0)",
        "decimal(38,18)",
    },
    "short": {"integer", "long", "double", "decimal(10,0)", "decimal(20,0)", "decimal(38,18)"},
    "integer": {"long", "double", "decimal(10,0)", "decimal(20,0)", "decimal(38,18)"},
    "long": {"decimal(20,0)", "decimal(38,18)"},
    "float": {"double"},
    "date": {"timestamp_ntz"},
    "decimal(5,2)": {"decimal(7,4)", "decimal(9,4)", "decimal(38,18)"},
    "decimal(7,4)": {"decimal(9,4)", "decimal(38,18)"},
    "decimal(9,4)": {"decimal(38,18)"},
    "decimal(10,0)": {"decimal(20,0)", "decimal(38,18)"},
    "decimal(20,0)": {"decimal(38,18)"},
}


@pytest.mark.parametrize("narrow", LEAVES)
def test_a_type_holds_itself_and_what_is_narrower(narrow: str) -> None:
    found = {wide for wide in LEAVES if holds(wide, narrow)}
    assert found == {narrow, *WIDER.get(narrow, ())}
    assert {wide for wide in LEAVES if not contradicts(wide, narrow)} == found


def struct(**fields: Any) -> dict[str, Any]:
    named = [
        {"name": name, "type": kind, "nullable": True, "metadata": {}}
        for name, kind in fields.items()
    ]
    return {"type": "struct", "fields": named}


def test_nested_types_hold_what_all_their_parts_hold() -> None:
    array = {"type": "array", "elementType": "integer", "containsNull": True}
    wide = {**array, "elementType": "long", "containsNull": False}
    assert holds(wide, array) and not holds(array, wide) and not holds(wide, "long")
    kind = {"type": "map", "keyType": "byte", "valueType": array, "valueContainsNull": True}
    assert holds({**kind, "keyType": "short", "valueType": wide}, kind)
    assert not holds({**kind, "keyType": "string"}, kind)
    assert holds(struct(a="long", b="string"), struct(a="integer", b="string"))
    # A cast goes by place.
    assert not holds(struct(b="string", a="long"), struct(a="integer", b="string"))
    assert contradicts(array, kind) and contradicts("string", array)
    assert contradicts(struct(a="string"), struct(a="long"))


def test_a_field_that_one_of_two_structs_has_alone_is_no_contradiction() -> None:
    assert not contradicts(struct(a="long", b="string"), struct(A="long", c="double"))


def test_columns_take_the_tables_wider_types_and_keep_their_own_order() -> None:
    log = schema.from_arrow(pa.schema([("a", pa.int32()), ("b", pa.int64()), ("c", pa.string())]))
    table = schema.from_arrow(pa.schema([("B", pa.int32()), ("a", pa.int64())]))
    found = schema.columns(widened(log, schema.columns(table)))
    assert [*found.items()] == [("a", "long"), ("b", "long"), ("c", "string")]
    named = contradictions(schema.columns(log), schema.columns(table))
    assert [*named] == [("b", "long", "integer")]


def test_rows_of_log_and_table_have_the_tables_types_where_these_are_wider() -> None:
    log = schema.from_arrow(pa.schema([("a", pa.int32()), ("b", pa.string())]))
    table = schema.from_arrow(pa.schema([("t", pa.date32()), ("a", pa.int64())]))
    both = {"a": "long", "b": "string", "t": "date"}
    assert schema.columns(with_table(log, table)) == both
    with pytest.raises(OptionError, match="'a' is bigint in the log and int in its table"):
        with_table(table, log)


def test_the_parts_of_a_column_that_become_wider_are_named() -> None:
    def column(kind: pa.DataType) -> Any:
        return schema.columns(schema.from_arrow(pa.schema([("c", kind)])))["c"]

    narrow = pa.struct([("a", pa.int32()), ("b", pa.list_(pa.int8())), ("c", pa.string())])
    wide = pa.struct([("a", pa.int64()), ("b", pa.list_(pa.int16())), ("c", pa.string())])
    assert [*wider_parts(column(wide), column(narrow), "`c`")] == [
        ("`c`.`a`", "long"),
        ("`c`.`b`.`element`", "short"),
    ]
    assert [*wider_parts("long", "long", "`c`")] == []
