"""Typed access to JSON that anybody may have written."""

from __future__ import annotations

from dataclasses import fields
from functools import cache
from typing import Any, TypeVar

from sparkwal.errors import InvalidLogError
from sparkwal.format import keys

T = TypeVar("T")
FORMAT = 1
LARGEST_NUMBER = 2**63 - 1  # of every field that is a JSON number


def are_whole(value: Any, count: int, low: int = 0) -> bool:
    """Whether this is a list of so many whole numbers, none below `low`."""
    return (
        isinstance(value, list)
        and len(value) == count
        and all(type(item) is int and low <= item <= LARGEST_NUMBER for item in value)
    )


@cache
def _fields(kind: Any) -> list[tuple[str, bool, int]]:
    """The fields of a dataclass, whether each is a text, and the highest number otherwise."""
    highest = {True: 2**32 - 1, False: LARGEST_NUMBER}
    names = [(each.name, each.type == "str") for each in fields(kind)]
    return [(name, is_text, highest[name.endswith("crc32")]) for name, is_text in names]


class Check:
    """Typed access to a JSON object that may hold anything."""

    def __init__(self, document: Any, where: str) -> None:
        if not isinstance(document, dict):
            raise InvalidLogError(f"{where}: a JSON object is expected in the header")
        self.document = document
        self.where = where

    def fail(self, name: str, expected: str) -> InvalidLogError:
        return InvalidLogError(f"{self.where}: header field {name!r} must be {expected}")

    def read(self, kind: type[T], **known: Any) -> T:
        """A dataclass of this object's texts and whole numbers. `known`: its other fields, and
        those with bounds of their own."""
        for name, is_text, highest in _fields(kind):  # type: ignore[arg-type]
            if name not in known:
                known[name] = self.text(name) if is_text else self.whole(name, high=highest)
        return kind(**known)

    def format(self, what: str) -> None:
        """Raises InvalidLogError unless this was written in the format that is read here."""
        if self.whole("format") != FORMAT:
            raise InvalidLogError(
                f"{self.where}: format {self.document['format']}, expected {FORMAT}; "
                f"a newer sparkwal wrote this {what}: upgrade this one"
            )

    def whole(
        self, name: str, low: int = 0, high: int = LARGEST_NUMBER, absent: int | None = None
    ) -> int:
        value = self.document.get(name, absent)
        if type(value) is not int or not low <= value <= high:
            raise self.fail(name, f"a whole number from {low} to {high}")
        return value

    def text(self, name: str, absent: str | None = None) -> str:
        return self._of(str, name, "a string", absent)

    def number(self, name: str) -> int:
        number = keys.decode(self.text(name))
        if number is None:
            raise self.fail(name, "20 digits")
        return number

    def items(self, name: str) -> list[Any]:
        return self._of(list, name, "a list")

    def mapping(self, name: str, absent: dict[str, Any] | None = None) -> dict[str, Any]:
        return self._of(dict, name, "an object", absent)

    def _of(self, kind: type[T], name: str, expected: str, absent: T | None = None) -> T:
        value = self.document.get(name, absent)
        if not isinstance(value, kind):
            raise self.fail(name, expected)
        return value
