"""Compaction into an Iceberg table without a JVM: crashes, lost answers, and what others do."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException
from pyiceberg.io.pyarrow import _dataframe_to_data_files
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update import AddSnapshotUpdate, AssertRefSnapshotId, AssertTableUUID
from pyiceberg.transforms import BucketTransform, DayTransform, IdentityTransform
from pyiceberg.types import (
    LongType,
    NestedField,
    StringType,
    TimestamptzType,
    UUIDType,
)

import sparkwal
from sparkwal.errors import ConfirmError, OptionError, PlanError, TableReadError, WriteError
from sparkwal.format.lifecycle_record import NO_TABLE_VERSION
from sparkwal.lifecycle.cycle import Run
from sparkwal.lifecycle.iceberg.history import History
from sparkwal.lifecycle.iceberg.reader import IcebergReader
from sparkwal.lifecycle.table import Change, TableConflict, TableState
from tests.lifecycle.iceberg_table import (
    NAME,
    Died,
    IcebergLake,
    compact,
    configure,
    expire,
    failing,
    ids,
    insert_overwrite,
    made_before,
    meanwhile,
    survives_each_call,
)
from tests.lifecycle.lakes import value

ROOT = Path(__file__).parents[2]


@pytest.fixture
def url(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    return configure(monkeypatch, tmp_path)


@pytest.fixture
def lake(url: str, tmp_path: Path) -> IcebergLake:
    """A log with 3 rows in 2 commits, and no table yet."""
    found = IcebergLake(tmp_path, table=url)
    found.append([value(1), value(2)], [value(3)])
    return found


def seen_by_duckdb(lake: IcebergLake) -> list[int]:
    """The rows in the files of the newest snapshot, by a reader that is neither of the two."""
    files = [task.file.file_path for task in lake.iceberg().scan().plan_files()]
    found = duckdb.sql(f"SELECT id FROM read_parquet({files}) ORDER BY id").fetchall()
    return [number for (number,) in found]


def test_a_log_goes_into_an_iceberg_table_and_both_are_read_as_one(lake: IcebergLake) -> None:
    run = compact(lake)
    assert run.compacted is not None and run.compacted.rows == 3
    assert ids(lake) == seen_by_duckdb(lake) == [1, 2, 3]
    assert compact(lake).compacted is None
    lake.append([value(4)])
    current = lake.reader().current()
    assert sorted(current.to_arrow()["id"].to_pylist()) == [1, 2, 3, 4]
    assert current.table == lake.target.table
    assert current.table_version == run.compacted.table_version
    compact(lake)
    assert ids(lake) == [1, 2, 3, 4]
    assert sorted(lake.reader().current().to_arrow()["id"].to_pylist()) == [1, 2, 3, 4]


@pytest.mark.parametrize("target", [{}, {"keys": ["id"]}], ids=["append", "keys"])
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("error", [Died, lambda: CommitStateUnknownException("no answer")])
def test_a_process_that_fails_at_any_call_of_the_catalog_leaves_each_row_once(
    lake: IcebergLake, error: Callable[[], BaseException], after: bool, target: dict[str, Any]
) -> None:
    survives_each_call(lake, error, after=after, **target)


def test_a_commit_whose_answer_is_lost_is_found(lake: IcebergLake) -> None:
    """The same run finds it, and writes nothing twice."""
    compact(lake)
    lake.append([value(4)])
    with failing(0, lambda: TimeoutError("no answer"), after=True, only="commit_table") as calls:
        compact(lake)
    assert calls == ["commit_table"] and ids(lake) == [1, 2, 3, 4]


def test_a_conflict_that_was_none_is_found(lake: IcebergLake) -> None:
    """A transport that repeats a request reports its own commit as a conflict."""
    compact(lake)
    lake.append([value(4)])
    with failing(0, lambda: CommitFailedException("409"), after=True, only="commit_table"):
        compact(lake)
    assert ids(lake) == seen_by_duckdb(lake) == [1, 2, 3, 4]


def test_pyiceberg_alone_doubles_rows_after_a_lost_answer(lake: IcebergLake) -> None:
    """The peer: a job that appends, and repeats an append that failed."""
    rows = pa.Table.from_pylist([value(1)], lake.schema)
    lake.catalog.create_namespace("db")
    lake.catalog.create_table(NAME, lake.schema)
    with failing(0, lambda: CommitStateUnknownException("lost"), after=True, only="commit_table"):
        for _ in range(2):
            try:
                lake.iceberg().append(rows)
            except CommitStateUnknownException:
                continue
    assert ids(lake) == [1, 1]


def test_two_compactions_of_one_range_write_it_once(lake: IcebergLake) -> None:
    compact(lake)
    lake.append([value(4)])
    with meanwhile(lambda: compact(lake)):
        compact(lake)
    assert ids(lake) == seen_by_duckdb(lake) == [1, 2, 3, 4]


def test_two_first_compactions_make_one_table(lake: IcebergLake) -> None:
    with meanwhile(lambda: compact(lake)):
        compact(lake)
    assert ids(lake) == seen_by_duckdb(lake) == [1, 2, 3]


def test_a_range_goes_onto_the_snapshot_that_was_looked_at(lake: IcebergLake) -> None:
    """After another writer's append it is committed again, with the files it has already."""
    compact(lake)
    lake.append([value(4)])

    def append() -> None:
        lake.iceberg().append(pa.Table.from_pylist([value(9)], lake.schema))

    with meanwhile(append):
        run = compact(lake)
    assert run.compacted is not None and ids(lake) == [1, 2, 3, 4, 9]
    data = {path.name for path in Path(lake.path).parent.rglob("*.parquet")}
    used = {task.file.file_path.rpartition("/")[2] for task in lake.iceberg().scan().plan_files()}
    assert data == used, "no file is left over"


