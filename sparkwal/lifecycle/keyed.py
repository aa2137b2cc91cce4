"""The last row for each key, the rows of a table that it replaces, and which of them delete their
key; on Arrow alone.

A null in a key is a value like others here: two rows whose keys are null are one. Of the conditions
of `delete_when` those are evaluated that mean the same without Spark: they compare columns with
literals of the same kind, or name columns of booleans.
"""

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
from sparkwal.lifecycle import condition

# Rows that are gathered before those that lost are dropped, and rows of the table that are
# compared at once: an index of the winners is made for each such part.
PART_ROWS = 1_000_000
PART_BYTES = 64 * 2**20
_ORDER = "order"
_SHOWN = 200
# What a comparison becomes where its sides change places; the others stay as they are.
_FLIPPED = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}
_COMPARISONS = {
    "=": pc.equal,
    "<>": pc.not_equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}


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


def holds(text: str, rows: pa.Table) -> pa.ChunkedArray:
    """For each row whether the condition is true; null counts as false. Raises OptionError for a
    condition that only Spark can evaluate: a row that is deleted here and stays there would be
    worse than an error."""
    if not text.strip():
        return pa.chunked_array([pa.repeat(False, rows.num_rows)])
    try:
        found = _truth(condition.parse(text), rows)
    except (ValueError, pa.ArrowException) as why:
        shown = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
        raise OptionError(
            f"the delete condition {shown!r} cannot be evaluated without Spark ({why}): use "
            "sparkwal.read_current(spark, path)"
        ) from None
    return pc.fill_null(found, False)


def _truth(node: condition.Node, rows: pa.Table) -> Any:
    """True, false or null for each row. Raises ValueError for what Spark alone compares."""
    match node:
        case condition.Every(parts):
            return reduce(pc.and_kleene, (_truth(part, rows) for part in parts))
        case condition.Some(parts):
            return reduce(pc.or_kleene, (_truth(part, rows) for part in parts))
        case condition.Not(value):
            return pc.invert(_truth(value, rows))
        case condition.IsNull(value):
            return pc.is_null(_column(value, rows))
        case condition.Compare(sign, condition.Literal() as left, right):
            return _compared(_FLIPPED.get(sign, sign), right, left, rows)
        case condition.Compare(sign, left, condition.Literal() as right):
            return _compared(sign, left, right, rows)
        case condition.In(value, choices):
            column = _column(value, rows)
            known = (choice for choice in choices if choice.value is not None)
            wanted = [_literal(choice, column.type).as_py() for choice in known]
            found = pc.is_in(column, value_set=pa.array(wanted, column.type))
            is_null = pc.is_null(column)
            if len(wanted) < len(choices):
                # Whether a value is the one that is not known is not known either.
                is_null = pc.or_(is_null, pc.invert(found))
            return pc.if_else(is_null, pa.scalar(None, pa.bool_()), found)
        case condition.Like(value, pattern):
            column = _column(value, rows)
            if not types.is_string(column.type):
                raise ValueError(f"a {column.type} has no pattern")
            return pc.match_like(column, pattern)
        case condition.Column():
            column = _column(node, rows)
            if types.is_boolean(column.type):
                return column
            raise ValueError(f"a {column.type} is neither true nor false")
    raise ValueError("something else is compared than a column with a literal")


def _compared(sign: str, left: condition.Node, right: condition.Literal, rows: pa.Table) -> Any:
    column = _column(left, rows)
    if types.is_boolean(column.type) and sign in ("<", "<=", ">", ">="):
        raise ValueError("booleans have no order")
    if right.value is None:
        if sign == "<=>":
            return pc.is_null(column)
        return pa.chunked_array([pa.nulls(rows.num_rows, pa.bool_())])
    literal = _literal(right, column.type)
    if sign == "<=>":
        return pc.fill_null(pc.equal(column, literal), False)
    return _COMPARISONS[sign](column, literal)


def _column(node: condition.Node, rows: pa.Table) -> Any:
    match node:
        case condition.Column((name,)):
            same = [known for known in rows.column_names if known.lower() == name.lower()]
            if len(same) == 1:
                return rows.column(same[0])
            raise ValueError(f"there is no column {name!r}")
    raise ValueError("something else stands where a column does")


def _literal(node: condition.Literal, kind: pa.DataType) -> pa.Scalar:
    """One that compares with a column of this type as Spark would compare them."""
    match node.value:
        case bool(value):
            if types.is_boolean(kind):
                return pa.scalar(value)
        case str(text):
            if types.is_string(kind) or types.is_date(kind):
                return pa.scalar(text).cast(kind)
        case Decimal() | int() as number:
            if types.is_decimal(kind):
                return pa.scalar(Decimal(number))
            if types.is_integer(kind) and isinstance(number, int):
                return pa.scalar(number)
    raise ValueError(f"a {kind} is compared with something else")
