"""`sparkwal segment` on a log of more than a block, which is short here."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import sparkwal
from sparkwal.appender.appender import Appender
from sparkwal.format import keys
from sparkwal.store.base import LogStore
from sparkwal.testing.memory import MemoryStore
from tests.cli.logs import document, ran

SCHEMA = pa.schema([("v", pa.int64())])


def long_log(folder: Path, commits: int) -> str:
    """A log of so many commits of one row, written in memory: a disk would sync each of them."""
    store = MemoryStore()
    options = {"maxInFlightRequests": 1, "batchSizeThreshold": 1}
    with Appender(LogStore(store, ""), SCHEMA, producer_id="p", **options) as wal:
        for value in range(commits):
            wal.append([{"v": value}])
    (folder / "batches").mkdir(parents=True)
    for key, body in store.objects.items():
        if key.startswith("batches/"):
            (folder / key).write_bytes(body)
    return str(folder)


def test_segment_makes_what_is_missing_and_replaces_what_is_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keys, "BLOCK", 100)
    path = long_log(tmp_path / "log", 110)
    expected = sparkwal.Log(path).scan(include_metadata=True).read_all()
    records = document("sql", path, "SELECT count(*) AS records, sum(rows) AS rows FROM records")
    reported = document("segment", path)
    assert (reported["made"], reported["replaced"], reported["before"]) == (1, 0, 0)
    files = sorted((Path(path) / "segments").iterdir())
    assert len(files) == 1 and reported["bytes"] == sum(file.stat().st_size for file in files)
    assert sparkwal.Log(path).scan(include_metadata=True).read_all().equals(expected)
    again = document("sql", path, "SELECT count(*) AS records, sum(rows) AS rows FROM records")
    assert again == records
    body = bytearray(files[0].read_bytes())
    body[len(body) // 2] ^= 1
    files[0].chmod(0o644)
    files[0].write_bytes(bytes(body))
    assert sparkwal.Log(path).scan(include_metadata=True).read_all().equals(expected)
    assert files[0].name in ran("verify", path, code=1)
    reported = document("segment", path)
    assert (reported["made"], reported["replaced"], reported["before"]) == (1, 1, 0)
    assert "sound" in ran("verify", path)
    assert "segments of 100 records" in ran("segment", path)
    assert document("segment", path)["made"] == 0
