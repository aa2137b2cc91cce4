"""pandas frames as Arrow: what Arrow would change on the way is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from sparkwal.appender.values import misfit
from sparkwal.errors import OptionError

if TYPE_CHECKING:
    import pandas as pd


def table(
    frame: pd.DataFrame, target: pa.Schema, bad_value: Callable[[int, str, Any], OptionError]
) -> pa.Table:
    """A frame that has the columns of `target`, with its types. It may share memory with it.

    Args:
        bad_value: (row, column, value) to the error that names them.

    Raises OptionError.
    """
    own = pa.Schema.from_pandas(frame.iloc[:0], preserve_index=False)
    for field in target:
        column = frame[field.name]
        if column.dtype == object:
            # In pandas a float that is not a number stands for null in any column.
            there = column.notna()
            values = [value if known else None for value, known in zip(column, there, strict=True)]
            place = misfit(values, field.type)
            if place is not None:
                raise bad_value(place, field.name, values[place])
        elif not _carries(own.field(field.name).type, field.type):
            raise OptionError(
                f"column {field.name!r} is {column.dtype} in this frame and "
                f"{field.type} in the schema; convert it"
            )
    try:
        made = pa.Table.from_pandas(frame, schema=target, preserve_index=False)
    except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
        # Arrow adds for which column it was, as "Conversion failed for column …".
        said = " ".join(str(arg) for arg in error.args)
        raise OptionError(f"the frame does not fit the schema: {said}") from None
    for field in target:
        if types.is_float32(field.type) and frame[field.name].dtype != object:
            _check_range(frame[field.name], made.column(field.name), field.name, bad_value)
    return made


def _carries(own: pa.DataType, target: pa.DataType) -> bool:
    """Whether a column of pandas' own type may go into one of the log.

    Arrow would read 5 as a moment or as true, and drop a time of day or a time zone. What
    is left it checks itself: numbers that do not fit, nanoseconds.
    """
    if types.is_dictionary(own):
        own = own.value_type
    if types.is_integer(own):
        return bool(types.is_integer(target) or types.is_floating(target))
    if types.is_floating(own):
        return bool(types.is_integer(target) or types.is_floating(target))
    if types.is_timestamp(own):
        return bool(types.is_timestamp(target) and (own.tz is None or target.tz is not None))
    if types.is_string(own) or types.is_large_string(own) or types.is_string_view(own):
        return bool(types.is_string(target))
    return bool(own.id == target.id)


def _check_range(
    column: pd.Series[Any],
    made: pa.ChunkedArray,
    name: str,
    bad_value: Callable[[int, str, Any], OptionError],
) -> None:
    """1e39 is no float32: Arrow would make it infinite."""
    for place in pc.indices_nonzero(pc.is_inf(made)).to_pylist():
        value = column.iloc[place]
        if abs(value) != float("inf"):
            raise bad_value(place, name, value)
