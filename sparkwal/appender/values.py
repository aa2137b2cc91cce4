"""Decides which values and pandas columns a column holds unchanged, and estimates their size.

Arrow converts more: 1.5 becomes 1 in a column of integers, a datetime loses its time in a column of
dates and its zone in a column without one. Two conversions follow the column's type: a float32
column holds the nearest float32 of a number in its range, and a datetime without a zone is UTC in a
column with a zone.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from functools import lru_cache
from math import inf
from typing import Any

import pyarrow as pa
from pyarrow import types

from sparkwal.format.json_values import fits_decimal

# As a float32 a number from here on is infinite: half a step above the largest finite one.
FLOAT32_END = 2.0**128 - 2.0**103
# Bytes in a record for each value of variable width, besides the value's own.
_OFFSET = 4
# Classes whose values are small and cannot change.
SCALARS = frozenset((type(None), bool, int, float, datetime, date, time, timedelta, Decimal))


def frozen(value: Any) -> Any:
    """A copy that does not change with the original."""
    if type(value) is str or type(value) in SCALARS:
        return value
    if isinstance(value, (bytearray, memoryview)):
        return bytes(value)
    if isinstance(value, Mapping):
        return {frozen(key): frozen(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        items = [frozen(item) for item in value]
        return items if isinstance(value, list) else tuple(items)
    return _of_numpy(value) if _is_numpy(value) else value


def _is_numpy(value: Any) -> bool:
    return type(value).__module__ == "numpy" and hasattr(value, "tolist")


def _of_numpy(value: Any) -> Any:
    is_time = value.dtype.kind in "mM"
    if value.ndim:
        return value.copy() if not is_time and not value.dtype.hasobject else frozen(list(value))
    plain = value.tolist()
    # For a time that Python's classes cannot hold, numpy returns a number or None.
    return value[()] if is_time and not isinstance(plain, (date, timedelta)) else frozen(plain)


def column(items: Sequence[Any], kind: pa.DataType) -> pa.Array | int:
    """Convert values to an array. Returns the index of the first value that it cannot hold
    unchanged."""
    try:
        return _converted(items, kind)
    except MemoryError:
        raise
    # A value's class may raise any exception.
    except Exception:
        index = next((at for at, item in enumerate(items) if not _fits_alone(item, kind)), None)
        # If all values fit, a signal's handler has raised the exception.
        if index is None:
            raise
        return index


def _converted(items: Sequence[Any], kind: pa.DataType) -> pa.Array | int:
    index = misfit(items, kind)
    return pa.array(items, type=kind) if index is None else index


def _fits_alone(item: Any, kind: pa.DataType) -> bool:
    with suppress(Exception):
        return not isinstance(_converted([item], kind), int)
    return False


def misfit(values: Sequence[Any], kind: pa.DataType) -> int | None:
    """The index of the first value that a column of this type cannot hold unchanged, or None."""
    exact, fits = _rule(kind)
    if exact.issuperset(map(type, values)):
        # This is nearly always so, and costs one pass in C.
        return None
    wrong = (
        index
        for index, value in enumerate(values)
        if type(value) not in exact and not fits(value, kind)
    )
    return next(wrong, None)


@lru_cache(maxsize=1024)
def _rule(kind: pa.DataType) -> tuple[frozenset[type], Callable[[Any, pa.DataType], bool]]:
    """The classes whose values all fit, and a function that decides for any other value."""
    rules = ((exact, fits) for holds, exact, fits in _RULES if holds(kind))
    exact, fits = next(rules, ((), _never))
    return frozenset((type(None), *exact)), fits


def _never(value: Any, kind: pa.DataType) -> bool:
    return False


def _fits_float32(value: Any, kind: pa.DataType) -> bool:
    is_number = isinstance(value, (float, int)) and not isinstance(value, bool)
    return is_number and not FLOAT32_END <= abs(value) < inf


def _fits_timestamp(value: Any, kind: pa.DataType) -> bool:
    # pandas' Timestamp and Timedelta are finer than their Python base classes.
    if not isinstance(value, datetime) or getattr(value, "nanosecond", None):
        return False
    if kind.tz is None:
        return value.tzinfo is None
    # Arrow drops fractions of a second in a zone's offset.
    offset = value.utcoffset()
    return offset is None or not offset.microseconds


def _fits_duration(value: Any, kind: pa.DataType) -> bool:
    return isinstance(value, timedelta) and not getattr(value, "nanoseconds", None)


def _fits_list(value: Any, kind: pa.DataType) -> bool:
    items = value.tolist() if _is_numpy(value) else value
    return isinstance(items, (list, tuple)) and misfit(items, kind.value_type) is None


def _fits_map(value: Any, kind: pa.DataType) -> bool:
    pairs = list(value.items()) if isinstance(value, Mapping) else value
    if not isinstance(pairs, (list, tuple)):
        return False
    return (
        all(isinstance(pair, tuple) and len(pair) == 2 for pair in pairs)
        and misfit([key for key, _ in pairs], kind.key_type) is None
        and misfit([item for _, item in pairs], kind.item_type) is None
    )


def _fits_struct(value: Any, kind: pa.DataType) -> bool:
    fields = _fields(kind)
    return (
        isinstance(value, Mapping)
        and fields.keys() >= value.keys()
        and all(misfit([item], fields[name]) is None for name, item in value.items())
    )


@lru_cache(maxsize=1024)
def _fields(kind: pa.DataType) -> dict[str, pa.DataType]:
    return {field.name: field.type for field in kind}


_RULES: tuple[tuple[Callable[..., bool], tuple[type, ...], Callable[..., bool]], ...] = (
    # JSON has no integers: 2.0 counts as one.
    (types.is_integer, (int,), lambda value, _: isinstance(value, float) and value.is_integer()),
    (types.is_boolean, (bool,), _never),
    (types.is_float32, (), _fits_float32),
    (types.is_floating, (float, int), lambda value, _: isinstance(value, float)),
    (types.is_string, (str,), lambda value, _: isinstance(value, str)),
    (types.is_binary, (bytes, bytearray, memoryview), lambda value, _: isinstance(value, bytes)),
    (types.is_date, (date,), _never),
    (types.is_timestamp, (), _fits_timestamp),
    (types.is_duration, (timedelta,), _fits_duration),
    (types.is_time, (), lambda value, _: type(value) is time and value.tzinfo is None),
    (types.is_decimal, (), fits_decimal),
    (types.is_list, (), _fits_list),
    (types.is_map, (), _fits_map),
    (types.is_struct, (), _fits_struct),
)


def carries(own: pa.DataType, target: pa.DataType) -> bool:
    """Whether a pandas column of type `own` may be cast to `target`.

    Arrow checks numbers itself, but would read 5 as a timestamp or as true, and drop a time of day
    or a time zone.
    """
    if types.is_dictionary(own):
        own = own.value_type
    if types.is_timestamp(own) and types.is_timestamp(target):
        return own.tz is None or target.tz is not None
    return _family(own) == _family(target)


def _family(kind: pa.DataType) -> str | int:
    if types.is_integer(kind) or types.is_floating(kind):
        return "number"
    is_text = types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind)
    return "text" if is_text else kind.id


def arrays(kind: pa.DataType) -> int:
    """The number of arrays of a column, with those of nested types."""
    return 1 + sum(arrays(kind.field(i).type) for i in range(kind.num_fields))


def width(kind: pa.DataType) -> int:
    """The bytes of one value, without those that depend on the value."""
    try:
        return (int(kind.bit_width) + 7) // 8
    except ValueError:
        return _OFFSET


def weight(value: Any) -> int:
    """About the bytes that a frozen value of a column without fixed width takes."""
    if isinstance(value, (str, bytes)):
        return len(value)
    if isinstance(value, Mapping):
        return 8 + sum(weight(key) + weight(item) for key, item in value.items())
    if isinstance(value, (list, tuple, set)):
        return 4 + sum(map(weight, value))
    # A value of numpy has the attribute.
    return int(getattr(value, "nbytes", 8))
