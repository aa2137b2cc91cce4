"""Converts Arrow's types to Spark's, for rows that come as Arrow: the inverse of `schema.to_arrow`.

Several Arrow types have the same values (string, large_string, a dictionary of strings). All become
the one type that the log stores. A type with other values is refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyarrow import types

from sparkwal.errors import OptionError

if TYPE_CHECKING:
    import pandas as pd

# The most levels of a column's type (see `depth`) that Arrow's format writes and reads.
DEEPEST = 64

_SAME: dict[pa.DataType, str] = {
    pa.bool_(): "boolean",
    pa.null(): "void",
    pa.int8(): "byte",
    pa.int16(): "short",
    pa.int32(): "integer",
    pa.int64(): "long",
    # The next wider signed type holds every value of an unsigned one.
    pa.uint8(): "short",
    pa.uint16(): "integer",
    pa.uint32(): "long",
    pa.float16(): "float",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.date32(): "date",
    pa.date64(): "date",
    pa.string(): "string",
    pa.large_string(): "string",
    pa.string_view(): "string",
    pa.binary(): "binary",
    pa.large_binary(): "binary",
    pa.binary_view(): "binary",
}


def field_json(field: pa.Field, path: str) -> dict[str, Any]:
    """One field for `schema.normalize`.

    Raises:
        OptionError: the log has no type for the field. The message names `path`.
    """
    return {"name": field.name, "type": _spark_type(field.type, path)}


def _spark_type(kind: pa.DataType, path: str) -> Any:
    if kind in _SAME:
        return _SAME[kind]
    if types.is_dictionary(kind):
        return _spark_type(kind.value_type, path)
    if types.is_fixed_size_binary(kind):
        return "binary"
    if types.is_timestamp(kind) or types.is_duration(kind):
        if kind.unit == "ns":
            reason = "nanoseconds do not fit microseconds; cast it to the unit us"
            raise _refused(path, kind, reason)
        if types.is_duration(kind):
            return "interval day to second"
        return "timestamp_ntz" if kind.tz is None else "timestamp"
    if types.is_time(kind):
        # The log stores times of day with nanoseconds.
        return "time(6)"
    if types.is_decimal(kind):
        if kind.precision > 38 or not 0 <= kind.scale <= kind.precision:
            raise _refused(path, kind, "at most 38 digits fit, the scale from 0 to all of them")
        return f"decimal({kind.precision},{kind.scale})"
    if types.is_struct(kind):
        if any((field.metadata or {}).get(b"variant") == b"true" for field in kind):
            return "variant"
        inner = [field_json(field, f"{path}.{field.name}") for field in kind]
        return {"type": "struct", "fields": inner}
    if types.is_map(kind):
        key = _spark_type(kind.key_type, f"{path}.key")
        value = _spark_type(kind.item_type, f"{path}.value")
        return {"type": "map", "keyType": key, "valueType": value}
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return {"type": "array", "elementType": _spark_type(kind.value_type, f"{path}.element")}
    reason = "the log has no type for it; cast it"
    if types.is_uint64(kind):
        reason = "64 unsigned bits do not fit a bigint; cast it to decimal128(20, 0)"
    raise _refused(path, kind, reason)


def _refused(path: str, kind: pa.DataType, reason: str) -> OptionError:
    return OptionError(f"column {path!r} has the Arrow type {kind}: {reason}")


def depth(kind: pa.DataType) -> int:
    """The levels of a type: 1 for a simple type. The entries of a map are a level too."""
    return 1 + max([depth(kind.field(index).type) for index in range(kind.num_fields)], default=0)


def pandas_frame(table: pa.Table) -> pd.DataFrame:
    """Convert a table to pandas.

    A column of integers with nulls has Python's integers. If a date does not fit Python's dates,
    its column has datetime64[s].

    Raises:
        OptionError: a nested date does not fit Python's dates.
    """
    try:
        return table.to_pandas(integer_object_nulls=True)
    except (ValueError, OverflowError):
        return _with_far_dates(table).to_pandas(integer_object_nulls=True)


def _with_far_dates(table: pa.Table) -> pa.Table:
    for index, (name, column) in enumerate(zip(table.column_names, table.columns, strict=True)):
        try:
            column.to_pandas()
        except (ValueError, OverflowError) as error:
            if not types.is_date(column.type):
                raise OptionError(
                    f"column {name!r} has values that pandas cannot hold ({error}): read it as "
                    "Arrow, with scan()"
                ) from None
            table = table.set_column(index, name, column.cast(pa.timestamp("s")))
    return table