def test_a_commit_after_the_look_is_a_conflict(lake: IcebergLake) -> None:
    """What came since was not checked."""
    compact(lake)
    lake.append([value(4)])
    promise = lake.intent()
    lake.table.snapshot(promise.table.app_id, None)
    lake.iceberg().append(pa.Table.from_pylist([value(9)], lake.schema))
    with pytest.raises(TableConflict):
        lake.table.write(promise)
    parent = lake.iceberg().current_snapshot()
    required: list[Any] = []
    real = SqlCatalog.commit_table

    def commit_table(catalog: Any, table: Table, requirements: Any, updates: Any) -> Any:
        required.extend(requirements)
        return real(catalog, table, requirements, updates)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SqlCatalog, "commit_table", commit_table)
        lake.table.write(promise)
    uuid = lake.iceberg().metadata.table_uuid
    assert parent is not None
    assert required == [
        AssertRefSnapshotId(ref="main", snapshot_id=parent.snapshot_id),
        AssertTableUUID(uuid=uuid),
    ]
    assert ids(lake) == [1, 2, 3, 4, 9]


def test_a_commit_that_is_late_by_a_rollback_does_not_come(lake: IcebergLake) -> None:
    """Main is where the slow writer left it, and the number of its range is taken."""
    compact(lake)
    lake.append([value(4)])
    before = lake.iceberg().current_snapshot()
    assert before is not None

    def other() -> None:
        compact(lake)
        lake.iceberg().manage_snapshots().rollback_to_snapshot(before.snapshot_id).commit()

    with meanwhile(other), pytest.raises(ConfirmError, match="rollback"):
        compact(lake)
    assert ids(lake) == [1, 2, 3]


def rollback(lake: IcebergLake, back: int) -> None:
    entries = lake.iceberg().history()
    change = lake.iceberg().manage_snapshots()
    change.rollback_to_snapshot(entries[-1 - back].snapshot_id).commit()


