"""Merges rows of the log into rows of a table by keys, with Arrow and without Spark.

A null in a key equals a null, so two rows whose keys are null have the same key. `delete_when` is
evaluated only if it means the same without Spark: it compares columns with literals of their types,
or names columns of booleans.
"""

from collections.abc import Iterable, Sequence
from decimal import Decimal
from functools import reduce
from itertools import chain
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from sparkwal.errors import OptionError
from sparkwal.format.schema import gathered
from sparkwal.lifecycle.merging import condition

# Rows are processed in parts of this size: Arrow builds an index of the winners for each part.
PART_ROWS = 1_000_000
PART_BYTES = 64 * 2**20
_ORDER = "order"
# The length to which an error cuts a condition.
_QUOTED_LENGTH = 200
# The comparison with exchanged sides. The other comparisons are symmetric.
_FLIPPED = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}
_COMPARISONS = {
    "=": pc.equal,
    "<>": pc.not_equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}


def resolve(names: Sequence[str], columns: Sequence[str]) -> list[str]:
    """Find columns by their names, without regard to case, as Spark does.

    Returns:
        The names as `columns` spells them.

    Raises:
        OptionError: a column does not exist.
    """
    folded = {name.lower(): name for name in columns}
    missing = [name for name in names if name.lower() not in folded]
    if missing:
        raise OptionError(
            f"column {missing[0]!r}, which the compaction uses, does not exist; the columns are "
            f"{', '.join(columns)}"
        )
    return [folded[name.lower()] for name in names]


def winners(
    batches: Iterable[pa.RecordBatch], schema: pa.Schema, keys: Sequence[str], sequence_by: str
) -> pa.Table:
    """The winning row of each key: the last, or the last with the greatest `sequence_by`.

    A null of `sequence_by` is less than any value. This holds one row for each key in memory, and
    PART_ROWS more or as many again.

    Raises:
        OptionError: only Spark can compare the values of a column.
    """
    for name in keys:
        _comparable(name, pa.chunked_array([], schema.field(name).type))
    if sequence_by and pa.types.is_nested(schema.field(sequence_by).type):
        raise _only_spark(sequence_by, schema.field(sequence_by).type)
    winning = schema.empty_table()
    waiting = list[pa.Table]()
    for part in gathered(batches, PART_BYTES, PART_ROWS):
        waiting.append(part)
        if sum(table.num_rows for table in waiting) >= winning.num_rows:
            winning = _last([winning, *waiting], keys, sequence_by)
            waiting = []
    return _last([winning, *waiting], keys, sequence_by) if waiting else winning


def _last(tables: Sequence[pa.Table], keys: Sequence[str], sequence_by: str) -> pa.Table:
    table = pa.concat_tables(tables)
    row = pa.array(range(table.num_rows), pa.int64())
    order: pa.Array | pa.ChunkedArray = row
    if sequence_by:
        order = pc.add(pc.multiply(ranks(table.column(sequence_by)), table.num_rows), row)
    values = {f"key{number}": column for number, column in enumerate(_key_columns(table, keys))}
    groups = pa.table({**values, _ORDER: order}).group_by(list(values), use_threads=False)
    last = groups.aggregate([(_ORDER, "max")]).column(f"{_ORDER}_max")
    is_last = pc.is_in(order, value_set=last.combine_chunks())
    return table.filter(is_last)


def ranks(sequence: pa.ChunkedArray) -> pa.ChunkedArray:
    """The rank of each value of a sequence among all of them; equal values have one rank.

    A null is less than any value, and NaN greater, as in Spark.
    """
    # Arrow ranks NaN after all values, and null after NaN.
    numbers = pc.rank(sequence, tiebreaker="min").cast(pa.int64())
    return pc.if_else(sequence.is_valid(), numbers, 0)


def _key_columns(rows: pa.Table, keys: Sequence[str]) -> list[pa.ChunkedArray]:
    """The keys as columns that Arrow compares as Spark compares the keys."""
    return [column for name in keys for column in _comparable(name, rows.column(name))]


def _comparable(name: str, column: pa.ChunkedArray) -> list[pa.ChunkedArray]:
    """Make −0.0 equal 0.0 and NaN equal NaN. Split a struct into its validity and its fields."""
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
        f"column {name!r}, which the compaction uses, is a {kind}, and only Spark compares such "
        "values: use sparkwal.read_current(spark, path)"
    )


def is_later(old: pa.ChunkedArray, new: pa.ChunkedArray) -> pa.ChunkedArray:
    """Compare pairs of sequences: is the first one greater?

    A null is less than any value, and NaN greater, as in Spark.
    """
    later = pc.greater(old, new)
    if pa.types.is_floating(old.type):
        later = pc.or_(later, pc.and_(pc.is_nan(old), pc.invert(pc.is_nan(new))))
    return pc.or_(pc.fill_null(later, False), pc.and_(old.is_valid(), new.is_null()))


