"""From what a user wrote to checked options: names, values and pairs, all at once."""

import dataclasses
import difflib
import os
from collections.abc import Mapping
from datetime import datetime
from typing import Any, TypeVar

from sparkwal.errors import OptionError
from sparkwal.options.reading import SourceOptions
from sparkwal.options.store import StoreOptions
from sparkwal.options.types import secret
from sparkwal.options.writing import AppenderOptions, SinkOptions

T = TypeVar("T", bound=StoreOptions)
# What Spark itself adds to a source's or sink's options.
_SPARKS_OWN = {"checkpointlocation", "queryname"}
_SIDES: dict[type[StoreOptions], str] = {
    SinkOptions: "writing",
    SourceOptions: "reading",
    AppenderOptions: "the appender",
}


def parse(kind: type[T], given: Mapping[str, str]) -> T:
    """Checked options from what a user wrote; names without regard to case. Raises OptionError."""
    known = {f.metadata["name"].lower(): f for f in dataclasses.fields(kind)}
    values: dict[str, Any] = {}
    for name, value in given.items():
        spec = known.get(name.lower())
        if spec is None:
            if name.lower() not in _SPARKS_OWN:
                raise OptionError(_unknown(name, kind))
            continue
        option, parser, limit = (spec.metadata[each] for each in ("name", "parse", "limit"))
        if spec.name in values:
            raise OptionError(f"option {option} is given twice; give it once")
        try:
            found = values[spec.name] = parser(str(value))
            if limit is not None and not limit.allows(found):
                raise ValueError(limit.expected)
        except ValueError as expected:
            shown = " is wrong;" if parser is secret else f" is {str(value)[:100]!r};"
            raise OptionError(f"option {option}{shown} {expected} is expected") from None
    options = kind(**values)
    options.check()
    return options


def _unknown(name: str, kind: type[StoreOptions]) -> str:
    names = [f.metadata["name"] for f in dataclasses.fields(kind)]
    for other, side in _SIDES.items():
        if name.lower() in {f.metadata["name"].lower() for f in dataclasses.fields(other)}:
            return f"option {name!r} is for {side}; remove it here"
    lowered = {each.lower(): each for each in names}
    near = difflib.get_close_matches(name.lower(), lowered, 1)
    hint = f"did you mean {lowered[near[0]]!r}?" if near else f"known are {', '.join(names)}"
    return f"unknown option {name!r}; {hint}"


def from_keywords(kind: type[T], path: str | os.PathLike[str], given: Mapping[str, object]) -> T:
    """As `parse`, of Python keyword arguments. The path is a text or an `os.PathLike`."""
    if not isinstance(path, (str, os.PathLike)):
        raise OptionError(
            f"the path is a {type(path).__name__}; a text such as s3://bucket/wal is expected"
        )
    texts = {"path": os.fspath(path)}
    for name, value in given.items():
        # str(None) would name a folder.
        if not isinstance(value, (str, int, float, datetime, os.PathLike)):
            raise OptionError(
                f"option {name} is a {type(value).__name__}; a text or a number is expected. To "
                "leave the option at its default, leave it out"
            )
        texts[name] = str(value).lower() if isinstance(value, bool) else str(value)
    return parse(kind, texts)
