"""A stream and a replay begin with the files of an Iceberg table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.io.pyarrow import ArrowScan
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import FileScanTask
from pyiceberg.transforms import BucketTransform, IdentityTransform
from pyiceberg.typedef import Record
from pyiceberg.types import DateType, LongType, NestedField, StringType

from sparkwal.errors import TableReadError
from sparkwal.lifecycle.from_table import TableTask, task_rows_of_table
from sparkwal.lifecycle.iceberg.reader import IcebergReader, task_in, text_of
from sparkwal.lifecycle.table import VersionFiles
from sparkwal.options.parsing import from_keywords
from sparkwal.options.reading import SourceOptions
from sparkwal.spark.interfaces import to_struct
from sparkwal.spark.source import PlannedReader, packed, unpacked
from tests.lifecycle.iceberg_table import NAME, IcebergLake, compact, configure, expire
from tests.lifecycle.lakes import value
from tests.lifecycle.test_from_table import reader, rows


@pytest.fixture
def url(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    return configure(monkeypatch, tmp_path)


@pytest.fixture
def lake(url: str, tmp_path: Path) -> IcebergLake:
    """A log with four rows in two files of its table, and one newer row."""
    found = IcebergLake(tmp_path, table=url)
    found.append([value(1), value(2)], [value(3)])
    compact(found)
    found.append([value(4)])
    compact(found)
    found.append([value(5)])
    return found


def test_a_stream_begins_with_the_files_of_the_table(lake: IcebergLake) -> None:
    """The columns and the files are those of the version with which it began."""
    stream = reader(lake.path, maxCommitsPerTrigger=1)
    offset, batches = stream.initialOffset(), []
    while (end := stream.latestOffset(offset, stream.getDefaultReadLimit())) != offset:
        batches.append(rows(stream, offset, end))
        offset = end
        if len(batches) == 1:
            lake.iceberg().delete("id = 4")
            with lake.iceberg().update_schema() as change:
                change.rename_column("v", "text")
    assert sorted(number for batch in batches for number, _ in batch) == [1, 2, 3, 4, 5]
    assert len(batches) >= 3


def test_a_replay_begins_with_the_files_of_the_table(lake: IcebergLake) -> None:
    replay = lake.reader().replay(start="table")
    first = next(replay)
    cursor = replay.cursor
    found = [row["id"] for batch in first.rows for row in batch.to_pylist()]
    rest = lake.reader().replay(cursor, start="table")
    found += [row["id"] for each in rest for batch in each.rows for row in batch.to_pylist()]
    assert sorted(found) == [1, 2, 3, 4, 5]


def test_a_version_whose_snapshot_or_files_are_gone_is_an_error(lake: IcebergLake) -> None:
    table = IcebergReader(lake.target)
    found = table.snapshot("log", None)
    assert found is not None
    listed = table.files_at(found.version)
    assert [file.rows for file in listed.files] in ([3, 1], [1, 3])
    for number in (8, 9):
        lake.iceberg().append(pa.Table.from_pylist([value(number)], lake.schema))
    expire(lake)
    with pytest.raises(TableReadError, match="expired"):
        table.files_at(found.version)
    # Their files are still there.
    ids = [
        row["id"]
        for file in listed.files
        for batch in table.rows_of(listed.head, file, ["id"])
        for row in batch.to_pylist()
    ]
    assert sorted(ids) == [1, 2, 3, 4]
    Path(listed.files[0].name.removeprefix("file://")).unlink()
    with pytest.raises(TableReadError, match="deleted after its snapshot expired"):
        [*table.rows_of(listed.head, listed.files[0], ["id"])]


def test_files_that_the_driver_planned_are_read_as_tasks(lake: IcebergLake) -> None:
    """As `read_current` does it: the tasks come as a text without code."""
    table = IcebergReader(lake.target)
    found = table.snapshot("log", None)
    assert found is not None
    listed = table.files_at(found.version)
    tasks = [TableTask(lake.target.table, listed.head, ("id", "v"), file) for file in listed.files]
    options = from_keywords(SourceOptions, lake.path, {})
    groups = unpacked(packed([], tasks))
    assert groups == [[task] for task in tasks]
    planned = PlannedReader(options, to_struct(listed.spark_schema), groups)
    rows_read = [
        row["id"]
        for partition in planned.partitions()
        for batch in planned.read(partition)
        for row in batch.to_pylist()
    ]
    assert sorted(rows_read) == [1, 2, 3, 4]


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What this process loads from the catalog."""
    calls: list[str] = []
    for name in ("__init__", "load_table"):
        real = getattr(SqlCatalog, name)

        def call(*args: Any, _name: str = name, _real: Any = real, **kwargs: Any) -> Any:
            calls.append(_name)
            return _real(*args, **kwargs)

        monkeypatch.setattr(SqlCatalog, name, call)
    return calls


