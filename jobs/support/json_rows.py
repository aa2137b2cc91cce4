"""Converts JSON lines to rows of an Arrow schema, without loss, and parses the text of a schema."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator, Sequence
from decimal import Decimal
from itertools import islice
from typing import Any

import pyarrow as pa

from sparkwal.errors import OptionError
from sparkwal.format import json_values, schema

# Rows are converted in chunks: Python objects take many times the memory of Arrow.
_CHUNK = 4096
_KINDS = {"bigint": "long", "int": "integer", "smallint": "short", "tinyint": "byte"}


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

    The format is that of `sparkwal cat --json`, see `sparkwal.format.json_values`. A value that its
    column cannot hold exactly is an error. Only numbers for a column of floats are rounded.
    """

    def __init__(self, arrow_schema: pa.Schema) -> None:
        self._schema = arrow_schema
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
            if name not in self._kinds:
                raise OptionError(
                    f"row {number} has a column {name!r} that the schema has not; it has "
                    f"{', '.join(self._kinds)}"
                )
        return row

    def _column(self, rows: Sequence[dict[str, Any]], field: pa.Field, first: int) -> pa.Array:
        values = [row.get(field.name) for row in rows]
        column, misfits = json_values.converted(values, field.type)
        for number, misfit in misfits.items():
            kind = type(values[number])
            raise OptionError(
                f"row {first + number}: column {field.name!r} is {self._kinds[field.name]} and "
                f"cannot hold this {_JSON_NAMES.get(kind, kind.__name__)}"
                f"{f': {misfit}' if str(misfit) else ''}; nothing was written"
            )
        return column


def _parse_json(text: bytes, name: str, expected: str) -> Any:
    """Parse JSON.

    Raises:
        OptionError: the text is no JSON, or an object in it has a key twice.
    """
    try:
        return json_values.parsed(text)
    except json_values.Misfit as error:
        raise OptionError(f"{name}: {error}") from None
    except ValueError:
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