def older_rows(
    others: Iterable[pa.RecordBatch],
    rows: pa.Table,
    keys: Sequence[str],
    sequence_by: str,
    *,
    only_newer: bool = False,
) -> pa.ChunkedArray:
    """Find the rows whose key has a later sequence elsewhere.

    Args:
        others: the tombstones of a table, with the keys and the sequence of `rows`.
        rows: rows of the log.
        keys: the key columns.
        sequence_by: the column of the sequence.
        only_newer: a row with the same sequence is older too.

    Returns:
        For each of `rows` whether it is older.
    """
    index = KeyIndex(winners(rows.to_batches(), rows.schema, keys, ""), keys)
    sequence_type = rows.schema.field(sequence_by).type
    same_keys = pa.schema([("key", pa.int32()), ("by", sequence_type)]).empty_table()
    for part in gathered(others, PART_BYTES, PART_ROWS):
        pairs = pa.table({"key": index.find(part), "by": part.column(sequence_by)})
        same_keys = pa.concat_tables([same_keys, pairs.filter(pairs["key"].is_valid())])
    latest = winners(same_keys.to_batches(), same_keys.schema, ["key"], "by")
    matches = pc.index_in(index.find(rows), value_set=latest["key"].combine_chunks())
    latest_of_rows, by = latest["by"].take(matches), rows[sequence_by]
    is_older = is_later(latest_of_rows, by)
    if only_newer:
        is_older = pc.invert(is_later(by, latest_of_rows))
    return pc.and_(is_older, matches.is_valid())


class KeyIndex:
    """Finds rows by keys of several columns. Each row has a different key.

    It reduces the columns to one column of codes. The code of the first columns and the value of
    the next column are numbered, and the pair of numbers becomes the next code. A code is null only
    if the key is not in the index.
    """

    def __init__(self, rows: pa.Table, keys: Sequence[str]) -> None:
        self._columns = keys
        columns = _key_columns(rows, keys)
        self._steps: list[tuple[pa.Array, pa.Array]] = []
        codes = columns[0]
        for column in columns[1:]:
            self._steps.append((pc.unique(codes), pc.unique(column)))
            codes = _combine(codes, column, *self._steps[-1])
        self._keys = codes.combine_chunks()

    def find(self, rows: pa.Table) -> pa.ChunkedArray:
        """The number of the row with the key of each of these; null without one."""
        columns = _key_columns(rows, self._columns)
        codes = columns[0]
        for column, step in zip(columns[1:], self._steps, strict=True):
            codes = _combine(codes, column, *step)
        # `index_in` finds a null if a key of the index is null.
        return pc.index_in(codes, value_set=self._keys)


def _combine(
    codes: pa.ChunkedArray, column: pa.ChunkedArray, before: pa.Array, values: pa.Array
) -> pa.ChunkedArray:
    high = pc.index_in(codes, value_set=before).cast(pa.int64())
    low = pc.index_in(column, value_set=values).cast(pa.int64())
    return pc.add(pc.multiply(high, pa.scalar(len(values), pa.int64())), low)


def holds(text: str, rows: pa.Table) -> pa.ChunkedArray:
    """Whether a condition is true, for each row. Null counts as false.

    Raises:
        OptionError: only Spark can evaluate the condition. An approximation could delete a row that
            a compaction keeps.
    """
    if not text.strip():
        return pa.chunked_array([pa.repeat(False, rows.num_rows)])
    try:
        result = _truth(condition.parse(text), rows)
    except (ValueError, pa.ArrowException) as why:
        quote = text if len(text) <= _QUOTED_LENGTH else f"{text[:_QUOTED_LENGTH]}…"
        raise OptionError(
            f"the delete condition {quote!r} cannot be evaluated without Spark ({why}): read with "
            "sparkwal.read_current(spark, path), or correct the condition"
        ) from None
    return pc.fill_null(result, False)


def _truth(node: condition.Node, rows: pa.Table) -> Any:
    """True, false or null for each row.

    Raises:
        ValueError: only Spark can evaluate the condition.
    """
    match node:
        case condition.And(parts):
            return reduce(pc.and_kleene, (_truth(part, rows) for part in parts))
        case condition.Or(parts):
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
            not_null = (choice for choice in choices if choice.value is not None)
            values = [_literal(choice, column.type).as_py() for choice in not_null]
            is_in = pc.is_in(column, value_set=pa.array(values, column.type))
            is_null = pc.is_null(column)
            if len(values) < len(choices):
                # With a null among the choices, the result is true or null, as in SQL.
                is_null = pc.or_(is_null, pc.invert(is_in))
            return pc.if_else(is_null, pa.scalar(None, pa.bool_()), is_in)
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
    raise ValueError("it does more than compare a column with a literal")


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
            same = [column for column in rows.column_names if column.lower() == name.lower()]
            if len(same) == 1:
                return rows.column(same[0])
            raise ValueError(f"there is no column {name!r}")
    raise ValueError("it compares something that is no column")


def _literal(node: condition.Literal, kind: pa.DataType) -> pa.Scalar:
    """A literal that Arrow compares with a column of this type as Spark does.

    Raises:
        ValueError: Arrow and Spark compare them differently.
    """
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
    raise ValueError(f"it compares a {kind} with another type")