def test_a_rollback_stops_the_log_until_it_is_accepted(lake: IcebergLake) -> None:
    compact(lake)
    lake.append([value(4)])
    lake.intent()
    lake.write()
    rollback(lake, 1)
    with pytest.raises(ConfirmError, match=r"is a rollback"):
        compact(lake)
    life = sparkwal.Lifecycle(lake.path, table=lake.target.table)
    assert life.accept_table().kind == "intent"
    life.run_once()
    assert ids(lake) == [1, 2, 3, 4]


def test_a_rollback_to_before_the_confirmed_version_stays_refused(lake: IcebergLake) -> None:
    compact(lake)
    rollback(lake, 1)
    lake.append([value(4)])
    with pytest.raises(ConfirmError, match="rollback"):
        compact(lake)
    with pytest.raises(PlanError, match="which is older"):
        sparkwal.Lifecycle(lake.path, table=lake.target.table).accept_table()


def test_a_table_that_was_made_again_stops_the_log(lake: IcebergLake) -> None:
    compact(lake)
    lake.catalog.drop_table(NAME)
    lake.append([value(4)])
    with pytest.raises(ConfirmError, match="does not exist any more"):
        compact(lake)
    lake.catalog.create_table(NAME, lake.schema)
    with pytest.raises(ConfirmError, match="dropped and recreated"):
        compact(lake)


def test_an_expiry_of_old_snapshots_stops_nothing(lake: IcebergLake) -> None:
    for number in range(4, 7):
        compact(lake)
        expire(lake)
        assert len(lake.iceberg().snapshots()) == 1
        lake.append([value(number)])
    compact(lake)
    assert ids(lake) == [1, 2, 3, 4, 5, 6]


def test_a_range_whose_process_died_is_found_after_its_snapshot_expired(lake: IcebergLake) -> None:
    compact(lake)
    lake.append([value(4)])
    lake.intent()
    lake.write()
    expire(lake)
    assert len(lake.iceberg().snapshots()) == 1
    run = sparkwal.Lifecycle(lake.path, table=lake.target.table).run_once()
    assert run.finished is not None and ids(lake) == [1, 2, 3, 4]


def rewrite(table: Table) -> None:
    """Write all files again, as Spark's rewrite_data_files does it."""
    rows = table.scan().to_arrow()
    with table.transaction() as change:
        with change.update_snapshot().overwrite() as update:
            for task in table.scan().plan_files():
                update.delete_data_file(task.file)
            for file in _dataframe_to_data_files(table.metadata, rows, table.io):
                update.append_data_file(file)
        for staged in change._updates:
            if isinstance(staged, AddSnapshotUpdate):
                assert staged.snapshot.summary is not None
                object.__setattr__(staged.snapshot.summary, "operation", Operation.REPLACE)


def test_an_expiry_that_keeps_the_names_of_parents_loses_no_range(lake: IcebergLake) -> None:
    """As Iceberg's own expiry does, and pyiceberg's does not."""
    compact(lake)
    log_id, confirmed = lake.head().txn_id, lake.head().table_version
    lake.append([value(4)])
    lake.intent()
    lake.write()
    written = lake.table.snapshot(log_id, None)
    assert written is not None
    whole = lake.iceberg()
    whole.append(pa.Table.from_pylist([value(9)], lake.schema))
    metadata = lake.iceberg().metadata

    def state(place: int, since: int) -> TableState:
        """Only this snapshot is left, and main is there."""
        left = {
            "current_snapshot_id": metadata.snapshots[place].snapshot_id,
            "snapshots": [metadata.snapshots[place]],
            "snapshot_log": [metadata.snapshot_log[place]],
        }
        return History(metadata.model_copy(update=left)).state(log_id, since)

    open_range = state(-1, confirmed)
    assert open_range.complete and [change.k for change in open_range.changes] == [2, 0]
    (part,) = lake.head().promise.ranges
    assert (open_range.changes[0].cut, open_range.changes[0].to) == (part.cut, part.to)
    done = state(-1, written.version)
    assert done.complete and [change.k for change in done.changes] == [0]
    assert not state(-1, confirmed - 1).complete
    # Main was set back to before the range, and the rest expired.
    assert not state(-3, written.version).complete


