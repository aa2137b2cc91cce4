"""Deleted keys of an Iceberg table: crashes, expiry, and many small files."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.exceptions import CommitStateUnknownException
from pyiceberg.types import LongType

import sparkwal
from sparkwal import events
from sparkwal.errors import PlanError
from sparkwal.format.lifecycle_record import Added
from sparkwal.lifecycle.iceberg import tombstones
from tests.cli.logs import document, ran
from tests.lifecycle.iceberg_table import (
    NAME,
    Died,
    IcebergLake,
    compact,
    configure,
    failing,
    ids,
)

COLUMNS = pa.schema([("id", pa.int64()), ("n", pa.int64()), ("gone", pa.bool_())])
TARGET: dict[str, Any] = {"keys": ["id"], "sequence_by": "n", "delete_when": "gone"}


@pytest.fixture
def url(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    return configure(monkeypatch, tmp_path)


@pytest.fixture
def lake(url: str, tmp_path: Path) -> IcebergLake:
    return IcebergLake(tmp_path, "id", table=url, schema=COLUMNS)


def row(id_: int, n: int, *, gone: bool = False) -> dict[str, Any]:
    return {"id": id_, "n": n, "gone": gone}


def kept(lake: IcebergLake) -> list[int]:
    return sorted(lake.kept().scan().to_arrow()["id"].to_pylist())


def files(lake: IcebergLake) -> int:
    return len([*lake.kept().scan().plan_files()])


def test_a_range_with_deletes_counts_the_snapshots_and_files_of_both_tables(
    lake: IcebergLake,
) -> None:
    lake.append([row(1, 1), row(2, 1)])
    compact(lake, **TARGET)
    before = {task.file.file_path for task in lake.iceberg().scan().plan_files()}
    lake.append([row(1, 2, gone=True), row(3, 1)])
    seen: list[events.Event] = []
    unsubscribe = events.subscribe(seen.append)
    compact(lake, **TARGET)
    unsubscribe()
    tasks = [*lake.iceberg().scan().plan_files(), *lake.kept().scan().plan_files()]
    sizes = [x.file.file_size_in_bytes for x in tasks if x.file.file_path not in before]
    table = lake.head().record.tables[lake.target.table]
    assert table.added == Added(versions=2, files=len(sizes), bytes=sum(sizes))
    [done] = [event for event in seen if isinstance(event, events.CompactionDone)]
    assert (done.versions, done.files, done.bytes) == (2, len(sizes), sum(sizes))
    reported = document("status", lake.path)
    assert reported["lifecycle"]["added"] == vars(table.added)
    assert f"files: {len(sizes)}, commits: 2" in ran("status", lake.path)
    # A run without new rows changes nothing of it.
    compact(lake, **TARGET)
    assert lake.head().record.tables[lake.target.table].added == table.added


@pytest.mark.long
@pytest.mark.parametrize(
    ("error", "after"),
    [(Died, False), (Died, True), (lambda: CommitStateUnknownException("no answer"), True)],
)
def test_a_deleted_key_stays_away_whichever_call_of_the_catalog_fails(
    lake: IcebergLake, error: Callable[[], BaseException], after: bool
) -> None:
    """Its older row comes while the range of the delete may be half written."""
    lake.append([row(100, 1), row(0, 1)])
    for nth in range(60):
        lake.append([row(nth, 9, gone=True), row(nth + 1, 1)])
        with failing(nth, error, after=after) as calls, suppress(Died, sparkwal.SparkWalError):
            compact(lake, **TARGET)
        lake.append([row(nth, 5)])
        current = lake.reader().current()
        # Before the first intent the log has no keys.
        if current.table is not None:
            assert sorted(current.to_arrow()["id"].to_pylist()) == [nth + 1, 100]
        compact(lake, **TARGET)
        assert ids(lake) == [nth + 1, 100], f"after call {nth}: {calls}"
        if len(calls) <= nth:
            break
    assert nth > 8
    assert kept(lake) == [*range(nth + 1)]


def test_a_range_without_deletes_adds_no_file(lake: IcebergLake) -> None:
    lake.append([row(1, 1), row(2, 1, gone=True)])
    compact(lake, **TARGET)
    assert files(lake) == 1
    lake.append([row(1, 2)])
    compact(lake, **TARGET)
    assert files(lake) == 1 and ids(lake) == [1]


def test_many_small_files_become_one(lake: IcebergLake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a key that was deleted again the greatest sequence stays."""
    monkeypatch.setattr(tombstones, "_MOST_SMALL", 3)
    for number in range(7):
        lake.append([row(number, 9, gone=True), row(0, 9 - number, gone=True)])
        compact(lake, **TARGET)
        assert files(lake) <= 3
    rows = lake.kept().scan().to_arrow().to_pylist()
    assert {each["_wal_sequence"] for each in rows if each["id"] != 0} == {9}
    lake.append([row(number, 8) for number in range(7)])
    compact(lake, **TARGET)
    assert ids(lake) == []


