"""Reads an Iceberg table without Spark: sparkwal its history, and pyiceberg its rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from sparkwal.errors import OptionError, TableReadError
from sparkwal.format.lifecycle_record import Target
from sparkwal.lifecycle.iceberg.catalog import Place
from sparkwal.lifecycle.iceberg.fitting import spark_schema
from sparkwal.lifecycle.iceberg.history import History
from sparkwal.lifecycle.table import ReadRows, TableFile, TableState, VersionFiles

if TYPE_CHECKING:
    from pyiceberg.table import DataScan, FileScanTask, Table


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
        if self._table is None:
            raise TableReadError(f"{self._place.url} does not exist")
        return self._table

    def as_stored(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Convert rows of the log. See `ReadTable.as_stored`. The table keeps each value."""
        return batch

    def rows_at(self, version: int) -> ReadRows:
        """Open a version. See `ReadTable.rows_at`."""
        table = self._read
        snapshot = History(table.metadata).snapshot_at(version)
        if snapshot is None:
            raise TableReadError(
                f"version {version} of {self._place.url} does not exist, or its snapshot expired: "
                "read the current state again"
            )

        def read(columns: Sequence[str] | None) -> Iterator[pa.RecordBatch]:
            with self._place.errors():
                # With the columns of the newest schema, which the plan of the read has.
                scan = table.scan(snapshot_id=snapshot.snapshot_id)
                for task in scan.plan_files():
                    yield from rows_of(table, scan, task, columns)

        return read

    def files_at(self, version: int) -> VersionFiles:
        """Refuse to list files. See `ReadTable.files_at`.

        Raises:
            OptionError: always.
        """
        raise OptionError(
            f"{self._place.url} is an Iceberg table, whose files are not read one by one: read "
            "table and log with Log.current, or begin with startingPosition=earliest"
        )

    def rows_of(
        self, head: str, file: TableFile, columns: Sequence[str]
    ) -> Iterator[pa.RecordBatch]:
        """Refuse to read one file, as `files_at`."""
        self.files_at(0)
        return iter(())


def rows_of(
    table: Table, scan: DataScan, task: FileScanTask, columns: Sequence[str] | None
) -> Iterator[pa.RecordBatch]:
    """Read the rows of one file of a scan that are not deleted, with the table's present columns.

    pyiceberg reads a file into memory, and several at once if it may.
    """
    from pyiceberg.expressions import AlwaysTrue
    from pyiceberg.io.pyarrow import ArrowScan

    schema = table.schema()
    projected = schema if columns is None else schema.select(*columns)
    read = ArrowScan(table.metadata, scan.io, projected, AlwaysTrue())
    yield from read.to_record_batches([task])
