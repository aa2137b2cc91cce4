"""Writes ranges of a log into an Iceberg table without Spark, each range as one snapshot."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from sparkwal.errors import OptionError, PlanError
from sparkwal.format import schema
from sparkwal.format.lifecycle_record import APPEND, MERGE, NO_TABLE_VERSION, Promise, Target
from sparkwal.lifecycle.iceberg.fitting import (
    log_problems,
    needs_evolution,
    problems,
    spark_schema,
    stored,
)
from sparkwal.lifecycle.iceberg.refused import IcebergRefused
from sparkwal.lifecycle.iceberg.refusing import Tries, refused_rows
from sparkwal.lifecycle.iceberg.replacing import (
    RangeByKeys,
    Replacing,
    check_keys,
    range_by_keys,
)
from sparkwal.lifecycle.iceberg.tombstones import IcebergTombstones
from sparkwal.lifecycle.iceberg.waiting import WaitingRows, waiting_rows
from sparkwal.lifecycle.iceberg.writing import FILE_BYTES, WrittenIceberg
from sparkwal.lifecycle.merging.keyed import holds
from sparkwal.lifecycle.merging.merged_rows import partial_columns
from sparkwal.lifecycle.range_rows import PLACED, REASON, RangeRows, RowsNotFound, range_rows
from sparkwal.lifecycle.table import TableConflict
from sparkwal.store.base import LogStore

if TYPE_CHECKING:
    from pyiceberg.io import FileIO, OutputFile
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table


class _Outputs:
    """Writes the files of a try, which no commit names, and removes them.

    Args:
        io: writes them.
    """

    def __init__(self, io: FileIO) -> None:
        self._io = io
        self._locations: list[str] = []

    def new_output(self, location: str) -> OutputFile:
        self._locations.append(location)
        return self._io.new_output(location)

    def remove(self) -> None:
        for location in self._locations:
            with suppress(Exception):
                self._io.delete(location)


class IcebergTable(WrittenIceberg):
    """An Iceberg table, as `sparkwal.lifecycle.table.Table`.

    Args:
        target: the table.
        log: any log of the path.
    """

    def __init__(self, target: Target, log: LogStore) -> None:
        super().__init__(target, log)
        self.tombstones: IcebergTombstones | None = None
        if target.keeps_tombstones:
            self.tombstones = IcebergTombstones(target, log, self.looked_at, self._winners)
        self.refused = IcebergRefused(target, log, self.looked_at, self._refused_rows)
        # The files of the last range that was appended, if a conflict kept it out of the table.
        self._written: tuple[Promise, tuple[int, int], list[DataFile]] | None = None
        # The range that was read last, and with keys its rows for the table's columns of this id.
        self._rows: RangeRows | WaitingRows | None = None
        self._by_keys: tuple[RangeRows | WaitingRows, int, RangeByKeys] | None = None

    def prepare(self, log: LogStore, spark_schema: str, *, first: bool = False) -> None:
        """Check or create the table, as `Table.prepare`."""
        self._check_target(spark_schema)
        self._make_ready(spark_schema, dict(self.target.properties), self._check_partitions)
        if self.tombstones is not None:
            self.tombstones.prepare()

    def _check_target(self, spark_schema: str) -> None:
        target = self.target
        if target.cluster_by:
            raise PlanError(f"{target.table} is an Iceberg table, which has no clustering columns")
        if reasons := [*log_problems(spark_schema)]:
            raise PlanError(f"{target.table} does not take the log: {'; '.join(reasons)}")
        try:
            check_keys(target, spark_schema)
        except OptionError as error:
            raise PlanError(f"{target.table} is written without Spark: {error}") from error

    def _check_partitions(self, table: Table) -> None:
        url = self.target.table
        for field in table.spec().fields:
            source = table.schema().find_field(field.source_id)
            try:
                field.transform.pyarrow_transform(source.field_type)
            except Exception as error:  # what pyiceberg lacks for it
                raise PlanError(
                    f"{url} is partitioned by {field.transform} of {source.name!r}, which "
                    f"pyiceberg does not write: {self._place.text_of(error)}"
                ) from error
        if self.target.partition_by:
            fields = table.spec().fields
            actual = [f"{x.name}:{x.transform}" for x in fields]
            names = {field.field_id: field.name.lower() for field in table.schema().fields}
            identity = [names.get(x.source_id) for x in fields if str(x.transform) == "identity"]
            if len(identity) != len(fields) or identity != [
                name.lower() for name in self.target.partition_by
            ]:
                raise PlanError(
                    f"{url} is partitioned by {', '.join(actual) or 'nothing'}, and not by "
                    f"{', '.join(self.target.partition_by)}: name the same columns, or leave "
                    "partition_by out, or name another table"
                )

    def burn(self, promise: Promise) -> None:
        """Commit an empty snapshot with the transaction of an intent, as `Table.burn`."""
        with self._explained(promise):
            table = self._at(promise)
            if table is not None:
                self._commit(table, promise, promise.table.table_version, [], is_burned=True)

    def write(self, promise: Promise, tombstones_version: int = NO_TABLE_VERSION) -> None:
        """Write the range of an intent as one snapshot of the table, as `Table.write`."""
        after = promise.table.table_version
        try:
            with self._explained(promise):
                table = self._at(promise)
                if table is None:
                    return
                if self.target.mode == APPEND:
                    table, rows = self._read(table, promise)
                    files = self._appended(table, promise, rows)
                    named = {"rows": rows.rows.num_rows} if isinstance(rows, WaitingRows) else {}
                    self._commit(table, promise, after, files, **named)
                    self._written = None
                    return
                table, by_keys = self._read_by_keys(table, promise)
                if self.tombstones is not None and tombstones_version != NO_TABLE_VERSION:
                    by_keys = self.tombstones.without_late(by_keys, tombstones_version)
                replacing = Replacing(table, by_keys)
                added = [*self._files(table, replacing.rows())]
                # Of a file with rows of other keys the summary counts all.
                named = {"rows": by_keys.one_of_each.num_rows} if promise.is_again else {}
                self._commit(table, promise, after, added, replacing.files, **named)
        finally:
            self._rows = self._by_keys = None

    def _read(self, table: Table, promise: Promise) -> tuple[Table, RangeRows | WaitingRows]:
        """The rows of the open range that the table gets, and the table with their columns.

        Somebody may have dropped a column since the intent.
        """
        table, rows = self._whole(table, promise)
        if isinstance(rows, WaitingRows) and rows.unread.num_rows:
            # The first write left none that cannot be converted.
            raise ValueError(rows.unread[REASON][0].as_py())
        return table, rows

    def _whole(self, table: Table, promise: Promise) -> tuple[Table, RangeRows | WaitingRows]:
        """The same, of rows that are written again with those that the table cannot take."""
        if self._rows is None or self._rows.promise != promise:
            if promise.is_again:
                columns = spark_schema(table.schema(), lenient=True)
                self._rows = waiting_rows(promise, self.refused.waiting(promise), columns)
            else:
                of_log = range_rows(self._log.root, promise)
                aside = self.refused.places(promise) if promise.is_aside else frozenset()
                self._rows = replace(of_log, aside=aside)
        rows = self._rows
        if not rows.spark_schema or not needs_evolution(rows.spark_schema, table.schema()):
            return table, rows
        for problem in problems(rows.spark_schema, table.schema(), self.target):
            raise ValueError(problem)
        self._evolve(table, rows.spark_schema)
        now = self._place.load()
        if now is None or now.metadata.current_snapshot_id != table.metadata.current_snapshot_id:
            raise TableConflict(f"{self.target.table} was changed while it got its columns")
        return now, rows

    def _read_by_keys(self, table: Table, promise: Promise) -> tuple[Table, RangeByKeys]:
        """The same for a table with keys. With tombstones two tables take the rows."""
        table, rows = self._read(table, promise)
        schema_id = table.metadata.current_schema_id
        if self._by_keys is None or self._by_keys[0] is not rows or self._by_keys[1] != schema_id:
            self._by_keys = rows, schema_id, range_by_keys(table.schema(), self.target, rows)
        return table, self._by_keys[2]

    def _winners(self, promise: Promise) -> RangeByKeys:
        """The rows of the open range, for the tombstones, which are written before the table."""
        self._looked, by_keys = self._read_by_keys(self.looked_at(), promise)
        return by_keys

    def _refused_rows(self, promise: Promise) -> pa.Table:
        """The rows of the open range that the table refuses, each by itself.

        Raises:
            WriteError: they cannot be found, or the table takes some rows only with others.
        """
        with self._explained(promise):
            self._looked, rows = self._whole(self.looked_at(), promise)
            table = self.looked_at()
            columns = schema.to_arrow(stored(rows.spark_schema, table.schema()))
            nothing = pa.schema([*columns, *PLACED, pa.field(REASON, pa.string())]).empty_table()
            if self.target.mode == MERGE:
                in_table = schema.columns(spark_schema(table.schema()))
                partial = partial_columns(self.target, rows.common, rows.spark_schema, in_table)
                if partial and isinstance(rows, WaitingRows):
                    # Whether the table takes the others, only the write shows.
                    return rows.unread
                if partial:
                    raise ValueError(f"records of it lack columns ({', '.join(sorted(partial))})")
            required = [
                x.name for x in table.schema().fields if x.required and x.name in columns.names
            ]
            failed: list[_Outputs] = []
            tries = Tries(lambda part: self._refusal(table, part.select(columns.names), failed))
            placed, are_aside = self._placed(rows, columns), promise.is_again
            try:
                parts = [*refused_rows(placed, required, tries, are_aside=are_aside)]
            except RowsNotFound as error:
                raise ValueError(f"{error}, so none of its rows steps aside") from None
            finally:
                # pyiceberg writes the files of partitions in threads. After the error of one file
                # another thread may have written one more.
                for outputs in failed:
                    outputs.remove()
            found = pa.concat_tables([nothing, *parts])
            if isinstance(rows, WaitingRows):
                unread = rows.unread
                return pa.concat_tables([found.select(unread.column_names), unread])
            return found

    def _placed(self, rows: RangeRows | WaitingRows, columns: pa.Schema) -> Iterator[pa.Table]:
        """The rows that the table gets, as it stores them, with PLACED."""
        for part in schema.gathered(rows.placed(), FILE_BYTES):
            whole = pa.schema([*columns, *PLACED])
            batches = part.rename_columns(whole.names).to_batches()
            stored_rows = pa.Table.from_batches((schema.conform(x, whole) for x in batches), whole)
            yield stored_rows.filter(pc.invert(holds(self.target.delete_when, stored_rows)))

    def _refusal(self, table: Table, rows: pa.Table, failed: list[_Outputs]) -> str:
        """Why the table does not take rows; "" if it takes them. Their files are removed again.

        Args:
            table: the table.
            rows: the rows.
            failed: gets the files of a try that failed.
        """
        outputs = _Outputs(table.io)
        try:
            [*self._files(table, rows.to_batches(), outputs)]
        except Exception as error:  # each store has its own classes of errors
            failed.append(outputs)
            return self._place.text_of(error)
        finally:
            outputs.remove()
        return ""

    def _appended(
        self, table: Table, promise: Promise, rows: RangeRows | WaitingRows
    ) -> list[DataFile]:
        """The files of a range that is appended. After a conflict they are not written again."""
        metadata = table.metadata
        layout = (metadata.current_schema_id, metadata.default_spec_id)
        if self._written is None or self._written[:2] != (promise, layout):
            columns = stored(rows.spark_schema, table.schema())
            arrow = schema.to_arrow(columns)
            batches = (
                schema.conform(batch.rename_columns(arrow.names), arrow) for batch in rows.batches()
            )
            files = [*self._files(table, batches)]
            self._written = promise, layout, files
        return self._written[2]
