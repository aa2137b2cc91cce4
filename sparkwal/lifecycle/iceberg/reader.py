"""Reads an Iceberg table without Spark: sparkwal its history, and pyiceberg its rows."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from operator import attrgetter
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
    from pyiceberg.types import PrimitiveType

# The tables whose files this process reads, by their URLs: an executor reads many files of one.
_tables: dict[str, Table] = {}
# A child has none of the parent's connections.
os.register_at_fork(after_in_child=_tables.clear)


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
                "read the current state again, or begin with a new checkpoint or cursor"
            )
        return snapshot

    def files_at(self, version: int) -> VersionFiles:
        """List the data files of a version. See `ReadTable.files_at`."""
        table = _existing(self._place.load(), self._place)
        snapshot = self._snapshot_at(table, version)
        with self._place.errors():
            columns = _schema_of(table, snapshot)
            tasks = table.scan(snapshot_id=snapshot.snapshot_id).plan_files()
            files = [
                TableFile(
                    task.file.file_path,
                    task.file.file_size_in_bytes,
                    # A file of deletes does not tell how many rows it deletes of which file.
                    None if task.delete_files else task.file.record_count,
                    text_of(table, task),
                )
                for task in tasks
            ]
        return VersionFiles(
            table_id=str(table.metadata.table_uuid),
            spark_schema=spark_schema(columns),
            head=f"{table.metadata.table_uuid}:{columns.schema_id}",
            files=tuple(sorted(files, key=attrgetter("name"))),
        )

    def rows_of(
        self, head: str, file: TableFile, columns: Sequence[str]
    ) -> Iterator[pa.RecordBatch]:
        """Read the rows of one data file. See `ReadTable.rows_of`."""
        table_id, _, schema_id = head.rpartition(":")

        def read(table: Table) -> Iterator[pa.RecordBatch]:
            columns_of = table.schemas()[int(schema_id)]
            yield from rows_of(table, task_in(table, file.text), columns_of, columns)

        with self._place.errors():
            try:
                batches = read(_known(self._place, table_id))
                try:
                    first = next(batches, None)
                except Exception:  # each store has its own classes of errors
                    # The columns are newer, or the credentials that the catalog gave have expired.
                    batches = read(_loaded(self._place, table_id))
                    first = next(batches, None)
                if first is not None:
                    yield first
                yield from batches
            except FileNotFoundError as error:
                raise TableReadError(
                    f"a file of {self._place.url} that this read needs is gone: {error}. It was "
                    "deleted after its snapshot expired. Begin again, with a new checkpoint or "
                    "cursor, and keep snapshots for longer than the read of the table takes"
                ) from None


def _known(place: Place, table_id: str) -> Table:
    """A table whose files this process reads, in any state of its metadata."""
    table = _tables.get(place.url)
    if table is None or str(table.metadata.table_uuid) != table_id:
        return _loaded(place, table_id)
    return table


def _loaded(place: Place, table_id: str) -> Table:
    """The same, in its newest state.

    Raises:
        TableReadError: it is another table.
    """
    table = _existing(place.load(), place)
    id_now = str(table.metadata.table_uuid)
    if id_now != table_id:
        raise TableReadError(
            f"{place.url} was dropped and recreated: it is table {id_now}, and this read began "
            f"with {table_id}. Begin again, with a new checkpoint or cursor"
        )
    _tables[place.url] = table
    return table


def _existing(table: Table | None, place: Place) -> Table:
    if table is None:
        raise TableReadError(f"{place.url} does not exist")
    return table


def _schema_of(table: Table, snapshot: Snapshot) -> Schema:
    """The columns that the table had when a snapshot was made."""
    if snapshot.schema_id is None:
        return table.schema()
    return table.schemas()[snapshot.schema_id]


def text_of(table: Table, task: FileScanTask) -> str:
    """What finds a file again, and the files of deletes of its rows."""
    from pyiceberg.conversions import to_bytes

    kinds = _partition_types(table, task.file.spec_id)
    values = [task.file.partition[number] for number in range(len(kinds))]
    partition = [
        None if kind is None or value is None else to_bytes(kind, value).hex()
        for kind, value in zip(kinds, values, strict=True)
    ]
    deletes = sorted((x.file_path, x.file_format.value) for x in task.delete_files)
    return json.dumps(
        {
            "path": task.file.file_path,
            "format": task.file.file_format.value,
            "spec": task.file.spec_id,
            "partition": partition,
            "deletes": deletes,
        }
    )


def task_in(table: Table, text: str) -> FileScanTask:
    """The file that `text_of` described."""
    from pyiceberg.conversions import from_bytes
    from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
    from pyiceberg.table import FileScanTask
    from pyiceberg.typedef import Record

    document = json.loads(text)
    kinds = _partition_types(table, document["spec"])
    values = (
        None if kind is None or value is None else from_bytes(kind, bytes.fromhex(value))
        for kind, value in zip(kinds, document["partition"], strict=True)
    )
    file = DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=document["path"],
        file_format=FileFormat(document["format"]),
        partition=Record(*values),
    )
    file.spec_id = document["spec"]
    deletes = {
        DataFile.from_args(
            content=DataFileContent.POSITION_DELETES,
            file_path=path,
            file_format=FileFormat(file_format),
        )
        for path, file_format in document["deletes"]
    }
    return FileScanTask(file, deletes)


def _partition_types(table: Table, spec_id: int) -> list[PrimitiveType | None]:
    """The types of the values of a partition that a file may lack as columns, else None."""
    from pyiceberg.transforms import IdentityTransform

    columns = {field.field_id: field.field_type for field in table.schema().fields}
    return [
        columns.get(x.source_id) if isinstance(x.transform, IdentityTransform) else None
        for x in table.specs()[spec_id].fields
    ]


def rows_of(
    table: Table, task: FileScanTask, schema: Schema, columns: Sequence[str] | None = None
) -> Iterator[pa.RecordBatch]:
    """Read the rows of one file that are not deleted.

    pyiceberg reads a file into memory, and several at once if it may.

    Args:
        table: the table.
        task: the file, and the deletes of its rows.
        schema: a schema of the table.
        columns: these columns of the schema; None for all.
    """
    from pyiceberg.expressions import AlwaysTrue
    from pyiceberg.io.pyarrow import ArrowScan

    projected = schema if columns is None else schema.select(*columns)
    yield from ArrowScan(table.metadata, table.io, projected, AlwaysTrue()).to_record_batches(
        [task]
    )
