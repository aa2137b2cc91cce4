"""The ways by which rows go into a log and come out of it. A new one is one entry."""

from __future__ import annotations

import base64
import csv
import io
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
from click.testing import CliRunner
from pyarrow import types

from sparkwal import Log
from sparkwal.cli.main import main
from sparkwal.sql.values import quoted
from tests.values.awkward import CANONICAL_NAN, DAY, ROWS, VALUES, bits
from tests.values.log import SAME

# The bits of each row, by column.
Read = Callable[[str, Sequence[str], Path], Mapping[str, list[Any]]]


@dataclass(frozen=True)
class Door:
    """A way to read rows.

    Attributes:
        read: reads columns of a log.
        refuses: the columns that it refuses, and a part of each error.
        nan: what it makes of a NaN with other bits: SAME, the bits of a NaN, or None for null.
    """

    read: Read
    refuses: Mapping[str, str] = field(default_factory=dict)
    nan: str | int | None = SAME


def of_table(table: pa.Table) -> dict[str, list[Any]]:
    return {name: bits(table[name].combine_chunks()) for name in table.column_names}


def scan(path: str, columns: Sequence[str], folder: Path) -> dict[str, list[Any]]:
    return of_table(Log(path).scan(columns=columns).read_all())


def to_pandas(path: str, columns: Sequence[str], folder: Path) -> dict[str, list[Any]]:
    frame = Log(path).to_pandas(columns=columns)
    kinds = Log(path).scan(columns=columns).schema
    return {
        name: bits(pa.array(frame[name], kinds.field(name).type, from_pandas=_nulls(kinds, name)))
        for name in columns
    }


def _nulls(kinds: pa.Schema, name: str) -> bool:
    """Whether pandas' NaN and NaT are nulls. Inside of maps NaN is a value."""
    return not types.is_nested(kinds.field(name).type)


def sql(path: str, columns: Sequence[str], folder: Path) -> dict[str, list[Any]]:
    return of_table(Log(path).sql(f"SELECT {_list(columns)} FROM log").read_all())


def sql_current(path: str, columns: Sequence[str], folder: Path) -> dict[str, list[Any]]:
    return of_table(Log(path).sql(f"SELECT {_list(columns)} FROM current").read_all())


def sql_where(path: str, columns: Sequence[str], folder: Path) -> dict[str, list[Any]]:
    """All columns in a condition."""
    condition = " OR ".join(f"{quoted(name)} IS NOT NULL" for name in columns)
    found = _command(folder, "cat", path, "--where", f"({condition}) OR true", columns=columns)
    return _json_columns(path, columns, found)


def current(path: str, columns: Sequence[str], folder: Path) -> dict[str, list[Any]]:
    return of_table(Log(path).current().to_arrow(columns))


def as_json(path: str, columns: Sequence[str], folder: Path) -> dict[str, list[Any]]:
    return _json_columns(path, columns, _command(folder, "cat", path, columns=columns))


def tail(path: str, columns: Sequence[str], folder: Path) -> dict[str, list[Any]]:
    found = _command(folder, "tail", path, "-n", str(ROWS), columns=columns)
    return _json_columns(path, columns, found)


def sql_json(path: str, columns: Sequence[str], folder: Path) -> dict[str, list[Any]]:
    found = _command(folder, "sql", path, f"SELECT {_list(columns)} FROM log")
    return _json_columns(path, columns, found)


def as_csv(path: str, columns: Sequence[str], folder: Path) -> dict[str, list[Any]]:
    data = _command(folder, "cat", path, "--format", "csv", columns=columns)
    kinds = Log(path).scan(columns=columns).schema
    table = pa.csv.read_csv(
        io.BytesIO(data),
        read_options=pa.csv.ReadOptions(block_size=2**28),
        parse_options=pa.csv.ParseOptions(newlines_in_values=True),
        convert_options=pa.csv.ConvertOptions(
            column_types={name: pa.string() for name in columns},
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        ),
    )
    return {
        name: [_of_text(text, kinds.field(name).type) for text in table[name].to_pylist()]
        for name in columns
    }


def parquet(path: str, columns: Sequence[str], folder: Path) -> dict[str, list[Any]]:
    file = folder / "rows.parquet"
    query = f"SELECT {_list(columns)} FROM log"
    _command(folder, "sql", path, query, "--format", "parquet", "-o", str(file))
    return of_table(pa.parquet.ParquetFile(file).read())


def _list(columns: Sequence[str]) -> str:
    return ", ".join(map(quoted, columns))


def _command(folder: Path, *arguments: str, columns: Sequence[str] | None = None) -> bytes:
    """The bytes that a command prints."""
    words = [*arguments]
    if columns is not None:
        line = io.StringIO()
        csv.writer(line, quoting=csv.QUOTE_ALL).writerow(columns)
        words += ["--columns", line.getvalue().removesuffix("\r\n")]
    if "--format" not in words:
        words.append("--json")
    result = CliRunner().invoke(main, words)
    if result.exit_code:
        raise ValueError(result.stderr or result.exception)
    return result.stdout_bytes


