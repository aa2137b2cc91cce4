"""Parses the options of a user, and checks their names, values and combinations."""

import dataclasses
import difflib
import os
from collections.abc import Mapping
from datetime import datetime
from typing import Any, TypeVar

from sparkwal.errors import OptionError
from sparkwal.options.foreign_names import not_needed, same_option
from sparkwal.options.reading import SourceOptions
from sparkwal.options.store import StoreOptions
from sparkwal.options.types import secret
from sparkwal.options.writing import AppenderOptions, SinkOptions
from sparkwal.store.base import LogStore
from sparkwal.store.open import path_of

T = TypeVar("T", bound=StoreOptions)
# Spark adds these to the options of a source or sink.
_OPTIONS_OF_SPARK = {"checkpointlocation", "queryname"}
_SIDES: dict[type[StoreOptions], str] = {
    SinkOptions: "writing",
    SourceOptions: "reading",
    AppenderOptions: "the appender",
}


def parse(kind: type[T], texts: Mapping[str, str]) -> T:
    """Parse and check options.

    Args:
        texts: the options' values by name. The case of a name does not matter.

    Raises:
        OptionError: an option is unknown, given twice or out of range, or two contradict.
    """
    fields = {field.metadata["name"].lower(): field for field in dataclasses.fields(kind)}
    values: dict[str, Any] = {}
    for name, text in texts.items():
        field = fields.get(name.lower())
        if field is None:
            if name.lower() not in _OPTIONS_OF_SPARK:
                raise OptionError(_unknown(name, kind))
            continue
        option = field.metadata["name"]
        parser = field.metadata["parse"]
        limit = field.metadata["limit"]
        if field.name in values:
            raise OptionError(f"option {option} is given twice; give it once")
        try:
            value = parser(str(text))
            if limit is not None and not limit.allows(value):
                raise ValueError(limit.expected)
        except ValueError as expected:
            shown = " is wrong;" if parser is secret else f" is {str(text)[:100]!r};"
            raise OptionError(f"option {option}{shown} {expected} is expected") from None
        values[field.name] = value
    options = kind(**values)
    options.check()
    return options


def _unknown(name: str, kind: type[StoreOptions]) -> str:
    if side := _side_of(name):
        return f"option {name!r} is for {side}; remove it here"
    names = [field.metadata["name"] for field in dataclasses.fields(kind)]
    if same := same_option(name):
        side = "" if same in names else f", for {_side_of(same)}"
        return f"unknown option {name!r}; here it is {same!r}{side}"
    if reason := not_needed(name):
        return f"unknown option {name!r}; {reason}"
    lowered = {option.lower(): option for option in names}
    near = difflib.get_close_matches(name.lower(), lowered, 1)
    hint = f"did you mean {lowered[near[0]]!r}?" if near else f"known are {', '.join(names)}"
    return f"unknown option {name!r}; {hint}"


def _side_of(name: str) -> str | None:
    """Which side has the option of this name, if any."""
    for kind, side in _SIDES.items():
        if name.lower() in {field.metadata["name"].lower() for field in dataclasses.fields(kind)}:
            return side
    return None


def from_keywords(
    kind: type[T], path: str | os.PathLike[str] | LogStore, keywords: Mapping[str, object]
) -> T:
    """Parse and check options that are Python keyword arguments.

    Raises:
        OptionError: as `parse`, or the path or a value has a wrong type.
    """
    if isinstance(path, LogStore):
        path = path_of(path)
    if not isinstance(path, (str, os.PathLike)):
        raise OptionError(
            f"the path is a {type(path).__name__}; a text such as s3://bucket/wal is expected"
        )
    texts = {"path": os.fspath(path)}
    for name, value in keywords.items():
        # None is refused: its text "None" would be a valid value, for example a folder's name.
        if not isinstance(value, (str, int, float, datetime, os.PathLike)):
            raise OptionError(
                f"option {name} is a {type(value).__name__}; a text or a number is expected. To "
                "leave the option at its default, leave it out"
            )
        texts[name] = str(value).lower() if isinstance(value, bool) else str(value)
    return parse(kind, texts)
