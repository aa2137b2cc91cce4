"""Merges schemas: those of a log and its writer, or of several logs.

A column may become wider if Arrow and Spark can read its former values without loss: a whole number
with more bytes, a double instead of a float, a decimal with more digits before its point.
"""

import json
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

import pyarrow as pa

from sparkwal.errors import OptionError
from sparkwal.format import schema

_WHOLE = ("byte", "short", "integer", "long")


def wider(one: Any, other: Any) -> Any | None:
    """The type that holds the values of both types, or None."""
    if one == other:
        return one
    if isinstance(one, str) and isinstance(other, str):
        return _wider_leaf(one, other)
    if isinstance(one, str) or isinstance(other, str) or one["type"] != other["type"]:
        return None
    other_parts = dict(schema.inside(other))
    parts = {name: wider(kind, other_parts.get(name)) for name, kind in schema.inside(one)}
    if None in parts.values() or parts.keys() != other_parts.keys():
        return None
    return schema.with_inside(one, parts)


def _wider_leaf(one: str, other: str) -> str | None:
    if one in _WHOLE and other in _WHOLE:
        return max(one, other, key=_WHOLE.index)
    if {one, other} == {"float", "double"}:
        return "double"
    digits, others = schema.DECIMAL.fullmatch(one), schema.DECIMAL.fullmatch(other)
    if digits and others and int(digits[2]) == int(others[2]):
        return max(one, other, key=lambda kind: int(schema.DECIMAL.sub(r"\1", kind)))
    return None


@lru_cache(maxsize=64)
def narrower(stored: pa.Schema, target: pa.Schema) -> str | None:
    """The first column that is narrower in `target` than in `stored`, or None."""
    both = [name for name in target.names if name in stored.names]
    return next((n for n in both if _narrows(stored.field(n).type, target.field(n).type)), None)


def _narrows(stored: pa.DataType, target: pa.DataType) -> bool:
    if pa.types.is_decimal(stored) and pa.types.is_decimal(target):
        return bool(target.precision < stored.precision)
    if pa.types.is_struct(stored) and pa.types.is_struct(target):
        stored_types = {field.name: field.type for field in stored}
        common = [field for field in target if field.name in stored_types]
        return any(_narrows(stored_types[field.name], field.type) for field in common)
    if stored.num_fields and target.num_fields:
        return _narrows(stored.field(0).type, target.field(0).type)
    is_number = any(
        matches(stored) and matches(target)
        for matches in (pa.types.is_signed_integer, pa.types.is_floating)
    )
    return is_number and bool(target.bit_width < stored.bit_width)


def merge(log_schema: str, writer_schema: str, *, allow_new: bool) -> str:
    """The log's schema after a writer with `writer_schema` (both normalized).

    Columns match by name. Without `allow_new` they must be equal. With it the writer may add
    columns, leave some out (null), and have wider or narrower types.

    Raises:
        OptionError: the schemas differ in another way. The message lists every difference.
    """
    log, writer = schema.columns(log_schema), schema.columns(writer_schema)
    # For Spark, names that differ only in case are ambiguous.
    folded = {name.lower(): name for name in log}
    new = {name: kind for name, kind in writer.items() if name not in log}
    both = {name: wider(log[name], kind) for name, kind in writer.items() if name in log}
    changed = [
        f"column {name!r} is {schema.type_name(log[name])} in the log and "
        f"{schema.type_name(writer[name])} in these rows"
        for name, kind in both.items()
        if log[name] != writer[name] and (kind is None or not allow_new)
    ]
    cased = [
        f"column {name!r} and the log's {folded[name.lower()]!r} differ only in case"
        for name in new
        if name.lower() in folded
    ]
    left_out = {name: kind for name, kind in log.items() if name not in writer}
    alone = [
        f"column {name!r} ({schema.type_name(kind)}) is only in {side}"
        for only, side in ((new, "these rows"), (left_out, "the log"))
        for name, kind in only.items()
    ]
    if changed or cased or (alone and not allow_new):
        advice = "set mergeSchema=true to add nullable columns, or select the log's columns"
        if changed and None not in both.values():
            advice = "set mergeSchema=true to make the log's columns as wide as both need, or cast"
        elif changed:
            advice = "a column's type cannot change this way: cast it, or write to a new path"
        elif cased:
            advice = "give the column the log's name"
        elif not new:
            advice = "add it, as null if it has no values, or set mergeSchema=true to leave it out"
        differences = "; ".join([*changed, *cased, *alone, advice])
        raise OptionError(f"the rows' schema differs from the log's: {differences}")
    document = json.loads(log_schema)
    for field in document["fields"]:
        field["type"] = both.get(field["name"], field["type"])
    added = [field for field in json.loads(writer_schema)["fields"] if field["name"] in new]
    return schema.append_fields(json.dumps(document), added)


def union_of(schemas: Iterable[tuple[str, str]]) -> str:
    """The schema with all columns of several schemas, each wide enough for all; "" for none.

    Args:
        schemas: the schemas, each with its name for messages.

    Raises:
        OptionError: no type holds the values of a column in two schemas.
    """
    union = ""
    for text, name in schemas:
        types = schema.columns(union or text)
        for column, kind in schema.columns(text).items():
            if wider(types.get(column, kind), kind) is None:
                raise OptionError(
                    f"column {column!r} is {schema.type_name(types[column])} in the log and "
                    f"{schema.type_name(kind)} in {name}: read the two by themselves, and cast"
                )
        union = merge(union or text, text, allow_new=True)
    return union
