"""The types of an Iceberg table and those of a log, and what a table does not take."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from sparkwal.errors import OptionError
from sparkwal.format.lifecycle_record import MERGE, Target
from sparkwal.format.schema import (
    DECIMAL,
    columns,
    inside,
    normalize,
    type_name,
    with_inside,
)
from sparkwal.format.widening import contradictions, holds

if TYPE_CHECKING:
    from pyiceberg.schema import Schema
    from pyiceberg.types import IcebergType

# Iceberg's primitive types as Spark names them.
_SPARK = {
    "boolean": "boolean",
    "int": "integer",
    "long": "long",
    "float": "float",
    "double": "double",
    "date": "date",
    "timestamp": "timestamp_ntz",
    "timestamptz": "timestamp",
    "string": "string",
    "binary": "binary",
}
# Whole numbers of fewer bytes, which Iceberg lacks.
_SMALL = {"byte": "integer", "short": "integer"}
# Iceberg widens these types of a column, and a decimal to more digits.
_PROMOTIONS = {("integer", "long"), ("float", "double")}


def spark_type(kind: IcebergType, path: str) -> Any:
    """A type of Iceberg as Spark's JSON has it.

    Raises:
        OptionError: a log cannot have the type.
    """
    from pyiceberg.types import DecimalType, ListType, MapType, StructType

    if isinstance(kind, StructType):
        fields = [
            _field(field.name, spark_type(field.field_type, f"{path}.{field.name}"))
            for field in kind.fields
        ]
        return {"type": "struct", "fields": fields}
    if isinstance(kind, ListType):
        element = spark_type(kind.element_type, f"{path}.element")
        return {"type": "array", "elementType": element, "containsNull": True}
    if isinstance(kind, MapType):
        key = spark_type(kind.key_type, f"{path}.key")
        value = spark_type(kind.value_type, f"{path}.value")
        return {"type": "map", "keyType": key, "valueType": value, "valueContainsNull": True}
    if isinstance(kind, DecimalType):
        return f"decimal({kind.precision},{kind.scale})"
    if (iceberg_type := _SPARK.get(str(kind))) is None:
        raise OptionError(f"column {path!r} of the table has type {kind}, which no log has")
    return iceberg_type


def _field(name: str, kind: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, "nullable": True, "metadata": {}}


def spark_schema(schema: Schema, *, lenient: bool = False) -> str:
    """The columns of a table as Spark's JSON.

    Args:
        schema: the columns.
        lenient: leave the columns out whose types no log has.

    Raises:
        OptionError: a column has a type that a log cannot have.
    """
    fields = []
    for field in schema.fields:
        try:
            fields.append(_field(field.name, spark_type(field.field_type, field.name)))
        except OptionError:
            if not lenient:
                raise
    return json.dumps({"type": "struct", "fields": fields}, separators=(",", ":"))


def stored(spark_columns: str, table: Schema | None = None) -> str:
    """A log's columns with the names and the types in which a table stores them."""
    document = json.loads(spark_columns)
    in_table = {} if table is None else columns(spark_schema(table, lenient=True))
    names = {name.lower(): name for name in in_table}
    for field in document["fields"]:
        field["name"] = names.get(field["name"].lower(), field["name"])
        field["type"] = _stored(field["type"], in_table.get(field["name"]))
    return normalize(document)


def _stored(log: Any, table: Any) -> Any:
    """A type of the log as a table stores it that has this type, or none yet."""
    if isinstance(log, str):
        wide = _SMALL.get(log, log)
        return table if isinstance(table, str) and holds(table, wide) else wide
    is_alike = not isinstance(table, str) and table is not None and table["type"] == log["type"]
    parts = dict(inside(table)) if is_alike else {}
    return with_inside(log, {name: _stored(kind, parts.get(name)) for name, kind in inside(log)})


def log_problems(spark_columns: str) -> Iterator[str]:
    """Find the columns of a log that no Iceberg table has, each with what to do."""
    for name, kind in columns(spark_columns).items():
        for path, leaf in _leaves(kind, name):
            if leaf == "struct":
                yield f"{path!r} is a struct without fields: give it a field, with mergeSchema=true"
            elif leaf not in _SPARK.values() and leaf not in _SMALL and not DECIMAL.fullmatch(leaf):
                yield (
                    f"column {path!r} has type {type_name(leaf)}, which Iceberg does not have or "
                    "pyiceberg does not write: cast it before it goes into the log, or compact "
                    "into a Delta table"
                )


def _leaves(kind: Any, path: str) -> Iterator[tuple[str, str]]:
    if isinstance(kind, str):
        yield path, kind
        return
    if kind["type"] == "struct" and not kind["fields"]:
        yield path, "struct"
    for name, inner in inside(kind):
        yield from _leaves(inner, f"{path}.{name}")


