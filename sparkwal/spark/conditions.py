"""The condition that deletes a row's key, as an expression of Spark."""

import operator
from collections.abc import Callable
from typing import Any

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import StructField, StructType

from sparkwal.errors import OptionError
from sparkwal.lifecycle import condition
from sparkwal.lifecycle.condition import Node

_SIGNS: dict[str, Callable[[Any, Any], Column]] = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "<=>": Column.eqNullSafe,
}
_FUNCTIONS: dict[str, Callable[..., Column]] = {
    "coalesce": F.coalesce,
    "length": F.length,
    "lower": F.lower,
    "trim": F.trim,
    "upper": F.upper,
}
_SHOWN = 200


def deletes(text: str, rows: StructType, *, is_own: bool) -> Column:
    """Whether a row deletes its key: null counts as false.

    Args:
        text: a condition that is not empty.
        rows: the columns of the rows.
        is_own: this process was given the text. One that only the log knows may be no more than
            `condition.parse` reads: Spark's SQL calls methods of Java.

    Raises:
        OptionError: the text is not this process's own, and it is more.
    """
    try:
        found = _built(condition.parse(text), rows)
    except ValueError as error:
        if not is_own:
            shown = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
            raise OptionError(
                f"the log's delete condition {shown!r} is more than a reader takes from a log, "
                f"because Spark would run it: {error}. If you know it, give it yourself: "
                "read_current(…, delete_when=…), the same text as its compaction has"
            ) from None
        found = F.expr(text)
    return F.coalesce(found.cast("boolean"), F.lit(False))


def quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _built(node: Node, rows: StructType) -> Column:
    match node:
        case condition.Literal(value):
            return F.lit(value)
        case condition.Column(path):
            return F.col(".".join(map(quoted, _spelled(path, rows))))
        case condition.Compare(sign, left, right):
            return _SIGNS[sign](_built(left, rows), _built(right, rows))
        case condition.In(value, choices):
            return _built(value, rows).isin(*(choice.value for choice in choices))
        case condition.Like(value, pattern):
            return _built(value, rows).like(pattern)
        case condition.IsNull(value):
            return _built(value, rows).isNull()
        case condition.Not(value):
            return ~_built(value, rows)
        case condition.Every(parts):
            return _joined(operator.and_, [_built(part, rows) for part in parts])
        case condition.Some(parts):
            return _joined(operator.or_, [_built(part, rows) for part in parts])
        case condition.Call(name, arguments):
            return _FUNCTIONS[name](*(_built(argument, rows) for argument in arguments))


def _joined(join: Callable[[Column, Column], Column], parts: list[Column]) -> Column:
    """A balanced tree: Spark walks each level of it by a call."""
    if len(parts) == 1:
        return parts[0]
    half = len(parts) // 2
    return join(_joined(join, parts[:half]), _joined(join, parts[half:]))


def _spelled(path: tuple[str, ...], rows: StructType) -> list[str]:
    """A column, and fields in it, as they are spelled; Spark reads names without regard to case."""
    names: list[str] = []
    inside: Any = rows
    for name in path:
        fields: list[StructField] = inside.fields if isinstance(inside, StructType) else []
        same = [field for field in fields if field.name.lower() == name.lower()]
        if len(same) != 1:
            raise ValueError(f"there is no column {'.'.join((*names, name))!r}")
        names.append(same[0].name)
        inside = same[0].dataType
    return names
