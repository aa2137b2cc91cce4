"""Rows as JSON and CSV: exact, and taken back as what they were."""

from __future__ import annotations

import io
import json
import math
import tempfile
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkwal.cli.forms import Form, open_writer
from sparkwal.format.texts import bare_texts, csv_batch, json_rows
from support.json_rows import JsonRows

LEAVES: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "flag": (pa.bool_(), st.booleans()),
    "tiny": (pa.int8(), st.integers(-128, 127)),
    "whole": (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    "single": (pa.float32(), st.floats(width=32)),
    "double": (pa.float64(), st.floats()),
    "text": (pa.string(), st.text()),
    "bytes": (pa.binary(), st.binary()),
    "day": (pa.date32(), st.dates()),
    "at": (pa.timestamp("us", tz="UTC"), st.datetimes(timezones=st.just(UTC))),
    "local": (pa.timestamp("us"), st.datetimes()),
    "clock": (pa.time64("ns"), st.times()),
    "price": (pa.decimal128(38, 10), st.decimals(-(10**9), 10**9, places=10)),
}
NESTED = {
    "list": (
        pa.list_(pa.field("element", pa.list_(pa.field("element", pa.int64())))),
        st.lists(st.none() | st.lists(st.none() | st.integers(-5, 5), max_size=3), max_size=3),
    ),
    "map": (
        pa.map_(pa.string(), pa.float64()),
        st.dictionaries(st.text(), st.none() | st.floats(), max_size=3).map(
            lambda found: list(found.items())
        ),
    ),
    "struct": (
        pa.struct([("x", pa.int64()), ("ÿ z", pa.struct([("b", pa.binary())]))]),
        st.fixed_dictionaries(
            {
                "x": st.none() | st.integers(-5, 5),
                "ÿ z": st.none() | st.fixed_dictionaries({"b": st.none() | st.binary()}),
            }
        ),
    ),
}
COLUMNS = {**LEAVES, **NESTED}
SCHEMA = pa.schema([(name, kind) for name, (kind, _) in COLUMNS.items()])
ROWS = st.lists(
    st.fixed_dictionaries({name: st.none() | values for name, (_, values) in COLUMNS.items()}),
    max_size=6,
)


def same(one: Any, other: Any) -> bool:
    """NaN is NaN here, and −0.0 is not 0.0."""
    return repr(one) == repr(other)


@given(ROWS, st.integers(0, 3))
def test_json_is_taken_back_as_what_it_was(rows: list[dict[str, Any]], skip: int) -> None:
    batch = pa.RecordBatch.from_pylist(rows, schema=SCHEMA).slice(min(skip, len(rows)))
    lines = json_rows(batch)
    for line in lines:
        json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    back = [
        row
        for part in JsonRows(SCHEMA).batches("\n".join(lines).encode())
        for row in part.to_pylist()
    ]
    assert same(back, batch.to_pylist())


@given(ROWS)
def test_csv_and_json_hold_the_same_values(rows: list[dict[str, Any]]) -> None:
    batch = pa.RecordBatch.from_pylist(rows, schema=SCHEMA)
    out = Path(tempfile.mkdtemp()) / "rows.csv"
    with open_writer(Form("csv", out), SCHEMA) as form:
        form.write(batch)
        form.end()
    types = {field.name: field.type for field in csv_batch(batch).schema}
    options = pa.csv.ConvertOptions(
        column_types=types,
        null_values=[""],
        strings_can_be_null=True,
        quoted_strings_can_be_null=False,
    )
    parsing = pa.csv.ParseOptions(newlines_in_values=True)
    back = pa.csv.read_csv(
        io.BytesIO(out.read_bytes()), parse_options=parsing, convert_options=options
    )
    for name in SCHEMA.names:
        values = back.column(name).to_pylist()
        if name in ("single", "double"):
            assert same(values, batch.column(name).to_pylist())
        elif name in ("flag", "tiny", "whole", "text"):
            assert values == batch.column(name).to_pylist()
        else:
            assert values == bare_texts(batch.column(name))


def test_values_that_json_cannot_hold_are_texts() -> None:
    kinds = pa.schema(
        [
            ("n", pa.int64()),
            ("d", pa.decimal128(38, 18)),
            ("b", pa.binary()),
            ("f", pa.float64()),
            ("at", pa.timestamp("us", tz="UTC")),
            ("local", pa.timestamp("us")),
            ("day", pa.date32()),
            ("clock", pa.time64("ns")),
            ("span", pa.duration("us")),
            ("ids", pa.map_(pa.int64(), pa.string())),
            ("twice", pa.map_(pa.string(), pa.int64())),
        ]
    )
    row = {
        "n": 2**63 - 1,
        "d": Decimal("-0.000000000000000001"),
        "b": b"\xff\x00",
        "f": math.nan,
        "at": datetime(2026, 1, 31, 12, tzinfo=UTC),
        "local": datetime(1, 1, 1, microsecond=1),
        "day": date(9999, 12, 31),
        "clock": time(23, 59, 59, 999999),
        "ids": [(1, "a")],
        "twice": [("k", 1), ("k", 2)],
    }
    batch = pa.RecordBatch.from_pylist([row], schema=kinds)
    spans = pa.array([-1_500_000], pa.duration("us"))
    batch = batch.set_column(8, kinds.field("span"), spans)
    assert json.loads(json_rows(batch)[0]) == {
        "n": 2**63 - 1,
        "d": "-0.000000000000000001",
        "b": "/wA=",
        "f": "NaN",
        "at": "2026-01-31T12:00:00.000000Z",
        "local": "0001-01-01T00:00:00.000001",
        "day": "9999-12-31",
        "clock": "23:59:59.999999000",
        "span": "-PT1.5S",
        "ids": [[1, "a"]],
        "twice": [["k", 1], ["k", 2]],
    }


def test_moments_beyond_pythons_calendar_are_written_exactly() -> None:
    at = [2**63 - 1, -(2**63), 253402300800000000, -62135596800000001, 0, None]
    assert bare_texts(pa.array(at, pa.timestamp("us", tz="UTC"))) == [
        "+294247-01-10T04:00:54.775807Z",
        "-290308-12-21T19:59:05.224192Z",
        "+10000-01-01T00:00:00.000000Z",
        "0000-12-31T23:59:59.999999Z",
        "1970-01-01T00:00:00.000000Z",
        None,
    ]
    days = pa.array([2932897, 2**31 - 1, -800000, 0], pa.date32())
    assert bare_texts(days) == ["+10000-01-01", "+5881580-07-11", "-0221-09-04", "1970-01-01"]


def test_a_text_in_json_commands_a_terminal_nothing() -> None:
    evil = 'x\x1b[31m\x9b31m\u202e\x7f"\\\n日本é'
    batch = pa.RecordBatch.from_pydict({evil: [evil], "in": [[{"a": evil}]]})
    (line,) = json_rows(batch)
    assert line.isprintable() and "日本é" in line
    assert json.loads(line) == {evil: evil, "in": [{"a": evil}]}
