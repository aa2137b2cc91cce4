"""A log with all awkward values, and what each of them is in it."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from sparkwal import Appender
from sparkwal.format import map_keys, schema
from tests.values.awkward import NANS, STORED, VALUES, bits, padded

SAME = "same"
TABLE = pa.table({name: padded(array) for name, array in VALUES.items()})
OLD = pa.table({name: padded(array) for name, array in STORED.items()})


def write_table(path: str, table: pa.Table) -> None:
    with Appender(path, table.schema, producer_id="p") as wal:
        wal.append(table).result()


def without_checks(patch: pytest.MonkeyPatch) -> None:
    """Write as versions did that accepted more."""
    patch.setattr(map_keys, "repeated", lambda batch: None)
    patch.setattr(schema, "check_columns", lambda spark_schema: None)


def write_stored(path: str) -> None:
    """Write all values: those that writers take, and those that an older version took."""
    table = TABLE
    for field in OLD.schema:
        table = table.append_column(field, OLD[field.name])
    with pytest.MonkeyPatch.context() as patch:
        without_checks(patch)
        write_table(path, table)


def expected(name: str, nan: str | int | None = SAME) -> list[Any]:
    """The bits of a column in the log.

    Args:
        name: the column.
        nan: what a NaN with other bits is: SAME, the bits of a NaN, or None for null.
    """
    column = (TABLE if name in VALUES else OLD)[name].combine_chunks()
    if not pa.types.is_nested(column.type):
        given = pa.schema([("v", column.type)])
        column = column.cast(schema.to_arrow(schema.from_arrow(given)).field("v").type)
    found = bits(column)
    return found if nan == SAME else [_with_nan(value, nan) for value in found]


def _with_nan(value: Any, nan: str | int | None) -> Any:
    if isinstance(value, (list, tuple)):
        # Only a simple column's NaN is null in pandas.
        nan = SAME if nan is None else nan
        return type(value)(_with_nan(item, nan) for item in value)
    return nan if nan != SAME and type(value) is int and value in NANS else value