def read_tasks(lake: IcebergLake, listed: VersionFiles) -> list[int]:
    """Read each file as a task, which knows nothing of the others."""
    options = from_keywords(SourceOptions, lake.path, {})
    columns = pa.schema([("id", pa.int64())])
    return sorted(
        number
        for file in listed.files
        for batch in task_rows_of_table(
            TableTask(lake.target.table, listed.head, ("id",), file), columns, options
        )
        for number in batch["id"].to_pylist()
    )


def listed_now(lake: IcebergLake) -> VersionFiles:
    table = IcebergReader(lake.target)
    found = table.snapshot("log", None)
    assert found is not None
    return table.files_at(found.version)


def test_a_process_loads_the_catalog_and_the_table_once(
    lake: IcebergLake, loads: list[str]
) -> None:
    listed = listed_now(lake)
    loads.clear()
    assert read_tasks(lake, listed) == [1, 2, 3, 4] and len(listed.files) == 2
    assert loads == ["__init__", "load_table"]
    loads.clear()
    assert read_tasks(lake, listed) == [1, 2, 3, 4] and loads == []


def test_files_with_newer_columns_or_other_credentials_load_the_table_again(
    lake: IcebergLake, loads: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    read_tasks(lake, listed_now(lake))
    with lake.iceberg().update_schema() as change:
        change.add_column("more", StringType())
    lake.iceberg().append(pa.Table.from_pylist([value(6)], lake.schema))
    newer = listed_now(lake)
    loads.clear()
    assert read_tasks(lake, newer) == [1, 2, 3, 4, 6]
    assert loads == ["__init__", "load_table"]
    real, left = ArrowScan.to_record_batches, ["expired"]

    def expires(scan: ArrowScan, tasks: Any) -> Any:
        if left:
            raise PermissionError(left.pop())
        return real(scan, tasks)

    monkeypatch.setattr(ArrowScan, "to_record_batches", expires)
    loads.clear()
    assert read_tasks(lake, newer) == [1, 2, 3, 4, 6]
    assert loads == ["__init__", "load_table"]


def test_a_table_that_was_made_again_has_no_file_of_the_former_one(lake: IcebergLake) -> None:
    listed = listed_now(lake)
    assert read_tasks(lake, listed) == [1, 2, 3, 4]
    lake.catalog.drop_table(NAME)
    lake.catalog.create_table(NAME, lake.schema)
    with lake.iceberg().update_schema() as change:
        change.add_column("more", StringType())
    lake.iceberg().append(pa.Table.from_pylist([value(6)], lake.schema))
    # The files of the former table are still there, and so is what this process has of it.
    assert read_tasks(lake, listed) == [1, 2, 3, 4]
    assert read_tasks(lake, listed_now(lake)) == [6]
    with pytest.raises(TableReadError, match="recreated"):
        read_tasks(lake, listed)


def test_a_file_comes_back_with_its_partition_and_its_deletes(lake: IcebergLake) -> None:
    """A file that another tool added may lack the columns of its partition."""
    catalog = lake.catalog
    columns = Schema(
        NestedField(1, "id", LongType(), required=False),
        NestedField(2, "day", DateType(), required=False),
        NestedField(3, "v", StringType(), required=False),
    )
    spec = PartitionSpec(
        PartitionField(1, 1000, BucketTransform(4), "id_bucket"),
        PartitionField(2, 1001, IdentityTransform(), "day"),
        PartitionField(3, 1002, IdentityTransform(), "v"),
    )
    table = catalog.create_table("db.parts", columns, partition_spec=spec)
    file = DataFile.from_args(
        content=DataFileContent.DATA,
        file_path="file:///a.parquet",
        file_format=FileFormat.PARQUET,
        partition=Record(3, 20_000, None),
    )
    file.spec_id = table.spec().spec_id
    deletes = {
        DataFile.from_args(
            content=DataFileContent.POSITION_DELETES,
            file_path=f"file:///{name}",
            file_format=file_format,
        )
        for name, file_format in (
            ("d.parquet", FileFormat.PARQUET),
            ("d.puffin", FileFormat.PUFFIN),
        )
    }
    text = text_of(table, FileScanTask(file, deletes))
    found = task_in(table, text)
    assert [found.file.partition[number] for number in range(3)] == [None, 20_000, None]
    assert found.file.file_path == file.file_path and found.file.spec_id == file.spec_id
    assert {(x.file_path, x.file_format) for x in found.delete_files} == {
        (x.file_path, x.file_format) for x in deletes
    }
    assert catalog.table_exists(NAME)
