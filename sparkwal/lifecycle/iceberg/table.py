"""Writes ranges of a log into an Iceberg table without Spark, each range as one snapshot."""

from __future__ import annotations

import itertools
import json
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pyarrow as pa

from sparkwal.errors import OptionError, PlanError, ReadError, TableReadError, WriteError
from sparkwal.format import schema
from sparkwal.format.lifecycle_record import APPEND, NO_TABLE_VERSION, Promise, Target
from sparkwal.lifecycle.iceberg.catalog import OutcomeUnknown, Place, commit
from sparkwal.lifecycle.iceberg.fitting import (
    as_rows,
    log_problems,
    needs_evolution,
    problems,
    stored,
)
from sparkwal.lifecycle.iceberg.history import RANGE, History
from sparkwal.lifecycle.iceberg.replacing import Replacing, check_keys
from sparkwal.lifecycle.range_rows import RangeRows, range_rows, refused
from sparkwal.lifecycle.table import Held, TableConflict, TableState, named_range
from sparkwal.store.base import LogStore
from sparkwal.store.path import overlap

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table, Transaction
    from pyiceberg.table.update.snapshot import UpdateSnapshot

# The most Arrow bytes that are gathered for files. A file is smaller on the store.
_FILE_BYTES = 128 * 2**20
# Attempts of a first run while others change the table.
_ATTEMPTS = 4
# One manifest for each range would make each plan of a reader slower.
_MERGES_MANIFESTS = {"commit.manifest-merge.enabled": "true"}