def test_the_commits_of_others_stop_nothing(lake: IcebergLake) -> None:
    compact(lake)
    table = lake.iceberg()
    table.append(pa.Table.from_pylist([value(7), value(8)], lake.schema))
    table.delete("id = 2")
    table.delete("id = 8")
    rewrite(table)
    lake.append([value(4)])
    compact(lake)
    assert ids(lake) == [1, 3, 4, 7]


@pytest.mark.parametrize("way", ["pyiceberg", "one snapshot", "delete"])
def test_an_overwrite_by_others_stops_the_log(lake: IcebergLake, way: str) -> None:
    compact(lake)
    rows = pa.Table.from_pylist([value(9)], lake.schema)
    if way == "pyiceberg":
        lake.iceberg().overwrite(rows)
    elif way == "one snapshot":
        insert_overwrite(lake.iceberg(), rows)
    else:
        lake.iceberg().delete()
    lake.append([value(4)])
    with pytest.raises(ConfirmError, match="may have removed"):
        compact(lake)


def test_branches_and_tags_change_nothing(lake: IcebergLake) -> None:
    compact(lake)
    table = lake.iceberg()
    snapshot = table.current_snapshot()
    assert snapshot is not None
    table.manage_snapshots().create_tag(snapshot.snapshot_id, "month").commit()
    table.manage_snapshots().create_branch(snapshot.snapshot_id, "audit").commit()
    lake.iceberg().append(pa.Table.from_pylist([value(9)], lake.schema), branch="audit")
    lake.append([value(4)])
    compact(lake)
    assert ids(lake) == [1, 2, 3, 4]


def test_a_table_whose_columns_others_changed_takes_the_next_range(lake: IcebergLake) -> None:
    compact(lake)
    with lake.iceberg().update_schema() as change:
        change.rename_column("v", "text")
        change.add_column("note", StringType())
        change.move_first("note")
    lake.append([value(4)])
    compact(lake)
    rows = {row["id"]: row for row in lake.found()}
    assert rows[1] == {"note": None, "id": 1, "text": "v1", "v": None}
    assert rows[4] == {"note": None, "id": 4, "text": None, "v": "v4"}
    assert sorted(lake.reader().current().to_arrow()["id"].to_pylist()) == [1, 2, 3, 4]


def test_new_columns_of_the_log_are_added_and_wider_ones_widened(url: str, tmp_path: Path) -> None:
    narrow = pa.schema([("id", pa.int32()), ("x", pa.float32()), ("s", pa.int8())])
    wide = pa.schema(
        [
            ("id", pa.int64()),
            ("x", pa.float64()),
            ("s", pa.int16()),
            ("more", pa.list_(pa.string())),
        ]
    )
    lake = IcebergLake(tmp_path, table=url, schema=narrow)
    lake.append([{"id": 1, "x": 1.5, "s": 1}])
    compact(lake)
    lake.append([{"id": 2**40, "x": 2.5, "s": 2, "more": ["m"]}], schema=wide)
    compact(lake)
    assert sorted(lake.found(), key=lambda row: row["id"]) == [
        {"id": 1, "x": 1.5, "s": 1, "more": None},
        {"id": 2**40, "x": 2.5, "s": 2, "more": ["m"]},
    ]


