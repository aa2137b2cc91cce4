"""Converts JSON lines to rows of an Arrow schema, without loss, and parses the text of a schema."""

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

# Rows are converted in chunks: Python objects take many times the memory of Arrow.
_CHUNK = 4096
_KINDS = {"bigint": "long", "int": "integer", "smallint": "short", "tinyint": "byte"}
_FINER = re.compile(r"[.,]\d{6}0*[1-9]")

Reader = Callable[[Any], Any]


def parse_schema(text: str) -> pa.Schema:
    """Parse `id long, name string`, or Spark's schema JSON.

    Raises:
        OptionError: the text is neither.
    """
    try:
        if text.lstrip().startswith("{"):
            fields = json.loads(text)["fields"]
        else:
            fields = []
            # The pattern skips the comma in decimal(10,2).
            for item in filter(str.strip, re.split(r",(?![^(]*\))", text)):
                name, _, kind = item.strip().replace(":", " ", 1).partition(" ")
                kind = kind.strip().lower()
                if "<" in kind:
                    raise OptionError(f"column {name!r} is nested: give Spark's schema JSON")
                nullable = not kind.endswith(" not null")
                kind = kind.removesuffix(" not null")
                fields.append({"name": name, "type": _KINDS.get(kind, kind), "nullable": nullable})
        columns = schema.to_arrow(schema.normalize({"fields": fields}))
        # All columns of a log are nullable. The appender checks the columns that must not be null.
        is_nullable = {field["name"]: field.get("nullable", True) for field in fields}
        if not len(columns):
            raise OptionError("the schema has no columns; give it as `id long, name string`")
        return pa.schema([field.with_nullable(is_nullable[field.name]) for field in columns])
    except (KeyError, TypeError, ValueError) as error:
        if isinstance(error, OptionError):
            raise
        raise OptionError(
            "the schema is neither `name type, …` nor Spark's schema JSON (df.schema.json())"
        ) from None


class JsonRows:
    """Converts JSON lines to record batches of a schema.

    The format is that of `sparkwal cat --json`: times are ISO 8601, binary values base64, decimals
    texts or numbers, and a float may be the text NaN, Infinity or -Infinity. A value that its
    column cannot hold exactly is an error. Only numbers for a column of floats are rounded.
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
        # RFC 8259 allows a reader to skip a byte order mark, which some clients send.
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
            yield self._row(number, _parse_json(line, f"row {number}", "one object a line"))

    def _elements(self, body: bytes) -> Iterator[dict[str, Any]]:
        elements = _parse_json(body, "the body", "one array of objects, or one object a line,")
        for number, element in enumerate(elements):
            yield self._row(number, element)

    def _row(self, number: int, row: Any) -> dict[str, Any]:
        if not isinstance(row, dict):
            raise OptionError(f"row {number} is not a JSON object")
        for name in row:
            if name not in self._columns:
                raise OptionError(
                    f"row {number} has a column {name!r} that the schema has not; it has "
                    f"{', '.join(self._columns)}"
                )
        return {name: self._value(number, name, value) for name, value in row.items()}

    def _value(self, number: int, name: str, value: Any) -> Any:
        if value is None:
            return None
        try:
            return self._columns[name](value)
        except (ValueError, TypeError, ArithmeticError) as error:
            raise self._misfit(number, name, value, error) from None

    def _column(self, rows: Sequence[dict[str, Any]], field: pa.Field, first: int) -> pa.Array:
        values = [row.get(field.name) for row in rows]
        try:
            return pa.array(values, field.type)
        except (ValueError, TypeError, ArithmeticError):
            # Find the value that does not fit.
            for number, value in enumerate(values, first):
                try:
                    pa.array([value], field.type)
                except (ValueError, TypeError, ArithmeticError) as error:
                    raise self._misfit(number, field.name, value, error) from None
            raise

    def _misfit(self, number: int, name: str, value: Any, error: Exception) -> OptionError:
        why = f": {error}" if isinstance(error, _Misfit) else ""
        return OptionError(
            f"row {number}: column {name!r} is {self._kinds[name]} and cannot hold this "
            f"{_JSON_NAMES.get(type(value), type(value).__name__)}{why}; nothing was written"
        )


def _parse_json(text: bytes, name: str, expected: str) -> Any:
    """Parse JSON, with floats as Decimal.

    Raises:
        OptionError: the text is no JSON, or an object in it has a key twice.
    """
    try:
        return json.loads(text.decode(), parse_float=Decimal, object_pairs_hook=_object)
    except _Misfit as error:
        raise OptionError(f"{name}: {error}") from None
    except (ValueError, InvalidOperation, RecursionError):
        raise OptionError(f"{name} is not JSON; {expected} is expected") from None


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
    """A value does not fit its column. The text is the reason, for the client."""


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    as_dict = dict(pairs)
    if len(as_dict) < len(pairs):
        raise _Misfit("a name occurs twice in one object; one of its values would be lost")
    return as_dict


def _reader(kind: pa.DataType) -> Reader:
    """The function that converts a JSON value, other than null, to a value for Arrow."""
    for is_of, read in _LEAVES:
        if is_of(kind):
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
    # Compare types exactly: in Python, true is an int.
    if type(value) is not kind:
        raise TypeError
    return value


def _no_json(value: Any) -> Any:
    raise _Misfit("JSON has no form for this type; send Arrow")


def _integer(value: Any) -> int:
    # JSON has no integers, so 2.0 and 1e3 count as integers. A column holds at most 19 digits.
    if type(value) is Decimal and value.adjusted() < 20 and value == value.to_integral_value():
        return int(value)
    return int(_checked(value, int))


def _decimal(kind: pa.DataType) -> Reader:
    def read(value: Any) -> Decimal:
        if type(value) not in (int, str, Decimal):
            raise TypeError
        number = Decimal(value)
        if not fits_decimal(number, kind):
            raise ValueError
        return number

    return read


def _float64(value: Any) -> float | int:
    if type(value) is Decimal:
        number = float(value)
        if math.isinf(number):
            raise _Misfit("it is beyond the largest")
        return number
    # JSON has no such numbers. As in Spark's JSON, they are texts.
    if value in ("NaN", "Infinity", "-Infinity"):
        return float(value)
    # json.loads converts the bare words NaN and Infinity to floats.
    return value if type(value) is float else int(_checked(value, int))


def _float32(value: Any) -> float | int:
    number = _float64(value)
    try:
        struct.pack("<f", number)
    except OverflowError:
        raise _Misfit("it is beyond the largest") from None
    return number


def _binary(value: Any) -> bytes:
    return base64.b64decode(_checked(value, str), validate=True)


def _moment(value: Any) -> datetime:
    moment = datetime.fromisoformat(_microseconds(value))
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _local(kind: type[time] | type[datetime]) -> Reader:
    def read(value: Any) -> time | datetime:
        moment = kind.fromisoformat(_microseconds(value))
        if moment.tzinfo:
            raise _Misfit("it holds no time zone; leave the offset out")
        return moment

    return read


def _microseconds(value: Any) -> str:
    # Python ignores digits after the sixth.
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
