"""Converts dataclasses to JSON objects and back. It checks all input, which may be hostile."""

import json
import typing
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import msgspec
from msgspec import Meta

from sparkwal.errors import InvalidLogError
from sparkwal.format import keys, limits, versions

T = TypeVar("T")
# The largest value of a field that is a JSON number.
LARGEST_NUMBER = 2**63 - 1
# Marks a field that older versions did not write. An empty one is left out of the JSON.
LATER = "later"

Whole = Annotated[int, Meta(ge=0, le=LARGEST_NUMBER)]
# −1 stands for none.
WholeOrNone = Annotated[int, Meta(ge=-1, le=LARGEST_NUMBER)]
# Milliseconds since 1970. In microseconds it must fit a column of timestamps.
Moment = Annotated[int, Meta(ge=0, le=LARGEST_NUMBER // 1000)]
Crc = Annotated[int, Meta(ge=0, le=2**32 - 1)]
if TYPE_CHECKING:
    Number = int
else:

    class Number(int):
        """A number that is 20 digits in the JSON, because JavaScript would round it."""


def to_json(kind: str, fields: Mapping[str, Any]) -> bytes:
    """A line of UTF-8 JSON, with the version of its format. `parse` reads it."""
    document = {versions.FIELD: versions.VERSIONS[kind], **fields}
    return json.dumps(document, default=plain, separators=(",", ":"), ensure_ascii=False).encode()


def plain(value: Any) -> dict[str, Any]:
    """The JSON fields of a dataclass. `to_json` converts the values inside of them."""
    # `vars` has no field that was missing in a document.
    fields = dict(vars(value))
    for name, is_number in _marked(type(value)):  # type: ignore[arg-type]
        if is_number:
            fields[name] = keys.encode(fields[name])
        elif fields.get(name) in ("", {}, (), None):
            fields.pop(name, None)
    return fields


@cache
def _marked(kind: Any) -> list[tuple[str, bool]]:
    """The fields that `plain` changes, and whether each is a Number."""
    hints = typing.get_type_hints(kind, include_extras=True).items()
    marks = [(name, hint is Number, LATER in typing.get_args(hint)) for name, hint in hints]
    return [(name, is_number) for name, is_number, is_later in marks if is_number or is_later]


def later(kind: type) -> set[str]:
    """The fields that older versions did not write."""
    return {name for name, is_number in _marked(kind) if not is_number}


def parse(text: bytes, location: str, kind: str) -> dict[str, Any]:
    """Parse a JSON text of `to_json`.

    Args:
        location: the object's URL, for errors.
        kind: the kind of the object, of `versions`.

    Raises:
        InvalidLogError: the text is no JSON object.
        NewerFormatError: a newer version wrote it.
    """
    try:
        limits.check_values(text)
    except ValueError as error:
        raise InvalidLogError(f"{location}: {error}") from None
    try:
        document = limits.json_in(text)
    except ValueError:
        raise InvalidLogError(f"{location}: this is no JSON") from None
    if not isinstance(document, dict):
        raise InvalidLogError(f"{location}: a JSON object is expected")
    versions.check(kind, document.get(versions.FIELD), location)
    return document


_prepared: set[type] = set()


def prepare(*kinds: type) -> None:
    """Prepare classes for `read`. Modules call it when they are imported.

    msgspec analyses a class at its first use. If two threads do that at the same time, the process
    crashes.
    """
    for kind in kinds:
        with suppress(msgspec.ValidationError):
            msgspec.convert(None, kind, dec_hook=_number)
    _prepared.update(kinds)


def read(kind: type[T], document: Any, location: str) -> T:
    """Build a dataclass from a JSON object, and check each field by its annotation.

    Unknown fields are ignored.

    Raises:
        InvalidLogError: a field is missing or wrong. The message names it.
    """
    assert kind in _prepared
    try:
        return msgspec.convert(document, kind, dec_hook=_number)
    except ValueError as error:
        raise InvalidLogError(f"{location}: {error}") from None


def _number(kind: type[Any], value: Any) -> Any:
    number = keys.decode(value) if isinstance(value, str) else None
    if number is None:
        raise ValueError("Expected 20 digits")
    return kind(number)