KINDS = {
    "boolean": (pa.bool_(), True),
    "byte": (pa.int8(), 1),
    "short": (pa.int16(), 2),
    "integer": (pa.int32(), 3),
    "long": (pa.int64(), 4),
    "float": (pa.float32(), 0.5),
    "double": (pa.float64(), 0.25),
    "decimal": (pa.decimal128(20, 3), Decimal("1.234")),
    "string": (pa.string(), "ä"),
    "binary": (pa.binary(), b"\0"),
    "date": (pa.date32(), date(1, 2, 3)),
    "timestamp": (pa.timestamp("us", "UTC"), datetime(2026, 1, 2, 3, 4, 5, 6, UTC)),
    "timestamp_ntz": (pa.timestamp("us"), datetime(2026, 1, 2, 3, 4, 5, 6)),
    "array": (pa.list_(pa.int16()), [1, None]),
    "map": (pa.map_(pa.string(), pa.int32()), [("k", 1)]),
    "struct": (pa.struct([("x", pa.struct([("y", pa.string())]))]), {"x": {"y": "z"}}),
}


def test_each_type_of_a_log_comes_back(url: str, tmp_path: Path) -> None:
    columns = pa.schema([(name, kind) for name, (kind, _) in KINDS.items()])
    row = {name: each for name, (_, each) in KINDS.items()}
    nothing = dict.fromkeys(KINDS)
    lake = IcebergLake(tmp_path, table=url, schema=columns)
    lake.append([row, nothing])
    compact(lake)
    assert lake.found() == [row, nothing]
    current = lake.reader().current().to_arrow()
    assert current.to_pylist() == [row, nothing]


@pytest.mark.parametrize(
    "kind", [pa.time64("us"), pa.duration("us"), pa.struct([])], ids=["time", "duration", "empty"]
)
def test_a_type_that_iceberg_lacks_is_refused_before_the_promise(
    url: str, tmp_path: Path, kind: pa.DataType
) -> None:
    lake = IcebergLake(tmp_path, table=url, schema=pa.schema([("id", pa.int64()), ("t", kind)]))
    lake.append([{"id": 1, "t": None}])
    with pytest.raises(PlanError, match="does not take the log"):
        compact(lake)
    assert lake.head().k == 0


ID = NestedField(1, "id", LongType(), required=False)


def test_a_partitioned_table_gets_each_row_in_its_partition(url: str, tmp_path: Path) -> None:
    columns = pa.schema([("id", pa.int64()), ("at", pa.timestamp("us", "UTC")), ("v", pa.string())])
    lake = IcebergLake(tmp_path, table=url, schema=columns)
    spec = PartitionSpec(
        PartitionField(1, 1000, BucketTransform(4), "id_bucket"),
        PartitionField(2, 1001, DayTransform(), "day"),
        PartitionField(3, 1002, IdentityTransform(), "v"),
    )
    at, text = NestedField(2, "at", TimestamptzType()), NestedField(3, "v", StringType())
    made_before(lake, ID, at.model_copy(update={"required": False}), text, spec=spec)
    rows = [
        {"id": n, "at": datetime(2026, 1, 1 + n % 3, tzinfo=UTC), "v": f"v{n % 2}"}
        for n in range(20)
    ]
    lake.append([*rows, {"id": None, "at": None, "v": None}])
    compact(lake)
    found = sorted(lake.found(), key=lambda row: (row["id"] is None, row["id"]))
    assert found == [*rows, {"id": None, "at": None, "v": None}]
    days = lake.iceberg().scan(row_filter="at >= '2026-01-03T00:00:00+00:00'")
    assert len([*days.plan_files()]) < len([*lake.iceberg().scan().plan_files()])
    assert days.to_arrow().num_rows == len([n for n in range(20) if n % 3 == 2])


def test_a_new_table_is_partitioned_by_columns(lake: IcebergLake) -> None:
    compact(lake, partition_by=["v"])
    assert [str(x.transform) for x in lake.iceberg().spec().fields] == ["identity"]
    assert ids(lake) == [1, 2, 3]
    lake.append([value(4)])
    with pytest.raises(PlanError, match="fixed its target"):
        compact(lake)
    compact(lake, partition_by=["v"])
    assert ids(lake) == [1, 2, 3, 4]


