"""Compaction into Iceberg tables that others made, and what users do beside it."""

from __future__ import annotations

import json
import struct
import zlib
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    ManifestWriterV2,
)
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation, Summary
from pyiceberg.table.update.snapshot import _FastAppendFiles
from pyiceberg.transforms import BucketTransform, IdentityTransform
from pyiceberg.typedef import Record
from pyiceberg.types import LongType
from pyroaring import BitMap

import sparkwal
from sparkwal.errors import ConfirmError, PlanError
from tests.lifecycle.iceberg_table import (
    NAME,
    IcebergLake,
    cherry_pick,
    compact,
    configure,
    expire,
    ids,
    meanwhile,
)
from tests.lifecycle.lakes import value


@pytest.fixture
def lake(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> IcebergLake:
    """A log with 3 rows in 2 commits, and no table yet."""
    found = IcebergLake(tmp_path, table=configure(monkeypatch, tmp_path))
    found.append([value(1), value(2)], [value(3)])
    return found


def current(lake: IcebergLake) -> list[int]:
    rows: list[int] = lake.reader().current().to_arrow()["id"].to_pylist()
    return sorted(rows)


def append(lake: IcebergLake, *numbers: int, **options: Any) -> None:
    """Another writer appends."""
    lake.iceberg().append(pa.Table.from_pylist([*map(value, numbers)], lake.schema), **options)


class DeleteWriter(ManifestWriterV2):
    """Writes the manifest of a delete file, which pyiceberg does not."""

    def content(self) -> ManifestContent:
        return ManifestContent.DELETES

    @property
    def _meta(self) -> dict[str, str]:
        return {**super()._meta, "content": "deletes"}


def add_deletes(
    table: Table, rows: pa.Table | bytes, content: DataFileContent, *, count: int = 1
) -> None:
    """Commit a delete file, or a Puffin file with a deletion vector, as Spark and Flink do."""
    is_vector = isinstance(rows, bytes)
    path = f"{table.location()}/data/deletes-{len(table.snapshots())}.parquet"
    with table.io.new_output(path).create() as output:
        if isinstance(rows, bytes):
            output.write(rows)
        else:
            pq.write_table(rows, output)
    file = DataFile.from_args(
        content=content,
        file_path=path,
        file_format=FileFormat.PUFFIN if is_vector else FileFormat.PARQUET,
        partition=Record(),
        record_count=count,
        file_size_in_bytes=len(table.io.new_input(path)),
        equality_ids=[1] if content is DataFileContent.EQUALITY_DELETES else None,
    )
    file.spec_id = 0

    class AddDeletes(_FastAppendFiles):
        def _manifests(self) -> list[ManifestFile]:
            with DeleteWriter(
                table.spec(), table.schema(), self.new_manifest_output(), self._snapshot_id, "gzip"
            ) as writer:
                writer.add_entry(
                    ManifestEntry.from_args(
                        status=ManifestEntryStatus.ADDED,
                        snapshot_id=self._snapshot_id,
                        data_file=file,
                    )
                )
            return [writer.to_manifest_file(), *self._existing_manifests()]

    change = table.transaction()
    update = change.update_snapshot().fast_append()
    update.__class__ = AddDeletes
    update.append_data_file(file)
    update.commit()
    change.commit_transaction()


def delete_position(table: Table, place: int) -> None:
    """Delete a row of the first file by a file of positions."""
    (task, *_) = table.scan().plan_files()
    field = [(b"PARQUET:field_id", b"2147483546"), (b"PARQUET:field_id", b"2147483545")]
    columns = pa.schema(
        [
            pa.field("file_path", pa.string(), False, dict(field[:1])),
            pa.field("pos", pa.int64(), False, dict(field[1:])),
        ]
    )
    rows = pa.table({"file_path": [task.file.file_path], "pos": [place]}, columns)
    add_deletes(table, rows, DataFileContent.POSITION_DELETES)


@pytest.mark.parametrize("keys", [[], ["id"]], ids=["append", "keys"])
def test_rows_deleted_by_position_stay_deleted(lake: IcebergLake, keys: list[str]) -> None:
    """Merge on read, as other engines do it."""
    compact(lake, keys=keys)
    delete_position(lake.iceberg(), 1)
    assert len(ids(lake)) == 2
    left = ids(lake)
    lake.append([value(left[0]), value(9)])
    compact(lake, keys=keys)
    assert ids(lake) == current(lake) == sorted([*left, 9] if keys else [*left, left[0], 9])


def test_deletes_by_equality_are_refused_before_the_promise_if_they_are_to_be_read(
    lake: IcebergLake,
) -> None:
    """As Flink writes them. pyiceberg does not read them, and an append reads nothing."""
    compact(lake)
    add_deletes(lake.iceberg(), pa.table({"id": [2]}), DataFileContent.EQUALITY_DELETES)
    lake.append([value(4)])
    compact(lake)
    keyed = IcebergLake(Path(lake.path).parent / "keyed", "id", table=lake.target.table)
    keyed.append([value(1)])
    with pytest.raises(PlanError, match="deletes by equality, which pyiceberg does not read"):
        compact(keyed, keys=["id"])
    assert keyed.head().k == 0


def as_version_3(table: Table) -> None:
    """Raise the version of a table's format, as others do."""
    place = Path(table.metadata_location.removeprefix("file://"))
    place.write_text(
        json.dumps({**json.loads(place.read_text()), "format-version": 3, "next-row-id": 0})
    )


def test_version_3_of_the_format_is_refused_before_the_promise(lake: IcebergLake) -> None:
    with pytest.raises(PlanError, match="version: 3"):
        compact(lake, properties={"format-version": "3"})
    assert lake.head().k == 0
    compact(lake)
    as_version_3(lake.iceberg())
    assert current(lake) == [1, 2, 3]
    lake.append([value(4)])
    with pytest.raises(PlanError, match="version 3"):
        compact(lake)
    assert lake.head().k == 1
    assert current(lake) == [1, 2, 3, 4]


def test_a_table_of_version_1_of_the_format_takes_rows_after_its_upgrade(lake: IcebergLake) -> None:
    lake.catalog.create_namespace("db")
    lake.catalog.create_table(NAME, lake.schema, properties={"format-version": "1"})
    append(lake, 7, 8)
    with pytest.raises(PlanError, match="format-version=2"):
        compact(lake)
    assert lake.head().k == 0
    with lake.iceberg().transaction() as change:
        change.upgrade_table_version(2)
    compact(lake)
    assert ids(lake) == current(lake) == [1, 2, 3, 7, 8]


def test_old_metadata_goes_if_the_table_wants_it(lake: IcebergLake) -> None:
    few = {
        "write.metadata.delete-after-commit.enabled": "true",
        "write.metadata.previous-versions-max": "2",
    }
    for number in range(4, 9):
        compact(lake, properties=few)
        lake.append([value(number)])
    files = [*Path(lake.path).parent.rglob("*.metadata.json")]
    assert len(files) == 3 and ids(lake) == [*range(1, 8)]


def test_a_changed_layout_takes_the_next_range(lake: IcebergLake) -> None:
    """A partition spec, a sort order, and wider columns. Old files stay as they are."""
    columns = pa.schema([("id", pa.int32()), ("v", pa.string())])
    narrow = IcebergLake(Path(lake.path).parent / "narrow", "id", table=lake.target.table)
    narrow.append([value(1), value(2)], schema=columns)
    compact(narrow, keys=["id"])
    for number, source, change in (
        (3, "id", BucketTransform(2)),
        (4, "v", IdentityTransform()),
    ):
        with narrow.iceberg().update_spec() as spec:
            spec.add_field(source, change, f"part{number}")
        narrow.append([value(number), {"id": 1, "v": f"from {number}"}], schema=columns)
        compact(narrow, keys=["id"])
    with narrow.iceberg().update_spec() as spec:
        spec.remove_field("part3")
    with narrow.iceberg().update_sort_order() as order:
        order.desc("id", IdentityTransform())
    with narrow.iceberg().update_schema() as schema:
        schema.update_column("id", LongType())
    narrow.append([value(5), {"id": 2, "v": "new"}], schema=columns)
    compact(narrow, keys=["id"])
    assert ids(narrow) == current(narrow) == [1, 2, 3, 4, 5]
    found = {row["id"]: row["v"] for row in narrow.found()}
    assert found == {1: "from 4", 2: "new", 3: "v3", 4: "v4", 5: "v5"}


def test_a_renamed_table_is_accepted_at_its_new_name(lake: IcebergLake) -> None:
    compact(lake)
    lake.append([value(4)])
    lake.intent()
    lake.catalog.rename_table(NAME, "db.moved")
    with pytest.raises(ConfirmError, match="if it was moved, run once with its new place"):
        compact(lake)
    life = sparkwal.Lifecycle(lake.path, table="iceberg://lake/db.moved")
    with pytest.raises(PlanError, match="moved or copied there, give --accept-table"):
        life.run_once()
    life.accept_table()
    life.run_once()
    rows = lake.catalog.load_table("db.moved").scan().to_arrow()
    assert sorted(rows["id"].to_pylist()) == current(lake) == [1, 2, 3, 4]


def test_a_table_that_was_registered_again_goes_on(lake: IcebergLake) -> None:
    """It has the same uuid: a catalog was restored, or the table moved into another."""
    compact(lake)
    place = lake.iceberg().metadata_location
    lake.catalog.drop_table(NAME)
    lake.catalog.register_table(NAME, place)
    lake.append([value(4)])
    compact(lake)
    assert ids(lake) == [1, 2, 3, 4]


def audit(lake: IcebergLake) -> None:
    """A branch gets a row, which is not on main."""
    table = lake.iceberg()
    snapshot = table.current_snapshot()
    assert snapshot is not None
    table.manage_snapshots().create_branch(snapshot.snapshot_id, "audit").commit()
    append(lake, 9, branch="audit")


def test_a_picked_snapshot_stops_nothing(lake: IcebergLake) -> None:
    """Rows of a branch become rows of main, as by a cherry-pick or fast-forward."""
    compact(lake)
    audit(lake)
    tip = lake.iceberg().metadata.refs["audit"].snapshot_id
    lake.iceberg().manage_snapshots().set_current_snapshot(tip).commit()
    lake.append([value(4)])
    compact(lake)
    assert ids(lake) == [1, 2, 3, 4, 9]


def test_orphans_that_are_removed_between_two_attempts_are_no_rows(lake: IcebergLake) -> None:
    """The first process died after it wrote files. The next one writes its own."""
    compact(lake)
    lake.append([value(4)])

    def died(*_: Any) -> None:
        raise SystemExit

    with pytest.MonkeyPatch.context() as patch, suppress(SystemExit):
        patch.setattr(SqlCatalog, "commit_table", died)
        compact(lake)
    used = {task.file.file_path.rpartition("/")[2] for task in lake.iceberg().scan().plan_files()}
    folder = Path(lake.path).parent
    orphans = [path for path in folder.rglob("*.parquet") if path.name not in used]
    assert orphans
    for path in orphans:
        path.unlink()
    compact(lake)
    assert ids(lake) == current(lake) == [1, 2, 3, 4]


def test_a_range_onto_a_version_that_others_changed_to_3_waits(lake: IcebergLake) -> None:
    """The range is open, and stays so."""
    compact(lake)
    lake.append([value(4)])
    lake.intent()
    as_version_3(lake.iceberg())
    with pytest.raises(sparkwal.SparkWalError, match="version: 3"):
        compact(lake)
    assert lake.head().kind == "intent" and current(lake) == [1, 2, 3, 4]


def go_back(lake: IcebergLake, places: int) -> int:
    """Main goes back by so many snapshots. Returns the one that was its newest."""
    entries = lake.iceberg().history()
    change = lake.iceberg().manage_snapshots()
    change.rollback_to_snapshot(entries[-1 - places].snapshot_id).commit()
    return entries[-1].snapshot_id


def test_rows_that_wait_for_an_audit_are_picked(lake: IcebergLake) -> None:
    """Write, audit, publish: a snapshot beside main is picked onto what came meanwhile."""
    compact(lake)
    audit(lake)
    lake.append([value(4)])
    compact(lake)
    picked = lake.iceberg().metadata.refs["audit"].snapshot_id
    cherry_pick(lake.iceberg(), picked)
    lake.iceberg().manage_snapshots().remove_branch("audit").commit()
    lake.iceberg().maintenance.expire_snapshots().by_id(picked).commit()
    lake.append([value(5)])
    compact(lake)
    assert ids(lake) == current(lake) == [1, 2, 3, 4, 5, 9]


def test_a_confirmed_range_that_was_picked_after_a_rollback_is_accepted(
    lake: IcebergLake,
) -> None:
    """A bad append is taken out from below a range."""
    compact(lake)
    append(lake, 9)
    lake.append([value(4)])
    compact(lake)
    cherry_pick(lake.iceberg(), go_back(lake, 2))
    lake.append([value(5)])
    with pytest.raises(ConfirmError):
        compact(lake)
    sparkwal.Lifecycle(lake.path, table=lake.target.table).accept_table()
    compact(lake)
    assert ids(lake) == current(lake) == [1, 2, 3, 4, 5]


def test_a_rollback_without_the_confirmed_range_is_refused_also_below_another_append(
    lake: IcebergLake,
) -> None:
    compact(lake)
    lake.append([value(4)])
    compact(lake)
    go_back(lake, 1)
    append(lake, 9)
    with pytest.raises(ConfirmError):
        compact(lake)
    with pytest.raises(PlanError, match="cannot be accepted: it lacks"):
        sparkwal.Lifecycle(lake.path, table=lake.target.table).accept_table()
    assert ids(lake) == [1, 2, 3, 9]


def rewrite_manifests(table: Table) -> None:
    """Write all entries into one manifest, as Spark's rewrite_manifests does."""

    class Rewrite(_FastAppendFiles):
        def _manifests(self) -> list[ManifestFile]:
            former = [*self._existing_manifests()]
            with self.new_manifest_writer(table.spec()) as writer:
                for manifest in former:
                    for entry in manifest.fetch_manifest_entry(table.io):
                        writer.existing(entry)
            return [writer.to_manifest_file()]

        def _summary(self, properties: Any = None) -> Summary:
            made = super()._summary(properties or {})
            return Summary(Operation.REPLACE, **made.additional_properties)

    change = table.transaction()
    update = change.update_snapshot().fast_append()
    update.__class__ = Rewrite
    update.commit()
    change.commit_transaction()


@pytest.mark.parametrize("keys", [[], ["id"]], ids=["append", "keys"])
def test_rewritten_manifests_stop_nothing(lake: IcebergLake, keys: list[str]) -> None:
    compact(lake, keys=keys)
    lake.append([value(4)])
    compact(lake, keys=keys)
    rewrite_manifests(lake.iceberg())
    snapshot = lake.iceberg().current_snapshot()
    assert snapshot is not None and snapshot.summary is not None
    assert snapshot.summary.operation is Operation.REPLACE
    assert len(snapshot.manifests(lake.iceberg().io)) == 1
    lake.append([value(3), value(5)])
    with meanwhile(lambda: rewrite_manifests(lake.iceberg())):
        compact(lake, keys=keys)
    expire(lake)
    lake.append([value(6)])
    compact(lake, keys=keys)
    expected = [1, 2, 3, 4, 5, 6] if keys else [1, 2, 3, 3, 4, 5, 6]
    assert ids(lake) == current(lake) == expected


def deletion_vector(path: str, *places: int) -> bytes:
    """A Puffin file with the deleted rows of a data file."""
    bitmap = struct.pack("<QI", 1, 0) + BitMap(places).serialize()
    inner = b"\xd1\xd3\x39\x64" + bitmap
    blob = struct.pack(">I", len(inner)) + inner + struct.pack(">I", zlib.crc32(inner))
    described = {
        "type": "deletion-vector-v1",
        "fields": [2147483645],
        "snapshot-id": -1,
        "sequence-number": -1,
        "offset": 4,
        "length": len(blob),
        "properties": {"referenced-data-file": path, "cardinality": str(len(places))},
    }
    footer = json.dumps({"blobs": [described], "properties": {}}).encode()
    size = struct.pack("<II", len(footer), 0)
    return b"PFA1" + blob + b"PFA1" + footer + size + b"PFA1"


def test_deletion_vectors_of_version_3_are_read_and_the_table_takes_no_range(
    lake: IcebergLake,
) -> None:
    compact(lake)
    table = lake.iceberg()
    (task, *_) = table.scan().plan_files()
    first = ids(lake)[0]
    vector = deletion_vector(task.file.file_path, 0)
    add_deletes(table, vector, DataFileContent.POSITION_DELETES)
    as_version_3(lake.iceberg())
    lake.append([value(4)])
    left = [number for number in (1, 2, 3) if number != first]
    assert ids(lake) == left and current(lake) == [*left, 4]
    replay = lake.reader().replay(start="table")
    rows = [row["id"] for each in replay for batch in each.rows for row in batch.to_pylist()]
    assert sorted(rows) == [*left, 4]
    with pytest.raises(PlanError, match="version 3"):
        compact(lake)
    assert lake.head().k == 1
