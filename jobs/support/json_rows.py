"""Converts JSON lines to rows of an Arrow schema, exactly or not at all; parses that schema."""

from __future__ import annotations

import base64
import codecs
import json
import math
import re
import struct
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, date, datetime, time
from decimal import Decimal, InvalidOperation
from itertools import islice
from typing import Any

import pyarrow as pa
from pyarrow import types

from sparkwal.appender.values import fits_decimal
from sparkwal.errors import OptionError
from sparkwal.format import schema

# Rows that are Python objects at once: these take many times the memory of Arrow rows.
_CHUNK = 4096
_KINDS = {"bigint": "long", "int": "integer", "smallint": "short", "tinyint": "byte"}
_FINER = re.compile(r"[.,]\d{6}0*[1-9]")

Reader = Callable[[Any], Any]


def parse_schema(text: str) -> pa.Schema:
    """`id long, name string`, or Spark's schema JSON. Raises OptionError."""
    try:
        if text.lstrip().startswith("{"):
            fields = json.loads(text)["fields"]
        else:
            fields = []
            # Not at the comma in decimal(10,2).
            for item in filter(str.strip, re.split(r",(?![^(]*\))", text)):
                name, _, kind = item.strip().replace(":", " ", 1).partition(" ")
                kind = kind.strip().lower()
                if "<" in kind:
                    raise OptionError(f"column {name!r} is nested: give Spark's schema JSON")
                null, kind = not kind.endswith(" not null"), kind.removesuffix(" not null")
                fields.append({"name": name, "type": _KINDS.get(kind, kind), "nullable": null})
        found = schema.to_arrow(schema.normalize({"fields": fields}))
        # What the log keeps is nullable; the appender checks the columns that are not.
        nullable = {each["name"]: each.get("nullable", True) for each in fields}
        found = pa.schema([each.with_nullable(nullable[each.name]) for each in found])
        if not len(found):
            raise OptionError("the schema has no columns; give it as `id long, name string`")
        return found
    except (KeyError, TypeError, ValueError) as error:
        if isinstance(error, OptionError):
            raise
        raise OptionError(
            "the schema is neither `name type, …` nor Spark's schema JSON (df.schema.json())"
        ) from None


class JsonRows:
    """JSON lines to record batches of a schema.

    Times are ISO 8601, binary values base64, decimals texts or numbers, and floats may be the texts
    NaN, Infinity and -Infinity: as `sparkwal cat --json` prints them. A value that its column does
    not hold exactly is refused; only a number in a column of floats is rounded.
    """

    def __init__(self, arrow_schema: pa.Schema) -> None:
        self._schema = arrow_schema
        self._columns = {field.name: _reader(field.type) for field in arrow_schema}
        spark = schema.columns(schema.from_arrow(arrow_schema))
        self._kinds = {name: schema.type_name(kind) for name, kind in spark.items()}

    def batches(self, body: bytes) -> Iterator[pa.RecordBatch]:
        """One row for each line that is not empty, or for each element of one JSON array.

        Raises:
            OptionError: a value does not fit; the message names row and column.
        """
        # RFC 8259 allows a reader to skip the byte order mark that some clients put first.
        body = body.removeprefix(codecs.BOM_UTF8)
        rows = self._elements(body) if body.lstrip().startswith(b"[") else self._lines(body)
        first = 0
        while chunk := [*islice(rows, _CHUNK)]:
            columns = [self._column(chunk, field, first) for field in self._schema]
            yield pa.RecordBatch.from_arrays(columns, schema=self._schema)
            first += len(chunk)

    def _lines(self, body: bytes) -> Iterator[dict[str, Any]]:
        lines = (line for line in body.splitlines() if line.strip())
        for number, line in enumerate(lines):
            yield self._row(number, _parsed(line, f"row {number}", "one object a line"))

    def _elements(self, body: bytes) -> Iterator[dict[str, Any]]:
        elements = _parsed(body, "the body", "one array of objects, or one object a line,")
        for number, element in enumerate(elements):
            yield self._row(number, element)

    def _row(self, place: int, row: Any) -> dict[str, Any]:
        where = f"row {place}"
        if not isinstance(row, dict):
            raise OptionError(f"{where} is not a JSON object")
        for name in row:
            if name not in self._columns:
                raise OptionError(
                    f"{where} has a column {name!r} that the schema has not; it has "
                    f"{', '.join(self._columns)}"
                )
        return {name: self._value(place, name, value) for name, value in row.items()}

    def _value(self, place: int, name: str, value: Any) -> Any:
        if value is None:
            return None
        try:
            return self._columns[name](value)
        except (ValueError, TypeError, ArithmeticError) as error:
            raise self._misfit(place, name, value, error) from None

    def _column(self, rows: Sequence[dict[str, Any]], field: pa.Field, first: int) -> pa.Array:
        values = [row.get(field.name) for row in rows]
        try:
            return pa.array(values, field.type)
        except (ValueError, TypeError, ArithmeticError):
            for place, value in enumerate(values, first):
                try:
                    pa.array([value], field.type)
                except (ValueError, TypeError, ArithmeticError) as error:
                    raise self._misfit(place, field.name, value, error) from None
            raise

    def _misfit(self, place: int, name: str, value: Any, error: Exception) -> OptionError:
        why = f": {error}" if isinstance(error, _Misfit) else ""
        return OptionError(
            f"row {place}: column {name!r} is {self._kinds[name]} and cannot hold this "
            f"{_JSON_NAMES.get(type(value), type(value).__name__)}{why}; nothing was written"
        )