@pytest.mark.parametrize("keys", [[], ["id"]])
def test_manifests_are_merged_and_each_row_stays(lake: IcebergLake, keys: list[str]) -> None:
    properties = {"commit.manifest.min-count-to-merge": "2"}
    for number in range(4, 9):
        compact(lake, keys=keys, properties=properties)
        lake.append([value(number)])
    snapshot = lake.iceberg().current_snapshot()
    assert snapshot is not None and len(snapshot.manifests(lake.iceberg().io)) <= 2
    assert ids(lake) == [*range(1, 8)]


def test_a_table_that_does_not_fit_is_refused_before_the_promise(lake: IcebergLake) -> None:
    required = NestedField(2, "must", StringType(), required=True)
    made_before(lake, ID, NestedField(3, "v", UUIDType(), required=False))
    with pytest.raises(PlanError, match="column 'v' of .* has type uuid"):
        compact(lake)
    lake.catalog.drop_table(NAME)
    made_before(lake, ID, required)
    with pytest.raises(PlanError, match="'must' of .* is required"):
        compact(lake)
    lake.catalog.drop_table(NAME)
    made_before(lake, NestedField(1, "id", StringType(), required=False))
    with pytest.raises(PlanError, match="'id' is bigint in the log and string in"):
        compact(lake)
    assert lake.head().k == 0


def test_a_null_in_a_required_column_is_refused_with_its_reason(lake: IcebergLake) -> None:
    made_before(lake, NestedField(1, "id", LongType(), required=True))
    compact(lake)
    assert ids(lake) == [1, 2, 3] and lake.iceberg().schema().find_field("id").required
    lake.append([{"id": None, "v": "x"}])
    with pytest.raises(WriteError, match="'id' is required, and a row of the log has a null"):
        compact(lake)


def test_a_log_whose_rows_the_table_refuses_stops_no_other(url: str, tmp_path: Path) -> None:
    """The ranges of both are burned in the table, and then each gets its own."""
    good = IcebergLake(tmp_path, table=url)
    bad = IcebergLake(tmp_path, table=url, sequencer="b")
    made_before(good, NestedField(1, "id", LongType(), required=True))
    good.append([value(1)])
    bad.append([{"id": None, "v": "x"}])
    life = sparkwal.Lifecycle(good.path, table=url)
    for number in (1, 2):
        results = life.run_all(whole=True)
        assert isinstance(results["b"], WriteError)
        assert ids(good) == [*range(1, number + 1)]
        good.append([value(number + 1)])
    changes = [each.operation for each in lake_changes(good) if each.is_burned]
    assert changes == ["append", "append"]


def lake_changes(lake: IcebergLake) -> tuple[Change, ...]:
    found = lake.table.snapshot(lake.head().txn_id, NO_TABLE_VERSION)
    assert found is not None
    return found.changes


def test_a_table_around_the_log_is_refused(lake: IcebergLake) -> None:
    lake.catalog.create_namespace("db")
    lake.catalog.create_table(NAME, lake.schema, location=f"file://{lake.path}/table")
    with pytest.raises(PlanError, match="inside the other"):
        compact(lake)


def test_names_of_tables_and_catalogs_are_checked(lake: IcebergLake) -> None:
    for name in ("iceberg://lake", "iceberg://lake/orders", "iceberg://lake/db.", "iceberg:///a.b"):
        with pytest.raises(OptionError, match="CATALOG/NAMESPACE"):
            sparkwal.Lifecycle(lake.path, table=name)
    with pytest.raises(OptionError, match="credentials"):
        sparkwal.Lifecycle(lake.path, table="iceberg://user:pw@lake/db.t")
    with pytest.raises(PlanError, match="URI missing"):
        sparkwal.Lifecycle(lake.path, table="iceberg://other/db.t").run_once(whole=True)


