"""Converts Arrow's types to Spark's, for rows that come as Arrow: the inverse of `schema.to_arrow`.

Several Arrow types have the same values (string, large_string, a dictionary of strings). All become
the one type that the log stores. A type with other values is refused.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
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
        OptionError: pandas cannot hold a value: a moment or a date in a nested column, or a time
            with nanoseconds, that Python's classes lack; the least moment or duration, which is
            pandas' null; or a field inside whose name has a null character.
    """
    for name, column in zip(table.column_names, table.columns, strict=True):
        if _cuts_names(column.type):
            reason = "a field inside has a null character in its name"
            raise OptionError(f"column {name!r} cannot be read by pandas ({reason}): {_AS_ARROW}")
        if any(map(_holds_nat, column.chunks)):
            row = _first_row(column, lambda part: any(map(_holds_nat, part.chunks)))
            raise _not_in_pandas(name, row, "the least value of its type is pandas' null")
    try:
        return table.to_pandas(integer_object_nulls=True)
    except (ValueError, OverflowError):
        return _with_far_dates(table).to_pandas(integer_object_nulls=True)


_AS_ARROW = "leave the column out (columns=[…]), or read it as Arrow, with scan()"
# The least moment and duration of Arrow.
_NAT = -(2**63)


def _not_in_pandas(name: str, row: int, reason: object) -> OptionError:
    return OptionError(
        f"column {name!r} has a value in row {row} that pandas cannot hold ({reason}): {_AS_ARROW}"
    )


def _cuts_names(kind: pa.DataType) -> bool:
    fields = [kind.field(index) for index in range(kind.num_fields)]
    return any("\0" in field.name or _cuts_names(field.type) for field in fields)


def _holds_nat(array: pa.Array) -> bool:
    """Whether an array holds a moment or a duration that pandas reads as null."""
    kind = array.type
    if types.is_timestamp(kind) or types.is_duration(kind):
        return bool(pc.any(pc.equal(array.view(pa.int64()), _NAT)).as_py())
    if types.is_struct(kind):
        return any(map(_holds_nat, array.flatten()))
    if types.is_list(kind) or types.is_map(kind):
        return any(_holds_nat(part.flatten()) for part in as_lists(array))
    return False


def as_lists(array: pa.Array) -> list[pa.Array]:
    """A list, or a map as two lists: those of its keys and of its items."""
    if types.is_list(array.type):
        return [array]
    return [
        pa.Array.from_buffers(
            pa.list_(part.type),
            len(array),
            array.buffers()[:2],
            array.null_count,
            array.offset,
            [part],
        )
        for part in (array.keys, array.items)
    ]


def _first_row(column: pa.ChunkedArray, fails: Callable[[pa.ChunkedArray], bool]) -> int:
    """The first row for which a condition about a part of a column is true, by halving."""
    rows = range(len(column))
    return bisect_left(rows, True, key=lambda row: fails(column.slice(0, row + 1)))


def _with_far_dates(table: pa.Table) -> pa.Table:
    for index, (name, column) in enumerate(zip(table.column_names, table.columns, strict=True)):
        error = _pandas_error(column)
        if error is None:
            continue
        if not types.is_date(column.type):
            row = _first_row(column, lambda part: _pandas_error(part) is not None)
            raise _not_in_pandas(name, row, error)
        table = table.set_column(index, name, column.cast(pa.timestamp("s")))
    return table


def _pandas_error(column: pa.ChunkedArray) -> Exception | None:
    try:
        column.to_pandas()
    except (ValueError, OverflowError) as error:
        return error
    return None
