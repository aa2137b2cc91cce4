"""The last row for each key, the rows of a table that it replaces, and which of them delete their
key; on Arrow alone.

A null in a key is a value like others here: two rows whose keys are null are one. Of the SQL
conditions of `delete_when` those are known that mean the same without Spark: `column = literal`,
`column IN (…)`, `column IS [NOT] NULL` and columns of booleans, joined by AND, OR and parentheses.
"""

import ast
import re
from collections.abc import Iterable, Iterator, Sequence
from decimal import Decimal
from functools import reduce
from itertools import chain
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from sparkwal.errors import OptionError
from sparkwal.format.schema import gathered

# Rows that are gathered before those that lost are dropped, and rows of the table that are
# compared at once: an index of the winners is made for each such part.
PART_ROWS = 1_000_000
PART_BYTES = 64 * 2**20
_ORDER = "order"
_TOKEN = re.compile(r"\s*(-?\d+(?:\.\d+)?(?![\w.])|'[^'\\]*'|`[^`]+`|[A-Za-z_]\w*|==?|[(),])\s*")
# Words and signs of SQL that Python has too, and how Python spells them.
_WORDS = {word: word for word in ("and", "or", "not", "is", "in", "==", ",", "(", ")")}
_WORDS |= {"=": "==", "null": "None", "true": "True", "false": "False"}


def resolve(names: Sequence[str], there: Sequence[str]) -> list[str]:
    """Columns as those that are there spell them; Spark reads names without regard to case."""
    folded = {name.lower(): name for name in there}
    missing = [name for name in names if name.lower() not in folded]
    if missing:
        raise OptionError(
            f"column {missing[0]!r}, which the compaction goes by, is not there; "
            f"there are {', '.join(there)}"
        )
    return [folded[name.lower()] for name in names]


def winners(
    batches: Iterable[pa.RecordBatch], schema: pa.Schema, keys: Sequence[str], sequence_by: str
) -> pa.Table:
    """The row of each key that stays: the last, or the last of those with the greatest
    `sequence_by`, where a null is less than any value. Holds one row for each key in memory, and
    PART_ROWS or as many again. Raises OptionError for columns that only Spark compares."""
    for name in keys:
        _comparable(name, pa.chunked_array([], schema.field(name).type))
    if sequence_by and pa.types.is_nested(schema.field(sequence_by).type):
        raise _only_spark(sequence_by, schema.field(sequence_by).type)
    kept, waiting = schema.empty_table(), list[pa.Table]()
    for part in gathered(batches, PART_BYTES, PART_ROWS):
        waiting.append(part)
        if sum(each.num_rows for each in waiting) >= kept.num_rows:
            kept, waiting = _last([kept, *waiting], keys, sequence_by), []
    return _last([kept, *waiting], keys, sequence_by) if waiting else kept


def _last(tables: Sequence[pa.Table], keys: Sequence[str], sequence_by: str) -> pa.Table:
    table = pa.concat_tables(tables)
    order = pa.array(range(table.num_rows), pa.int64())
    if sequence_by:
        by = table.column(sequence_by)
        # First those that have none.
        names = ("there", "by", _ORDER)
        columns = pa.table(dict(zip(names, (by.is_valid(), by, order), strict=True)))
        ranks = pc.sort_indices(columns, sort_keys=[(name, "ascending") for name in names])
        table = table.take(ranks)
    values = {f"key{i}": each for i, each in enumerate(_values(table, keys))}
    groups = pa.table({**values, _ORDER: order}).group_by(list(values), use_threads=False)
    last = groups.aggregate([(_ORDER, "max")]).column(f"{_ORDER}_max")
    return table.take(last.combine_chunks().sort())


def _values(rows: pa.Table, keys: Sequence[str]) -> list[pa.ChunkedArray]:
    """The keys' values as columns that Arrow compares as Spark compares the keys."""
    return [each for name in keys for each in _comparable(name, rows.column(name))]


