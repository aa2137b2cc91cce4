"""Converts the condition that deletes a row's key to a Spark expression."""

import operator
from collections.abc import Callable
from typing import Any

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import StructField, StructType

from sparkwal.errors import OptionError
from sparkwal.format.schema import quoted
from sparkwal.lifecycle.merging import condition
from sparkwal.lifecycle.merging.condition import Node

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
# The length to which an error cuts a condition.
_QUOTED_LENGTH = 200


def deletes(text: str, rows: StructType, *, is_own: bool) -> Column:
    """Whether a row deletes its key. Null counts as false.

    Args:
        text: a condition that is not empty.
        rows: the columns of the rows.
        is_own: the text is an argument of the caller. A text that was read from the log must fit
            the grammar of `condition.parse`, because Spark's SQL can call methods of Java.

    Raises:
        OptionError: the text was read from the log and does not fit the grammar.
    """
    try:
        expression = _column(condition.parse(text), rows)
    except ValueError as error:
        if not is_own:
            quote = text if len(text) <= _QUOTED_LENGTH else f"{text[:_QUOTED_LENGTH]}…"
            raise OptionError(
                f"the log's delete condition {quote!r} is more than a reader takes from a log, "
                f"because Spark would run it: {error}. If you trust it, pass it yourself: "
                "read_current(…, delete_when=…), with the same text as the log's compaction"
            ) from None
        expression = F.expr(text)
    return F.coalesce(expression.cast("boolean"), F.lit(False))


def _column(node: Node, rows: StructType) -> Column:
    match node:
        case condition.Literal(value):
            return F.lit(value)
        case condition.Column(path):
            return F.col(".".join(map(quoted, _spelling(path, rows))))
        case condition.Compare(sign, left, right):
            return _SIGNS[sign](_column(left, rows), _column(right, rows))
        case condition.In(value, choices):
            return _column(value, rows).isin(*(choice.value for choice in choices))
        case condition.Like(value, pattern):
            return _column(value, rows).like(pattern)
        case condition.IsNull(value):
            return _column(value, rows).isNull()
        case condition.Not(value):
            return ~_column(value, rows)
        case condition.And(parts):
            return _balanced(operator.and_, [_column(part, rows) for part in parts])
        case condition.Or(parts):
            return _balanced(operator.or_, [_column(part, rows) for part in parts])
        case condition.Call(name, arguments):
            return _FUNCTIONS[name](*(_column(argument, rows) for argument in arguments))


def _balanced(join: Callable[[Column, Column], Column], parts: list[Column]) -> Column:
    """Join the parts as a balanced tree. Spark recurses once for each level of an expression."""
    if len(parts) == 1:
        return parts[0]
    half = len(parts) // 2
    return join(_balanced(join, parts[:half]), _balanced(join, parts[half:]))


def _spelling(path: tuple[str, ...], rows: StructType) -> list[str]:
    """The spelling of a column and of fields inside it: in a condition, case does not matter."""
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