@pytest.mark.parametrize("kind", [pa.timestamp("us", "UTC"), pa.timestamp("us"), pa.date32()])
def test_tombstones_beyond_the_horizon_go(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: pa.DataType
) -> None:
    """A file of them goes as a whole, also with a range that deletes nothing."""
    lake = IcebergLake(tmp_path, "id", table=url, schema=COLUMNS.set(1, pa.field("n", kind)))

    def at(id_: int, day: int, *, gone: bool = True) -> dict[str, Any]:
        time = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(days=day)
        number = pa.scalar(time).cast(pa.timestamp("us")).cast(kind).as_py()
        return {"id": id_, "n": number, "gone": gone}

    def carry(*rows: dict[str, Any]) -> list[int]:
        lake.append([*rows])
        compact(lake, **TARGET, tombstoneHorizon="2d")
        return kept(lake)

    assert carry(at(1, 0)) == [1]
    assert carry(at(2, 1), at(3, 2)) == [1, 2, 3]
    assert carry(at(4, 3, gone=False)) == [2, 3]
    # A range of late deletes adds none that is beyond it.
    assert carry(at(5, 0), at(6, 4)) == [2, 3, 6]
    monkeypatch.setattr(tombstones, "_MOST_SMALL", 2)
    assert carry(at(7, 4)) == [3, 6, 7]
    assert carry(at(8, 9, gone=False)) == []


def test_a_sequence_that_is_no_time_expires_by_the_time_of_its_delete(lake: IcebergLake) -> None:
    for number in (1, 2):
        lake.append([row(number, 9 - number, gone=True)])
        compact(lake, **TARGET, tombstoneHorizon="1ms")
    assert kept(lake) == [2]


def test_tombstones_of_another_table_are_refused(lake: IcebergLake) -> None:
    lake.append([row(1, 1)])
    lake.catalog.create_namespace("db")
    lake.catalog.create_table(f"{NAME}_tombstones", COLUMNS)
    with pytest.raises(PlanError, match="should keep the deleted keys .* drop that table"):
        compact(lake, **TARGET)
    assert lake.head().k == 0


def test_tombstones_follow_the_tables_wider_columns(url: str, tmp_path: Path) -> None:
    narrow = pa.schema([("id", pa.int32()), ("n", pa.int32()), ("gone", pa.bool_())])
    lake = IcebergLake(tmp_path, "id", table=url, schema=narrow)
    lake.append([row(1, 9, gone=True)])
    compact(lake, **TARGET)
    with lake.iceberg().update_schema() as change:
        for name in ("id", "n"):
            change.update_column(name, LongType())
    lake.append([row(2, 9, gone=True)])
    lake.append([row(1, 5), row(2, 5), row(3, 5)])
    compact(lake, **TARGET)
    assert ids(lake) == [3] and kept(lake) == [1, 2]
    assert lake.kept().schema().find_field("_wal_sequence").field_type == LongType()
