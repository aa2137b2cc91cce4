"""Dataclasses as JSON objects, there and back. Anybody may have written what is read."""

import json
import typing
from collections.abc import Callable, Mapping
from functools import cache, partial
from types import UnionType
from typing import Annotated, Any, ClassVar, NamedTuple, TypeVar, get_args, get_origin

from sparkwal.errors import InvalidLogError
from sparkwal.format import keys

T = TypeVar("T")
FORMAT = 1
LARGEST_NUMBER = 2**63 - 1  # of every field that is a JSON number


class Whole(NamedTuple):
    """Marks the bounds of a whole number, or of all numbers in a tuple."""

    low: int = 0
    high: int = LARGEST_NUMBER


_DIGITS = "digits"
# Marks a field that older versions did not write: it is left out while it is empty.
LATER = "later"
Number = Annotated[int, _DIGITS]  # travels as 20 digits
Crc = Annotated[int, Whole(high=2**32 - 1)]


class _Unlike(ValueError):
    """A field is not what is expected."""

    def __init__(self, expected: str, field: str = "") -> None:
        self.expected, self.field = expected, field


def to_json(fields: Mapping[str, Any]) -> bytes:
    """A line of UTF-8 JSON for `parse`, which names the format too."""
    document = {"format": FORMAT, **fields}
    return json.dumps(document, default=plain, separators=(",", ":"), ensure_ascii=False).encode()


def plain(value: Any) -> dict[str, Any]:
    """The JSON fields of a dataclass. What is inside them is left to `to_json`."""
    found = dict(vars(value))
    for name, marks in _marked(type(value)):  # type: ignore[arg-type]
        if _DIGITS in marks:
            found[name] = keys.encode(found[name])
        elif found[name] in ("", {}):
            del found[name]
    return found


@cache
def _marked(kind: Any) -> list[tuple[str, tuple[Any, ...]]]:
    return [(name, marks) for name, _, marks in _fields(kind) if {_DIGITS, LATER} & {*marks}]


def parse(text: bytes, where: str, what: str) -> dict[str, Any]:
    """The object of a JSON text that `to_json` made. Raises InvalidLogError for anything else."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        raise InvalidLogError(f"{where}: this is no JSON") from None
    if not isinstance(document, dict):
        raise InvalidLogError(f"{where}: a JSON object is expected")
    found = document.get("format")
    if type(found) is not int or found != FORMAT:
        raise InvalidLogError(
            f"{where}: format {found}, expected {FORMAT}; "
            f"a newer sparkwal wrote this {what}: upgrade this one"
        )
    return document


def read(kind: type[T], document: Any, where: str) -> T:
    """A dataclass from a JSON object. Its annotations say what each field may hold; other fields
    are ignored. Raises InvalidLogError naming `where`, the field and what was expected."""
    try:
        found: T = _reader(kind)(document)  # type: ignore[arg-type]
    except _Unlike as error:
        raise InvalidLogError(f"{where}: field {error.field!r} must be {error.expected}") from None
    return found


@cache
def _fields(kind: Any) -> list[tuple[str, Any, tuple[Any, ...]]]:
    """(name, annotation, marks) of each field."""
    hints = typing.get_type_hints(kind, include_extras=True).items()
    return [
        (name, hint, get_args(hint)[1:] if get_origin(hint) is Annotated else ())
        for name, hint in hints
        if get_origin(hint) is not ClassVar
    ]


@cache
def _reader(kind: Any) -> Callable[[Any], Any]:
    """What makes a value of this type from JSON, or raises _Unlike."""
    kind, *marks = get_args(kind) if get_origin(kind) is Annotated else (kind,)
    low, high = bounds = next((mark for mark in marks if isinstance(mark, Whole)), Whole())
    origin, parts = get_origin(kind), get_args(kind)
    if _DIGITS in marks:
        return _number
    if kind is int:

        def whole(value: Any) -> Any:
            if type(value) is int and low <= value <= high:
                return value
            raise _Unlike(f"a whole number from {low} to {high}")

        return whole
    if kind in (float, str):
        of, named = ((int, float), "a number") if kind is float else (str, "a string")
        return _only(lambda value: isinstance(value, of), named)
    if origin is UnionType:
        item = _reader(parts[0])
        return lambda value: None if value is None else item(value)
    if origin is dict:
        item, checked = _reader(parts[1]), _object
        return lambda value: {name: item(each) for name, each in checked(value).items()}
    if origin is tuple or issubclass(kind, tuple):
        # A list of values of one type: of so many, or of any number.
        items = parts or tuple(hint for _, hint, _ in _fields(kind))
        many = None if items[-1] is ... else len(items)
        item, made = _reader(Annotated[items[0], bounds]), tuple if origin else kind._make
        checked = _only(
            lambda value: isinstance(value, list) and many in (None, len(value)),
            f"a list of {many or 'any number of'} values",
        )
        return lambda value: made([item(each) for each in checked(value)])
    names = [(name, _reader(hint), LATER in marks) for name, hint, marks in _fields(kind)]
    return partial(_dataclass, names, kind)


def _only(fits: Callable[[Any], bool], expected: str) -> Callable[[Any], Any]:
    def checked(value: Any) -> Any:
        if not fits(value):
            raise _Unlike(expected)
        return value

    return checked


_object = _only(lambda value: isinstance(value, dict), "an object")


def _number(value: Any) -> int:
    number = keys.decode(value) if isinstance(value, str) else None
    if number is None:
        raise _Unlike("20 digits")
    return number


def _dataclass(names: list[tuple[str, Callable[[Any], Any], bool]], kind: Any, value: Any) -> Any:
    document, known = _object(value), {}
    for name, reader, may_lack in names:
        if name in document or not may_lack:
            try:
                known[name] = reader(document.get(name))
            except _Unlike as error:
                error.field = f"{name}.{error.field}".rstrip(".")
                raise
    return kind(**known)