def _parsed(text: bytes, where: str, expected: str) -> Any:
    """A JSON value with exact numbers.

    Raises:
        OptionError: the text is no JSON, or an object in it has a key twice.
    """
    try:
        return json.loads(text.decode(), parse_float=Decimal, object_pairs_hook=_object)
    except _Misfit as error:
        raise OptionError(f"{where}: {error}") from None
    except (ValueError, InvalidOperation, RecursionError):
        raise OptionError(f"{where} is not JSON; {expected} is expected") from None


_JSON_NAMES = {
    str: "text",
    int: "number",
    Decimal: "number",
    float: "number",
    bool: "true or false",
    dict: "object",
    list: "array",
}


class _Misfit(ValueError):
    """The text of the error says what is wrong."""


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise _Misfit("a name stands twice in one object; one of its values would be lost")
    return found


def _reader(kind: pa.DataType) -> Reader:
    """From a JSON value, other than null, to one that Arrow takes as it is."""
    for holds, read in _LEAVES:
        if holds(kind):
            return read
    if types.is_timestamp(kind):
        return _moment if kind.tz else _local(datetime)
    if types.is_float32(kind) or types.is_float64(kind):
        return _float32 if types.is_float32(kind) else _float64
    if types.is_decimal(kind):
        return _decimal(kind)
    if types.is_list(kind):
        element = _nullable(_reader(kind.value_type))
        return lambda value: [element(item) for item in _checked(value, list)]
    if types.is_map(kind):
        item_of = _nullable(_reader(kind.item_type))
        return lambda value: [(k, item_of(v)) for k, v in _checked(value, dict).items()]
    if types.is_struct(kind):
        return _struct({field.name: _nullable(_reader(field.type)) for field in kind})
    return _no_json


def _nullable(read: Reader) -> Reader:
    return lambda value: None if value is None else read(value)


def _struct(inner: dict[str, Reader]) -> Reader:
    def read(value: Any) -> Any:
        if unknown := _checked(value, dict).keys() - inner.keys():
            raise _Misfit(f"it has no field {min(unknown)!r}")
        return {name: inner[name](item) for name, item in value.items()}

    return read


def _checked(value: Any, kind: type) -> Any:
    # Compare types exactly: to Python, true is a number too.
    if type(value) is not kind:
        raise TypeError
    return value


def _no_json(value: Any) -> Any:
    raise _Misfit("values of this type cannot be sent as JSON; send Arrow")


def _integer(value: Any) -> int:
    # JSON has no integers: 2.0 and 1e3 count as such. No integer here has more than 19 digits.
    if type(value) is Decimal and value.adjusted() < 20 and value == value.to_integral_value():
        return int(value)
    return int(_checked(value, int))


def _decimal(kind: pa.DataType) -> Reader:
    def read(value: Any) -> Decimal:
        if type(value) not in (int, str, Decimal):
            raise TypeError
        found = Decimal(value)
        if not fits_decimal(found, kind):
            raise ValueError
        return found

    return read


def _float64(value: Any) -> float | int:
    if type(value) is Decimal:
        found = float(value)
        if math.isinf(found):
            raise _Misfit("it is beyond the largest")
        return found
    # JSON has no such numbers: like Spark's, they come as texts.
    if value in ("NaN", "Infinity", "-Infinity"):
        return float(value)
    # json.loads has already made floats of the bare words NaN and Infinity.
    return value if type(value) is float else int(_checked(value, int))


def _float32(value: Any) -> float | int:
    found = _float64(value)
    try:
        struct.pack("<f", found)
    except OverflowError:
        raise _Misfit("it is beyond the largest") from None
    return found


def _binary(value: Any) -> bytes:
    return base64.b64decode(_checked(value, str), validate=True)


def _moment(value: Any) -> datetime:
    found = datetime.fromisoformat(_microseconds(value))
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def _local(kind: type[time] | type[datetime]) -> Reader:
    def read(value: Any) -> time | datetime:
        found = kind.fromisoformat(_microseconds(value))
        if found.tzinfo:
            raise _Misfit("it holds no time zone; leave the offset out")
        return found

    return read


def _microseconds(value: Any) -> str:
    # Python drops further digits silently.
    if _FINER.search(_checked(value, str)):
        raise _Misfit("it holds microseconds, and no finer part of a second")
    return str(value)


_LEAVES: Sequence[tuple[Callable[[pa.DataType], bool], Reader]] = (
    (types.is_integer, _integer),
    (types.is_string, lambda value: _checked(value, str)),
    (types.is_boolean, lambda value: _checked(value, bool)),
    (types.is_date, lambda value: date.fromisoformat(_checked(value, str))),
    (types.is_time, _local(time)),
    (types.is_binary, _binary),
)
