"""Converts JSON values to Arrow values exactly: the reverse of `texts`.

Times are ISO 8601, binary values base64, decimals texts or numbers, and a float may be the text
NaN, Infinity or -Infinity. A map is an object, or an array of its pairs. A value that its type
cannot hold exactly is an error. Only numbers for a float are rounded.
"""

from __future__ import annotations

import base64
import json
import math
import re
import struct
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime, time
from decimal import Decimal, InvalidOperation
from typing import Any

import pyarrow as pa
from pyarrow import types

_FINER = re.compile(r"[.,]\d{6}0*[1-9]")
# The maximum scale of a decimal column.
_MAX_SCALE = 76
_WRONG = (ValueError, TypeError, ArithmeticError)

_Reader = Callable[[Any], Any]


class Misfit(ValueError):
    """A value does not fit its type. The text is the reason, for people; it may be ""."""


def parsed(text: str | bytes) -> Any:
    """Parse JSON, with floats as Decimal.

    Raises:
        Misfit: an object in it has a key twice.
        ValueError: the text is no JSON.
    """
    try:
        decoded = text if isinstance(text, str) else text.decode()
        return json.loads(decoded, parse_float=Decimal, object_pairs_hook=_object)
    except (InvalidOperation, RecursionError) as error:
        raise ValueError(str(error)) from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    as_dict = dict(pairs)
    if len(as_dict) < len(pairs):
        raise Misfit("a name occurs twice in one object; one of its values would be lost")
    return as_dict


def converted(values: Sequence[Any], kind: pa.DataType) -> tuple[pa.Array, Mapping[int, Misfit]]:
    """Convert values of `parsed` JSON to a type. Those that do not fit become null.

    Returns:
        The values, and why some do not fit, by their numbers.
    """
    read = _nullable(_reader(kind))
    misfits: dict[int, Misfit] = {}
    fitting = []
    for number, value in enumerate(values):
        try:
            fitting.append(read(value))
        except _WRONG as error:
            fitting.append(None)
            misfits[number] = _misfit(error)
    try:
        return pa.array(fitting, kind), misfits
    except _WRONG:
        # Find the values that Arrow does not take.
        for number, value in enumerate(fitting):
            try:
                pa.array([value], kind)
            except _WRONG as error:
                fitting[number] = None
                misfits[number] = _misfit(error)
        return pa.array(fitting, kind), dict(sorted(misfits.items()))


def _misfit(error: Exception) -> Misfit:
    return error if isinstance(error, Misfit) else Misfit()


def _reader(kind: pa.DataType) -> _Reader:
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
        return _map(_reader(kind.key_type), _nullable(_reader(kind.item_type)))
    if types.is_struct(kind):
        return _struct({field.name: _nullable(_reader(field.type)) for field in kind})
    return _no_json


def _nullable(read: _Reader) -> _Reader:
    return lambda value: None if value is None else read(value)


def _map(key_of: _Reader, item_of: _Reader) -> _Reader:
    def read(value: Any) -> Any:
        pairs = value.items() if isinstance(value, dict) else _checked(value, list)
        return [(key_of(key), item_of(item)) for key, item in pairs]

    return read


def _struct(inner: dict[str, _Reader]) -> _Reader:
    def read(value: Any) -> Any:
        if unknown := _checked(value, dict).keys() - inner.keys():
            raise Misfit(f"it has no field {min(unknown)!r}")
        return {name: inner[name](item) for name, item in value.items()}

    return read


def _checked(value: Any, kind: type) -> Any:
    # Compare types exactly: in Python, true is an int.
    if type(value) is not kind:
        raise TypeError
    return value


def _no_json(value: Any) -> Any:
    raise Misfit("JSON has no form for this type; send Arrow")


def _integer(value: Any) -> int:
    # JSON has no integers, so 2.0 and 1e3 count as integers. A column holds at most 19 digits.
    if type(value) is Decimal and value.adjusted() < 20 and value == value.to_integral_value():
        return int(value)
    return int(_checked(value, int))


def _decimal(kind: pa.DataType) -> _Reader:
    def read(value: Any) -> Decimal:
        if type(value) not in (int, str, Decimal):
            raise TypeError
        number = Decimal(value)
        if not fits_decimal(number, kind):
            raise ValueError
        return number

    return read


def fits_decimal(value: Any, kind: pa.DataType) -> bool:
    """Whether a column of decimals holds exactly this number.

    Arrow cannot decide this: it crashes at some exponents, and changes some numbers with too many
    digits.
    """
    integer_digits = kind.precision - kind.scale
    if type(value) is int:
        return bool(abs(value) < 10**integer_digits)
    if type(value) is not Decimal:
        return False
    exponent = value.as_tuple().exponent if value.is_finite() else None
    if (
        not isinstance(exponent, int)
        or exponent < -_MAX_SCALE
        or value.adjusted() >= integer_digits
    ):
        # A zero may have any exponent, and Arrow rejects some of them.
        return False
    dropped = -kind.scale - exponent
    digits = value.as_tuple().digits
    return dropped <= 0 or not any(digits[-dropped:])


def _float64(value: Any) -> float | int:
    if type(value) is Decimal:
        number = float(value)
        if math.isinf(number):
            raise Misfit("it is beyond the largest")
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
        raise Misfit("it is beyond the largest") from None
    return number


def _binary(value: Any) -> bytes:
    return base64.b64decode(_checked(value, str), validate=True)


def _moment(value: Any) -> datetime:
    moment = datetime.fromisoformat(_microseconds(value))
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _local(kind: type[time] | type[datetime]) -> _Reader:
    def read(value: Any) -> time | datetime:
        moment = kind.fromisoformat(_microseconds(value))
        if moment.tzinfo:
            raise Misfit("it holds no time zone; leave the offset out")
        return moment

    return read


def _microseconds(value: Any) -> str:
    # Python ignores digits after the sixth.
    if _FINER.search(_checked(value, str)):
        raise Misfit("it holds microseconds, and no finer part of a second")
    return str(value)


_LEAVES: Sequence[tuple[Callable[[pa.DataType], bool], _Reader]] = (
    (types.is_integer, _integer),
    (types.is_string, lambda value: _checked(value, str)),
    (types.is_boolean, lambda value: _checked(value, bool)),
    (types.is_date, lambda value: date.fromisoformat(_checked(value, str))),
    (types.is_time, _local(time)),
    (types.is_binary, _binary),
)