class IcebergTable:
    """An Iceberg table, as `sparkwal.lifecycle.table.Table`.

    Args:
        target: the table.
        log: any log of the path.
    """

    # A target that needs them is refused.
    tombstones = None
    refused = None

    def __init__(self, target: Target, log: LogStore) -> None:
        self.target = target
        self._log = log
        self._place = Place(target.table)
        # The state that the last look showed, until a commit.
        self._looked: Table | None = None
        # The files of the last range that was appended, if a conflict kept it out of the table.
        self._written: tuple[Promise, tuple[int, int], list[DataFile]] | None = None

    def snapshot(self, log_id: str, since: int | None, k: int | None = None) -> TableState | None:
        """Read the newest snapshot. See `Snapshots.snapshot`.

        Raises:
            WriteError: the catalog or the metadata is unreadable.
        """
        table = self._look()
        return History(table.metadata).state(log_id, since) if table else None

    def held(self, log_id: str, since: int, k: int | None = None) -> Held | None:
        """Find the ranges that the newest snapshot holds. See `WrittenTable.held`.

        Raises:
            WriteError: the catalog or the metadata is unreadable.
        """
        table = self._look()
        return History(table.metadata).held(log_id, since, k) if table else None

    def _look(self) -> Table | None:
        try:
            self._looked = self._place.load()
        except TableReadError as error:
            raise WriteError(str(error)) from error
        return self._looked

    def prepare(self, log: LogStore, spark_schema: str, *, first: bool = False) -> None:
        """Check or create the table, as `Table.prepare`."""
        self._check_target(spark_schema)
        try:
            with self._place.errors():
                for _ in range(_ATTEMPTS):
                    table = self._place.load() or self._create(spark_schema)
                    self._check_table(table, log, spark_schema)
                    if self._is_ready(table, spark_schema):
                        return
        except TableReadError as error:
            raise PlanError(f"{self.target.table} is unusable: {error}") from error
        raise PlanError(
            f"{self.target.table} was changed by others {_ATTEMPTS} times while it was prepared; "
            "run it again"
        )

    def _check_target(self, spark_schema: str) -> None:
        target = self.target
        if target.keeps_tombstones:
            raise PlanError(
                f"{target.table} is an Iceberg table, and the deleted keys that sequence_by with "
                "delete_when needs are not kept for these yet: set tombstoneHorizon=0, if no row "
                "comes later than the delete of its key, or compact into a Delta table"
            )
        if target.cluster_by:
            raise PlanError(f"{target.table} is an Iceberg table, which has no clustering columns")
        if reasons := [*log_problems(spark_schema)]:
            raise PlanError(f"{target.table} does not take the log: {'; '.join(reasons)}")
        try:
            check_keys(target, spark_schema)
        except OptionError as error:
            raise PlanError(f"{target.table} is written without Spark: {error}") from error

    def _create(self, spark_schema: str) -> Table:
        """Create the table, unless another process creates it at the same time."""
        from pyiceberg.exceptions import CommitFailedException, TableAlreadyExistsError

        catalog, identifier = self._place.catalog, self._place.identifier
        namespace = identifier.rpartition(".")[0]
        # Who may create a table may not always create a namespace.
        if not catalog.namespace_exists(namespace):
            catalog.create_namespace_if_not_exists(namespace)
        properties = {**_MERGES_MANIFESTS, **dict(self.target.properties)}
        columns = schema.to_arrow(stored(spark_schema))
        try:
            creation = catalog.create_table_transaction(identifier, columns, properties=properties)
            if self.target.partition_by:
                names = {name.lower(): name for name in columns.names}
                with creation.update_spec() as spec:
                    for name in self.target.partition_by:
                        spec.add_identity(names.get(name.lower(), name))
            creation.commit_transaction()
        except (CommitFailedException, TableAlreadyExistsError):
            pass
        return catalog.load_table(identifier)

    def _check_table(self, table: Table, log: LogStore, spark_schema: str) -> None:
        url = self.target.table
        location = table.location()
        # §10: neither of a log and its table is inside the other
        if overlap(log.root.url, location):
            raise PlanError(
                f"of the log {log.root.url} and the location of {url}, {location}, one is inside "
                "the other: name another table"
            )
        for problem in problems(spark_schema, table.schema(), self.target):
            raise PlanError(problem)
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

    def _is_ready(self, table: Table, spark_schema: str) -> bool:
        """Whether the table has all columns of the log, and a snapshot.

        If not, this commits one change of the table. A table begins with an empty snapshot, so each
        range has a parent, to which a rollback can go.
        """
        if not needs_evolution(spark_schema, table.schema()) and table.current_snapshot():
            return True
        try:
            if needs_evolution(spark_schema, table.schema()):
                self._evolve(table, spark_schema)
            else:
                change = table.transaction()
                change.update_snapshot().fast_append().commit()
                commit(self._place, table, change)
        except TableConflict:
            pass
        except OutcomeUnknown as error:
            raise PlanError(f"{self.target.table} was not changed: {error}") from error
        return False

    def _evolve(self, table: Table, spark_schema: str) -> None:
        """Add the columns of the log that the table lacks, and widen those that are narrower.

        Raises:
            TableConflict, OutcomeUnknown: as `commit`.
        """
        required = {field.name for field in table.schema().fields if field.required}
        columns = schema.to_arrow(stored(spark_schema, table.schema()))
        # A union would make a required column optional.
        wanted = [field.with_nullable(field.name not in required) for field in columns]
        change = table.transaction()
        with change.update_schema() as update:
            update.union_by_name(pa.schema(wanted))
        commit(self._place, table, change)

    def burn(self, promise: Promise) -> None:
        """Commit an empty snapshot with the transaction of an intent, as `Table.burn`."""
        with self._explained(promise):
            table = self._at(promise)
            if table is not None:
                self._commit(table, promise, [], [], is_burned=True)

    def write(self, promise: Promise, tombstones_version: int = NO_TABLE_VERSION) -> None:
        """Write the range of an intent as one snapshot of the table, as `Table.write`."""
        with self._explained(promise):
            table = self._at(promise)
            if table is None:
                return
            rows = range_rows(self._log.root, promise)
            table = self._with_columns_of(table, rows)
            if self.target.mode == APPEND:
                self._commit(table, promise, self._appended(table, promise, rows), [])
                return
            replacing = Replacing(table, self.target, rows)
            added = [*self._files(table, replacing.rows())]
            self._commit(table, promise, added, replacing.files)

    def _at(self, promise: Promise) -> Table | None:
        """The table as the last look showed it, or None if it took the range."""
        table, self._looked = self._looked, None
        table = table or self._place.load()
        if table is None:
            raise ValueError("the table does not exist any more")
        return None if _has(table, promise) else table

    def _with_columns_of(self, table: Table, rows: RangeRows) -> Table:
        """The table with the columns of a range. Somebody may have dropped one since the intent."""
        if not rows.spark_schema or not needs_evolution(rows.spark_schema, table.schema()):
            return table
        for problem in problems(rows.spark_schema, table.schema(), self.target):
            raise ValueError(problem)
        self._evolve(table, rows.spark_schema)
        now = self._place.load()
        if now is None or now.metadata.current_snapshot_id != table.metadata.current_snapshot_id:
            raise TableConflict(f"{self.target.table} was changed while it got its columns")
        return now

    def _appended(self, table: Table, promise: Promise, rows: RangeRows) -> list[DataFile]:
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

    def _files(self, table: Table, batches: Iterable[pa.RecordBatch]) -> Iterator[DataFile]:
        """Write rows into files that no snapshot has yet.

        Their names are new in each attempt. No file of a former one is replaced or deleted: a
        commit whose answer was lost may name it.
        """
        from pyiceberg.io.pyarrow import _dataframe_to_data_files

        attempt, numbers = uuid.uuid4(), itertools.count()
        whole = (as_rows(batch, table.schema()) for batch in batches)
        for part in schema.gathered(whole, _FILE_BYTES):
            if part.num_rows:
                yield from _dataframe_to_data_files(
                    table.metadata, part, table.io, write_uuid=attempt, counter=numbers
                )

    def _commit(
        self,
        table: Table,
        promise: Promise,
        added: list[DataFile],
        removed: list[DataFile],
        *,
        is_burned: bool = False,
    ) -> None:
        """Commit the transaction of a range: its snapshot, and the property that outlives it.

        Raises:
            TableConflict: another writer committed first.
            WriteError: it was not committed.
        """
        named = named_range(promise) | ({"is_burned": True} if is_burned else {})
        change = table.transaction()
        update = change.update_snapshot(snapshot_properties={RANGE: json.dumps(named)})
        _stage(update, added, removed)
        change.set_properties(
            {f"{RANGE}.{promise.table.app_id}": _property(change, promise, named)}
        )
        try:
            commit(self._place, table, change)
        except OutcomeUnknown as unknown:
            now = self._place.load()
            if now is not None and _has(now, promise):
                return
            if now is not None and now.metadata_location != table.metadata_location:
                raise TableConflict(f"{self.target.table}: {unknown}") from None
            raise refused(self.target.table, promise, str(unknown)) from None
        self._written = None

    @contextmanager
    def _explained(self, promise: Promise) -> Iterator[None]:
        """Turn errors of pyiceberg into those of a range.

        Raises:
            TableConflict: another writer committed first.
            ReadError: the log could not be read.
            WriteError: the table did not take the range.
        """
        try:
            yield
        except (TableConflict, ReadError, WriteError):
            raise
        except Exception as error:  # each catalog and store has its own classes of errors
            raise refused(self.target.table, promise, self._place.text_of(error)) from None


def _has(table: Table, promise: Promise) -> bool:
    """Whether the table took the number of the open range, which it takes once."""
    return History(table.metadata).last_range(promise.table.app_id).k >= promise.table.k


def _stage(update: UpdateSnapshot, added: list[DataFile], removed: list[DataFile]) -> None:
    """Make one snapshot of files."""
    producer = update.overwrite() if removed else update.merge_append()
    for file in added:
        producer.append_data_file(file)
    for file in removed:
        producer.delete_data_file(file)
    producer.commit()


def _property(change: Transaction, promise: Promise, named: dict[str, object]) -> str:
    """The property of the table for the range whose snapshot was staged."""
    from pyiceberg.table.update import AddSnapshotUpdate

    (snapshot,) = (x.snapshot for x in change._updates if isinstance(x, AddSnapshotUpdate))
    place = {"snapshot_id": snapshot.snapshot_id, "version": snapshot.timestamp_ms}
    place["after"] = promise.table.table_version
    return json.dumps({name: value for name, value in named.items() if name != "log_id"} | place)