def test_no_secret_of_a_catalog_is_in_an_error(
    lake: IcebergLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load_table(catalog: Any, *_: object) -> None:
        raise ConnectionError(f"{catalog.properties['uri']} https://me:hunter2@host/x?sig=hunter3")

    monkeypatch.setattr(SqlCatalog, "load_table", load_table)
    with pytest.raises(sparkwal.SparkWalError) as caught:
        compact(lake)
    assert "hunter" not in str(caught.value) and "catalog.db" not in str(caught.value)


def test_a_reader_of_an_expired_version_says_so(lake: IcebergLake) -> None:
    compact(lake)
    current = lake.reader().current()
    table = lake.iceberg()
    for number in (8, 9):
        table.append(pa.Table.from_pylist([value(number)], lake.schema))
    assert sorted(current.to_arrow()["id"].to_pylist()) == [1, 2, 3]
    expire(lake)
    reader = IcebergReader(lake.target)
    reader.snapshot("log", None)
    assert current.table_version is not None
    with pytest.raises(TableReadError, match="expired"):
        reader.rows_at(current.table_version)


@pytest.mark.process
def test_the_job_needs_no_jvm(lake: IcebergLake) -> None:
    command = [sys.executable, str(ROOT / "jobs/compact.py"), lake.path, lake.target.table, "--now"]
    conf = [*command, "--conf", "a=b"]
    done = subprocess.run(conf, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "written without it" in done.stderr
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert ids(lake) == [1, 2, 3] and "SPARK" not in done.stderr.upper()


COLUMNS = pa.schema([("id", pa.int64()), ("n", pa.int64()), ("t", pa.string())])


def keyed(id_: int | None, n: int = 0, t: str | None = "x") -> dict[str, Any]:
    return {"id": id_, "n": n, "t": t}


def by_id(lake: IcebergLake) -> list[tuple[Any, ...]]:
    rows = [tuple(row.values()) for row in lake.found()]
    return sorted(rows, key=lambda row: (row[0] is None, row[0]))


@pytest.fixture
def keys(url: str, tmp_path: Path) -> IcebergLake:
    """A log with keys, and no table yet."""
    return IcebergLake(tmp_path, "id", table=url, schema=COLUMNS)


def test_a_row_replaces_the_row_of_its_key(keys: IcebergLake) -> None:
    keys.append([keyed(1), keyed(2), keyed(1, 5)])
    compact(keys, keys=["id"])
    assert by_id(keys) == [(1, 5, "x"), (2, 0, "x")]
    keys.append([keyed(2, 7), keyed(None, 1)], [keyed(3), keyed(None, 2)])
    assert sorted(map(repr, keys.reader().current().to_arrow()["n"].to_pylist())) == list("0257")
    compact(keys, keys=["ID"[:2].lower()])
    assert by_id(keys) == [(1, 5, "x"), (2, 7, "x"), (3, 0, "x"), (None, 2, "x")]
    keys.append([keyed(None, 9)])
    compact(keys, keys=["id"])
    assert by_id(keys)[-1] == (None, 9, "x") and len(by_id(keys)) == 4


def test_only_files_with_a_key_of_the_range_are_written_again(keys: IcebergLake) -> None:
    for number in range(4):
        keys.append([keyed(10 * number), keyed(10 * number + 5)])
        compact(keys, keys=["id"])
    before = {task.file.file_path for task in keys.iceberg().scan().plan_files()}
    keys.append([keyed(15, 1), keyed(17, 1)])
    compact(keys, keys=["id"])
    after = {task.file.file_path for task in keys.iceberg().scan().plan_files()}
    assert len(before) == 4 and len(before & after) == 3
    assert len(by_id(keys)) == 9


def test_the_greater_sequence_wins_and_a_condition_deletes(keys: IcebergLake) -> None:
    target = {"keys": ["id"], "sequence_by": "n"}
    keys.append([keyed(1, 5, "new"), keyed(2, 1)], [keyed(1, 4, "late")])
    compact(keys, **target)
    keys.append([keyed(1, 3, "later"), keyed(2, 2, "new")])
    compact(keys, **target)
    assert by_id(keys) == [(1, 5, "new"), (2, 2, "new")]


def test_a_condition_deletes_a_key(keys: IcebergLake) -> None:
    target = {"keys": ["id"], "delete_when": "t = 'gone'"}
    keys.append([keyed(1), keyed(2), keyed(3, t="gone")])
    compact(keys, **target)
    keys.append([keyed(2, t="gone"), keyed(4), keyed(4, t="gone")], [keyed(5)])
    compact(keys, **target)
    assert by_id(keys) == [(1, 0, "x"), (5, 0, "x")]


def test_a_condition_that_only_spark_evaluates_is_refused(keys: IcebergLake) -> None:
    keys.append([keyed(1)])
    with pytest.raises(PlanError, match="written without Spark"):
        compact(keys, keys=["id"], delete_when="length(t) > 3")
    with pytest.raises(PlanError, match="'nothing'"):
        compact(keys, keys=["nothing"])
    assert keys.head().k == 0


def test_a_record_without_a_column_keeps_its_value(keys: IcebergLake) -> None:
    number, text = NestedField(2, "n", LongType()), NestedField(3, "t", StringType())
    made_before(keys, ID, *(x.model_copy(update={"required": False}) for x in (number, text)))
    keys.iceberg().append(pa.Table.from_pylist([keyed(1, 1, "kept"), keyed(2, 1, "kept")], COLUMNS))
    few = pa.schema([("id", pa.int64()), ("n", pa.int64())])
    keys.append([{"id": 1, "n": 2}], schema=few)
    keys.append([keyed(2, 2, None)])
    compact(keys, keys=["id"])
    assert by_id(keys) == [(1, 2, "kept"), (2, 2, None)]


def test_rows_that_others_deleted_do_not_come_back(keys: IcebergLake) -> None:
    keys.append([keyed(number) for number in range(4)])
    compact(keys, keys=["id"])
    keys.append([keyed(9)])
    compact(keys, keys=["id"])
    keys.iceberg().delete("id = 2")
    keys.append([keyed(3, 1)])
    compact(keys, keys=["id"])
    assert [row[:2] for row in by_id(keys)] == [(0, 0), (1, 0), (3, 1), (9, 0)]


def test_keyed_ranges_are_as_one_row_after_another(url: str, tmp_path: Path) -> None:
    """Random ranges of several logs, with conflicts, against a dict."""
    seed = random.randrange(2**32)
    print("seed", seed)
    rng = random.Random(seed)
    lake = IcebergLake(tmp_path, "id", table=url, schema=COLUMNS)
    expected: dict[int, tuple[Any, ...]] = {}
    for step in range(12):
        rows = [keyed(rng.randrange(20), step * 100 + n) for n in range(rng.randrange(1, 8))]
        lake.append(rows)
        expected |= {row["id"]: tuple(row.values()) for row in rows}
        if rng.random() < 0.6:
            with meanwhile(lambda: compact(lake, keys=["id"])) if step % 2 else nullcontext():
                compact(lake, keys=["id"])
            assert by_id(lake) == sorted(expected.values())
    assert sorted(
        map(tuple, (row.values() for row in lake.reader().current().to_arrow().to_pylist()))
    ) == sorted(expected.values())


def test_logs_of_a_path_share_the_table(url: str, tmp_path: Path) -> None:
    root = IcebergLake(tmp_path, "id", table=url, schema=COLUMNS)
    other = IcebergLake(tmp_path, "id", table=url, schema=COLUMNS, sequencer="b")
    root.append([keyed(1, 1)])
    other.append([keyed(1, 2), keyed(2)])
    root.append([keyed(1, 3)])
    life = sparkwal.Lifecycle(root.path, table=url, keys=["id"])
    assert all(isinstance(run, Run) for run in life.run_all(whole=True).values())
    assert by_id(root) == [(1, 3, "x"), (2, 0, "x")]