def problems(spark_columns: str, table: Schema, target: Target) -> Iterator[str]:
    """Find the reasons why a table cannot take the rows of a log, each with what to do."""
    url = target.table
    in_table = columns(spark_schema(table, lenient=True))
    log = columns(stored(spark_columns, table))
    in_log = {name.lower() for name in log}
    for name, log_type, table_type in contradictions(log, in_table):
        if not _promotes(table_type, log_type):
            yield (
                f"column {name!r} is {type_name(log_type)} in the log and {type_name(table_type)} "
                f"in {url}, which does not hold each of its values: rename the table's column, and "
                "the log's column is added"
            )
    for field in table.fields:
        name, kind = field.name, field.field_type
        if name not in in_table and (name.lower() in in_log or target.mode == MERGE):
            yield f"column {name!r} of {url} has type {kind}, which no log has"
        if name.lower() not in in_log and field.required:
            yield (
                f"column {name!r} of {url} is required, and the log has no such column: make it "
                "optional, or give the column to the log"
            )
        for path in _required_inside(kind, name):
            yield f"{path!r} of {url} is required inside of a column: make it optional"
        if target.mode == MERGE and name in log and name in in_table:
            for path in _lacking(in_table[name], log[name], name):
                yield (
                    f"{path!r} is a field of a struct in {url}, and the log's struct lacks it: "
                    "each row that replaces another would set it to null. Add the field to the "
                    "log's struct, or keep its values in a column outside of the struct"
                )


def _lacking(table: Any, log: Any, path: str) -> Iterator[str]:
    """The fields inside of a column that the log's column lacks."""
    parts = {} if isinstance(log, str) else dict(inside(log))
    for name, kind in inside(table):
        if name not in parts:
            yield f"{path}.{name}"
        else:
            yield from _lacking(kind, parts[name], f"{path}.{name}")


def _required_inside(kind: IcebergType, path: str) -> Iterator[str]:
    from pyiceberg.types import ListType, MapType, StructType

    if isinstance(kind, StructType):
        for field in kind.fields:
            if field.required:
                yield f"{path}.{field.name}"
            yield from _required_inside(field.field_type, f"{path}.{field.name}")
    elif isinstance(kind, ListType):
        if kind.element_required:
            yield f"{path}.element"
        yield from _required_inside(kind.element_type, f"{path}.element")
    elif isinstance(kind, MapType):
        if kind.value_required:
            yield f"{path}.value"
        yield from _required_inside(kind.value_type, f"{path}.value")


def _promotes(narrow: Any, wide: Any) -> bool:
    """Whether Iceberg can widen a column of the first type, or one inside of it, to the second."""
    if isinstance(narrow, str) and isinstance(wide, str):
        of, into = DECIMAL.fullmatch(narrow), DECIMAL.fullmatch(wide)
        if of and into:
            return of[2] == into[2] and int(of[1]) <= int(into[1])
        return narrow == wide or (narrow, wide) in _PROMOTIONS
    if isinstance(narrow, str) or isinstance(wide, str) or narrow["type"] != wide["type"]:
        return False
    before: Mapping[str, Any] = dict(inside(narrow))
    return all(_promotes(before.get(name, kind), kind) for name, kind in inside(wide))


def needs_evolution(spark_columns: str, table: Schema) -> bool:
    """Whether the log has columns, or fields inside, that the table lacks, or wider ones."""
    in_table = columns(spark_schema(table, lenient=True))
    return any(
        not _has(in_table[name], kind) if name in in_table else True
        for name, kind in columns(stored(spark_columns, table)).items()
    )


def _has(table: Any, log: Any) -> bool:
    """Whether a column of the table has all of a column of the log."""
    if isinstance(table, str) or isinstance(log, str):
        return bool(table == log)
    parts = dict(inside(table))
    return all(name in parts and _has(parts[name], kind) for name, kind in inside(log))


def as_rows(batch: pa.RecordBatch, table: Schema) -> pa.RecordBatch:
    """Add the columns that rows lack, and mark those that the table requires.

    Args:
        batch: rows with columns of the table, in the types of `stored`.
        table: the columns of the table.

    Raises:
        ValueError: a required column has a null.
    """
    from pyiceberg.io.pyarrow import schema_to_pyarrow

    arrays, fields = [], []
    for field in table.fields:
        index = batch.schema.get_field_index(field.name)
        if index >= 0:
            column = batch.column(index)
        else:
            column = pa.nulls(batch.num_rows, schema_to_pyarrow(field.field_type))
        if field.required and column.null_count:
            raise ValueError(f"column {field.name!r} is required, and a row of the log has a null")
        arrays.append(column)
        fields.append(pa.field(field.name, column.type, not field.required))
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))
