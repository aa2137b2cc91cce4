"""`sparkwal erased` finds what is left of a person in an Iceberg table, and what ends it."""

from __future__ import annotations

import json
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.transforms import BucketTransform, DayTransform, IdentityTransform
from pyiceberg.types import DateType, LongType, NestedField, StringType

from tests.cli.logs import lines
from tests.lifecycle.iceberg_table import (
    NAME,
    IcebergLake,
    compact,
    configure,
    expire,
    made_before,
)

# Its first 16 characters are those of a bound.
PERSON = "Zaphod-Beeblebrox"
COLUMNS = pa.schema([("id", pa.int64()), ("name", pa.string()), ("day", pa.date32())])
DAY = date(2026, 3, 4)


def row(number: int, name: str, day: date = DAY) -> dict[str, Any]:
    return {"id": number, "name": name, "day": day}


@pytest.fixture
def lake(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> IcebergLake:
    """A log with a person, and no table yet."""
    found = IcebergLake(tmp_path, table=configure(monkeypatch, tmp_path), schema=COLUMNS)
    found.append([row(1, "Arthur"), row(4711, PERSON)])
    return found


def found(lake: IcebergLake, value: str = PERSON, code: int = 1) -> dict[str, dict[str, str]]:
    """What the command found in the table and those beside it, by names below the warehouse."""
    copies = lines("erased", lake.path, "--value", value, code=code)
    assert PERSON not in json.dumps(copies)
    found = {each["object"].partition("/warehouse/db/")[2]: each for each in copies}
    return {name: copy for name, copy in found.items() if name}


def kinds(copies: dict[str, dict[str, str]]) -> list[str]:
    """Which kinds of objects these are."""

    def kind(name: str) -> str:
        name = name.rpartition("/")[2]
        if name.endswith((".parquet", ".json")):
            return name.rpartition(".")[2]
        return "list" if name.startswith("snap-") else "manifest"

    return sorted(map(kind, copies))


def test_a_row_is_found_in_its_file_and_in_the_bounds_of_the_manifest(lake: IcebergLake) -> None:
    compact(lake)
    copies = found(lake)
    assert kinds(copies) == ["manifest", "parquet"]
    assert all(each["until"].startswith("DELETE of its row") for each in copies.values())
    assert not found(lake, "Trillian", code=0)


@pytest.mark.parametrize("value", ["4711", "2026-03-04"])
def test_numbers_and_dates_in_bounds_and_partitions_are_found(
    lake: IcebergLake, value: str
) -> None:
    spec = PartitionSpec(
        PartitionField(1, 1000, IdentityTransform(), "id"),
        PartitionField(3, 1001, DayTransform(), "on"),
        PartitionField(2, 1002, BucketTransform(8), "bucket"),
    )
    fields = (LongType(), "id"), (StringType(), "name"), (DateType(), "day")
    made_before(
        lake,
        *(NestedField(number, name, kind) for number, (kind, name) in enumerate(fields, 1)),
        spec=spec,
    )
    with lake.iceberg().update_schema() as change:
        for _, name in fields:
            change.make_column_optional(name)
    compact(lake)
    assert kinds(found(lake, value))[:2] == ["list", "manifest"]
    assert found(lake, "4712", code=0) == {}


def test_a_bound_that_is_cut_is_found(lake: IcebergLake) -> None:
    lake.append([row(2, "Zaphod-Beeblebroccoli"), row(3, "Aaron")])
    compact(lake)
    table = lake.iceberg()
    for task in table.scan().plan_files():
        Path(task.file.file_path.removeprefix("file://")).unlink()
    # The greatest value is cut after 16 characters, and the last one is the next.
    assert kinds(found(lake)) == ["manifest"]


def test_a_deleted_row_stays_in_older_snapshots_and_then_in_orphans(lake: IcebergLake) -> None:
    compact(lake)
    (file,) = (task.file.file_path for task in lake.iceberg().scan().plan_files())
    lake.iceberg().delete("id = 4711")
    before = found(lake)
    (copy,) = (each for name, each in before.items() if name.endswith(".parquet"))
    assert copy["object"] == file and copy["until"].startswith("the expiry of snapshot")
    expire(lake)
    orphans = found(lake)
    assert orphans.keys() <= before.keys() and file in {x["object"] for x in orphans.values()}
    data = [each for name, each in orphans.items() if not name.endswith(".avro")]
    assert all(each["until"].startswith("the removal of orphans") for each in data)
    for each in orphans.values():
        if "orphans" in each["until"]:
            Path(each["object"].removeprefix("file://")).unlink()
    lake.iceberg().append(lake.schema.empty_table())
    expire(lake)
    assert all("orphans" in each["until"] for each in found(lake).values())


def test_a_tag_keeps_a_snapshot(lake: IcebergLake) -> None:
    compact(lake)
    snapshot = lake.iceberg().current_snapshot()
    assert snapshot is not None
    lake.iceberg().manage_snapshots().create_tag(snapshot.snapshot_id, PERSON).commit()
    lake.iceberg().delete("id = 4711")
    copies = found(lake)
    (data,) = (each for name, each in copies.items() if name.endswith(".parquet"))
    assert data["until"].startswith("the removal of the branches and tags at it")
    # The name of the tag.
    assert "json" in kinds(copies)


def test_summaries_and_properties_are_found_also_of_former_metadata(lake: IcebergLake) -> None:
    compact(lake)
    few = {"write.metadata.previous-versions-max": "3"}
    with lake.iceberg().transaction() as change:
        change.set_properties({"owner": "Trillian", **few})
    with lake.iceberg().transaction() as change:
        change.remove_properties("owner")
    (former,) = found(lake, "Trillian").values()
    assert former["until"].startswith("write.metadata.previous-versions-max (3)")
    rows = pa.Table.from_pylist([row(5, "Ford")], COLUMNS)
    lake.iceberg().append(rows, snapshot_properties={"for": "Trillian"})
    newest = [each for each in found(lake, "Trillian").values() if each != former]
    assert [each["until"].partition(",")[0] for each in newest] == ["the expiry of the snapshot"]


def test_tombstones_are_searched(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    url = configure(monkeypatch, tmp_path)
    lake = IcebergLake(tmp_path, "name", table=url, schema=COLUMNS)
    target = {"keys": ["name"], "sequence_by": "id", "delete_when": "id > 4000"}
    lake.append([row(4711, PERSON)])
    compact(lake, **target)
    assert {name.partition("/")[0] for name in found(lake)} == {"orders_tombstones"}


def test_refused_rows_are_searched(lake: IcebergLake) -> None:
    made_before(lake, NestedField(1, "id", LongType(), required=True))
    lake.append([{"id": None, "name": PERSON, "day": DAY}])
    compact(lake, refusedRows="aside")
    tables = {name.partition("/")[0] for name in found(lake)}
    assert tables == {"orders", "orders_refused"}


def test_a_file_elsewhere_is_searched(lake: IcebergLake, tmp_path: Path) -> None:
    compact(lake)
    place = tmp_path / "warehouse/db/elsewhere.parquet"
    pq.write_table(pa.Table.from_pylist([row(6, "Trillian")], COLUMNS), place)
    lake.iceberg().add_files([f"file://{place}"])
    assert "elsewhere.parquet" in found(lake, "Trillian")


def test_of_what_cannot_be_read_nobody_can_tell(lake: IcebergLake, tmp_path: Path) -> None:
    compact(lake)
    (manifest,) = (name for name in found(lake) if name.endswith(".avro"))
    place = tmp_path / "warehouse/db" / manifest
    place.write_bytes(place.read_bytes()[:-20])
    reasons = [each["found"] for each in found(lake, "Trillian").values()]
    assert len(reasons) == 1 and reasons[0].startswith("cannot tell")
    place.unlink()
    reasons = [each["found"] for each in found(lake, "Trillian").values()]
    assert reasons == ["cannot tell: the files that it names are unknown (FileNotFoundError)"]


def test_without_the_table_or_its_catalog_nobody_can_tell(
    lake: IcebergLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    compact(lake)
    lake.catalog.rename_table(NAME, "db.moved")
    (copy,) = lines("erased", lake.path, "--value", "Trillian", code=1)
    assert copy["found"] == "cannot tell: the table has no files here"
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__TYPE", "nothing")
    configure(monkeypatch, Path("/nowhere"), type="nothing")
    copies = lines("erased", lake.path, "--value", "Trillian", code=1)
    assert {each["found"].partition(": ")[0] for each in copies} == {"cannot tell"}
    assert len(copies) == 3
