"""Decides which Python values and pandas frames a column holds unchanged, and estimates their size.

Arrow converts more: 1.5 becomes 1 in a column of integers, a datetime loses its time in a column of
dates and its zone in a column without one. Two conversions follow the column's type: a float32
column holds the nearest float32 of a number in its range, and a datetime without a zone is UTC in a
column with a zone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from functools import lru_cache, partial
from math import inf
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from sparkwal.errors import OptionError

if TYPE_CHECKING:
    import pandas as pd

_NONE = type(None)
# A number from here on is infinite as a float32: half a step above the largest one.
_FLOAT32_END = 2.0**128 - 2.0**103
# No column has more places after the point.
_MOST_PLACES = 76
# Bytes in a record for each value of variable width, besides the value's own.
_OFFSET = 4
# Classes whose values are small and cannot change.
SCALARS = frozenset((_NONE, bool, int, float, datetime, date, time, timedelta, Decimal))


def frozen(value: Any) -> Any:
    """A copy that does not change with the original."""
    if isinstance(value, (bytearray, memoryview)):
        return bytes(value)
    if isinstance(value, Mapping):
        return {frozen(key): frozen(item) for key, item in value.items()}
    if isinstance(value, list):
        return [frozen(item) for item in value]
    if isinstance(value, tuple):
        return tuple(frozen(item) for item in value)
    if type(value).__module__ == "numpy" and hasattr(value, "copy"):
        # A copy of an array of objects would share these.
        return frozen(value.tolist()) if value.dtype.hasobject else value.copy()
    return value


def misfit(values: Sequence[Any], kind: pa.DataType) -> int | None:
    """The index of the first value that a column of this type cannot hold unchanged, or None."""
    exact, fits = _rule(kind)
    # Nearly always all values are of the expected classes: check that in one pass in C.
    if exact.issuperset(map(type, values)):
        return None
    wrong = (index for index, each in enumerate(values) if each is not None and not fits(each))
    return next(wrong, None)


@lru_cache(maxsize=1024)
def _rule(kind: pa.DataType) -> tuple[frozenset[type], Callable[[Any], bool]]:
    """(classes whose values all fit, a function that decides on any other value)."""
    if types.is_struct(kind):
        fields = {kind.field(i).name: kind.field(i).type for i in range(kind.num_fields)}
        return frozenset((_NONE,)), partial(_fits_struct, fields)
    if types.is_map(kind):
        return frozenset((_NONE,)), partial(_fits_map, kind)
    if types.is_list(kind):
        return frozenset((_NONE,)), partial(_fits_list, kind)
    exact, fits = _leaf_rule(kind)

    def decide(value: Any) -> bool:
        if type(value) in exact:
            return True
        if type(value).__module__ == "numpy" and hasattr(value, "item"):
            value = value.item() if getattr(value, "ndim", 0) == 0 else value
        return type(value) in exact or fits(value)

    return frozenset((_NONE, *exact)), decide


def _leaf_rule(kind: pa.DataType) -> tuple[frozenset[type], Callable[[Any], bool]]:
    if types.is_integer(kind):
        # JSON has no integers: 2.0 counts as one.
        return frozenset((int,)), lambda v: isinstance(v, float) and v.is_integer()
    if types.is_boolean(kind):
        return frozenset((bool,)), _never
    if types.is_float32(kind):
        return frozenset(), _is_float32
    if types.is_floating(kind):
        return frozenset((float, int)), lambda v: isinstance(v, float)
    if types.is_string(kind):
        return frozenset((str,)), lambda v: isinstance(v, str)
    if types.is_binary(kind):
        return frozenset((bytes, bytearray, memoryview)), lambda v: isinstance(v, bytes)
    if types.is_date(kind):
        return frozenset((date,)), _never
    if types.is_timestamp(kind):
        if kind.tz is None:
            return frozenset(), lambda v: _is_moment(v) and v.tzinfo is None
        return frozenset(), lambda v: _is_moment(v) and _zone_is_whole(v)
    if types.is_duration(kind):
        return frozenset((timedelta,)), lambda v: isinstance(v, timedelta) and _no_nanoseconds(v)
    if types.is_time(kind):
        return frozenset(), lambda v: type(v) is time and v.tzinfo is None
    if types.is_decimal(kind):
        return frozenset(), lambda v: type(v) in (Decimal, int) and fits_decimal(v, kind)
    return frozenset(), _never


def _never(value: Any) -> bool:
    return False


def fits_decimal(value: Decimal | int, kind: pa.DataType) -> bool:
    """Whether a column of decimals holds exactly this number. Arrow cannot decide this: it
    crashes at some exponents, and changes some numbers that have too many digits."""
    whole = kind.precision - kind.scale
    if isinstance(value, int):
        return bool(abs(value) < 10**whole)
    exponent = value.as_tuple().exponent if value.is_finite() else None
    if not isinstance(exponent, int) or exponent < -_MOST_PLACES or value.adjusted() >= whole:
        # A zero may have any exponent, and Arrow does not take them all.
        return False
    dropped = -kind.scale - exponent
    digits = value.as_tuple().digits
    return dropped <= 0 or not any(digits[-dropped:])


def _is_float32(value: Any) -> bool:
    is_number = isinstance(value, (float, int)) and not isinstance(value, bool)
    return is_number and not _FLOAT32_END <= abs(value) < inf


def _is_moment(value: Any) -> bool:
    return isinstance(value, datetime) and _no_nanoseconds(value)


def _zone_is_whole(value: datetime) -> bool:
    # Arrow drops fractions of a second in a zone's offset.
    offset = value.utcoffset()
    return offset is None or not offset.microseconds


def _no_nanoseconds(value: Any) -> bool:
    # pandas' Timestamp and Timedelta are finer than their Python base classes.
    return not getattr(value, "nanosecond", 0) and not getattr(value, "nanoseconds", 0)


def _sequence(value: Any) -> Sequence[Any] | None:
    if isinstance(value, (list, tuple)):
        return value
    if type(value).__module__ == "numpy" and getattr(value, "ndim", 0) == 1:
        return list(value)
    return None


def _fits_list(kind: pa.DataType, value: Any) -> bool:
    items = _sequence(value)
    return items is not None and misfit(items, kind.value_type) is None


def _fits_map(kind: pa.DataType, value: Any) -> bool:
    pairs = list(value.items()) if isinstance(value, Mapping) else _sequence(value)
    if pairs is None or any(not isinstance(p, tuple) or len(p) != 2 for p in pairs):
        return False
    return (
        misfit([key for key, _ in pairs], kind.key_type) is None
        and misfit([item for _, item in pairs], kind.item_type) is None
    )


def _fits_struct(fields: dict[str, pa.DataType], value: Any) -> bool:
    return (
        isinstance(value, Mapping)
        and fields.keys() >= value.keys()
        and all(misfit([item], fields[name]) is None for name, item in value.items())
    )


def frame_table(
    frame: pd.DataFrame, target: pa.Schema, bad_value: Callable[[int, str, Any], OptionError]
) -> pa.Table:
    """The frame as a table with the types of `target`. It may share memory with the frame.
    `bad_value` makes the error that names (row, column, value). Raises OptionError."""
    own = pa.Schema.from_pandas(frame.iloc[:0], preserve_index=False)
    for field in target:
        column = frame[field.name]
        if column.dtype == object:
            # In pandas NaN stands for null in any column.
            there = column.notna()
            values = [value if known else None for value, known in zip(column, there, strict=True)]
            place = misfit(values, field.type)
            if place is not None:
                raise bad_value(place, field.name, values[place])
        elif not _carries(own.field(field.name).type, field.type):
            raise OptionError(
                f"column {field.name!r} is {column.dtype} in this frame and "
                f"{field.type} in the schema; convert it"
            )
    try:
        made = pa.Table.from_pandas(frame, schema=target, preserve_index=False)
    except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
        # Arrow's further arguments name the column, as "Conversion failed for column …".
        said = " ".join(str(arg) for arg in error.args)
        raise OptionError(f"the frame does not fit the schema: {said}") from None
    for field in target:
        if types.is_float32(field.type) and frame[field.name].dtype != object:
            _check_range(frame[field.name], made.column(field.name), field.name, bad_value)
    return made


def _carries(own: pa.DataType, target: pa.DataType) -> bool:
    """Whether a pandas column of type `own` may go into a column of type `target`. Arrow would
    read 5 as a timestamp or as true, and drop a time of day or a time zone. It checks numbers
    and nanoseconds itself."""
    if types.is_dictionary(own):
        own = own.value_type
    if types.is_integer(own) or types.is_floating(own):
        return bool(types.is_integer(target) or types.is_floating(target))
    if types.is_timestamp(own):
        return bool(types.is_timestamp(target) and (own.tz is None or target.tz is not None))
    if types.is_string(own) or types.is_large_string(own) or types.is_string_view(own):
        return bool(types.is_string(target))
    return bool(own.id == target.id)


def _check_range(
    column: pd.Series[Any],
    made: pa.ChunkedArray,
    name: str,
    bad_value: Callable[[int, str, Any], OptionError],
) -> None:
    """Reject numbers such as 1e39, which Arrow would make infinite as a float32."""
    for place in pc.indices_nonzero(pc.is_inf(made)).to_pylist():
        value = column.iloc[place]
        if abs(value) != float("inf"):
            raise bad_value(place, name, value)


def arrays(kind: pa.DataType) -> int:
    return 1 + sum(arrays(kind.field(i).type) for i in range(kind.num_fields))


def width(kind: pa.DataType) -> int:
    """Bytes of one value, without those that depend on the value."""
    try:
        return (int(kind.bit_width) + 7) // 8
    except ValueError:
        return 0 if pa.types.is_null(kind) else _OFFSET


def weight(value: Any) -> int:
    """About how many bytes a value of a column without fixed width takes."""
    if isinstance(value, (str, bytes, bytearray)):
        return len(value)
    if isinstance(value, Mapping):
        return 8 + sum(weight(key) + weight(item) for key, item in value.items())
    return 4 + sum(map(weight, value)) if isinstance(value, (list, tuple, set)) else 8
