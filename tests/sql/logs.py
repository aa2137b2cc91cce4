"""Logs that are asked, and what the answers are."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

import sparkwal

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])


def write(
    path: str, *values: int, producer: str = "gateway", each: int = 1, **options: Any
) -> None:
    """Commits of one row for each value, or of so many with the same."""
    given = {"maxInFlightRequests": 1, **options}
    with sparkwal.Appender(path, SCHEMA, producer_id=producer, **given) as wal:
        for value in values:
            wal.append([{"id": value, "name": f"n{value}"}] * each).result()


def ask(path: str, query: str, **options: Any) -> list[tuple[Any, ...]]:
    """The rows of an answer."""
    found = sparkwal.Log(path, **options).sql(query).read_all()
    return [tuple(row.values()) for row in found.to_pylist()]
