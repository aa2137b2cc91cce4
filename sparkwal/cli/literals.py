"""Comparing columns with what stands in a --where, exactly and as SQL does: null is unknown."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from decimal import (
    ROUND_CEILING,
    ROUND_FLOOR,
    Context,
    Decimal,
    Inexact,
    InvalidOperation,
    Overflow,
)
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from sparkwal.appender.values import fits_decimal
from sparkwal.cli.exits import Refused
from sparkwal.format import schema

# How each comparison reads from its other side.
FLIPPED = {"==": "==", "!=": "!=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
_KERNELS = {
    "==": pc.equal, "!=": pc.not_equal, "<": pc.less, "<=": pc.less_equal,
    ">": pc.greater, ">=": pc.greater_equal,
}  # fmt: skip
_OPERATORS = {
    "==": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le,
    ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
_LEAST, _MOST = -(2**63), 2**63 - 1
# Numbers of a condition are below 10^1000 and have so many digits; one more would be rounded.
# Python's own default rounds at 28, and a decimal column has 38.
EXACT = Context(prec=2500, traps=[Inexact, InvalidOperation, Overflow])
_ROUNDING = Context(prec=2500)
_LARGEST = 1000


@dataclass(frozen=True)
class Literal:
    """What stands in the expression itself: None, a bool, int, Decimal, str or bytes."""

    value: Any


Value: TypeAlias = "pa.Array | Literal"


def bounded(value: int | Decimal) -> int | Decimal:
    """The number itself. Raises Refused where there is no telling or reckoning with it."""
    # Of a whole number as many bits, without its digits: they take long.
    small = (
        value.bit_length() <= 3 * _LARGEST
        if isinstance(value, int)
        else value.is_finite() and (not value or abs(value.adjusted()) <= _LARGEST)
    )
    if not small:
        raise too_large()
    return value


def too_large() -> Refused:
    """The error for a number that no column holds."""
    return Refused("--where has a number beyond all that a column holds")


def type_name(kind: pa.DataType) -> str:
    """A column's type as Spark's users write it."""
    fields = schema.columns(schema.from_arrow(pa.schema([("_", kind)])))
    return schema.type_name(fields["_"])


def compared(sign: str, left: Value, right: Value, rows: int) -> pa.Array:
    """`left sign right` of each row. Raises Refused where the two cannot be compared."""
    if isinstance(left, Literal) and isinstance(right, Literal):
        return pa.repeat(pa.scalar(_constant(sign, left.value, right.value), pa.bool_()), rows)
    if isinstance(left, Literal):
        return compared(FLIPPED[sign], right, left, rows)
    if isinstance(right, Literal):
        return _with_literal(sign, left, right.value)
    left, right = _alike(left, right)
    try:
        return _KERNELS[sign](left, right)
    except pa.ArrowNotImplementedError:
        raise _incomparable(left.type, type_name(right.type)) from None


def _constant(sign: str, left: Any, right: Any) -> bool:
    try:
        return bool(_OPERATORS[sign](left, right))
    except TypeError:
        raise Refused(f"--where compares {left!r} with {right!r}") from None


def _incomparable(kind: pa.DataType, other: str) -> Refused:
    return Refused(f"--where compares {type_name(kind)} with {other}: that cannot be")


def _alike(left: pa.Array, right: pa.Array) -> tuple[pa.Array, pa.Array]:
    # As SQL: a number that is compared with a float is one. Arrow refuses those above 2^53.
    if types.is_floating(left.type) and is_number(right.type):
        return left, right.cast(pa.float64(), safe=False)
    if types.is_floating(right.type) and is_number(left.type):
        return left.cast(pa.float64(), safe=False), right
    return left, right


def is_number(kind: pa.DataType) -> bool:
    """Whether a type is of integers, floats or decimals."""
    return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind))


def _with_literal(sign: str, column: pa.Array, value: Any) -> pa.Array:
    kind = column.type
    if value is None:
        raise Refused(
            "--where compares with null, which is never true: write `is null` or `is not null`"
        )
    if isinstance(value, (int, Decimal)) and not isinstance(value, bool):
        if types.is_integer(kind):
            return _with_integers(sign, column, Decimal(value))
        if types.is_decimal(kind):
            return _with_decimals(sign, column, Decimal(value))
    return _KERNELS[sign](column, scalar(value, kind))


def _with_integers(sign: str, column: pa.Array, value: Decimal) -> pa.Array:
    """A column of integers against any number, none of which is rounded."""
    column = column.cast(pa.int64())
    if value == value.to_integral_value():
        if _LEAST <= value <= _MOST:
            return _KERNELS[sign](column, pa.scalar(int(value), pa.int64()))
        return _always(column, _OPERATORS[sign](0, value))
    if sign in ("==", "!="):
        return _always(column, sign == "!=")
    # x > 1.5 is x > 1; x < 1.5 is x < 2.
    down = sign in (">", "<=")
    whole = value.to_integral_value(ROUND_FLOOR if down else ROUND_CEILING)
    return _with_integers(sign, column, whole)


def _with_decimals(sign: str, column: pa.Array, value: Decimal) -> pa.Array:
    kind = column.type
    if fits_decimal(value, kind):
        return _KERNELS[sign](column, pa.scalar(value, kind))
    if sign in ("==", "!="):
        return _always(column, sign == "!=")
    # Between two values of the column, or beyond them all.
    unit = Decimal((0, (1,), -kind.scale))
    largest = Decimal((0, (9,) * kind.precision, -kind.scale))
    if value.copy_abs() > largest:
        return _always(column, _OPERATORS[sign](0, value))
    down = sign in (">", "<=")
    near = value.quantize(unit, ROUND_FLOOR if down else ROUND_CEILING, _ROUNDING)
    return _with_decimals(sign, column, near)


def _always(column: pa.Array, answer: bool) -> pa.Array:
    """The answer for each row, unknown where the column is null."""
    return pc.if_else(column.is_valid(), answer, pa.scalar(None, pa.bool_()))


def scalar(value: Any, kind: pa.DataType) -> pa.Scalar:
    """A literal as a value of a column's type. Raises Refused where it is none."""
    for holds, of, read, form in _READERS:
        if holds(kind):
            if not isinstance(value, of) or (isinstance(value, bool) and of is not bool):
                raise _incomparable(kind, f"{value!r}" + (f"; {form} is expected" if form else ""))
            try:
                return pa.scalar(read(value, kind), kind)
            except (ValueError, OverflowError, pa.ArrowException):
                raise _incomparable(kind, f"{value!r}; {form} is expected") from None
    raise _incomparable(kind, f"{value!r}")


def _moment(value: str, kind: pa.DataType) -> datetime:
    found = datetime.fromisoformat(value)
    if kind.tz is None:
        if found.tzinfo is not None:
            raise ValueError
        return found
    return found if found.tzinfo else found.replace(tzinfo=UTC)


_READERS: tuple[tuple[Callable[[pa.DataType], bool], Any, Callable[..., Any], str], ...] = (
    (types.is_string, str, lambda value, _: value, "a text"),
    (types.is_boolean, bool, lambda value, _: value, "true or false"),
    (types.is_floating, (int, Decimal), lambda value, _: float(value), "a number"),
    (types.is_integer, (int, Decimal), lambda value, _: value, "a number"),
    (types.is_decimal, (int, Decimal), lambda value, _: value, "a number"),
    (types.is_timestamp, str, _moment, "a time such as '2026-01-31T12:00:00'"),
    (types.is_date, str, lambda value, _: date.fromisoformat(value), "a day such as '2026-01-31'"),
    (types.is_time, str, lambda value, _: time.fromisoformat(value), "a time such as '12:30:00'"),
    (types.is_binary, bytes, lambda value, _: value, "bytes such as b'\\x00'"),
)
