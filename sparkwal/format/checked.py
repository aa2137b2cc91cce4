"""Dataclasses as JSON objects, there and back. Anybody may have written what is read."""

import json
import typing
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import msgspec
from msgspec import Meta

from sparkwal.errors import InvalidLogError
from sparkwal.format import keys, limits

T = TypeVar("T")
FORMAT = 1
# The error of a newer format contains this text. Nothing is damaged then, so commands do not advise
# to restore anything.
NEWER = "a newer sparkwal wrote this"
LARGEST_NUMBER = 2**63 - 1  # of every field that is a JSON number
# Marks a field that older versions did not write: it is left out while it is empty.
LATER = "later"

Whole = Annotated[int, Meta(ge=0, le=LARGEST_NUMBER)]
WholeOrNone = Annotated[int, Meta(ge=-1, le=LARGEST_NUMBER)]  # −1 for none
# In ms since 1970; a column of timestamps holds it in microseconds.
Moment = Annotated[int, Meta(ge=0, le=LARGEST_NUMBER // 1000)]
Crc = Annotated[int, Meta(ge=0, le=2**32 - 1)]
if TYPE_CHECKING:
    Number = int
else:

    class Number(int):
        """Travels as 20 digits: JavaScript would round it."""


def to_json(fields: Mapping[str, Any]) -> bytes:
    """A line of UTF-8 JSON for `parse`, which names the format too."""
    document = {"format": FORMAT, **fields}
    return json.dumps(document, default=plain, separators=(",", ":"), ensure_ascii=False).encode()


def plain(value: Any) -> dict[str, Any]:
    """The JSON fields of a dataclass. What is inside them is left to `to_json`."""
    found = dict(vars(value))  # without defaults of what was read
    for name, is_number in _marked(type(value)):  # type: ignore[arg-type]
        if is_number:
            found[name] = keys.encode(found[name])
        elif found.get(name) in ("", {}):
            del found[name]
    return found


@cache
def _marked(kind: Any) -> list[tuple[str, bool]]:
    """The fields that `plain` changes: whether each is a Number."""
    hints = typing.get_type_hints(kind, include_extras=True).items()
    marks = [(name, hint is Number, LATER in typing.get_args(hint)) for name, hint in hints]
    return [(name, is_number) for name, is_number, is_later in marks if is_number or is_later]


def parse(text: bytes, where: str, what: str) -> dict[str, Any]:
    """The object of a JSON text that `to_json` made. Raises InvalidLogError for anything else."""
    try:
        limits.check_values(text)
    except ValueError as error:
        raise InvalidLogError(f"{where}: {error}") from None
    try:
        document = json.loads(text)
        if b"\\u" in text:  # a lone surrogate is no text
            json.dumps(document, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        raise InvalidLogError(f"{where}: this is no JSON") from None
    if not isinstance(document, dict):
        raise InvalidLogError(f"{where}: a JSON object is expected")
    found = document.get("format")
    if type(found) is not int or found != FORMAT:
        raise InvalidLogError(
            f"{where}: format {str(found)[:20]}, expected {FORMAT}; "
            f"{NEWER} {what}: upgrade sparkwal here (pip install --upgrade sparkwal)"
        )
    return document


_prepared: set[type] = set()


def prepare(*kinds: type) -> None:
    """For the import of each class that `read` makes. msgspec learns a class when it meets it
    first, and two threads in which it does so at once crash the process."""
    for kind in kinds:
        with suppress(msgspec.ValidationError):
            msgspec.convert(None, kind, dec_hook=_number)
    _prepared.update(kinds)


def read(kind: type[T], document: Any, where: str) -> T:
    """A dataclass from a JSON object. Its annotations say what each field may hold; other fields
    are ignored. Raises InvalidLogError naming `where`, the field and what was expected."""
    assert kind in _prepared
    try:
        return msgspec.convert(document, kind, dec_hook=_number)
    except ValueError as error:  # also of a text that is no UTF-8
        raise InvalidLogError(f"{where}: {error}") from None


def _number(kind: type[Any], value: Any) -> Any:
    number = keys.decode(value) if isinstance(value, str) else None
    if number is None:
        raise ValueError("Expected 20 digits")
    return kind(number)
