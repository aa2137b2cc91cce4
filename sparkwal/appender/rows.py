"""What is appended: checked when it comes, turned into Arrow a batch at a time.

An append may cost some microseconds only, so a check looks at names, not at values;
a value that does not fit its column is found when its batch is converted, and then
fails its own append alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, groupby
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa

from sparkwal.appender.values import misfit
from sparkwal.errors import OptionError
from sparkwal.format import schema
from sparkwal.reading.metadata import check_names

if TYPE_CHECKING:
    import pandas as pd

    Rows: TypeAlias = pa.RecordBatch | pa.Table | Sequence[Mapping[str, Any]] | pd.DataFrame

# What the appender keeps of an append until its batch is converted.
Payload: TypeAlias = pa.RecordBatch | pa.Table | list[dict[str, Any]]

# One append is one object at most, and Arrow's strings count bytes in 32 bits.
LARGEST_APPEND = 2**31 - 2**20
# Below this many bytes a slice's buffers are taken for its own: asking costs microseconds.
_SMALL = 256


class RowSchema:
    """The columns every append must have.

    Raises OptionError for a column that the log cannot keep.
    """

    def __init__(self, arrow_schema: pa.Schema) -> None:
        if not isinstance(arrow_schema, pa.Schema):
            raise OptionError(
                f"schema is a {type(arrow_schema).__name__}; a pyarrow.Schema is expected"
            )
        self.spark_schema = schema.from_arrow(arrow_schema)
        check_names(self.spark_schema)
        self.arrow = schema.to_arrow(self.spark_schema)
        self._columns = schema.columns(self.spark_schema)
        self._names = frozenset(self._columns)
        fixed = [_width(field.type) for field in self.arrow]
        self._fixed = sum(width or 0 for width in fixed) + 1
        self._variable = [
            field.name for field, width in zip(self.arrow, fixed, strict=True) if width is None
        ]
        self._known = self.arrow  # the last schema found to fit
        self._sliced = (-1, 0.0)  # buffers of the last batch that was measured, bytes a row

    def accept(self, rows: Rows) -> tuple[Payload, int]:
        """(what to keep, about how many bytes). Raises OptionError.

        Dicts are copied, one level deep: the caller may use them again.
        """
        payload: Payload
        if isinstance(rows, pa.RecordBatch):
            self._check(rows.schema)
            payload, weight = rows, self._weigh(rows)
        elif isinstance(rows, pa.Table):
            self._check(rows.schema)
            payload, weight = rows, rows.nbytes
        elif isinstance(rows, (list, tuple)):
            payload, weight = self._copy(rows)
        else:
            payload = self._table(rows)
            weight = payload.nbytes
        if weight > LARGEST_APPEND:
            raise OptionError(
                f"one append of {weight} bytes; at most {LARGEST_APPEND} fit: split it"
            )
        return payload, weight

    def _copy(self, rows: Sequence[Any]) -> tuple[list[dict[str, Any]], int]:
        kept: list[dict[str, Any]] = []
        weight = 0
        for row in rows:
            if type(row) is not dict:
                if not isinstance(row, Mapping):
                    raise OptionError(
                        f"row {len(kept)} is a {type(row).__name__}; a dict for each row is "
                        "expected, or a pyarrow RecordBatch or Table, or a pandas frame"
                    )
                row = dict(row)
            if not self._names.issuperset(row):
                unknown = next(name for name in row if name not in self._names)
                raise OptionError(
                    f"row {len(kept)} has a column {unknown!r} that the schema has not; it has "
                    f"{', '.join(self._columns)}"
                )
            kept.append(row.copy())
            weight += self._fixed
            for name in self._variable:
                value = row.get(name)
                weight += len(value) if type(value) is str else _weight(value)
        return kept, weight

    def _weigh(self, batch: pa.RecordBatch) -> int:
        total = batch.get_total_buffer_size()
        if total <= _SMALL * (batch.num_rows + 1):
            return int(total)
        # A slice shares the buffers of the batch it was cut from: measuring it costs more
        # than the append, and the next slice of that batch is much like this one.
        measured, per_row = self._sliced
        if measured != total:
            per_row = batch.nbytes / max(batch.num_rows, 1)
            self._sliced = (total, per_row)
        return int(per_row * batch.num_rows)

    def _check(self, given: pa.Schema) -> None:
        if given is self._known or given.equals(self._known):
            return
        have = schema.columns(schema.from_arrow(given))
        for name, kind in have.items():
            if name not in self._columns:
                raise OptionError(
                    f"column {name!r} of these rows is not in the schema; it has "
                    f"{', '.join(self._columns)}"
                )
            # A column of nulls only has no type yet.
            if kind not in (self._columns[name], "void"):
                raise OptionError(
                    f"column {name!r} is {schema.type_name(self._columns[name])} in the schema "
                    f"and {schema.type_name(kind)} in these rows; cast it"
                )
        for name in self._columns:
            if name not in have:
                raise OptionError(f"column {name!r} of the schema is missing in these rows")
        self._known = given

    def _table(self, rows: Any) -> pa.Table:
        if type(rows).__module__.partition(".")[0] == "pandas" and hasattr(rows, "columns"):
            self._check_names([str(name) for name in rows.columns])
            for field in self.arrow:
                self._check_objects(rows[field.name], field)
            try:
                return pa.Table.from_pandas(rows, schema=self.arrow, preserve_index=False)
            except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
                # Arrow adds for which column it was, as "Conversion failed for column …".
                said = " ".join(str(arg) for arg in error.args)
                raise OptionError(f"the frame does not fit the schema: {said}") from None
        if hasattr(rows, "__arrow_c_stream__"):
            table = pa.table(rows)
            self._check(table.schema)
            return table
        raise OptionError(
            f"rows are a {type(rows).__name__}; a pyarrow RecordBatch or Table, a list of dicts "
            "or a pandas frame is expected"
        )

    def _check_objects(self, column: Any, field: pa.Field) -> None:
        """Columns of plain Python objects; pandas' own types Arrow converts safely."""
        if column.dtype != object:
            return
        # In pandas a float that is not a number stands for null in any column.
        there = column.notna()
        values = [value if known else None for value, known in zip(column, there, strict=True)]
        place = misfit(values, field.type)
        if place is not None:
            raise self._bad_value(place, field.name, values[place])

    def _bad_value(self, place: int, name: str, value: Any) -> OptionError:
        kind = schema.type_name(self._columns[name])
        return OptionError(
            f"row {place}: column {name!r} is {kind} and cannot hold this value of type "
            f"{type(value).__name__}; this append was not written"
        )

    def _check_names(self, names: list[str]) -> None:
        unknown = [name for name in names if name not in self._names]
        missing = [name for name in self._columns if name not in names]
        if unknown or missing:
            what = "is not in the schema" if unknown else "of the schema is missing"
            raise OptionError(
                f"column {(unknown or missing)[0]!r} {what}; the schema has "
                f"{', '.join(self._columns)}"
            )

    def convert(
        self, appends: Sequence[Payload]
    ) -> tuple[list[pa.RecordBatch], dict[int, OptionError]]:
        """The rows of a batch in order, and which appends (by index) are not among them."""
        done: list[pa.RecordBatch] = []
        rejected: dict[int, OptionError] = {}
        for _, run in groupby(enumerate(appends), key=lambda item: _kind(item[1])):
            items = list(run)
            try:
                done += self._convert([payload for _, payload in items])
            except Exception:  # a value may be of any class, and that raises what it likes
                for index, payload in items:
                    try:
                        done += self._convert([payload])
                    except Exception as error:
                        rejected[index] = self._blame(payload, error)
        return _joined([batch for batch in done if batch.num_rows]), rejected

    def _convert(self, run: list[Payload]) -> list[pa.RecordBatch]:
        if isinstance(run[0], list):
            rows = list(chain.from_iterable(run))
            columns = [_column([row.get(f.name) for row in rows], f.type) for f in self.arrow]
            if not columns:
                return [schema.conform(_rows_only(len(rows)), self.arrow)]
            return [pa.RecordBatch.from_arrays(columns, schema=self.arrow)]
        return [schema.conform(batch, self.arrow) for batch in _joined(list(_batches(run)))]

    def _blame(self, payload: Payload, error: Exception) -> OptionError:
        """Which value of an append could not be converted; never shows the value itself."""
        if isinstance(payload, list):
            for field in self.arrow:
                for place, row in enumerate(payload):
                    value = row.get(field.name)
                    try:
                        _column([value], field.type)
                    except Exception:
                        return self._bad_value(place, field.name, value)
        else:
            for name in payload.schema.names:
                try:
                    schema.conform(payload.select([name]), pa.schema([self.arrow.field(name)]))
                except Exception:
                    return OptionError(
                        f"column {name!r} of type {payload.schema.field(name).type} holds a value "
                        f"that {schema.type_name(self._columns[name])} cannot; this append was "
                        "not written"
                    )
        return OptionError(f"the rows cannot be converted: {type(error).__name__}")


