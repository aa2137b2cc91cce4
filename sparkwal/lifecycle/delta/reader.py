"""Reads a Delta table without Spark: sparkwal its history, and delta-rs its rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from sparkwal.errors import install_extra, require_library
from sparkwal.format import schema
from sparkwal.format.lifecycle_record import Target
from sparkwal.lifecycle.delta.data_files import files_of, has_widening, rows_of
from sparkwal.lifecycle.delta.files import storage_options, table_errors, table_files, url_of
from sparkwal.lifecycle.delta.fitting import NULL_PARTITIONS, filled_by_delta, log_schema
from sparkwal.lifecycle.delta.transaction_log import DeltaLog
from sparkwal.lifecycle.table import ReadRows, TableFile, TableState, VersionFiles
from sparkwal.options.store import StoreOptions
from sparkwal.store.path import kind_of_store


class LoggedTable:
    """What the transaction log of a Delta table shows to a reader, with or without Spark.

    Args:
        log: the transaction log.
    """

    def __init__(self, log: DeltaLog) -> None:
        self._log = log

    def snapshot(self, log_id: str, since: int | None, k: int | None = None) -> TableState | None:
        """Read the newest version. See `Snapshots.snapshot`."""
        self._log.update()
        return self._log.snapshot(log_id, since, k)

    @property
    def spark_schema(self) -> str:
        """The columns. See `ReadTable.spark_schema`."""
        return log_schema(self._log.spark_schema)

    @property
    def computed(self) -> Sequence[str]:
        """The columns that only a write by Delta computes. See `ReadTable.computed`."""
        return filled_by_delta(self._log.spark_schema)


class DeltaReader(LoggedTable):
    """A Delta table, as `sparkwal.lifecycle.table.ReadTable`.

    Args:
        target: the table.
        options: the options of the log. They are used for a table on a disk or on S3.
        storage: delta-rs' storage options, instead of these.
    """

    def __init__(
        self, target: Target, options: StoreOptions, storage: Mapping[str, str] | None
    ) -> None:
        self._files = table_files(target.table, options, storage)
        super().__init__(DeltaLog(self._files, target.table))
        self._table = target.table
        self._storage = storage_options(options.s3, storage)
        is_cloud = kind_of_store(target.table) in ("azure", "google")
        self._is_in_own_cloud = is_cloud and storage is None and options.reaches(target.table)

    def as_stored(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Convert rows of the log. See `ReadTable.as_stored`.

        In a column that partitions the table, texts that Delta Lake stores as null become null.
        """
        partition_columns = {name.lower() for name in self._log.partitioned}
        for number, field in enumerate(batch.schema):
            is_text = pa.types.is_string(field.type) or pa.types.is_binary(field.type)
            if is_text and field.name.lower() in partition_columns:
                column = batch.column(number)
                stored_as_null = pc.is_in(
                    column, value_set=pa.array(NULL_PARTITIONS).cast(field.type)
                )
                column = pc.if_else(stored_as_null, pa.scalar(None, field.type), column)
                batch = batch.set_column(number, field, column)
        return batch

    def rows_at(self, version: int) -> ReadRows:
        """Open a version. See `ReadTable.rows_at`."""
        # There only the log's own client has the credentials.
        if self._is_in_own_cloud:
            return self._rows_by_files(version)
        require_library("deltalake", install_extra("lake"))
        from deltalake import DeltaTable

        with table_errors(self._table, self._storage):
            table = DeltaTable(url_of(self._table), version, self._storage)
            widens = has_widening(table.protocol().reader_features or ())
        if widens:
            return self._rows_by_files(version)

        def read(columns: Sequence[str] | None) -> Iterator[pa.RecordBatch]:
            with table_errors(self._table, self._storage):
                names = None if columns is None else [*columns]
                yield from pa.RecordBatchReader.from_stream(table.scan(columns=names))

        return read

    def _rows_by_files(self, version: int) -> ReadRows:
        listed = self.files_at(version)
        names = [*schema.columns(listed.spark_schema)]

        def read(columns: Sequence[str] | None) -> Iterator[pa.RecordBatch]:
            for file in listed.files:
                yield from self.rows_of(listed.head, file, names if columns is None else columns)

        return read

    def files_at(self, version: int) -> VersionFiles:
        """List the data files of a version. See `ReadTable.files_at`."""
        return files_of(self._files, self._table, version)

    def rows_of(
        self, head: str, file: TableFile, columns: Sequence[str]
    ) -> Iterator[pa.RecordBatch]:
        """Read the rows of one data file. See `ReadTable.rows_of`."""
        return rows_of(self._files, self._table, head, file, columns)
