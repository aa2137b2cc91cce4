"""Replaces rows of an Iceberg table by rows of the log with their keys: copy on write.

Only the files that have a key of the range are written again. The others are found by the bounds of
their columns, and by their keys.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from sparkwal.format import schema
from sparkwal.format.lifecycle_record import MERGE, Target
from sparkwal.lifecycle.iceberg.fitting import spark_schema
from sparkwal.lifecycle.iceberg.reader import rows_of
from sparkwal.lifecycle.iceberg.waiting import WaitingRows
from sparkwal.lifecycle.merging.keyed import KeyIndex, holds, resolve, winners
from sparkwal.lifecycle.merging.merged_rows import merged, partial_columns
from sparkwal.lifecycle.range_rows import RangeRows
from sparkwal.reading.metadata import COLUMNS
from sparkwal.reading.planning import folded_names

if TYPE_CHECKING:
    from pyiceberg.expressions import BooleanExpression
    from pyiceberg.manifest import DataFile
    from pyiceberg.schema import Schema
    from pyiceberg.table import FileScanTask, Table

# So many values of a key are looked up in the bounds of a file one by one, as pyiceberg does.
_MOST_VALUES = 200


def check_keys(target: Target, spark_columns: str) -> None:
    """Check the columns that a target names.

    Raises:
        OptionError: one does not exist, or only Spark compares its values.
    """
    columns = schema.to_arrow(spark_columns)
    resolve(target.partition_by, columns.names)
    if target.mode == MERGE:
        keys = resolve(target.keys, columns.names)
        by = resolve([target.sequence_by], columns.names)[0] if target.sequence_by else ""
        nothing = winners([], columns, keys, by)
        holds(target.delete_when, nothing)


@dataclass(frozen=True)
class RangeByKeys:
    """The rows of a range for a table with keys: one for each key, or all if some are partial.

    Attributes:
        columns: the columns of the table, in the spelling of the log, which the rows' lists of
            their columns have.
        own_names: the table's spelling of each.
        keys, by: the keys and the sequence, or "".
        rows: the rows, with COLUMNS.
        deletes: which of them delete their key.
        is_again: the range writes refused rows again. So a row of the same sequence may be newer.
    """

    columns: pa.Schema
    own_names: Mapping[str, str]
    keys: Sequence[str]
    by: str
    rows: pa.Table
    deletes: pa.ChunkedArray
    is_again: bool

    @property
    def one_of_each(self) -> pa.Table:
        """The row of each key that wins."""
        return winners(self.rows.to_batches(), self.rows.schema, self.keys, self.by)

    def where(self, counts: pa.ChunkedArray) -> RangeByKeys:
        """Some of the rows."""
        return replace(self, rows=self.rows.filter(counts), deletes=self.deletes.filter(counts))


def range_by_keys(table: Schema, target: Target, rows: RangeRows | WaitingRows) -> RangeByKeys:
    """Read the rows of a range for a table with keys.

    Args:
        table: the columns of the table.
        target: how the rows go into it.
        rows: the rows of the range.
    """
    in_table = schema.to_arrow(spark_schema(table))
    in_log = {name.lower(): name for name in schema.columns(rows.spark_schema)}
    names = [in_log.get(name.lower(), name) for name in in_table.names]
    columns = pa.schema(
        [field.with_name(name) for field, name in zip(in_table, names, strict=True)]
    )
    keys = resolve(target.keys, names)
    by = resolve([target.sequence_by], names)[0] if target.sequence_by else ""
    marked = columns.append(pa.field(COLUMNS, pa.string()))
    in_order = (schema.conform(batch, marked) for batch in rows.in_order())
    partial = partial_columns(target, rows.common, rows.spark_schema, names)
    if partial.isdisjoint(folded_names(names)):
        winning = winners(in_order, marked, keys, by)
    else:
        winning = pa.Table.from_batches(in_order, marked)
    own_names = dict(zip(names, in_table.names, strict=True))
    deletes, is_again = holds(target.delete_when, winning), rows.promise.is_again
    return RangeByKeys(columns, own_names, keys, by, winning, deletes, is_again)


class Replacing:
    """The replacement of rows of a table by those of a range.

    Args:
        table: the table.
        of: the rows of the range. They are in memory.

    Attributes:
        files: the files that have a key of the range.
    """

    def __init__(self, table: Table, of: RangeByKeys) -> None:
        self._table = table
        self._of = of
        self._tasks = [*self._found()]
        self.files: list[DataFile] = [task.file for task in self._tasks]

    def rows(self) -> Iterator[pa.RecordBatch]:
        """The rows of the files after the range, and its new rows, in the table's spelling."""
        of = self._of
        before = (batch for task in self._tasks for batch in self._read(task))
        merged_rows = merged(before, of.rows, of.deletes, of.keys, of.by, only_newer=of.is_again)
        for batch in merged_rows:
            yield batch.rename_columns([of.own_names[name] for name in batch.schema.names])

    def _found(self) -> Iterator[FileScanTask]:
        """The files that have a key of the range. Of each that may have one the keys are read."""
        of = self._of
        if not of.rows.num_rows:
            return
        index = KeyIndex(of.one_of_each, of.keys)
        keys = {name: of.own_names[name] for name in of.keys}
        for task in self._table.scan(row_filter=may_have(of.rows, keys)).plan_files():
            parts = (pa.Table.from_batches([x]) for x in self._read(task, of.keys))
            if any(index.find(part).null_count < part.num_rows for part in parts):
                yield task

    def _read(
        self, task: FileScanTask, names: Sequence[str] | None = None
    ) -> Iterator[pa.RecordBatch]:
        of = self._of
        columns = of.columns if names is None else pa.schema(map(of.columns.field, names))
        of_log = {of.own_names[name]: name for name in columns.names}
        for batch in rows_of(self._table, task, self._table.schema(), [*of_log]):
            yield schema.conform(
                batch.rename_columns([of_log[name] for name in batch.schema.names]), columns
            )


def may_have(rows: pa.Table, keys: Mapping[str, str]) -> BooleanExpression:
    """A condition that is true for each row of a table with a key of these, and for others.

    Args:
        rows: the rows.
        keys: their key columns, with the table's name of each.
    """
    from pyiceberg.expressions import AlwaysTrue, And

    conditions = [_condition(rows[name], own) for name, own in keys.items()]
    return reduce(And, conditions, AlwaysTrue())


def _condition(column: pa.ChunkedArray, own: str) -> BooleanExpression:
    from pyiceberg.expressions import (
        AlwaysTrue,
        And,
        GreaterThanOrEqual,
        In,
        IsNull,
        LessThanOrEqual,
        Or,
    )

    kind = column.type
    if not (pa.types.is_integer(kind) or pa.types.is_string(kind) or pa.types.is_date(kind)):
        return AlwaysTrue()
    values = pc.unique(column.drop_null())
    condition: BooleanExpression | None = None
    if 0 < len(values) <= _MOST_VALUES:
        condition = In(own, values.to_pylist())
    elif len(values):
        bounds = pc.min_max(values).as_py()
        condition = And(GreaterThanOrEqual(own, bounds["min"]), LessThanOrEqual(own, bounds["max"]))
    if not column.null_count:
        return condition or AlwaysTrue()
    return Or(condition, IsNull(own)) if condition else IsNull(own)
