"""JSON as rows of an Arrow schema, and that schema out of a few words."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from datetime import UTC, date, datetime, time
from decimal import Decimal, InvalidOperation
from typing import Any

import pyarrow as pa
from pyarrow import types

from sparkwal.errors import OptionError
from sparkwal.format import schema


def parse_schema(text: str) -> pa.Schema:
    """`id long, name string`, or Spark's schema JSON. Raises OptionError."""
    try:
        if text.lstrip().startswith("{"):
            return schema.to_arrow(schema.normalize(text))
        fields = []
        for item in _split(text):
            name, _, kind = item.strip().replace(":", " ", 1).partition(" ")
            kind = kind.strip().lower()
            fields.append({"name": name, "type": _KINDS.get(kind, kind)})
        return schema.to_arrow(schema.normalize({"type": "struct", "fields": fields}))
    except (KeyError, TypeError, ValueError) as error:
        if isinstance(error, OptionError):
            raise
        raise OptionError(
            "the schema is neither `name type, …` nor Spark's schema JSON (df.schema.json())"
        ) from None


_KINDS = {"bigint": "long", "int": "integer", "smallint": "short", "tinyint": "byte"}


def _split(text: str) -> list[str]:
    # Not at the comma in decimal(10,2).
    parts, depth = [""], 0
    for letter in text:
        depth += (letter == "(") - (letter == ")")
        if letter == "," and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    return [part for part in parts if part.strip()]


class JsonRows:
    """JSON lines to dicts whose values have the types of a schema.

    Times are ISO 8601, binary values base64, decimals texts or numbers.
    """

    def __init__(self, arrow_schema: pa.Schema) -> None:
        self._columns = {field.name: _reader(field.type) for field in arrow_schema}

    def parse(self, body: bytes) -> list[dict[str, Any]]:
        """One row for each line that is not empty. Raises OptionError naming row and column."""
        rows: list[dict[str, Any]] = []
        for line in body.splitlines():
            if not line.strip():
                continue
            where = f"row {len(rows)}"
            try:
                row = json.loads(line)
            except (ValueError, RecursionError):
                raise OptionError(f"{where} is not JSON; one object a line is expected") from None
            if not isinstance(row, dict):
                raise OptionError(f"{where} is not a JSON object")
            rows.append({name: self._value(where, name, value) for name, value in row.items()})
        return rows

    def _value(self, where: str, name: str, value: Any) -> Any:
        read = self._columns.get(name)
        if read is None or value is None:
            return value  # a name that is not a column is refused by the appender
        try:
            return read(value)
        except (ValueError, TypeError, AttributeError, InvalidOperation):
            raise OptionError(
                f"{where}: column {name!r} cannot hold this value of type {type(value).__name__}"
            ) from None


def _reader(kind: pa.DataType) -> Callable[[Any], Any]:
    if types.is_timestamp(kind):
        return _moment if kind.tz else datetime.fromisoformat
    if types.is_date(kind):
        return date.fromisoformat
    if types.is_time(kind):
        return time.fromisoformat
    if types.is_decimal(kind):
        return lambda value: Decimal(str(value))
    if types.is_binary(kind):
        return lambda value: base64.b64decode(value, validate=True)
    if types.is_list(kind):
        element = _nullable(_reader(kind.value_type))
        return lambda value: [element(item) for item in _checked(value, list)]
    if types.is_map(kind):
        item_of = _nullable(_reader(kind.item_type))
        return lambda value: {k: item_of(v) for k, v in _checked(value, dict).items()}
    if types.is_struct(kind):
        inner = {
            kind.field(i).name: _nullable(_reader(kind.field(i).type))
            for i in range(kind.num_fields)
        }
        return lambda value: {
            name: inner[name](item) if name in inner else item
            for name, item in _checked(value, dict).items()
        }
    return lambda value: value


def _nullable(read: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value is None else read(value)


def _checked(value: Any, kind: type) -> Any:
    if not isinstance(value, kind):
        raise TypeError
    return value


def _moment(value: str) -> datetime:
    moment = datetime.fromisoformat(value)
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
