"""A small log of the numbers that a test gives, and a look at it and into its files.

Most tests of the library need no other log. `tests/spark/queries.py` does the same through Spark.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa

import sparkwal
from sparkwal.format import keys
from sparkwal.reading.replaying import Replay

SCHEMA = pa.schema([("v", pa.int64())])


def rows(*values: int) -> list[dict[str, Any]]:
    return [{"v": value} for value in values]


def append(path: object, *values: int, producer: str = "p", **options: Any) -> list[int]:
    """A leader record, then a commit for each value; returns the commits' positions."""
    given = {"maxInFlightRequests": 1, **options}
    with sparkwal.Appender(str(path), SCHEMA, producer_id=producer, **given) as wal:
        return [wal.append(rows(value)).result() for value in values]


def values(path: object, start: int | None = None, **options: Any) -> list[int]:
    """The values in the log's order, from a position on."""
    found = sparkwal.Log(str(path), **options).scan(start).read_all()
    numbers: list[int] = found.column("v").to_pylist()
    return numbers


def replayed(replay: Replay) -> list[int]:
    """The values of a replay's entries."""
    return [v for entry in replay for batch in entry.rows for v in batch.column("v").to_pylist()]


def record(path: Path, position: int) -> Path:
    """The file of a record."""
    return path / keys.key("", keys.slot(position, 1000))


def flip(file: Path, at: int = -1, bit: int = 0) -> None:
    """Flip one bit of a file."""
    data = bytearray(file.read_bytes())
    data[at] ^= 1 << bit
    file.write_bytes(data)


def until(holds: Callable[[], bool], pause: float = 0.001) -> None:
    """Wait for something that another thread or process is about to do."""
    deadline = time.monotonic() + 120
    while not holds():
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(pause)