def _comparable(name: str, column: pa.ChunkedArray) -> list[pa.ChunkedArray]:
    """−0.0 is 0.0, and every NaN the same; a struct is whether it is there, and its fields."""
    if pa.types.is_struct(column.type):
        inner = (_comparable(name, field) for field in column.flatten())
        return [column.is_valid(), *chain.from_iterable(inner)]
    if pa.types.is_nested(column.type):
        raise _only_spark(name, column.type)
    if not pa.types.is_floating(column.type):
        return [column]
    nan = pa.scalar(float("nan"), column.type)
    return [pc.if_else(pc.is_nan(column), nan, pc.add(column, pa.scalar(0.0, column.type)))]


def _only_spark(name: str, kind: pa.DataType) -> OptionError:
    return OptionError(
        f"column {name!r}, which the compaction goes by, is a {kind}, whose values only Spark "
        "compares: use sparkwal.read_current(spark, path)"
    )


def merged(
    batches: Iterator[pa.RecordBatch],
    tail: pa.Table,
    deleted: pa.ChunkedArray,
    keys: Sequence[str],
    sequence_by: str,
    only_table: Sequence[str] = (),
) -> Iterator[pa.RecordBatch]:
    """A table's rows, with the columns of `tail`, as they are after a MERGE of `tail`, one row for
    each key; `deleted`: which of them delete their key. A MERGE leaves the columns `only_table`,
    which the log does not have, as they are."""
    if not tail.num_rows:
        yield from batches
        return
    index = _Index(_values(tail, keys))
    lives = pc.invert(deleted)
    # Which rows of the tail the table has a row for.
    known: list[pa.Array] = []
    for part in gathered(batches, PART_BYTES, PART_ROWS):
        found = index.find(_values(part, keys))
        taken = found.is_valid()
        known.append(pc.unique(found.drop_null()))
        if sequence_by:
            old, new = part.column(sequence_by), tail.column(sequence_by).take(found)
            # Null is less than any value, and NaN greater.
            later = pc.greater(old, new)
            if pa.types.is_floating(old.type):
                later = pc.or_(later, pc.and_(pc.is_nan(old), pc.invert(pc.is_nan(new))))
            later = pc.or_(pc.fill_null(later, False), pc.and_(old.is_valid(), new.is_null()))
            taken = pc.and_(taken, pc.invert(later))
        yield from part.filter(pc.invert(taken)).to_batches()
        # Each row of a key for itself: the table may have it twice.
        before, places = part.filter(taken), found.filter(taken)
        after = tail.take(places)
        for name in only_table:
            at = after.schema.get_field_index(name)
            after = after.set_column(at, after.field(at), before.column(name))
        yield from after.filter(lives.take(places)).to_batches()
    order = pa.array(range(tail.num_rows), pa.int32())
    there = pc.is_in(order, value_set=pa.concat_arrays([pa.array([], pa.int32()), *known]))
    yield from tail.filter(pc.and_(lives, pc.invert(there))).to_batches()


class _Index:
    """Finds rows by keys of several columns: what stands before a column and its own values are
    numbered, and the pair of numbers stands before the next. No number is null unless the key is
    unknown; each row has another key."""

    def __init__(self, columns: Sequence[pa.ChunkedArray]) -> None:
        self._steps: list[tuple[pa.Array, pa.Array]] = []
        codes = columns[0]
        for column in columns[1:]:
            self._steps.append((pc.unique(codes), pc.unique(column)))
            codes = _joined(codes, column, *self._steps[-1])
        self._keys = codes.combine_chunks()

    def find(self, columns: Sequence[pa.ChunkedArray]) -> pa.ChunkedArray:
        """For each key the number of its row, null where there is none."""
        codes = columns[0]
        for column, step in zip(columns[1:], self._steps, strict=True):
            codes = _joined(codes, column, *step)
        # A null is found where there is a null among the keys.
        return pc.index_in(codes, value_set=self._keys)


