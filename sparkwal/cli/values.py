"""Values as text, exactly: as JSON, and bare for templates, tables and CSV.

What JSON has no form for: decimals are texts of their digits, bytes base64, dates and times
ISO 8601 (a timestamp with its zone, Z), intervals ISO 8601 too (PT1.5S), floats that are no
number the texts NaN, Infinity and -Infinity. A map whose keys are texts, each there once, is an
object; any other is a list of [key, value].
"""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Sequence
from datetime import date
from decimal import Decimal
from json.encoder import encode_basestring

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from sparkwal.cli.plain import plain

Texts = list[str]


def quoted(text: str) -> str:
    """A text as JSON, which a terminal obeys in nothing."""
    return plain(encode_basestring(text))


def json_texts(array: pa.Array) -> Texts:
    """Each value as JSON."""
    kind = array.type
    if types.is_nested(kind):
        return _nested(array)
    quotes = not (types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind))
    found = _floats(array) if types.is_floating(kind) else bare_texts(array)
    if quotes:
        return ["null" if text is None else quoted(text) for text in found]
    return ["null" if text is None else text for text in found]


def json_rows(batch: pa.RecordBatch) -> Texts:
    """Each row as one JSON object."""
    if not batch.num_columns:
        return ["{}"] * batch.num_rows
    heads = [quoted(name) + ":" for name in batch.schema.names]
    columns = [json_texts(column) for column in batch.columns]
    return [
        "{" + ",".join(map(str.__add__, heads, row)) + "}" for row in zip(*columns, strict=True)
    ]


def bare_texts(array: pa.Array) -> list[str | None]:
    """Each value as text without quotes, None for null; what is nested as JSON."""
    kind = array.type
    if types.is_nested(kind):
        there = array.is_valid().to_pylist()
        found = zip(_nested(array), there, strict=True)
        return [text if valid else None for text, valid in found]
    if types.is_string(kind) or types.is_null(kind):
        return list(array.to_pylist())
    for holds, text in _BARE:
        if holds(kind):
            return [None if value is None else text(value) for value in array.to_pylist()]
    if types.is_duration(kind):
        return [_interval(count) for count in array.cast(pa.int64()).to_pylist()]
    if types.is_date(kind):
        return _beyond(array, array.cast(pa.int32()).cast(pa.int64()), 1, lambda text, _: text)
    if types.is_timestamp(kind):
        zone = "Z" if kind.tz else ""
        moments = array.cast(pa.int64())
        return _beyond(
            pc.replace_substring(array.cast(pa.string()), " ", "T"), moments, _DAY,
            lambda text, rest: f"{text}T{_clock(rest)}{zone}",
        )  # fmt: skip
    return list(array.cast(pa.string()).to_pylist())


_DAY = 86_400_000_000  # microseconds
# Days of 400 years, after which the calendar repeats itself.
_CYCLE = 146_097


def _beyond(
    texts: pa.Array, counts: pa.Array, day: int, whole: Callable[[str, int], str]
) -> list[str | None]:
    """`texts`, and for moments outside of the years 1…9999 what Arrow does not know to write.

    Args:
        counts: since 1970, of which `day` are a day.
        whole: a text from that of the day and what of the day has passed.
    """
    found = list(texts.cast(pa.string()).to_pylist())
    ends = pc.min_max(counts).as_py()
    first, after = date.min.toordinal() - _EPOCH, date.max.toordinal() - _EPOCH + 1
    if ends["min"] is None or (ends["min"] >= first * day and ends["max"] < after * day):
        return found
    for place, count in enumerate(counts.to_pylist()):
        if count is not None and not first * day <= count < after * day:
            days, rest = divmod(count, day)
            cycles, days = divmod(days, _CYCLE)
            near = date.fromordinal(_EPOCH + days)
            year = near.year + 400 * cycles
            sign = "+" if year > 9999 else "-" if year < 0 else ""
            found[place] = whole(f"{sign}{abs(year):04d}-{near:%m-%d}", rest)
    return found


_EPOCH = date(1970, 1, 1).toordinal()


def _clock(microseconds: int) -> str:
    seconds, fraction = divmod(microseconds, 10**6)
    return f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}.{fraction:06d}"


_BARE: Sequence[tuple[Callable[[pa.DataType], bool], Callable[..., str]]] = (
    (types.is_integer, str),
    (types.is_boolean, lambda value: "true" if value else "false"),
    (types.is_floating, lambda value: _float(value)),
    (types.is_decimal, lambda value: _decimal(value)),
    (types.is_binary, lambda value: base64.b64encode(value).decode()),
)


def _decimal(value: Decimal) -> str:
    return format(value, "f")


def _float(value: float) -> str:
    if math.isfinite(value):
        return repr(value)
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _floats(array: pa.Array) -> list[str | None]:
    return [
        None if value is None else _float(value) if math.isfinite(value) else f'"{_float(value)}"'
        for value in array.to_pylist()
    ]


def _interval(microseconds: int | None) -> str | None:
    if microseconds is None:
        return None
    whole, fraction = divmod(abs(microseconds), 10**6)
    digits = f".{fraction:06d}".rstrip("0") if fraction else ""
    return f"{'-' if microseconds < 0 else ''}PT{whole}{digits}S"


def _nested(array: pa.Array) -> Texts:
    kind = array.type
    valid = array.is_valid().to_pylist()
    if types.is_struct(kind):
        names = [kind.field(place).name for place in range(kind.num_fields)]
        # Of `flatten` a null struct's fields are null too, and a slice's are its own.
        fields = [json_texts(column) for column in array.flatten()]
        heads = [quoted(name) + ":" for name in names]
        rows = zip(*fields, strict=True) if fields else ((),) * len(array)
        texts = ["{" + ",".join(map(str.__add__, heads, row)) + "}" for row in rows]
        return [text if there else "null" for text, there in zip(texts, valid, strict=True)]
    begin = array.offsets[0].as_py() if len(array) else 0
    ends = [offset - begin for offset in array.offsets.to_pylist()]
    end = begin + (ends[-1] if ends else 0)
    if types.is_map(kind):
        keys = array.keys.slice(begin, end - begin)
        items = json_texts(array.items.slice(begin, end - begin))
        of_text = types.is_string(kind.key_type)
        parts = list(zip(json_texts(keys), items, strict=True))
        spans = [parts[low:high] for low, high in zip(ends, ends[1:], strict=False)]
        texts = [_map(span, of_text) for span in spans]
    else:
        values = json_texts(array.values.slice(begin, end - begin))
        bounds = zip(ends, ends[1:], strict=False)
        texts = ["[" + ",".join(values[low:high]) + "]" for low, high in bounds]
    return [text if there else "null" for text, there in zip(texts, valid, strict=True)]


def _map(pairs: Sequence[tuple[str, str]], of_text: bool) -> str:
    if of_text and len({key for key, _ in pairs}) == len(pairs):
        return "{" + ",".join(f"{key}:{item}" for key, item in pairs) + "}"
    return "[" + ",".join(f"[{key},{item}]" for key, item in pairs) + "]"
