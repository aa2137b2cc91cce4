"""A row with a value of each type that a table of Delta Lake and a log must agree on."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa


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
