"""Rows with a value of each type that a table and a log must agree on."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa

# The columns of `json_rows`.
JSON_COLUMNS = (
    ("id", pa.int64()),
    ("d", pa.float64()),
    ("f", pa.float32()),
    ("n", pa.decimal128(38, 18)),
    ("b", pa.binary()),
    ("t", pa.timestamp("us", "UTC")),
    ("u", pa.timestamp("us")),
    ("day", pa.date32()),
    ("m", pa.map_(pa.int64(), pa.struct([("x", pa.string())]))),
    ("k", pa.map_(pa.date32(), pa.map_(pa.timestamp("us", "UTC"), pa.bool_()))),
    ("l", pa.list_(pa.list_(pa.float32()))),
    ("e", pa.struct([("y", pa.bool_()), ("z", pa.map_(pa.int32(), pa.binary()))])),
    ("a.b `c`", pa.string()),
)


def json_rows(first: datetime, last: datetime) -> list[dict[str, Any]]:
    """Rows whose values are hard to write as JSON and to read back. Their ids are 2, 4 and 6.

    Args:
        first, last: moments between which all others are, but for `day`.
    """
    return [
        {
            "id": 2,
            "d": float("-inf"),
            "f": 1.1,
            "n": Decimal("-12345678901234567890.123456789012345678"),
            "b": b"\x00\xff",
            "t": last,
            "u": last.replace(tzinfo=None),
            "day": date(1, 1, 1),
            "m": [(-1, {"x": 'a "quote" \n ü \u202e'}), (2, None)],
            "k": [(first.date(), [(first, True), (last, None)]), (date(9999, 1, 1), None)],
            "l": [[1.5, None], None, []],
            "e": {"y": None, "z": [(7, b"\x01")]},
            "a.b `c`": "null",
        },
        {"id": 4, "d": -0.0, "a.b `c`": '{"a": 1}', "m": []},
        {"id": 6, "d": 1e-300, "a.b `c`": ""},
    ]


def one_row(zone: str) -> pa.Table:
    """Its moment is stored in this time zone."""
    moment = datetime(2024, 2, 29, 23, 59, 59, 999_999)
    x = pa.struct([("x", pa.int32())])
    return pa.table(
        {
            "ts": pa.array([moment.replace(tzinfo=UTC)], pa.timestamp("us", zone)),
            "ntz": pa.array([moment], pa.timestamp("us")),
            "dec": pa.array([Decimal("12345678901234567890.123456789")], pa.decimal128(38, 9)),
            "day": pa.array([date(1900, 1, 1)]),
            "bin": pa.array([b"\x00\xff"]),
            "short": pa.array([-1], pa.int16()),
            "list": pa.array([["a", None]], pa.list_(pa.string())),
            "map": pa.array([[("k", {"x": 1})]], pa.map_(pa.string(), x)),
            "struct": pa.array([{"s": {"t": "u"}, "l": [1.5]}]),
        }
    )