def _json_columns(path: str, columns: Sequence[str], data: bytes) -> dict[str, list[Any]]:
    kinds = Log(path).scan(columns=columns).schema
    rows = [json.loads(line) for line in data.splitlines()]
    return {name: [_of_json(row[name], kinds.field(name).type) for row in rows] for name in columns}


def _of_text(text: str | None, kind: pa.DataType) -> Any:
    if text is None:
        return None
    if types.is_nested(kind):
        return _of_json(json.loads(text), kind)
    if types.is_boolean(kind):
        return {"true": True, "false": False}[text]
    if types.is_integer(kind):
        return int(text)
    return _of_json(text, kind)


def _of_json(value: Any, kind: pa.DataType) -> Any:
    """The bits of a value in JSON, as docs/cli.md describes it."""
    if value is None:
        return None
    if types.is_struct(kind):
        return tuple(_of_json(value[each.name], each.type) for each in kind)
    if types.is_list(kind):
        return [_of_json(item, kind.value_type) for item in value]
    if types.is_map(kind):
        pairs = value.items() if isinstance(value, dict) else value
        return [(_of_json(k, kind.key_type), _of_json(v, kind.item_type)) for k, v in pairs]
    if types.is_floating(kind):
        return bits(pa.array([float(value)], kind))[0]
    if types.is_decimal(kind):
        return Decimal(value)
    if types.is_binary(kind):
        return base64.b64decode(value, validate=True)
    if types.is_date(kind):
        return int(np.datetime64(value, "D").astype(int))
    if types.is_timestamp(kind):
        return int(np.datetime64(value.removesuffix("Z" if kind.tz else ""), "us").astype(int))
    if types.is_time(kind):
        return int(np.datetime64(f"1970-01-01T{value}", "ns").astype(int))
    if types.is_duration(kind):
        return _of_interval(value)
    return value


def _of_interval(text: str) -> int:
    parts = re.fullmatch(r"(-?)P(?:(-?\d+)D)?T(-?)(\d+)(?:\.(\d+))?S", text)
    assert parts, text
    whole, days, sign, seconds, fraction = parts.groups()
    micros = int(seconds) * 10**6 + int((fraction or "").ljust(6, "0"))
    total = int(days or 0) * DAY + (-micros if sign else micros)
    return -total if whole else total


NO_NAME = {
    "field without a name": "whose name SQL cannot hold",
    "name with a null character, inside": "whose name SQL cannot hold",
}
TWICE = (
    "map with a key twice",
    "map with a key twice, NaN",
    "map with a key twice, 0.0 and -0.0",
    "map with a key twice, a struct",
    "map with a key twice, in a list",
)
NO_SQL = {**{name: "holds a map with a key twice" for name in TWICE}, **NO_NAME}
NO_PANDAS = {
    "nested moment beyond the years 1 to 9999, a date": "row 0",
    "nested moment beyond the years 1 to 9999, a timestamp": "row 0",
    "moment or interval of -2^63 µs, a timestamp": "row 1",
    "moment or interval of -2^63 µs, in a list": "row 1",
    "moment or interval of -2^63 µs, an interval": "row 1",
    "time with nanoseconds": "row 1",
    "name with a null character, inside": "null character",
}
NO_PARQUET = {
    name: "--format parquet cannot hold"
    for name in (
        "nested interval, in a list",
        "nested interval, in a struct",
        "nested interval, in a map",
        "empty struct",
        "empty struct, in a list",
    )
}
# By a compaction: the columns of a log, and a part of each error.
NO_DELTA = {
    "time": "UNSUPPORTED_TIME_TYPE",
    "time with nanoseconds": "UNSUPPORTED_TIME_TYPE",
    "time, of seconds": "UNSUPPORTED_TIME_TYPE",
    **{name: "UNSUPPORTED_DATA_TYPES" for name in VALUES if re.match(r"(nested )?interval", name)},
    "moment or interval of -2^63 µs, an interval": "UNSUPPORTED_DATA_TYPES",
    "empty struct": "a struct without fields",
    "empty struct, in a list": "a struct without fields",
}
# As JSON for jobs/http_ingest.py.
NO_JSON = [
    name
    for name in VALUES
    if "interval" in name or any(word in name for word in ("beyond", "-2^63", "nanoseconds"))
]

DOORS: dict[str, Door] = {
    "Log.scan": Door(scan),
    "Log.to_pandas": Door(to_pandas, NO_PANDAS, nan=None),
    "Log.sql": Door(sql, NO_SQL),
    "Log.sql of current": Door(sql_current, NO_SQL),
    "Log.current": Door(current),
    "cat --where": Door(sql_where, NO_SQL, nan=CANONICAL_NAN),
    "cat --json": Door(as_json, nan=CANONICAL_NAN),
    "tail --json": Door(tail, nan=CANONICAL_NAN),
    "sql --json": Door(sql_json, NO_SQL, nan=CANONICAL_NAN),
    "cat --format csv": Door(as_csv, nan=CANONICAL_NAN),
    "sql --format parquet": Door(parquet, {**NO_SQL, **NO_PARQUET}),
}
