"""Decides to which types a column may be widened: those that hold every value of its type.

The rules are those of Delta Lake's type widening. Nullability does not matter.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from sparkwal.format import schema

_WHOLE = ("byte", "short", "integer", "long")
_OTHERS = {"double": ("byte", "short", "integer", "float"), "timestamp_ntz": ("date",)}
# The digits before its point that a decimal needs to hold every whole number of a type.
_DIGITS = {"byte": 10, "short": 10, "integer": 10, "long": 20}


def holds(wide: Any, narrow: Any) -> bool:
    """Whether `wide` holds every value of `narrow`, so that a cast loses no information."""
    if isinstance(wide, str) and isinstance(narrow, str):
        return wide == narrow or _leaf_holds(wide, narrow)
    parts = _parts(wide, narrow)
    names = [[name for name, _ in schema.inside(kind)] for kind in (wide, narrow)]
    return bool(parts) and names[0] == names[1] and all(holds(*pair) for pair in parts or ())


def wider_parts(wide: Any, narrow: Any, path: str) -> Iterator[tuple[str, str]]:
    """The parts of a column whose types differ, where `wide` holds `narrow`.

    Yields:
        The path of each part in SQL, and its wide type.
    """
    if isinstance(wide, str):
        if wide != narrow:
            yield path, wide
        return
    others = dict(schema.inside(narrow))
    for name, kind in schema.inside(wide):
        yield from wider_parts(kind, others[name], f"{path}.{schema.quoted(name)}")


def contradicts(table: Any, log: Any) -> bool:
    """Whether a column of the type `table` can hold no value of the type `log` except null.

    Fields that only one of two structs has do not matter.
    """
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
    """The pairs of types inside of two nested types, or None if they are not nested alike."""
    if isinstance(one, str) or isinstance(other, str) or one["type"] != other["type"]:
        return None
    other_parts = {name.lower(): kind for name, kind in schema.inside(other)}
    parts = [(name.lower(), kind) for name, kind in schema.inside(one)]
    return [(kind, other_parts[name]) for name, kind in parts if name in other_parts]


def widened(spark_schema: str, table: Mapping[str, Any]) -> str:
    """A normalized schema in which each column has the table's type, if that holds its values.

    Args:
        table: the types of the table's columns, by name.
    """
    table_types = {name.lower(): kind for name, kind in table.items()}
    document = json.loads(spark_schema)
    for field in document["fields"]:
        kind = table_types.get(field["name"].lower(), field["type"])
        if holds(kind, field["type"]):
            field["type"] = kind
    return schema.normalize(document)


def contradictions(
    log: Mapping[str, Any], table: Mapping[str, Any]
) -> Iterator[tuple[str, Any, Any]]:
    """The columns whose types contradict: (column, its type in the log, its type in the table)."""
    table_types = {name.lower(): kind for name, kind in table.items()}
    for name, kind in log.items():
        table_type = table_types.get(name.lower(), kind)
        if contradicts(table_type, kind):
            yield name, kind, table_type
