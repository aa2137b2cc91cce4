"""The output of `cat --json` is valid input for the HTTP job."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest

import sparkwal
from sparkwal.format import schema
from tests.cli.shown import run
from tests.jobs.http_job import Job

pytestmark = pytest.mark.process

SCHEMA = pa.schema(
    [
        ("whole", pa.int64()),
        ("real", pa.float64()),
        ("price", pa.decimal128(10, 2)),
        ("text", pa.string()),
        ("data", pa.binary()),
        ("at", pa.timestamp("us", tz="UTC")),
        ("local", pa.timestamp("us")),
        ("day", pa.date32()),
        ("clock", pa.time64("ns")),
        ("many", pa.list_(pa.int64())),
        ("of", pa.map_(pa.string(), pa.float64())),
        ("inner", pa.struct([("x", pa.int64())])),
    ]
)
ROWS = [
    {
        "whole": 2**63 - 1,
        "real": float("inf"),
        "price": Decimal("-0.50"),
        "text": 'ü "\\\n\0',
        "data": b"\xff\x00",
        "at": datetime(2026, 1, 31, 12, 0, 0, 1, UTC),
        "local": datetime(1, 1, 1),
        "day": date(9999, 12, 31),
        "clock": time(23, 59, 59, 999_999),
        "many": [1, None],
        "of": [("a b", 0.1), ("ä", None)],
        "inner": {"x": None},
    },
    dict.fromkeys(SCHEMA.names),
]


@pytest.fixture
def job(log: sparkwal.Log, tmp_path: Path) -> Iterator[Job]:
    started = Job("--log", tmp_path / "again", "--schema", f"@{tmp_path / 'schema'}")
    yield started
    started.process.kill()
    started.process.wait()


@pytest.fixture
def log(tmp_path: Path) -> sparkwal.Log:
    """A log of every type, and the schema of the one that is made from it."""
    with sparkwal.Appender(str(tmp_path / "wal"), SCHEMA, producer_id="p") as wal:
        wal.append(ROWS)
    (tmp_path / "schema").write_text(schema.from_arrow(SCHEMA))
    return sparkwal.Log(str(tmp_path / "wal"))


def test_a_log_is_rebuilt_from_printed_rows(log: sparkwal.Log, job: Job, tmp_path: Path) -> None:
    status, answer, _ = job.post(run("cat", tmp_path / "wal", "--json").encode())
    assert (status, answer.get("rows")) == (200, 2), answer
    again = sparkwal.Log(str(tmp_path / "again")).scan().read_all()
    assert again == log.scan().read_all()