def _column(values: list[Any], kind: pa.DataType) -> pa.Array:
    if misfit(values, kind) is not None:
        raise TypeError
    return pa.array(values, type=kind)


def _kind(payload: Payload) -> Any:
    return "rows" if isinstance(payload, list) else payload.schema


def _batches(run: Sequence[Payload]) -> Iterator[pa.RecordBatch]:
    for payload in run:
        if isinstance(payload, pa.Table):
            yield from payload.to_batches()
        else:
            assert isinstance(payload, pa.RecordBatch)
            yield payload


def _joined(batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """One batch of many small ones: a frame of each would cost more than its rows."""
    if len(batches) < 2 or sum(b.get_total_buffer_size() for b in batches[:64]) > 2**30:
        return batches
    return [pa.concat_batches(batches)]


def _rows_only(count: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_struct_array(pa.nulls(count, pa.struct([])))


def _width(kind: pa.DataType) -> int | None:
    """Bytes of one value, None where it depends on the value."""
    try:
        return (int(kind.bit_width) + 7) // 8
    except ValueError:
        return 0 if pa.types.is_null(kind) else None


def _weight(value: Any) -> int:
    """About how many bytes a value of a column without fixed width takes."""
    if isinstance(value, (str, bytes, bytearray)):
        return len(value)
    if isinstance(value, Mapping):
        return 8 + sum(_weight(key) + _weight(item) for key, item in value.items())
    if isinstance(value, (list, tuple, set)):
        return 4 + sum(map(_weight, value))
    return 8
