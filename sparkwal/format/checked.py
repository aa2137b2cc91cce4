"""Typed access to JSON that anybody may have written."""

from __future__ import annotations

from typing import Any

from sparkwal.errors import InvalidLogError
from sparkwal.format import keys

LARGEST_NUMBER = 2**63 - 1  # of every field that is a JSON number


def are_whole(value: Any, count: int, low: int = 0) -> bool:
    """Whether this is a list of so many whole numbers, none below `low`."""
    return (
        isinstance(value, list)
        and len(value) == count
        and all(type(item) is int and low <= item <= LARGEST_NUMBER for item in value)
    )


class Check:
    """Typed access to a JSON object that may hold anything."""

    def __init__(self, document: Any, where: str) -> None:
        if not isinstance(document, dict):
            raise InvalidLogError(f"{where}: a JSON object is expected in the header")
        self.document = document
        self.where = where

    def fail(self, name: str, expected: str) -> InvalidLogError:
        return InvalidLogError(f"{self.where}: header field {name!r} must be {expected}")

    def whole(self, name: str, low: int = 0, high: int = LARGEST_NUMBER) -> int:
        value = self.document.get(name)
        if type(value) is not int or not low <= value <= high:
            raise self.fail(name, f"a whole number from {low} to {high}")
        return value

    def text(self, name: str) -> str:
        value = self.document.get(name)
        if not isinstance(value, str):
            raise self.fail(name, "a string")
        return value

    def number(self, name: str) -> int:
        number = keys.decode(self.text(name))
        if number is None:
            raise self.fail(name, "20 digits")
        return number

    def items(self, name: str) -> list[Any]:
        value = self.document.get(name)
        if not isinstance(value, list):
            raise self.fail(name, "a list")
        return value

    def mapping(self, name: str) -> dict[str, Any]:
        value = self.document.get(name)
        if not isinstance(value, dict):
            raise self.fail(name, "an object")
        return value
