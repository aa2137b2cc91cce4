"""--where: a condition on rows, as an expression over columns. Nothing of it is ever executed.

dep_delay > 30 and origin == 'JFK'
carrier in ('AA', 'UA') and not startswith(tailnum, 'N1')
at >= '2026-01-31' and (note is null or length(note) < 10)
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Callable, Sequence
from decimal import Decimal, DecimalException
from functools import reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from sparkwal.cli.exits import Failed, Refused
from sparkwal.cli.literals import (
    EXACT,
    Literal,
    Value,
    bounded,
    compared,
    is_number,
    scalar,
    too_large,
    type_name,
)
from sparkwal.reading.metadata import unknown_column

_SIGNS: dict[type[ast.cmpop], str] = {
    ast.Eq: "==", ast.NotEq: "!=", ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=",
}  # fmt: skip
_WORDS: dict[str, Any] = {"null": None, "true": True, "false": False}
_UNKNOWN = pa.scalar(None, pa.bool_())


class Where:
    """A condition on the rows of a schema.

    Args:
        known: all columns that it may name; `shown` those that an error lists.

    Raises Refused for an expression that is wrong, OptionError for an unknown column.
    """

    def __init__(self, text: str, known: pa.Schema, shown: Sequence[str]) -> None:
        self._shown = shown
        self.columns: set[str] = set()
        self._tree = _parsed(text)
        # Of no rows it tells whether names and types fit.
        self.of(pa.RecordBatch.from_pylist([], schema=known))

    def of(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows for which the condition is true: neither false nor unknown."""
        try:
            return batch.filter(self._condition(self._tree, batch))
        except pa.ArrowNotImplementedError as error:
            raise Refused(f"--where: {_first_line(error)}") from None
        except pa.ArrowException as error:
            raise Failed(f"--where: {_first_line(error)}") from None
        except RecursionError:
            raise Refused("--where is nested too deeply") from None

    def _condition(self, node: ast.expr, batch: pa.RecordBatch) -> pa.Array:
        found = self._value(node, batch)
        if isinstance(found, Literal):
            if found.value is not None and not isinstance(found.value, bool):
                raise Refused(f"--where: {ast.unparse(node)} is no condition")
            return pa.repeat(pa.scalar(found.value, pa.bool_()), batch.num_rows)
        if not types.is_boolean(found.type):
            raise Refused(
                f"--where: {ast.unparse(node)} is {type_name(found.type)} and no condition: "
                "compare it with something"
            )
        return found

    def _value(self, node: ast.expr, batch: pa.RecordBatch) -> Value:
        match node:
            case ast.Constant(value=value) if isinstance(value, (int, str, bytes, Decimal)):
                return Literal(value)
            case ast.Constant(value=None):
                return Literal(None)
            case ast.Name(id=name):
                if name not in batch.schema.names and name.lower() in _WORDS:
                    return Literal(_WORDS[name.lower()])
                return self._column(name, batch)
            case ast.BoolOp(op=op, values=values):
                joined = pc.and_kleene if isinstance(op, ast.And) else pc.or_kleene
                return reduce(joined, [self._condition(each, batch) for each in values])
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return pc.invert(self._condition(operand, batch))
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return _arithmetic(ast.Sub(), Literal(0), self._value(operand, batch))
            case ast.BinOp(op=op, left=left, right=right):
                return _arithmetic(op, self._value(left, batch), self._value(right, batch))
            case ast.Compare(left=left, ops=ops, comparators=others):
                return self._comparison(left, ops, others, batch)
            case ast.Attribute(value=inner, attr=name):
                return self._field(inner, name, batch)
            case ast.Subscript(value=inner, slice=ast.Constant(value=str(name))):
                return self._field(inner, name, batch)
            case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]):
                return self._call(name, arguments, batch)
            case ast.Call(func=ast.Attribute(value=inner, attr=name)):
                raise Refused(f"--where: write {name}({ast.unparse(inner)}, …)")
        raise Refused(f"--where cannot have {ast.unparse(node)}")

    def _column(self, name: str, batch: pa.RecordBatch) -> pa.Array:
        if name not in batch.schema.names:
            raise unknown_column(name, self._shown, batch.schema.names)
        self.columns.add(name)
        return batch.column(name)

    def _field(self, inner: ast.expr, name: str, batch: pa.RecordBatch) -> pa.Array:
        found = self._value(inner, batch)
        if isinstance(found, Literal) or not types.is_struct(found.type):
            raise Refused(f"--where: {ast.unparse(inner)} is no struct and has no field {name!r}")
        names = [found.type.field(place).name for place in range(found.type.num_fields)]
        if name not in names:
            raise Refused(
                f"--where: {ast.unparse(inner)} has no field {name!r}; it has {', '.join(names)}"
            )
        return pc.struct_field(found, [names.index(name)])

    def _comparison(
        self, left: ast.expr, ops: Sequence[ast.cmpop], others: Sequence[ast.expr], batch: Any
    ) -> pa.Array:
        found: list[pa.Array] = []
        for op, right in zip(ops, others, strict=True):
            value = self._value(left, batch)
            if isinstance(op, (ast.Is, ast.IsNot)):
                found.append(self._is_null(value, op, right, batch))
            elif isinstance(op, (ast.In, ast.NotIn)):
                among = self._among(value, right, batch)
                found.append(among if isinstance(op, ast.In) else pc.invert(among))
            else:
                other = self._value(right, batch)
                found.append(compared(_SIGNS[type(op)], value, other, batch.num_rows))
            left = right
        return reduce(pc.and_kleene, found)

    def _is_null(
        self, value: Value, op: ast.cmpop, right: ast.expr, batch: pa.RecordBatch
    ) -> pa.Array:
        if self._value(right, batch) != Literal(None):
            raise Refused("--where: `is` goes with null only; compare with ==")
        if isinstance(value, Literal):
            raise Refused("--where: `is null` is asked of a column")
        return value.is_null() if isinstance(op, ast.Is) else value.is_valid()

    def _among(self, value: Value, right: ast.expr, batch: pa.RecordBatch) -> pa.Array:
        if not isinstance(right, (ast.Tuple, ast.List)) or not right.elts:
            raise Refused("--where: `in` is followed by values in brackets: in ('a', 'b')")
        found = pa.repeat(pa.scalar(False), batch.num_rows)
        for each in right.elts:
            other = self._value(each, batch)
            if other == Literal(None):
                one = pa.repeat(_UNKNOWN, batch.num_rows)
            else:
                one = compared("==", value, other, batch.num_rows)
            found = pc.or_kleene(found, one)
        return found

    def _call(self, name: str, arguments: Sequence[ast.expr], batch: pa.RecordBatch) -> Value:
        if name == "col":
            match arguments:
                case [ast.Constant(value=str(column))]:
                    return self._column(column, batch)
            raise Refused("--where: col takes a column's name: col('two words')")
        if name not in FUNCTIONS:
            raise Refused(f"--where: there is no function {name}; there are {', '.join(FUNCTIONS)}")
        function, kinds = FUNCTIONS[name]
        values = [self._value(each, batch) for each in arguments]
        if len(values) != len(kinds) or not all(map(_is_a, values, kinds)):
            raise Refused(f"--where: {name}({', '.join(kinds)}) is how it is called")
        return function(*(v.value if isinstance(v, Literal) else v for v in values))