def _joined(
    codes: pa.ChunkedArray, column: pa.ChunkedArray, before: pa.Array, values: pa.Array
) -> pa.ChunkedArray:
    high = pc.index_in(codes, value_set=before).cast(pa.int64())
    low = pc.index_in(column, value_set=values).cast(pa.int64())
    return pc.add(pc.multiply(high, pa.scalar(len(values), pa.int64())), low)


def holds(condition: str, rows: pa.Table) -> pa.ChunkedArray:
    """For each row whether the condition is true; null counts as false. Raises OptionError for a
    condition that only Spark can evaluate: a row that is deleted here and stays there would be
    worse than an error."""
    if not condition.strip():
        return pa.chunked_array([pa.repeat(False, rows.num_rows)])
    try:
        return pc.fill_null(_truth(ast.parse(_in_python(condition), mode="eval").body, rows), False)
    except (_Refused, SyntaxError, RecursionError, pa.ArrowException) as why:
        raise OptionError(
            f"the delete condition {condition!r} cannot be evaluated without Spark ({why}): use "
            "sparkwal.read_current(spark, path)"
        ) from None


class _Refused(Exception):
    pass


def _in_python(condition: str) -> str:
    """The condition as Python's parser reads it: a column is a list of its name, a literal the set
    of its text, so that two side by side are an error as in SQL."""
    words, at = list[str](), 0
    while at < len(condition):
        if (found := _TOKEN.match(condition, at)) is None:
            raise _Refused(f"at {condition[at : at + 20]!r}")
        at, token = found.end(), found[1]
        word = _WORDS.get(token.lower())
        if word is None:
            is_column = token[0].isalpha() or token[0] in "_`"
            word = repr([token.strip("`").lower()] if is_column else {token})
        words.append(word)
    return " ".join(words)


def _truth(node: ast.expr, rows: pa.Table) -> Any:
    match node:
        case ast.BoolOp(how, values):
            both = pc.and_kleene if isinstance(how, ast.And) else pc.or_kleene
            return reduce(both, (_truth(each, rows) for each in values))
        case ast.Compare(left, [ast.Is()], [ast.Constant(None)]):
            return pc.is_null(_column(left, rows))
        case ast.Compare(left, [ast.IsNot()], [ast.Constant(None)]):
            return pc.is_valid(_column(left, rows))
        case ast.Compare(left, [ast.Eq()], [right]):
            column = _column(left, rows)
            return pc.equal(column, _literal(right, column.type))
        case ast.Compare(left, [ast.In()], [right]):
            column = _column(left, rows)
            values = right.elts if isinstance(right, ast.Tuple) and right.elts else [right]
            equal = (pc.equal(column, _literal(each, column.type)) for each in values)
            return reduce(pc.or_kleene, equal)
    column = _column(node, rows)
    if not types.is_boolean(column.type):
        raise _Refused(f"a {column.type} is neither true nor false")
    return column


def _column(node: ast.expr, rows: pa.Table) -> Any:
    match node:
        case ast.List([ast.Constant(name)]):
            same = [known for known in rows.column_names if known.lower() == name]
            if len(same) == 1:
                return rows.column(same[0])
            raise _Refused(f"there is no column {name!r}")
    raise _Refused("something else stands where a column does")


def _literal(node: ast.expr, kind: pa.DataType) -> pa.Scalar:
    """One that compares with a column of this type as Spark would compare them."""
    match node:
        case ast.Constant(bool(value)) if types.is_boolean(kind):
            return pa.scalar(value)
        case ast.Set([ast.Constant(str(text))]):
            if text.startswith("'"):
                if types.is_string(kind) or types.is_date(kind):
                    return pa.scalar(text[1:-1]).cast(kind)
            elif types.is_decimal(kind):
                return pa.scalar(Decimal(text))
            elif types.is_integer(kind) and "." not in text and len(text) < 19:
                return pa.scalar(int(text))
    raise _Refused(f"a {kind} is compared with something else")
