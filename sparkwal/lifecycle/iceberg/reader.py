"""Reads an Iceberg table without Spark: sparkwal its history, and pyiceberg its rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

import pyarrow as pa

from sparkwal.errors import TableReadError
from sparkwal.format.lifecycle_record import Target
from sparkwal.lifecycle.iceberg.catalog import Place
from sparkwal.lifecycle.iceberg.fitting import spark_schema
from sparkwal.lifecycle.iceberg.history import History
from sparkwal.lifecycle.table import ReadRows, TableFile, TableState, VersionFiles

if TYPE_CHECKING:
    from pyiceberg.schema import Schema
    from pyiceberg.table import FileScanTask, Table
    from pyiceberg.table.snapshots import Snapshot


class IcebergReader:
    """An Iceberg table, as `sparkwal.lifecycle.table.ReadTable`.

    Args:
        target: the table.
    """

    # Iceberg has no generated column.
    computed: Sequence[str] = ()

    def __init__(self, target: Target) -> None:
        self._place = Place(target.table)
        self._table: Table | None = None

    def snapshot(self, log_id: str, since: int | None, k: int | None = None) -> TableState | None:
        """Read the newest version. See `Snapshots.snapshot`."""
        self._table = self._place.load()
        return History(self._table.metadata).state(log_id, since) if self._table else None

    @property
    def spark_schema(self) -> str:
        """The columns. See `ReadTable.spark_schema`."""
        return spark_schema(self._read.schema())

    @property
    def _read(self) -> Table:
        """The table as it was read last."""
        return _existing(self._table, self._place)

    def as_stored(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Convert rows of the log. See `ReadTable.as_stored`. The table keeps each value."""
        return batch

    def rows_at(self, version: int) -> ReadRows:
        """Open a version. See `ReadTable.rows_at`."""
        table = self._read
        snapshot = self._snapshot_at(table, version)

        def read(columns: Sequence[str] | None) -> Iterator[pa.RecordBatch]:
            with self._place.errors():
                # With the columns of the newest schema, which the plan of the read has.
                for task in table.scan(snapshot_id=snapshot.snapshot_id).plan_files():
                    yield from rows_of(table, task, table.schema(), columns)

        return read

    def _snapshot_at(self, table: Table, version: int) -> Snapshot:
        snapshot = History(table.metadata).snapshot_at(version)
        if snapshot is None:
            raise TableReadError(
                f"version {version} of {self._place.url} does not exist, or its snapshot expired: "
                "read the current state again"
            )
        return snapshot

    def files_at(self, version: int) -> VersionFiles:
        """List the data files of a version. See `ReadTable.files_at`."""
        table = _existing(self._place.load(), self._place)
        snapshot = self._snapshot_at(table, version)
        with self._place.errors():
            tasks = _tasks(self._place.url, snapshot.snapshot_id)
            files = [
                # A file of deletes tells how many rows it deletes, and not of which file.
                TableFile(
                    path,
                    task.file.file_size_in_bytes,
                    None if task.delete_files else task.file.record_count,
                    path,
                )
                for path, task in tasks.items()
            ]
            columns = spark_schema(_schema_of(table, snapshot.snapshot_id))
        head = str(snapshot.snapshot_id)
        return VersionFiles(str(table.metadata.table_uuid), columns, head, tuple(files))

    def rows_of(
        self, head: str, file: TableFile, columns: Sequence[str]
    ) -> Iterator[pa.RecordBatch]:
        """Read the rows of one data file. See `ReadTable.rows_of`."""
        table = _existing(self._place.load(), self._place)
        with self._place.errors():
            task = _tasks(self._place.url, int(head))[file.text]
            yield from rows_of(table, task, _schema_of(table, int(head)), columns)


def _existing(table: Table | None, place: Place) -> Table:
    if table is None:
        raise TableReadError(f"{place.url} does not exist")
    return table


@lru_cache(maxsize=2)
def _tasks(url: str, snapshot_id: int) -> Mapping[str, FileScanTask]:
    """The files of a snapshot, which never changes, by their paths and in the order of these."""
    place = Place(url)
    scan = _existing(place.load(), place).scan(snapshot_id=snapshot_id)
    return {x.file.file_path: x for x in sorted(scan.plan_files(), key=lambda x: x.file.file_path)}


def _schema_of(table: Table, snapshot_id: int) -> Schema:
    """The columns that the table had when a snapshot was made."""
    snapshot = table.metadata.snapshot_by_id(snapshot_id)
    if snapshot is None or snapshot.schema_id is None:
        return table.schema()
    return table.schemas()[snapshot.schema_id]


def rows_of(
    table: Table, task: FileScanTask, schema: Schema, columns: Sequence[str] | None
) -> Iterator[pa.RecordBatch]:
    """Read the rows of one file that are not deleted. pyiceberg reads the file into memory.

    Args:
        table: the table.
        task: the file, and the deletes of its rows.
        schema: a schema of the table.
        columns: these columns of the schema; None for all.
    """
    from pyiceberg.expressions import AlwaysTrue
    from pyiceberg.io.pyarrow import ArrowScan

    projected = schema if columns is None else schema.select(*columns)
    read = ArrowScan(table.metadata, table.io, projected, AlwaysTrue())
    yield from read.to_record_batches([task])