def _parsed(text: str) -> ast.expr:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(text.strip(), mode="eval").body
        return _Exact(text.strip()).visit(tree)  # type: ignore[no-any-return]
    except DecimalException:
        raise too_large() from None
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        hint = ""
        if re.search(r"<>|(?<![<>=!])=(?!=)", text):
            hint = "; equal is ==, not equal is !="
        elif re.search(r"\b(AND|OR|NOT|IS|IN|LIKE|BETWEEN)\b", text):
            hint = "; and, or, not, in, is are in small letters, and like(column, 'a%') a function"
        said = error.msg if isinstance(error, SyntaxError) else str(error) or "too deep"
        raise Refused(f"--where {text!r} is no expression: {said}{hint}") from None


class _Exact(ast.NodeTransformer):
    """Numbers with a fraction as they are written, not as the nearest float; and names, of which
    Python takes some for others (NFKC)."""

    def __init__(self, text: str) -> None:
        self._text = text

    def visit_Name(self, node: ast.Name) -> ast.Name:
        if not self._text.isascii():
            node.id = ast.get_source_segment(self._text, node) or node.id
        return node

    def visit_Constant(self, node: ast.Constant) -> ast.Constant:
        value: Any = node.value
        if isinstance(value, float):
            value = EXACT.create_decimal(ast.get_source_segment(self._text, node) or "")
        if isinstance(value, (int, Decimal)):
            node.value = bounded(value)  # type: ignore[assignment]
        return node


