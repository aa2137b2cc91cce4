"""Finds maps that have a key twice. Writers refuse them: many readers can hold one value of a key.

Keys are the same as in Spark and in SQL: NaN is NaN, and 0.0 is -0.0.
"""

from collections.abc import Iterable, Iterator
from functools import lru_cache
from math import nan

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from sparkwal.errors import OptionError
from sparkwal.format.arrow_types import as_lists


@lru_cache(maxsize=1024)
def has_map(kind: pa.DataType) -> bool:
    """Whether a type is a map, or has one inside."""
    inside = (kind.field(index).type for index in range(kind.num_fields))
    return bool(types.is_map(kind)) or any(map(has_map, inside))


def checked(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same batches, whose types are those of `schema.to_arrow`.

    Raises:
        OptionError: a map has a key twice. The message names its column and its row.
    """
    first_row = 0
    for batch in batches:
        if (first := repeated(batch)) is not None:
            name, row = first
            raise OptionError(
                f"row {first_row + row}: column {name!r} holds a map with a key twice, and many "
                "readers keep one value of a key; none of these rows was written. Keep one, or "
                "write an array of structs (in Spark: map_entries)"
            )
        first_row += batch.num_rows
        yield batch


def repeated(batch: pa.RecordBatch) -> tuple[str, int] | None:
    """The first column that holds a map with a key twice, and the row of the first such map."""
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        if has_map(column.type) and (row := _row(column)) is not None:
            return name, row
    return None


def _row(array: pa.Array) -> int | None:
    kind = array.type
    if not has_map(kind):
        return None
    rows: list[int | None] = []
    if types.is_struct(kind):
        rows += map(_row, array.flatten())
    else:
        parts = as_lists(array)
        if types.is_map(kind):
            rows.append(_repeated_in(parts[0]))
        for part in parts:
            inner = _row(part.flatten())
            rows.append(None if inner is None else pc.list_parent_indices(part)[inner].as_py())
    return min((row for row in rows if row is not None), default=None)


def _repeated_in(lists: pa.Array) -> int | None:
    """The index of the first list that has an element twice."""
    lengths = pc.list_value_length(lists)
    if not len(lists) or (pc.max(lengths).as_py() or 0) < 2:
        return None
    codes = _codes(lists.flatten()).cast(pa.int64())
    parents = pc.list_parent_indices(lists)
    # One number for each element of each list.
    step = len(codes)
    elements = pc.add(pc.multiply(parents, step), codes)
    ordered = elements.sort()
    same = pc.equal(ordered[1:], ordered[:-1])
    first = pc.index(same, True).as_py()
    return None if first < 0 else int(ordered[first].as_py()) // step


def _codes(array: pa.Array) -> pa.Array:
    """A number for each value, the same for the same values."""
    kind = array.type
    if types.is_floating(kind):
        # −0.0 + 0.0 is 0.0. Each NaN gets the same bits.
        array = pc.add(array, pa.scalar(0.0, kind))
        array = pc.if_else(pc.is_nan(array), pa.scalar(nan, kind), array)
    if types.is_nested(kind):
        array = pa.array(map(repr, _coded_inside(array).to_pylist()), pa.string())
    return array.dictionary_encode().indices


def _coded_inside(array: pa.Array) -> pa.Array:
    """A nested array with a number in place of each simple value: Python can hold all of them."""
    if types.is_struct(array.type):
        children = [_coded_inside(child) for child in array.flatten()]
        names = [str(index) for index in range(len(children))]
        mask = array.is_null() if array.null_count else None
        return pa.StructArray.from_arrays(children, names, mask=mask) if children else array
    if types.is_list(array.type):
        inner = _coded_inside(array.values)
        buffers = array.buffers()[:2]
        kind = pa.list_(inner.type)
        return pa.Array.from_buffers(
            kind, len(array), buffers, array.null_count, array.offset, [inner]
        )
    return _codes(array)
