"""Values and names that DuckDB cannot take from Arrow, or would return as others."""

from collections.abc import Iterable, Iterator
from typing import Any

import duckdb
import pyarrow as pa

from sparkwal.errors import OptionError
from sparkwal.format import map_keys
from sparkwal.reading.metadata import ROW

# The columns that say where a row is in its log.
PLACE = ("_wal_position", "_wal_partition", ROW)
_DAY_US = 86_400_000_000
# Arrow's intervals count nanoseconds in 64 bits.
_MOST_US = (2**63 - 1) // 1000


def has_sql_name(name: str) -> bool:
    """Whether SQL can name a column. For DuckDB a null character ends a name."""
    return name != "" and "\0" not in name


def check_names(columns: Iterable[pa.Field]) -> None:
    """Check that DuckDB keeps the names inside of columns.

    Raises:
        OptionError: DuckDB would change one.
    """
    for column in columns:
        if not _keeps_names(column.type):
            raise OptionError(
                f"column {column.name!r} has a field inside whose name SQL cannot hold, because "
                f"it is empty or has a null character: {_without(column.name)}"
            )


def _keeps_names(kind: pa.DataType) -> bool:
    fields = [kind.field(index) for index in range(kind.num_fields)]
    named = not pa.types.is_struct(kind) or all(has_sql_name(field.name) for field in fields)
    return named and all(_keeps_names(field.type) for field in fields)


def place_columns(columns: Iterable[pa.Field]) -> Iterator[str]:
    """The columns that an error of `check_maps` names besides these."""
    if any(map_keys.has_map(column.type) for column in columns):
        yield from PLACE


def check_maps(batch: pa.RecordBatch) -> None:
    """Check that no map has a key twice. Writers refuse such a map, but logs may have old ones.

    Raises:
        OptionError: DuckDB cannot hold a map of the batch.
    """
    first = map_keys.repeated(batch)
    if first is None:
        return
    name, row = first
    holder = "a row"
    if {*PLACE} <= {*batch.schema.names}:
        position, partition, number = (batch.column(part)[row] for part in PLACE)
        holder = f"row {number} of position {position}, partition {partition}"
    raise OptionError(
        f"column {name!r} of {holder} holds a map with a key twice, which SQL cannot hold: "
        f"{_without(name)}"
    )


def _without(name: str) -> str:
    return (
        f"leave the column out (SELECT * EXCLUDE ({quoted(name)})), or read it with Log.scan or "
        "sparkwal cat"
    )


def quoted(name: str) -> str:
    """A column's name in DuckDB's SQL."""
    return '"' + name.replace('"', '""') + '"'


def exact_intervals(result: duckdb.DuckDBPyRelation) -> duckdb.DuckDBPyRelation:
    """The same result with intervals that DuckDB returns exactly.

    DuckDB multiplies the microseconds of an interval by 1,000 for Arrow, and beyond 292 years that
    overflows without an error. So most of these microseconds become days.
    """
    columns = [f"c{index}" for index in range(len(result.columns))]
    values = [_exact(name, kind) for name, kind in zip(columns, result.types, strict=True)]
    if values == columns:
        return result
    names = zip(values, result.columns, strict=True)
    shown = ", ".join(f"{value} AS {quoted(name)}" for value, name in names)
    query = f"SELECT {shown} FROM _result AS r({', '.join(columns)})"
    exact = result.query("_result", query)
    # Only a statement without a result returns None.
    assert exact is not None
    return exact


def _exact(value: str, kind: Any) -> str:
    """The SQL of a value without intervals that overflow; `value` if it has none."""
    if kind.id == "interval":
        micros = f"(hour({value}) * 3600000000 + minute({value}) * 60000000 + microsecond({value}))"
        months = f"to_months((12 * year({value}) + month({value}))::INT)"
        days = f"to_days((day({value}) + {micros} // {_DAY_US})::INT)"
        micros_left = f"to_microseconds({micros} % {_DAY_US})"
        fits = f"{micros} BETWEEN -{_MOST_US} AND {_MOST_US}"
        return f"CASE WHEN {fits} THEN {value} ELSE {months} + {days} + {micros_left} END"
    if kind.id in ("list", "array"):
        return _exact_items(value, kind.children[0][1])
    if kind.id == "struct":
        fields = [(name, f"{value}.{quoted(name)}", inner) for name, inner in kind.children]
        exacts = [(name, field, _exact(field, inner)) for name, field, inner in fields]
        if all(field == exact for _, field, exact in exacts):
            return value
        packed = ", ".join(f"{quoted(name)} := {exact}" for name, _, exact in exacts)
        return f"CASE WHEN {value} IS NOT NULL THEN struct_pack({packed}) END"
    if kind.id == "map":
        parts = [f"map_keys({value})", f"map_values({value})"]
        exact_parts = [
            _exact_items(part, inner) for part, (_, inner) in zip(parts, kind.children, strict=True)
        ]
        return value if exact_parts == parts else f"map({', '.join(exact_parts)})"
    return value


def _exact_items(values: str, kind: Any) -> str:
    exact = _exact("item", kind)
    return values if exact == "item" else f"list_transform({values}, lambda item: {exact})"
