"""Values as text, exactly: as JSON, and bare for CSV and tables. docs/cli.md says what each type
becomes."""

import base64
import json
import math
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Any

import pyarrow as pa
from pyarrow import types

from sparkwal.cli.output import escape

# An answer may hold values that no log has and JSON does not know: they become texts.
_as_json = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), default=str).encode


def json_rows(batch: pa.RecordBatch) -> list[str]:
    """Each row as one JSON object, escaped."""
    names = batch.schema.names
    rows = _rows(batch.columns, batch.num_rows)
    if len(set(names)) == len(names):
        return [escape(_as_json(dict(zip(names, row, strict=True)))) for row in rows]
    # A query may give two columns one name.
    heads = [f"{_as_json(name)}:" for name in names]
    return [
        escape("{" + ",".join(map(str.__add__, heads, map(_as_json, row))) + "}") for row in rows
    ]


def bare_texts(array: pa.Array) -> list[str | None]:
    """Each value as text without quotes, None for null; what is nested as JSON."""
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
        # Of `flatten` a null struct's fields are null too, and a slice's are its own.
        found: Iterable[Any] = (
            dict(zip(names, row, strict=True)) for row in _rows(array.flatten(), len(array))
        )
    else:
        offsets = array.offsets.to_pylist() or [0]
        first, last = offsets[0], offsets[-1]
        inner = [array.keys, array.items] if types.is_map(kind) else [array.values]
        parts = [_values(each.slice(first, last - first)) for each in inner]
        items = list(zip(*parts, strict=True)) if types.is_map(kind) else parts[0]
        found = (items[low - first : high - first] for low, high in pairwise(offsets))
        if types.is_map(kind) and types.is_string(kind.key_type):
            found = (each if len(each := dict(pairs)) == len(pairs) else pairs for pairs in found)
    valid = array.is_valid().to_pylist()
    return [value if there else None for value, there in zip(found, valid, strict=True)]


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
        value_of = _parts
    elif types.is_duration(kind):
        value_of, array = _interval, array.cast(pa.int64())
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
    """ISO 8601 also for years outside of 1…9999, which neither Arrow nor Python can write."""
    texts = array.to_numpy(zero_copy_only=False).astype(str).tolist()
    valid = array.is_valid().to_pylist()
    return [_iso(text) + zone if there else None for text, there in zip(texts, valid, strict=True)]


def _iso(text: str) -> str:
    if text == "NaT":  # to numpy the least of all numbers is none
        return "-290308-12-21T19:59:05.224192"
    if text[0] == "-":
        year, _, rest = text[1:].partition("-")
        return f"-{year:0>4}-{rest}"
    return text if text[4] == "-" else f"+{text}"


def _number(value: float) -> float | str:
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


_CSVS_OWN = (types.is_integer, types.is_boolean, types.is_floating, types.is_string)


def csv_batch(batch: pa.RecordBatch, *, terminal: bool = False) -> pa.RecordBatch:
    """The batch with what CSV has no form for as text: as in JSON, but bare; escaped for a
    `terminal`."""
    safe: Callable[[str], str] = escape if terminal else str
    columns = []
    for column in batch.columns:
        own = any(holds(column.type) for holds in _CSVS_OWN)
        if not own or (terminal and types.is_string(column.type)):
            texts = (text and safe(text) for text in bare_texts(column))
            column = pa.array(texts, pa.string())
        columns.append(column)
    return pa.RecordBatch.from_arrays(columns, names=[*map(safe, batch.schema.names)])


def _parts(value: pa.MonthDayNano) -> str:
    time = _interval(value.nanoseconds // 1000).removeprefix("-PT").removeprefix("PT")
    sign = "-" if value.nanoseconds < 0 else ""
    days = (f"{value.months}M" if value.months else "") + (f"{value.days}D" if value.days else "")
    return f"P{days}T{sign}{time}"


def _interval(microseconds: int) -> str:
    whole, fraction = divmod(abs(microseconds), 10**6)
    digits = f".{fraction:06d}".rstrip("0") if fraction else ""
    return f"{'-' if microseconds < 0 else ''}PT{whole}{digits}S"
