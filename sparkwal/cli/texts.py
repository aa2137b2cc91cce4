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
from collections.abc import Callable, Sequence
from datetime import date
from decimal import Decimal
from json.encoder import encode_basestring

import click
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types
from rich.cells import cell_len, chop_cells

from sparkwal.console.escape import escape

Texts = list[str]


def quoted(text: str) -> str:
    """A text as JSON, which a terminal obeys in nothing."""
    return escape(encode_basestring(text))


def json_texts(array: pa.Array) -> Texts:
    """Each value as JSON."""
    kind = array.type
    if _is_others(kind):
        return [escape(json.dumps(value, default=str)) for value in array.to_pylist()]
    if types.is_nested(kind):
        return _nested(array)
    whole = types.is_integer(kind) or (types.is_decimal(kind) and kind.scale <= 0)
    quotes = not (whole or types.is_floating(kind) or types.is_boolean(kind))
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
    if _is_others(kind):
        return [None if value is None else str(value) for value in array.to_pylist()]
    if types.is_nested(kind):
        there = array.is_valid().to_pylist()
        found = zip(_nested(array), there, strict=True)
        return [text if valid else None for text, valid in found]
    if types.is_string(kind) or types.is_null(kind):
        return list(array.to_pylist())
    for holds, text in _BARE:
        if holds(kind):
            return [None if value is None else text(value) for value in array.to_pylist()]
    if types.is_interval(kind):
        return [None if value is None else _parts(value) for value in array.to_pylist()]
    if types.is_duration(kind):
        return [_interval(count) for count in array.cast(pa.int64()).to_pylist()]
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


_CSVS_OWN = (types.is_integer, types.is_boolean, types.is_floating, types.is_string)


def csv_batch(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The batch with what CSV has no form for as text: as in JSON, but bare."""
    columns = []
    for column in batch.columns:
        own = any(holds(column.type) for holds in _CSVS_OWN)
        columns.append(column if own else pa.array(bare_texts(column), pa.string()))
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)


def _float(value: float) -> str:
    if math.isfinite(value):
        return repr(value)
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _floats(array: pa.Array) -> list[str | None]:
    return [
        None if value is None else _float(value) if math.isfinite(value) else f'"{_float(value)}"'
        for value in array.to_pylist()
    ]


def _is_others(kind: pa.DataType) -> bool:
    """No column of a log has such a type; the answer to a query may."""
    nested = types.is_fixed_size_list(kind) or types.is_union(kind)
    return nested or isinstance(kind, pa.BaseExtensionType)


def _parts(value: pa.MonthDayNano) -> str:
    """DuckDB's intervals."""
    time = (_interval(value.nanoseconds // 1000) or "").removeprefix("-PT").removeprefix("PT")
    sign = "-" if value.nanoseconds < 0 else ""
    date = (f"{value.months}M" if value.months else "") + (f"{value.days}D" if value.days else "")
    return f"P{date}T{sign}{time}"


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


# So many rows decide how wide each column is; a terminal cuts what comes later.
_MEASURED = 200
_LEAST = 8
_GAP = "  "


class TableWriter:
    """Writes batches as lines.

    Args:
        write: takes lines.
        width: of the terminal; None: nothing is cut.
        styled: bold and dim text.
        notify: takes what people should know, beside the table.
    """

    def __init__(
        self,
        write: Callable[[str], None],
        width: int | None,
        styled: bool,
        notify: Callable[[str], None],
    ) -> None:
        self._write, self._width, self._notify, self._has_styles = write, width, notify, styled
        self._columns: pa.Schema | None = None
        self._waiting: list[tuple[str | None, ...]] = []
        self._widths: list[int] | None = None

    def write(self, batch: pa.RecordBatch) -> None:
        if self._columns is None or not self._columns.equals(batch.schema):
            self.flush()
            self._columns, self._widths = batch.schema, None
        for begin in range(0, batch.num_rows, 1000):
            part = batch.slice(begin, 1000)
            cells = [[self._cell(text) for text in bare_texts(each)] for each in part.columns]
            self._waiting.extend(zip(*cells, strict=True))
            if self._widths is not None or len(self._waiting) >= _MEASURED:
                self.flush()

    def _cell(self, text: str | None) -> str | None:
        if text is None:
            return None
        # Nobody looks at a megabyte that is cut to some letters.
        return escape(text if self._width is None else text[: self._width + 1])

    def flush(self) -> None:
        """Everything that was given is written."""
        if self._columns is None:
            return
        if self._widths is None:
            self._widths = self._measured(self._columns)
            self._head(self._columns, self._widths)
        right = [_is_number(each.type) for each in self._columns]
        for row in self._waiting:
            self._line([
                self._padded("null" if cell is None else cell, width, at_right, cell is None)
                for cell, width, at_right in zip(row, self._widths, right, strict=False)
            ])  # fmt: skip
        self._waiting = []

    def end(self, columns: pa.Schema) -> None:
        """Nothing more comes; a table without rows still has its head."""
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

    def _head(self, columns: pa.Schema, widths: Sequence[int]) -> None:
        right = [_is_number(each.type) for each in columns]
        heads = [
            self._padded(escape(name), width, at_right)
            for name, width, at_right in zip(columns.names, widths, right, strict=False)
        ]
        self._line([self._styled(head, bold=True) for head in heads])
        self._line(["─" * width for width in widths])

    def _line(self, cells: Sequence[str]) -> None:
        self._write(_GAP.join(cells).rstrip() + "\n")

    def _padded(self, text: str, width: int, at_right: bool, dim: bool = False) -> str:
        length = cell_len(text)
        if self._width is not None and length > width:
            text = (chop_cells(text, width - 1)[0] if width > 1 else "") + "…"
            length = cell_len(text)
        room = " " * (width - length)
        text = self._styled(text, dim=True) if dim else text
        return room + text if at_right else text + room

    def _styled(self, text: str, **style: bool) -> str:
        return click.style(text, **style) if self._has_styles else text


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + len(_GAP) * (len(widths) - 1)


def _is_number(kind: pa.DataType) -> bool:
    return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind))
