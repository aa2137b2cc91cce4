"""Which types of Spark's hold every value of another, so that a column may be widened to them.

The rules are those of Delta Lake's type widening; whether a type is nullable does not matter.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from sparkwal.format import schema

_WHOLE = ("byte", "short", "integer", "long")
_OTHERS = {"double": ("byte", "short", "integer", "float"), "timestamp_ntz": ("date",)}
# Digits that a decimal has before its point to hold every whole number.
_DIGITS = {"byte": 10, "short": 10, "integer": 10, "long": 20}


def holds(wide: Any, narrow: Any) -> bool:
    """Whether every value of `narrow` is one of `wide`, so that a cast loses nothing."""
    if isinstance(wide, str) and isinstance(narrow, str):
        return wide == narrow or _leaf_holds(wide, narrow)
    parts = _parts(wide, narrow)
    names = [[name for name, _ in schema.inside(each)] for each in (wide, narrow)]
    return bool(parts) and names[0] == names[1] and all(holds(*pair) for pair in parts or ())


def contradicts(table: Any, log: Any) -> bool:
    """Whether no value of `log` but null can be in a column of `table`'s type as it is; fields
    that only one of two structs has do not matter."""
    if isinstance(table, str) and isinstance(log, str):
        return table != "void" and not holds(table, log)
    parts = _parts(table, log)
    return parts is None or any(contradicts(*pair) for pair in parts)


def _leaf_holds(wide: str, narrow: str) -> bool:
    into, of = schema.DECIMAL.fullmatch(wide), schema.DECIMAL.fullmatch(narrow)
    if into is not None:
        scale = int(into[2])
        before = int(into[1]) - scale
        if of is not None:
            return scale >= int(of[2]) and before >= int(of[1]) - int(of[2])
        return narrow in _DIGITS and before >= _DIGITS[narrow]
    if wide in _WHOLE and narrow in _WHOLE:
        return _WHOLE.index(wide) >= _WHOLE.index(narrow)
    return narrow in _OTHERS.get(wide, ())


def _parts(one: Any, other: Any) -> list[tuple[Any, Any]] | None:
    """The types inside of two that are nested in the same way; None where they are not."""
    if isinstance(one, str) or isinstance(other, str) or one["type"] != other["type"]:
        return None
    known = {name.lower(): kind for name, kind in schema.inside(other)}
    own = [(name.lower(), kind) for name, kind in schema.inside(one)]
    return [(kind, known[name]) for name, kind in own if name in known]


def widened(spark_schema: str, table: Mapping[str, Any]) -> str:
    """The columns of a normalized schema, with a table's types (by name) where those hold them."""
    known = {name.lower(): kind for name, kind in table.items()}
    document = json.loads(spark_schema)
    for field in document["fields"]:
        kind = known.get(field["name"].lower(), field["type"])
        if holds(kind, field["type"]):
            field["type"] = kind
    return schema.normalize(document)


def contradictions(
    log: Mapping[str, Any], table: Mapping[str, Any]
) -> Iterator[tuple[str, Any, Any]]:
    """(column, its type in the log, its type in the table) of those that do not go together."""
    known = {name.lower(): kind for name, kind in table.items()}
    for name, kind in log.items():
        there = known.get(name.lower(), kind)
        if contradicts(there, kind):
            yield name, kind, there
