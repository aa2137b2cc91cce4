"""Whether a table takes the rows of a log, as its schema and its settings show it."""

from __future__ import annotations

import json
import re
from typing import Any

import pyarrow as pa
import pytest

from sparkwal.format.lifecycle_record import APPEND, MERGE, Target
from sparkwal.format.schema import from_arrow
from sparkwal.lifecycle.delta.fitting import (
    adds_columns,
    filled_by_delta,
    log_problems,
    problems,
    type_problems,
)

STRUCT_A = {"type": "struct", "fields": [{"name": "a", "type": "long", "nullable": True}]}
STRUCT_AC = {
    "type": "struct",
    "fields": [*STRUCT_A["fields"], {"name": "c", "type": "long", "nullable": True}],
}


def schema(*fields: tuple[Any, ...]) -> str:
    """The JSON of a schema: for each field its name, type, and optionally nullable and metadata."""
    columns = []
    for name, kind, *more in fields:
        nullable = more[0] if more else True
        metadata = more[1] if len(more) > 1 else {}
        columns.append({"name": name, "type": kind, "nullable": nullable, "metadata": metadata})
    return json.dumps({"type": "struct", "fields": columns})


def target(*keys: str) -> Target:
    return Target("/lake/t", MERGE if keys else APPEND, keys)


def found_problems(log: str, table: str, *keys: str, **properties: str) -> list[str]:
    settings = {name.replace("__", "."): value for name, value in properties.items()}
    return [*problems(log, table, target(*keys), settings)]


ID = ("id", "long")


def test_a_table_with_the_columns_of_the_log_has_no_problem() -> None:
    assert found_problems(schema(ID, ("s", STRUCT_A)), schema(ID, ("s", STRUCT_A)), "id") == []


@pytest.mark.parametrize(
    ("column", "path"),
    [
        (pa.struct([]), "e"),
        (pa.struct([("in", pa.struct([]))]), "e.in"),
        (pa.list_(pa.struct([])), "e"),
        (pa.map_(pa.string(), pa.struct([("in", pa.list_(pa.struct([])))])), "e.in"),
        (pa.struct([("in", pa.int64())]), None),
        (pa.int64(), None),
    ],
)
def test_a_struct_without_fields_goes_into_no_table(column: pa.DataType, path: str | None) -> None:
    log = from_arrow(pa.schema([("id", pa.int64()), ("e", column)]))
    found = [problem.split("'")[1] for problem in log_problems(log)]
    assert found == ([path] if path else [])


def test_the_advice_for_a_column_that_became_wider_is_two_statements() -> None:
    wide, narrow = (from_arrow(pa.schema([("id", kind)])) for kind in (pa.int64(), pa.int32()))
    (problem,) = type_problems(wide, narrow, "/lake")
    assert re.findall(r"ALTER TABLE delta\.`/lake` (.*?)(?:, then|$)", problem) == [
        "SET TBLPROPERTIES ('delta.enableTypeWidening' = 'true')",
        "ALTER COLUMN `id` TYPE bigint",
    ]


def test_a_table_that_only_appends_takes_no_keys() -> None:
    (problem,) = found_problems(schema(ID), schema(ID), "id", delta__appendOnly="true")
    assert "delta.appendOnly" in problem and "UNSET TBLPROPERTIES" in problem
    assert found_problems(schema(ID), schema(ID), delta__appendOnly="true") == []


@pytest.mark.parametrize(
    "metadata", [{"CURRENT_DEFAULT": "1"}, {"delta.generationExpression": "id"}]
)
def test_a_column_that_is_not_null_and_that_the_log_lacks_needs_a_value_of_delta(
    metadata: dict[str, str],
) -> None:
    (problem,) = found_problems(schema(ID), schema(ID, ("tenant", "string", False)))
    assert "'tenant'" in problem and "DROP NOT NULL" in problem
    table = schema(ID, ("tenant", "string", False, metadata))
    assert found_problems(schema(ID), table) == []
    assert filled_by_delta(table) == ["tenant"]


def test_a_field_of_a_struct_that_is_not_null_is_refused_where_delta_refuses_it() -> None:
    required = {"name": "c", "type": "long", "nullable": False}
    table = schema(ID, ("s", {"type": "struct", "fields": [*STRUCT_A["fields"], required]}))
    log = schema(ID, ("s", STRUCT_AC))
    assert found_problems(log, table) == []
    assert found_problems(schema(ID), table, "id") == []
    for columns, keys in ((schema(ID, ("s", STRUCT_A)), ()), (log, ("id",))):
        (problem,) = found_problems(columns, table, *keys)
        assert problem.startswith("'s.c', a field of a struct in /lake/t, is NOT NULL")


@pytest.mark.parametrize("declared", ["char(8)", "CHAR(8)", "struct<a:bigint,b:char(8)>"])
def test_a_key_of_a_padded_type_is_refused(declared: str) -> None:
    table = schema(("id", "string", True, {"__CHAR_VARCHAR_TYPE_STRING": declared}))
    log = schema(("id", "string"))
    (problem,) = found_problems(log, table, "ID")
    assert "CHAR(8)" in problem and "STRING" in problem
    assert found_problems(log, table) == []
    varchar = re.sub(r"(?i)\bchar\(", "varchar(", declared)
    assert found_problems(log, table.replace(declared, varchar), "ID") == []


@pytest.mark.parametrize(
    ("wide", "narrow", "path"),
    [
        (STRUCT_AC, STRUCT_A, "s.c"),
        (
            {"type": "array", "elementType": STRUCT_AC, "containsNull": True},
            {"type": "array", "elementType": STRUCT_A, "containsNull": True},
            "S.c",
        ),
    ],
)
def test_a_merge_would_set_a_field_to_null_that_only_the_tables_struct_has(
    wide: Any, narrow: Any, path: str
) -> None:
    name = path.partition(".")[0]
    (problem,) = found_problems(schema(ID, ("s", narrow)), schema(ID, (name, wide)), "id")
    assert repr(path) in problem
    # Rows that are appended replace none, and a field that only the log has joins the table.
    assert found_problems(schema(ID, ("s", narrow)), schema(ID, (name, wide))) == []
    assert found_problems(schema(ID, ("s", wide)), schema(ID, (name, narrow)), "id") == []
    assert adds_columns(schema(("s", wide)), schema((name, narrow)))
    assert not adds_columns(schema(("s", narrow)), schema((name, wide)))


def test_a_column_that_the_table_lacks_is_added() -> None:
    assert adds_columns(schema(ID, ("v", "string")), schema(ID))
    assert not adds_columns(schema(ID), schema(("ID", "long"), ("v", "string")))


@pytest.mark.parametrize(
    ("takes", "keys", "is_refused"),
    [(False, (), True), (True, (), False), (False, ("v",), True), (True, ("v",), True)],
)
def test_values_for_an_identity_column_are_refused_where_delta_takes_none(
    takes: bool, keys: tuple[str, ...], is_refused: bool
) -> None:
    identity = {"delta.identity.start": 1, "delta.identity.allowExplicitInsert": takes}
    table = schema(("id", "long", True, identity), ("v", "string"))
    found = found_problems(schema(ID, ("v", "string")), table, *keys)
    assert ["AS IDENTITY" in problem for problem in found] == [True] * is_refused
    assert found_problems(schema(("v", "string")), table, *keys) == []
