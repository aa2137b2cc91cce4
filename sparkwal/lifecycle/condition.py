"""The SQL conditions of `delete_when` that mean the same without Spark.

`column = literal`, `column IN (…)`, `column IS [NOT] NULL` and columns of booleans, joined by AND,
OR and parentheses. Anything else is refused: a row that is deleted here and stays there would be
worse than an error.
"""

from __future__ import annotations

import re
from decimal import Decimal
from functools import reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from sparkwal.errors import OptionError

_TOKEN = re.compile(
    r"""\s*(?:(?P<number>-?\d+(?:\.\d+)?(?![\w.]))|'(?P<text>[^'\\]*)'|`(?P<quoted>[^`]+)`
    |(?P<word>[A-Za-z_]\w*)|(?P<sign>==?|[(),]))""",
    re.VERBOSE,
)
_RESERVED = {"and", "or", "not", "is", "null", "in", "true", "false"}


class _Refused(Exception):
    pass


def holds(condition: str, rows: pa.Table) -> pa.ChunkedArray:
    """For each row whether the condition is true; null counts as false. Raises OptionError for a
    condition that only Spark can evaluate."""
    if not condition.strip():
        return pa.chunked_array([pa.repeat(False, rows.num_rows)])
    try:
        reader = _Reader(condition.strip(), rows)
        found = reader.either()
        reader.need("end", "")
    except (_Refused, pa.ArrowException) as why:
        raise OptionError(
            f"the delete condition {condition!r} cannot be evaluated without Spark ({why}): use "
            "sparkwal.read_current(spark, path)"
        ) from None
    return pc.fill_null(found, False)


class _Reader:
    """Recursive descent; evaluates as it reads."""

    def __init__(self, text: str, rows: pa.Table) -> None:
        self._rows, self._text, self._at = rows, text, 0
        self._next()

    def _next(self) -> None:
        match = _TOKEN.match(self._text, self._at)
        if match is None and self._at < len(self._text):
            raise _Refused(f"at {self._text[self._at :].strip()[:20]!r}")
        self._kind, self._token = "end", ""
        if match is not None:
            self._kind, self._at = str(match.lastgroup), match.end()
            self._token = match[self._kind]

    def _take(self, kind: str, *wanted: str) -> bool:
        """Whether the next token is one of these; then it is read."""
        found = self._kind == kind and self._token.lower() in wanted
        if found:
            self._next()
        return found

    def need(self, kind: str, wanted: str) -> None:
        if not self._take(kind, wanted):
            raise _Refused(f"at {self._token!r}")

    def either(self) -> Any:
        found = self._both()
        while self._take("word", "or"):
            found = pc.or_kleene(found, self._both())
        return found

    def _both(self) -> Any:
        found = self._one()
        while self._take("word", "and"):
            found = pc.and_kleene(found, self._one())
        return found

    def _one(self) -> Any:
        if self._take("sign", "("):
            found = self.either()
            self.need("sign", ")")
            return found
        column = self._column()
        if self._take("word", "is"):
            wanted = pc.is_valid if self._take("word", "not") else pc.is_null
            self.need("word", "null")
            return wanted(column)
        if self._take("sign", "=", "=="):
            values = [self._literal(column.type)]
        elif self._take("word", "in"):
            self.need("sign", "(")
            values = [self._literal(column.type)]
            while self._take("sign", ","):
                values.append(self._literal(column.type))
            self.need("sign", ")")
        elif types.is_boolean(column.type):
            return column
        else:
            raise _Refused(f"a {column.type} is neither true nor false")
        return reduce(pc.or_kleene, (pc.equal(column, value) for value in values))

    def _column(self) -> Any:
        name = self._token
        if self._kind not in ("word", "quoted") or name.lower() in _RESERVED:
            raise _Refused(f"at {name!r}")
        same = [known for known in self._rows.column_names if known.lower() == name.lower()]
        if len(same) != 1:
            raise _Refused(f"there is no column {name!r}")
        self._next()
        return self._rows.column(same[0])

    def _literal(self, kind: pa.DataType) -> pa.Scalar:
        """One that compares with a column of this type as Spark would compare them."""
        text, token = self._token, self._kind
        self._next()
        if token == "text" and (types.is_string(kind) or types.is_date(kind)):
            return pa.scalar(text).cast(kind)
        if token == "word" and text.lower() in ("true", "false") and types.is_boolean(kind):
            return pa.scalar(text.lower() == "true")
        if token == "number" and types.is_decimal(kind):
            return pa.scalar(Decimal(text))
        if token == "number" and types.is_integer(kind) and "." not in text and len(text) < 19:
            return pa.scalar(int(text))
        raise _Refused(f"{text!r} and a {kind}")
