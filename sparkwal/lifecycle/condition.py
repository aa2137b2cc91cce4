"""The SQL conditions of `delete_when` that mean the same without Spark.

A part of SQL: columns (nested ones too), literals, = == <> != < <= > >= <=>, IS [NOT] NULL,
[NOT] IN (…), NOT, AND, OR and parentheses. Anything that Spark would have to cast, or a
function, is refused: a row that is deleted here and stays there would be worse than an error.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from sparkwal.errors import OptionError

_TOKEN = re.compile(
    r"""\s*(?:(?P<number>\d+\.\d+|\d+(?![\w.]))|'(?P<text>[^'\\]*)'|`(?P<quoted>[^`]+)`
    |(?P<word>[A-Za-z_]\w*)|(?P<sign><=>|==|<>|!=|<=|>=|[-=<>(),.]))""",
    re.VERBOSE,
)
_COMPARE: dict[str, Callable[..., Any]] = {
    "=": pc.equal,
    "==": pc.equal,
    "<>": pc.not_equal,
    "!=": pc.not_equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
    "<=>": pc.equal,
}
_RESERVED = {"and", "or", "not", "is", "null", "in", "true", "false", "between", "like", "case"}


@dataclass(frozen=True)
class _Literal:
    value: Any


class _Refused(Exception):
    pass


def holds(condition: str, rows: pa.Table) -> pa.ChunkedArray:
    """For each row whether the condition is true: null counts as false.

    Raises OptionError for a condition that only Spark can evaluate.
    """
    if not condition.strip():
        return pa.chunked_array([pa.repeat(False, rows.num_rows)])
    try:
        found = _Reader(_tokens(condition), rows).everything()
    except (_Refused, pa.ArrowException) as why:
        raise OptionError(
            f"the delete condition {condition!r} cannot be evaluated without Spark ({why}): use "
            "sparkwal.read_current(spark, path)"
        ) from None
    return pc.fill_null(found, False)


def _tokens(condition: str) -> list[tuple[str, str]]:
    found, at = [], 0
    text = condition.strip()
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise _Refused(f"at {text[at:].strip()[:20]!r}")
        kind = str(match.lastgroup)
        found.append((kind, match[kind]))
        at = match.end()
    return found


class _Reader:
    """Recursive descent; evaluates as it reads."""

    def __init__(self, tokens: list[tuple[str, str]], rows: pa.Table) -> None:
        self._tokens, self._at, self._rows = tokens, 0, rows

    def everything(self) -> Any:
        found = self._truth(self._either())
        if self._at < len(self._tokens):
            raise _Refused(f"at {self._tokens[self._at][1]!r}")
        return found

    def _take(self, *wanted: str) -> str | None:
        """The next token, if it is one of the wanted words or signs."""
        if self._at < len(self._tokens):
            kind, text = self._tokens[self._at]
            if kind in ("word", "sign") and text.lower() in wanted:
                self._at += 1
                return text.lower()
        return None

    def _need(self, wanted: str) -> None:
        if self._take(wanted) is None:
            raise _Refused(f"{wanted!r} is missing")

    def _either(self) -> Any:
        left = self._both()
        while self._take("or"):
            left = pc.or_kleene(self._truth(left), self._truth(self._both()))
        return left

    def _both(self) -> Any:
        left = self._negated()
        while self._take("and"):
            left = pc.and_kleene(self._truth(left), self._truth(self._negated()))
        return left

    def _negated(self) -> Any:
        return pc.invert(self._truth(self._negated())) if self._take("not") else self._predicate()

    def _predicate(self) -> Any:
        left = self._operand()
        if self._take("is"):
            wanted = pc.is_valid if self._take("not") else pc.is_null
            self._need("null")
            return wanted(self._column(left))
        if sign := self._take(*_COMPARE):
            return self._compared(sign, left, self._operand())
        turned = self._take("not")
        if not self._take("in"):
            if turned:
                raise _Refused("at 'not'")
            return left
        self._need("(")
        found = self._compared("=", left, self._operand())
        while self._take(","):
            found = pc.or_kleene(found, self._compared("=", left, self._operand()))
        self._need(")")
        return pc.invert(found) if turned else found

    def _operand(self) -> Any:
        if self._take("("):
            inner = self._either()
            self._need(")")
            return inner
        sign = -1 if self._take("-") else 1
        if self._at == len(self._tokens):
            raise _Refused("it ends too soon")
        kind, text = self._tokens[self._at]
        self._at += 1
        if kind == "number":
            return _Literal(sign * (Decimal(text) if "." in text else int(text)))
        if sign < 0 or kind == "sign":
            raise _Refused(f"at {text!r}")
        if kind == "text":
            return _Literal(text)
        if kind == "word" and text.lower() in ("true", "false"):
            return _Literal(text.lower() == "true")
        if kind == "word" and text.lower() in _RESERVED:
            raise _Refused(f"at {text!r}")
        return self._named(text)

    def _named(self, name: str) -> Any:
        value = self._inside(self._rows.column_names, name, self._rows.column)
        while self._take("."):
            kind, name = self._tokens[self._at] if self._at < len(self._tokens) else ("", "")
            self._at += 1
            if kind not in ("word", "quoted") or not types.is_struct(value.type):
                raise _Refused(f"at {name!r}")
            names = [field.name for field in value.type]
            value = self._inside(names, name, partial(pc.struct_field, value))
        return value

    def _inside(self, names: list[str], name: str, get: Callable[[str], Any]) -> Any:
        same = [known for known in names if known.lower() == name.lower()]
        if len(same) != 1:
            raise _Refused(f"there is no column {name!r}")
        return get(same[0])

    def _column(self, value: Any) -> Any:
        if isinstance(value, _Literal):
            raise _Refused(f"{value.value!r} stands where a column does")
        return value

    def _truth(self, value: Any) -> Any:
        if isinstance(value, _Literal) and isinstance(value.value, bool):
            return pa.chunked_array([pa.repeat(value.value, self._rows.num_rows)])
        if not types.is_boolean(self._column(value).type):
            raise _Refused(f"a {value.type} is neither true nor false")
        return value

    def _compared(self, sign: str, left: Any, right: Any) -> Any:
        if isinstance(left, _Literal) and isinstance(right, _Literal):
            raise _Refused("two literals")
        kind = right.type if isinstance(left, _Literal) else left.type
        left, right = _typed(left, kind), _typed(right, kind)
        if (
            left.type != right.type
            and not isinstance(left, pa.Scalar | pa.Array)
            and (not isinstance(right, pa.Scalar))
        ):
            raise _Refused(f"a {left.type} and a {right.type}")
        found = _COMPARE[sign](left, right)
        if sign != "<=>":
            return found
        null = pc.and_(pc.is_null(left), pc.is_null(right))
        return pc.or_(pc.fill_null(found, False), null)


def _typed(value: Any, kind: pa.DataType) -> Any:
    """A literal that compares with a column of this type as Spark would compare them."""
    if not isinstance(value, _Literal):
        if types.is_floating(value.type) or types.is_nested(value.type):
            raise _Refused(f"a {value.type} compares otherwise in Spark")
        return value
    literal = value.value
    whole = isinstance(literal, int) and not isinstance(literal, bool)
    if isinstance(literal, bool):
        fits = types.is_boolean(kind)
    elif whole:
        fits = types.is_integer(kind) and abs(literal) < 2**63 or types.is_decimal(kind)
    elif isinstance(literal, Decimal):
        fits = types.is_decimal(kind)
    else:
        fits = types.is_string(kind) or types.is_date(kind)
    if not fits:
        raise _Refused(f"{literal!r} and a {kind}")
    if types.is_decimal(kind):
        return pa.scalar(Decimal(literal))
    if types.is_date(kind):
        return pa.scalar(literal).cast(kind)
    return pa.scalar(literal)
