"""Checks appended rows, copies mutable values, and converts them to Arrow a batch at a time.

An append may cost only some microseconds. So `accept` validates Arrow rows completely, in C, but of
Python rows it checks only the names of the columns. A value that does not fit is found when its
batch is converted, and then only its own append fails.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import chain, groupby
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from sparkwal.appender import values
from sparkwal.appender.batches import CheckedRows, Payload
from sparkwal.errors import OptionError
from sparkwal.format import map_keys, schema
from sparkwal.reading.metadata import check_writable

if TYPE_CHECKING:
    import pandas as pd

Rows: TypeAlias = "pa.RecordBatch | pa.Table | Sequence[Mapping[str, Any]] | pd.DataFrame"

# An append must fit into one object, and Arrow's strings have 32-bit offsets.
LARGEST_APPEND = 2**31 - 2**20
# Arrow rows that keep more bytes in memory for each row than this are copied: they may be a slice
# of a larger batch, all of which stays in memory with them.
_MAX_ROW_BYTES = 256
# The measured overhead in memory of an Arrow batch, of each array in it, of a list of dicts and of
# each value in it.
_BATCH_OVERHEAD = 300
_ARRAY_OVERHEAD = 750
_LIST_OVERHEAD = 150
_VALUE_OVERHEAD = 48


class RowSchema:
    """The columns of each append.

    Raises:
        OptionError: the log cannot hold a column.
    """

    def __init__(self, arrow_schema: pa.Schema) -> None:
        if not isinstance(arrow_schema, pa.Schema):
            raise OptionError(
                f"schema is a {type(arrow_schema).__name__}; a pyarrow.Schema is expected"
            )
        self.spark_schema = schema.from_arrow(arrow_schema)
        check_writable(self.spark_schema)
        self.arrow = schema.to_arrow(self.spark_schema)
        self._columns = schema.columns(self.spark_schema)
        self._names = frozenset(self._columns)
        # In the log all columns are nullable: later writers may leave some out.
        self.required = [field.name for field in arrow_schema if not field.nullable]
        self._fixed = sum(map(values.width, self.arrow.types)) + 1
        self._has_maps = any(map(map_keys.has_map, self.arrow.types))
        # The last schema that fit, and whether a copy of its rows shares memory with them. They are
        # one value, so that another thread never sees one without the other.
        self._last_schema = self.arrow, False
        self._arrow_overhead = _BATCH_OVERHEAD + _ARRAY_OVERHEAD * sum(
            map(values.arrays, self.arrow.types)
        )

    def accept(self, rows: Rows) -> CheckedRows:
        """Check rows, and copy what the caller may change later: all but Arrow's buffers.

        Raises:
            OptionError: the rows do not fit the schema or are malformed.
        """
        try:
            if isinstance(rows, pa.RecordBatch):
                return self._accept_arrow(rows)
            if isinstance(rows, (list, tuple)):
                return self._copy_dicts(rows)
            # The columns of a table or a frame may share numpy's memory.
            return self._accept_arrow(self._table(rows), copy=True)
        except OptionError:
            raise
        except RecursionError:
            raise OptionError("these rows contain themselves, or are nested too deeply") from None
        except (pa.ArrowException, ValueError, TypeError, LookupError, OverflowError) as error:
            reason = " ".join(str(error).split())
            raise OptionError(
                f"these rows, a {type(rows).__name__}, are malformed or cannot be read "
                f"({type(error).__name__}: {reason})"
            ) from None

    def checked_rows(self, batch: pa.RecordBatch) -> CheckedRows:
        """A converted batch with its sizes."""
        size = batch.get_total_buffer_size()
        return batch, size + 1, size + self._arrow_overhead

    def restore(self, content: memoryview, serialized: bytes) -> CheckedRows:
        """Read the rows of a journal's entry, which were checked before. New columns become null.

        Args:
            content: the entry.
            serialized: its schema.

        Raises:
            OptionError: the rows do not fit the schema any more.
            ArrowException: the entry is damaged.
        """
        entry_schema = read_schema(serialized)
        if (reason := self.mismatch(entry_schema)) is not None:
            raise OptionError(reason)
        batch = pa.ipc.read_record_batch(pa.py_buffer(content), entry_schema)
        return self.checked_rows(schema.conform(batch, self.arrow))

    def mismatch(self, other: pa.Schema) -> str | None:
        """The reason why this schema cannot hold rows of another, or None."""
        if other.equals(self.arrow):
            return None
        own = dict(zip(self.arrow.names, self.arrow.types, strict=True))
        for name, kind in zip(other.names, other.types, strict=True):
            if name not in own:
                return f"column {name!r} is not in the schema any more"
            if own[name] != kind:
                return f"column {name!r} is {kind} here, and {own[name]} in the schema"
        return None

    def _table(self, rows: Any) -> pa.Table:
        if type(rows).__module__.partition(".")[0] == "pandas" and hasattr(rows, "columns"):
            self._check_columns(list(rows.columns))
            table = pa.table(
                {field.name: self._series(rows[field.name], field) for field in self.arrow}
            )
            return pa.Table.from_batches(map(self._conform, table.to_batches()), self.arrow)
        if isinstance(rows, pa.Table):
            return rows
        if hasattr(rows, "__arrow_c_stream__"):
            return pa.table(rows)
        raise OptionError(
            f"rows are a {type(rows).__name__}; a pyarrow RecordBatch or Table, a list of dicts "
            "or a pandas frame is expected"
        )

    def _series(self, column: pd.Series[Any], field: pa.Field) -> pa.Array | pa.ChunkedArray:
        """Convert a column of a frame to Arrow. The result may share its memory, and may need a
        cast."""
        if column.dtype == object:
            # In pandas NaN means null in any column.
            pairs = zip(column, column.notna(), strict=True)
            items = [values.frozen(value) if is_valid else None for value, is_valid in pairs]
            return self._column(items, field)
        own = pa.array(column, from_pandas=True)
        if not values.carries(own.type, field.type):
            raise OptionError(
                f"column {field.name!r} is {column.dtype} in this frame and "
                f"{field.type} in the schema; convert it"
            )
        if pa.types.is_float32(field.type) and pa.types.is_floating(own.type):
            # Arrow would make numbers such as 1e39 infinite.
            is_beyond = pc.greater_equal(pc.abs(own), values.FLOAT32_END)
            row = pc.index(pc.and_(is_beyond, pc.is_finite(own)), True).as_py()
            if row >= 0:
                raise self._bad_value(row, field.name, column.iloc[row])
        return own

    def _accept_arrow(self, rows: Any, *, copy: bool = False) -> CheckedRows:
        shares = self._check_schema(rows.schema)
        # Validate first: malformed rows, such as a request's body, cannot even be measured safely.
        rows.validate(full=True)
        self._check_nulls(rows)
        batches = [rows] if isinstance(rows, pa.RecordBatch) else rows.to_batches()
        if self._has_maps:
            for _ in map_keys.checked(map(self._conform, batches)):
                pass
        size = rows.get_total_buffer_size()
        # A slice keeps alive all memory that it was cut from. If that is too much, copy its rows.
        if not copy and size <= _MAX_ROW_BYTES * (rows.num_rows + 1):
            return rows, size + 1, size + self._arrow_overhead
        if size > LARGEST_APPEND and rows.nbytes > LARGEST_APPEND:
            raise _too_large(rows.nbytes)
        if shares:
            batches = [self._conform(batch) for batch in batches]
        return self.checked_rows(pa.concat_batches(batches)) if batches else ([], 1, _LIST_OVERHEAD)

    def _copy_dicts(self, rows: Sequence[Any]) -> CheckedRows:
        copies: list[dict[str, Any]] = []
        extra = 0
        memory = _LIST_OVERHEAD
        scalars = values.SCALARS
        for row in rows:
            if type(row) is not dict and not isinstance(row, Mapping):
                raise OptionError(
                    f"row {len(copies)} is a {type(row).__name__}; a dict for each row is "
                    "expected, or a pyarrow RecordBatch or Table, or a pandas frame"
                )
            # Copy before checking: a thread may change the dict meanwhile.
            row = dict(row)
            if not self._names.issuperset(row):
                self._check_known(row, f"row {len(copies)}")
            for name, value in row.items():
                kind = type(value)
                if kind is str or kind is bytes:
                    extra += len(value)
                elif kind not in scalars:
                    row[name] = values.frozen(value)
                    extra += values.weight(row[name])
            copies.append(row)
            memory += row.__sizeof__() + _VALUE_OVERHEAD * len(row)
        size = self._fixed * len(copies) + extra
        if size > LARGEST_APPEND:
            raise _too_large(size)
        return copies, size, memory + 2 * extra

    def _check_schema(self, rows_schema: pa.Schema) -> bool:
        """Check that a schema fits. Returns whether a copy of its rows would share their memory."""
        last_schema, shares = self._last_schema
        if rows_schema is last_schema or rows_schema.equals(last_schema):
            return shares
        have = schema.columns(schema.from_arrow(rows_schema))
        self._check_columns(list(have))
        for name, kind in have.items():
            # A column of only nulls has no type yet.
            if kind not in (self._columns[name], "void"):
                raise OptionError(
                    f"column {name!r} is {schema.type_name(self._columns[name])} in the schema "
                    f"and {schema.type_name(kind)} in these rows; cast it"
                )
        # A copy shares a dictionary and the bytes that views point to.
        shares = any(kind in str(rows_schema) for kind in ("dictionary<", "_view"))
        self._last_schema = rows_schema, shares
        return shares

    def _check_nulls(self, rows: pa.RecordBatch | pa.Table) -> None:
        for name in self.required:
            column = rows.column(name)
            if pa.types.is_dictionary(column.type):
                # The dictionary itself may hold the null, and null_count does not count that.
                column = column.cast(column.type.value_type)
            if column.null_count:
                row = column.is_null().index(True).as_py()
                raise OptionError(
                    f"row {row}: column {name!r} is not nullable in the schema and null in this "
                    "row; this append was not written"
                )

    def _bad_value(self, row: int, name: str, value: Any) -> OptionError:
        kind = schema.type_name(self._columns[name])
        return OptionError(
            f"row {row}: column {name!r} is {kind} and cannot hold this value of type "
            f"{type(value).__name__}; this append was not written"
        )

    def _check_columns(self, names: list[Any]) -> None:
        self._check_known(names, "these rows")
        if missing := [name for name in self._columns if name not in names]:
            raise OptionError(f"column {missing[0]!r} of the schema is missing in these rows")
        if twice := [name for name in names if names.count(name) > 1]:
            raise OptionError(f"these rows name column {twice[0]!r} twice; name it once")

    def _check_known(self, names: Iterable[Any], of: str) -> None:
        if unknown := [name for name in names if name not in self._columns]:
            raise OptionError(
                f"column {unknown[0]!r} of {of} is not in the schema; it has "
                f"{', '.join(self._columns)}"
            )

    def convert(
        self, appends: Sequence[Payload]
    ) -> tuple[list[pa.RecordBatch], dict[int, OptionError]]:
        """Convert a batch of appends.

        Returns:
            The rows of the appends that fit, in order, and the errors of the others by index.
        """
        converted: list[pa.RecordBatch] = []
        rejected: dict[int, OptionError] = {}
        begin = 0
        # Convert neighbours together: lists of dicts, or batches of one schema.
        kinds = groupby(
            appends, lambda payload: None if isinstance(payload, list) else payload.schema
        )
        for run in (list(group) for _, group in kinds):
            try:
                converted += self._convert(run)
            # A value's class may raise any exception. Find the appends that do not fit.
            except Exception:
                for index, payload in enumerate(run, begin):
                    try:
                        converted.append(self.convert_one(payload))
                    except OptionError as error:
                        rejected[index] = error
            begin += len(run)
        return _joined([batch for batch in converted if batch.num_rows]), rejected

    def convert_one(self, payload: Payload) -> pa.RecordBatch:
        """Convert the rows of one append.

        Raises:
            OptionError: the rows do not fit.
        """
        try:
            return self._convert([payload])[0]
        except (OptionError, MemoryError):
            raise
        except Exception as error:
            raise OptionError(f"the rows cannot be converted: {type(error).__name__}") from error

    def _convert(self, run: list[Any]) -> list[pa.RecordBatch]:
        if isinstance(run[0], list):
            rows = list(chain.from_iterable(run))
            columns = [self._column([row.get(f.name) for row in rows], f) for f in self.arrow]
            batch = pa.RecordBatch.from_arrays(columns, schema=self.arrow)
            self._check_nulls(batch)
            return [*map_keys.checked([batch])]
        return [self._conform(batch) for batch in _joined(run)]

    def _column(self, items: list[Any], field: pa.Field) -> pa.Array:
        array = values.column(items, field.type)
        if isinstance(array, int):
            raise self._bad_value(array, field.name, items[array])
        return array

    def _conform(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        try:
            return schema.conform(batch, self.arrow)
        except (pa.ArrowInvalid, OverflowError):
            for field in batch.schema:
                own = self.arrow.field(field.name)
                try:
                    schema.conform(batch.select([field.name]), pa.schema([own]))
                except (pa.ArrowInvalid, OverflowError):
                    raise OptionError(
                        f"column {field.name!r} of type {field.type} holds a value that "
                        f"{schema.type_name(self._columns[field.name])} cannot; this append was "
                        "not written"
                    ) from None
            raise


@lru_cache(maxsize=8)
def read_schema(serialized: bytes) -> pa.Schema:
    """Read the schema of a journal's segment."""
    return pa.ipc.read_schema(pa.py_buffer(serialized))


def _joined(batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """Join many small batches into one: a frame for each would cost more than its rows."""
    if len(batches) < 2:
        return batches
    # Measure only some of them: all but the last one, which closed the batch, are small.
    measured = [*batches[:64], batches[-1]]
    if sum(batch.get_total_buffer_size() for batch in measured) > 2**30:
        return batches
    return [pa.concat_batches(batches)]


def _too_large(size: int) -> OptionError:
    return OptionError(
        f"one append of {size} bytes; at most {LARGEST_APPEND} are allowed: split it"
    )
