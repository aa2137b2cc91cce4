"""Converts Arrow values to exact text: JSON, and text without quotes for CSV and tables.

docs/cli.md lists the text of each type.
"""

import base64
import json
import math
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Any

import pyarrow as pa
from pyarrow import types

from sparkwal.errors import escape

# The result of a query may have types that a log cannot have and JSON lacks: convert with `str`.
_as_json = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), default=str).encode


def json_rows(batch: pa.RecordBatch) -> list[str]:
    """Each row as one JSON object, escaped."""
    names = batch.schema.names
    rows = _rows(batch.columns, batch.num_rows)
    if len(set(names)) == len(names):
        return [escape(_as_json(dict(zip(names, row, strict=True)))) for row in rows]
    # Two columns of a query's result may have the same name, which a dict cannot hold.
    heads = [f"{_as_json(name)}:" for name in names]
    return [
        escape("{" + ",".join(map(str.__add__, heads, map(_as_json, row))) + "}") for row in rows
    ]


def bare_texts(array: pa.Array) -> list[str | None]:
    """Each value as text without quotes, a nested value as JSON, null as None."""
    plain = not (types.is_nested(array.type) or types.is_boolean(array.type))
    return [
        value
        if value is None or isinstance(value, str)
        else str(value)
        if plain
        else escape(_as_json(value))
        for value in _values(array)
    ]


def _rows(columns: Sequence[pa.Array], count: int) -> Iterable[tuple[Any, ...]]:
    return zip(*map(_values, columns), strict=True) if columns else [()] * count


def _values(array: pa.Array) -> list[Any]:
    kind = array.type
    if not types.is_nested(kind):
        return _leaves(array)
    if types.is_union(kind) or types.is_fixed_size_list(kind):
        return list(array.to_pylist())
    if types.is_struct(kind):
        names = [field.name for field in kind]
        # Unlike `field`, `flatten` respects the offset of a slice and the nulls of the struct.
        values: Iterable[Any] = (
            dict(zip(names, row, strict=True)) for row in _rows(array.flatten(), len(array))
        )
    else:
        offsets = array.offsets.to_pylist() or [0]
        first, last = offsets[0], offsets[-1]
        inner = [array.keys, array.items] if types.is_map(kind) else [array.values]
        parts = [_values(part.slice(first, last - first)) for part in inner]
        items = list(zip(*parts, strict=True)) if types.is_map(kind) else parts[0]
        values = (items[low - first : high - first] for low, high in pairwise(offsets))
        if types.is_map(kind) and types.is_string(kind.key_type):
            values = map(_dict_or_pairs, values)
    valid = array.is_valid().to_pylist()
    return [value if is_valid else None for value, is_valid in zip(values, valid, strict=True)]


def _dict_or_pairs(pairs: Sequence[tuple[str, Any]]) -> Any:
    """A map as a dict, or as its pairs if a key occurs twice."""
    as_dict = dict(pairs)
    return as_dict if len(as_dict) == len(pairs) else pairs


def _leaves(array: pa.Array) -> list[Any]:
    kind = array.type
    value_of: Callable[[Any], Any] | None = None
    if types.is_floating(kind):
        value_of = _number
    elif types.is_decimal(kind):
        value_of = int if kind.scale <= 0 else lambda value: format(value, "f")
    elif types.is_binary(kind):
        value_of = lambda value: base64.b64encode(value).decode()  # noqa: E731
    elif types.is_interval(kind):
        value_of = _iso_interval
    elif types.is_duration(kind):
        value_of = _iso_duration
        array = array.cast(pa.int64())
    elif isinstance(kind, pa.BaseExtensionType):
        value_of = str
    if value_of is not None:
        return [None if value is None else value_of(value) for value in array.to_pylist()]
    if types.is_integer(kind) or types.is_boolean(kind) or types.is_string(kind):
        return list(array.to_pylist())
    if types.is_date(kind):
        return _moments(array.cast(pa.date32()))
    if types.is_timestamp(kind):
        array = array.cast(pa.timestamp("us", kind.tz), safe=False)
        return _moments(array, "Z" if kind.tz else "")
    return list(array.cast(pa.string()).to_pylist())


def _moments(array: pa.Array, zone: str = "") -> list[str | None]:
    """ISO 8601, also for years outside of 1…9999, which neither Arrow nor Python can write."""
    texts = array.to_numpy(zero_copy_only=False).astype(str).tolist()
    valid = array.is_valid().to_pylist()
    return [
        _iso_moment(text) + zone if is_valid else None
        for text, is_valid in zip(texts, valid, strict=True)
    ]


def _iso_moment(text: str) -> str:
    if text == "NaT":  # numpy prints the least 64-bit integer as NaT
        return "-290308-12-21T19:59:05.224192"
    if text[0] == "-":
        year, _, day = text[1:].partition("-")
        return f"-{year:0>4}-{day}"
    return text if text[4] == "-" else f"+{text}"


def _number(value: float) -> float | str:
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


_CSV_TYPES = (types.is_integer, types.is_boolean, types.is_floating, types.is_string)


def csv_batch(batch: pa.RecordBatch, *, terminal: bool = False) -> pa.RecordBatch:
    """Convert the columns that pyarrow cannot write as CSV to text.

    The text is that of JSON without quotes. For a `terminal`, texts and names are escaped too.
    """
    safe: Callable[[str], str] = escape if terminal else str
    columns = []
    for column in batch.columns:
        writable = any(is_of(column.type) for is_of in _CSV_TYPES)
        if not writable or (terminal and types.is_string(column.type)):
            texts = (text and safe(text) for text in bare_texts(column))
            column = pa.array(texts, pa.string())
        columns.append(column)
    return pa.RecordBatch.from_arrays(columns, names=[*map(safe, batch.schema.names)])


def _iso_interval(value: pa.MonthDayNano) -> str:
    time = _iso_duration(value.nanoseconds // 1000).removeprefix("-PT").removeprefix("PT")
    sign = "-" if value.nanoseconds < 0 else ""
    days = (f"{value.months}M" if value.months else "") + (f"{value.days}D" if value.days else "")
    return f"P{days}T{sign}{time}"


def _iso_duration(microseconds: int) -> str:
    seconds, fraction = divmod(abs(microseconds), 10**6)
    digits = f".{fraction:06d}".rstrip("0") if fraction else ""
    return f"{'-' if microseconds < 0 else ''}PT{seconds}{digits}S"