def _arithmetic(op: ast.operator, left: Value, right: Value) -> Value:
    sign = _ARITHMETIC.get(type(op))
    if sign is None:
        raise Refused("--where calculates with + - * / and % only")
    if isinstance(left, Literal) and isinstance(right, Literal):
        return _constant(op, left.value, right.value)
    a, b = _numbers(left, right)
    if isinstance(op, ast.Mod) and not (types.is_integer(a.type) and types.is_integer(b.type)):
        raise Refused("--where: % is for integers")
    if isinstance(op, ast.Div):
        a, b = a.cast(pa.float64(), safe=False), b.cast(pa.float64(), safe=False)
    if isinstance(op, (ast.Div, ast.Mod)):
        # As SQL: what is divided by nothing is unknown.
        b = pc.if_else(pc.equal(b, pa.scalar(0, b.type)), pa.scalar(None, b.type), b)
    if isinstance(op, ast.Div):
        return pc.divide(a, b)
    if isinstance(op, ast.Mod):
        return pc.subtract(a, pc.multiply(pc.divide(a, b), b))
    return sign(a, b)


_ARITHMETIC: dict[type[ast.operator], Callable[..., Any]] = {
    ast.Add: pc.add_checked, ast.Sub: pc.subtract_checked, ast.Mult: pc.multiply_checked,
    ast.Div: pc.divide, ast.Mod: pc.divide,
}  # fmt: skip


def _constant(op: ast.operator, left: Any, right: Any) -> Literal:
    for value in (left, right):
        if not isinstance(value, (int, Decimal)) or isinstance(value, bool):
            raise Refused(f"--where calculates with {value!r}, which is no number")
    exactly = _EXACTLY.get(type(op))
    if exactly is None:
        raise Refused("--where divides two numbers: write what comes out")
    try:
        found = exactly(EXACT.create_decimal(left), EXACT.create_decimal(right))
    except DecimalException:
        raise too_large() from None
    whole = isinstance(left, int) and isinstance(right, int)
    return Literal(bounded(int(found) if whole else found))


_EXACTLY: dict[type[ast.operator], Callable[[Decimal, Decimal], Decimal]] = {
    ast.Add: EXACT.add, ast.Sub: EXACT.subtract, ast.Mult: EXACT.multiply,
}  # fmt: skip


def _numbers(*values: Value) -> list[Any]:
    arrays = [value for value in values if not isinstance(value, Literal)]
    for array in arrays:
        if not is_number(array.type):
            raise Refused(f"--where calculates with {type_name(array.type)}, which is no number")
    floats = any(types.is_floating(array.type) for array in arrays)
    decimals = any(types.is_decimal(array.type) for array in arrays)
    found = []
    for value in values:
        if not isinstance(value, Literal):
            wide = pa.float64() if floats else pa.int64() if types.is_integer(value.type) else None
            found.append(value.cast(wide, safe=False) if wide else value)
        elif isinstance(value.value, bool) or not isinstance(value.value, (int, Decimal)):
            raise Refused(f"--where calculates with {value.value!r}, which is no number")
        elif decimals and not floats:
            found.append(pa.scalar(Decimal(value.value)))
        elif isinstance(value.value, int) and not floats:
            found.append(scalar(value.value, pa.int64()))
        else:
            found.append(scalar(value.value, pa.float64()))
    # An integer's column becomes floats where it meets a number with a fraction.
    kinds = {each.type for each in found}
    if pa.float64() in kinds and pa.int64() in kinds:
        found = [each.cast(pa.float64(), safe=False) for each in found]
    return found


def _is_a(value: Value, kind: str) -> bool:
    if kind.startswith("'"):
        return isinstance(value, Literal) and isinstance(value.value, str)
    if isinstance(value, Literal):
        return False
    holds = {"text": types.is_string, "number": is_number, "float": types.is_floating}[kind]
    return bool(holds(value.type))


def _matches(column: pa.Array, pattern: str) -> pa.Array:
    return pc.match_substring_regex(column, pattern)


# Each function and what it is called with: a column of a kind, or a 'text'.
FUNCTIONS: dict[str, tuple[Callable[..., Any], tuple[str, ...]]] = {
    "startswith": (pc.starts_with, ("text", "'begin'")),
    "endswith": (pc.ends_with, ("text", "'end'")),
    "contains": (pc.match_substring, ("text", "'part'")),
    "like": (pc.match_like, ("text", "'a%_'")),
    "matches": (_matches, ("text", "'regular expression'")),
    "lower": (pc.utf8_lower, ("text",)),
    "upper": (pc.utf8_upper, ("text",)),
    "length": (pc.utf8_length, ("text",)),
    "abs": (pc.abs_checked, ("number",)),
    "isnan": (pc.is_nan, ("float",)),
}


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
