"""Values as text, exactly: as JSON, bare for CSV, and as a table, row by row.

What JSON has no form for: decimals with a fraction are texts of their digits, bytes base64, dates
and times ISO 8601 (a timestamp with its zone, Z), intervals ISO 8601 too (PT1.5S), floats that are
no number the texts NaN, Infinity and -Infinity. A map whose keys are texts, each there once, is an
object; any other is a list of [key, value].
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable, Iterable, Sequence
from datetime import date
from itertools import pairwise
from typing import Any

import click
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types
from rich.cells import cell_len, chop_cells

from sparkwal.console.escape import escape

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
        value if value is None or isinstance(value, str)
        else str(value) if plain else escape(_as_json(value))
        for value in _values(array)
    ]  # fmt: skip


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
        if types.is_map(kind):
            of_text = types.is_string(kind.key_type)
            found = (_map(pairs, of_text) for pairs in found)
    valid = array.is_valid().to_pylist()
    return [value if there else None for value, there in zip(found, valid, strict=True)]


def _map(pairs: list[Any], of_text: bool) -> Any:
    as_object = dict(pairs) if of_text else {}
    return as_object if of_text and len(as_object) == len(pairs) else pairs


def _leaves(array: pa.Array) -> list[Any]:
    kind = array.type
    value_of: Callable[[Any], Any] | None = None
    if types.is_floating(kind):
        value_of = _number
    elif types.is_decimal(kind):
        value_of = int if kind.scale <= 0 else lambda value: format(value, "f")
    elif types.is_binary(kind):
        value_of = _base64
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
        return _beyond(array, array.cast(pa.int32()).cast(pa.int64()), 1, lambda text, _: text)
    if types.is_timestamp(kind):
        zone = "Z" if kind.tz else ""
        if kind.unit != "us":
            array = array.cast(pa.timestamp("us", kind.tz), safe=False)
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
    """`texts`, and for moments outside of the years 1…9999, which Arrow cannot write, `whole` of
    the day's text and what of it has passed. `counts` are since 1970, `day` of them a day."""
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


def _base64(value: bytes) -> str:
    return base64.b64encode(value).decode()


def _number(value: float) -> float | str:
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


_CSVS_OWN = (types.is_integer, types.is_boolean, types.is_floating, types.is_string)


def csv_batch(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The batch with what CSV has no form for as text: as in JSON, but bare."""
    columns = []
    for column in batch.columns:
        own = any(holds(column.type) for holds in _CSVS_OWN)
        columns.append(column if own else pa.array(bare_texts(column), pa.string()))
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)


def _parts(value: pa.MonthDayNano) -> str:
    time = _interval(value.nanoseconds // 1000).removeprefix("-PT").removeprefix("PT")
    sign = "-" if value.nanoseconds < 0 else ""
    date = (f"{value.months}M" if value.months else "") + (f"{value.days}D" if value.days else "")
    return f"P{date}T{sign}{time}"


def _interval(microseconds: int) -> str:
    whole, fraction = divmod(abs(microseconds), 10**6)
    digits = f".{fraction:06d}".rstrip("0") if fraction else ""
    return f"{'-' if microseconds < 0 else ''}PT{whole}{digits}S"


# So many rows decide how wide each column is; a terminal cuts what comes later.
_MEASURED = 200
_LEAST = 8
_GAP = "  "
_NUMBERS = (types.is_integer, types.is_floating, types.is_decimal)


class TableWriter:
    """Writes batches as lines, not cut if `width`, the terminal's, is None; `notify` takes what
    people should know beside the table."""

    def __init__(
        self, write: Callable[[str], object], width: int | None, styled: bool,
        notify: Callable[[str], None],
    ) -> None:  # fmt: skip
        self._write, self._width, self._notify, self._has_styles = write, width, notify, styled
        self._columns: pa.Schema | None = None
        self._waiting: list[tuple[str | None, ...]] = []
        self._widths: list[int] | None = None
        # Which columns stand to the right.
        self._right: list[bool] = []

    def write(self, batch: pa.RecordBatch) -> None:
        if self._columns is None or not self._columns.equals(batch.schema):
            self.flush()
            self._columns, self._widths = batch.schema, None
        # Nobody looks at a megabyte that is cut to some letters.
        most = None if self._width is None else self._width + 1
        for begin in range(0, batch.num_rows, 1000):
            cells = [
                [None if text is None else escape(text[:most]) for text in bare_texts(column)]
                for column in batch.slice(begin, 1000).columns
            ]
            self._waiting.extend(zip(*cells, strict=True))
            if self._widths is not None or len(self._waiting) >= _MEASURED:
                self.flush()

    def flush(self) -> None:
        if self._columns is None:
            return
        if self._widths is None:
            self._widths = self._measured(self._columns)
            self._right = [any(is_of(each.type) for is_of in _NUMBERS) for each in self._columns]
            self._line([escape(name) for name in self._columns.names], bold=True)
            self._write(_GAP.join("─" * width for width in self._widths) + "\n")
        for row in self._waiting:
            self._line(row)
        self._waiting = []

    def end(self, columns: pa.Schema) -> None:
        """A table without rows still has its head."""
        self._columns = self._columns if self._columns is not None else columns
        self.flush()

    def _measured(self, columns: pa.Schema) -> list[int]:
        heads = [escape(name) for name in columns.names]
        widths = [
            max(cell_len("null" if text is None else text) for text in column)
            for column in zip(heads, *self._waiting, strict=True)
        ]
        if self._width is None or _total(widths) <= self._width:
            return widths
        fits = max(
            (most for most in range(_LEAST, self._width + 1)
             if _total([min(width, most) for width in widths]) <= self._width),
            default=_LEAST,
        )  # fmt: skip
        widths = [min(width, fits) for width in widths]
        while len(widths) > 1 and _total(widths) > self._width:
            widths.pop()
        if hidden := columns.names[len(widths) :]:
            self._notify(
                f"{len(hidden)} more columns do not fit: {escape(', '.join(hidden))}; choose "
                "with --columns"
            )
        return widths

    def _line(self, row: Sequence[str | None], **style: bool) -> None:
        cells = []
        for text, width, right in zip(row, self._widths or (), self._right, strict=False):
            cell = "null" if text is None else text
            length = cell_len(cell)
            if self._width is not None and length > width:
                cell = (chop_cells(cell, width - 1)[0] if width > 1 else "") + "…"
                length = cell_len(cell)
            if self._has_styles and (style or text is None):
                cell = click.style(cell, **(style or {"dim": True}))
            room = " " * (width - length)
            cells.append(room + cell if right else cell + room)
        self._write(_GAP.join(cells).rstrip() + "\n")


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + len(_GAP) * (len(widths) - 1)
