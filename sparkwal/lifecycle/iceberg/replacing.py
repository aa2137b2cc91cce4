"""Replaces rows of an Iceberg table by rows of the log with their keys: copy on write.

Only the files that have a key of the range are written again. The others are found by the bounds of
their columns, and by their keys.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from sparkwal.format import schema
from sparkwal.format.lifecycle_record import MERGE, Target
from sparkwal.lifecycle.iceberg.fitting import spark_schema
from sparkwal.lifecycle.iceberg.reader import rows_of
from sparkwal.lifecycle.merging.keyed import KeyIndex, holds, resolve, winners
from sparkwal.lifecycle.merging.merged_rows import merged, partial_columns
from sparkwal.lifecycle.range_rows import RangeRows
from sparkwal.reading.metadata import COLUMNS
from sparkwal.reading.planning import folded_names

if TYPE_CHECKING:
    from pyiceberg.expressions import BooleanExpression
    from pyiceberg.manifest import DataFile
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


class Replacing:
    """The replacement of rows by those of a range.

    It holds one row for each key of the range in memory, or all rows of the range, if some records
    lack a column.

    Args:
        table: the table.
        target: how the rows go into it.
        rows: the rows of the range.

    Attributes:
        files: the files that have a key of the range.
    """

    def __init__(self, table: Table, target: Target, rows: RangeRows) -> None:
        in_table = schema.to_arrow(spark_schema(table.schema()))
        # In the spelling of the log, which the rows' lists of their columns have.
        in_log = {name.lower(): name for name in schema.columns(rows.spark_schema)}
        names = [in_log.get(name.lower(), name) for name in in_table.names]
        self._own_names = dict(zip(names, in_table.names, strict=True))
        self._columns = pa.schema(
            [field.with_name(name) for field, name in zip(in_table, names, strict=True)]
        )
        self._table = table
        self._keys = resolve(target.keys, names)
        self._by = resolve([target.sequence_by], names)[0] if target.sequence_by else ""
        marked = self._columns.append(pa.field(COLUMNS, pa.string()))
        in_order = (schema.conform(batch, marked) for batch in rows.in_order())
        partial = partial_columns(target, rows.common, rows.spark_schema, names)
        if partial.isdisjoint(folded_names(names)):
            self._rows = winners(in_order, marked, self._keys, self._by)
        else:
            self._rows = pa.Table.from_batches(in_order, marked)
        self._deletes = holds(target.delete_when, self._rows)
        self._tasks = [*self._found()]
        self.files: list[DataFile] = [task.file for task in self._tasks]

    def rows(self) -> Iterator[pa.RecordBatch]:
        """The rows of the files after the range, and its new rows, in the table's spelling."""
        before = (batch for task in self._tasks for batch in self._read(task))
        after = merged(before, self._rows, self._deletes, self._keys, self._by)
        for batch in after:
            yield batch.rename_columns([self._own_names[name] for name in batch.schema.names])

    def _found(self) -> Iterator[FileScanTask]:
        """The files that have a key of the range. Of each that may have one the keys are read."""
        if not self._rows.num_rows:
            return
        one_of_each = winners(self._rows.to_batches(), self._rows.schema, self._keys, self._by)
        index = KeyIndex(one_of_each, self._keys)
        for task in self._table.scan(row_filter=self._filter()).plan_files():
            parts = (pa.Table.from_batches([x]) for x in self._read(task, self._keys))
            if any(index.find(part).null_count < part.num_rows for part in parts):
                yield task

    def _read(self, task: FileScanTask, names: list[str] | None = None) -> Iterator[pa.RecordBatch]:
        columns = self._columns if names is None else pa.schema(map(self._columns.field, names))
        own = [self._own_names[name] for name in columns.names]
        for batch in rows_of(self._table, self._table.scan(), task, own):
            of_log = {self._own_names[name]: name for name in columns.names}
            yield schema.conform(
                batch.rename_columns([of_log[name] for name in batch.schema.names]), columns
            )

    def _filter(self) -> BooleanExpression:
        """A condition that is true for each row with a key of the range, and for others."""
        from pyiceberg.expressions import AlwaysTrue, And

        conditions = [self._condition(name) for name in self._keys]
        return reduce(And, conditions, AlwaysTrue())

    def _condition(self, name: str) -> BooleanExpression:
        from pyiceberg.expressions import (
            AlwaysTrue,
            And,
            GreaterThanOrEqual,
            In,
            IsNull,
            LessThanOrEqual,
            Or,
        )

        column = self._rows[name]
        kind = column.type
        if not (pa.types.is_integer(kind) or pa.types.is_string(kind) or pa.types.is_date(kind)):
            return AlwaysTrue()
        own = self._own_names[name]
        values = pc.unique(column.drop_null())
        condition: BooleanExpression | None = None
        if 0 < len(values) <= _MOST_VALUES:
            condition = In(own, values.to_pylist())
        elif len(values):
            bounds = pc.min_max(values).as_py()
            condition = And(
                GreaterThanOrEqual(own, bounds["min"]), LessThanOrEqual(own, bounds["max"])
            )
        if not column.null_count:
            return condition or AlwaysTrue()
        return Or(condition, IsNull(own)) if condition else IsNull(own)
