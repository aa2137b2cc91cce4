"""Writes snapshots of an Iceberg table, each for the range of a log, without Spark."""

from __future__ import annotations

import itertools
import json
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from sparkwal.errors import PlanError, ReadError, TableReadError, WriteError
from sparkwal.format import schema
from sparkwal.format.lifecycle_record import MERGE, Promise, Target
from sparkwal.lifecycle.iceberg.catalog import OutcomeUnknown, Place, commit
from sparkwal.lifecycle.iceberg.fitting import as_rows, needs_evolution, problems, stored
from sparkwal.lifecycle.iceberg.history import RANGE, History
from sparkwal.lifecycle.range_rows import refused
from sparkwal.lifecycle.table import Held, TableConflict, TableState, check_owner, named_range
from sparkwal.store.base import LogStore
from sparkwal.store.path import overlap

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table, Transaction
    from pyiceberg.table.snapshots import Snapshot
    from pyiceberg.table.update.snapshot import UpdateSnapshot

# The most Arrow bytes that are gathered for files. A file is smaller on the store.
FILE_BYTES = 128 * 2**20
_FORMAT = 2
# Attempts of a first run while others change the table.
_ATTEMPTS = 4
# One manifest for each range would make each plan of a reader slower.
_MERGES_MANIFESTS = {"commit.manifest-merge.enabled": "true"}


class WrittenIceberg:
    """An Iceberg table that takes ranges, as `sparkwal.lifecycle.table.WrittenTable`.

    Args:
        target: the table.
        log: any log of the path.
    """

    def __init__(self, target: Target, log: LogStore) -> None:
        self.target = target
        self._log = log
        self._place = Place(target.table)
        # The state that the last look showed, until a commit.
        self._looked: Table | None = None

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

    def looked_at(self) -> Table:
        """The table as the last look showed it.

        Raises:
            ValueError: it does not exist.
        """
        table = self._looked or self._place.load()
        if table is None:
            raise ValueError("the table does not exist any more")
        return table

    def _at(self, promise: Promise, *, is_repeated: bool = False) -> Table | None:
        """The table as the last look showed it, or None if it took the range.

        Args:
            promise: the open range.
            is_repeated: it gets the range again.
        """
        table, self._looked = self.looked_at(), None
        last = History(table.metadata).last_range(promise.table.app_id)
        # §10: the table takes each number once
        return None if last.k >= promise.table.k and not is_repeated else table

    def _make_ready(
        self, spark_schema: str, properties: Mapping[str, str], check: Callable[[Table], None]
    ) -> None:
        """Create the table if there is none, check it, and give it the columns that it lacks.

        Args:
            spark_schema: the columns that it must have.
            properties: those of a new table.
            check: raises the PlanError of a table that does not fit.

        Raises:
            PlanError: it does not fit.
        """
        url = self.target.table
        try:
            with self._place.errors():
                for _ in range(_ATTEMPTS):
                    table = self._place.load() or self._create(spark_schema, properties)
                    self._check_location(table)
                    if reason := _unwritable(table, self.target.mode):
                        raise PlanError(f"{url} {reason}")
                    for problem in problems(spark_schema, table.schema(), self.target):
                        raise PlanError(problem)
                    check(table)
                    if self._is_ready(table, spark_schema):
                        self._looked = table
                        return
        except TableReadError as error:
            raise PlanError(f"{url} is unusable: {error}") from error
        raise PlanError(
            f"{url} was changed by others {_ATTEMPTS} times while it was prepared; run it again"
        )

    def _create(self, spark_schema: str, properties: Mapping[str, str]) -> Table:
        """Create the table, unless another process creates it at the same time."""
        from pyiceberg.exceptions import CommitFailedException, TableAlreadyExistsError

        catalog, identifier = self._place.catalog, self._place.identifier
        namespace = identifier.rpartition(".")[0]
        # Who may create a table may not always create a namespace.
        if not catalog.namespace_exists(namespace):
            catalog.create_namespace_if_not_exists(namespace)
        properties = {**_MERGES_MANIFESTS, **properties}
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

    def _check_location(self, table: Table) -> None:
        url, location = self.target.table, table.location()
        # §10: neither of a log and its table is inside the other
        if overlap(self._log.root.url, location):
            raise PlanError(
                f"of the log {self._log.root.url} and the location of {url}, {location}, one is "
                "inside the other: name another table"
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

    def _files(
        self, table: Table, batches: Iterable[pa.RecordBatch], io: Any = None
    ) -> Iterator[DataFile]:
        """Write rows into files that no snapshot has yet.

        Their names are new in each attempt. No file of a former one is replaced or deleted: a
        commit whose answer was lost may name it.

        Args:
            table: the table.
            batches: the rows.
            io: opens the files, instead of the table's own.
        """
        from pyiceberg.io.pyarrow import _dataframe_to_data_files

        attempt, numbers = uuid.uuid4(), itertools.count()
        whole = (as_rows(batch, table.schema()) for batch in batches)
        for part in schema.gathered(whole, FILE_BYTES):
            if part.num_rows:
                yield from _dataframe_to_data_files(
                    table.metadata, part, io or table.io, write_uuid=attempt, counter=numbers
                )

    def _commit(
        self,
        table: Table,
        promise: Promise,
        after: int,
        added: Sequence[DataFile],
        removed: Sequence[DataFile] = (),
        **named: Any,
    ) -> None:
        """Commit the transaction of a range: its snapshot, and the property that outlives it.

        Args:
            table: the table as it was looked at.
            promise: the range.
            after: the table's version in the chain.
            added: files with new rows.
            removed: files of the table that go.
            named: what a `Change` tells of the range besides its positions.

        Raises:
            TableConflict: another writer committed first.
            WriteError: it was not committed.
        """
        named = named_range(promise) | named
        change = table.transaction()
        update = change.update_snapshot(snapshot_properties={RANGE: json.dumps(named)})
        _stage(update, added, removed)
        snapshot = _staged(change)
        log_id, k = promise.range_id
        # The number of a range whose keys are written again may be lower.
        if k >= History(table.metadata).last_range(log_id).k:
            place = {"snapshot_id": snapshot.snapshot_id, "version": snapshot.timestamp_ms}
            texts = {name: text for name, text in named.items() if name != "log_id"}
            last = json.dumps(texts | place | {"after": after})
            # SAFETY(range-outlives-snapshot) §10: the last range is also in a property, which
            # outlives a rollback and the expiry of its snapshot
            change.set_properties({f"{RANGE}.{log_id}": last})
        try:
            commit(self._place, table, change)
        except OutcomeUnknown as unknown:
            now = self._place.load()
            if now is not None and now.snapshot_by_id(snapshot.snapshot_id) is not None:
                return
            if now is not None and now.metadata_location != table.metadata_location:
                raise TableConflict(f"{self.target.table}: {unknown}") from None
            raise refused(self.target.table, promise, str(unknown)) from None

    def _tidy(
        self,
        table: Table,
        promise: Promise,
        added: Sequence[DataFile],
        removed: Sequence[DataFile],
    ) -> None:
        """Commit files without rows that count no more. It is no range.

        Args:
            table: the table as it was looked at.
            promise: that of the newest record of the chain.
            added: files with the other rows.
            removed: files of the table that go.

        Raises:
            TableConflict: another writer committed first.
            OutcomeUnknown: it may be committed.
        """
        self._looked = None
        change = table.transaction()
        # A snapshot that names its log, as here, takes no row away that counts.
        named = json.dumps({"log_id": promise.table.app_id, "k": 0})
        _stage(change.update_snapshot(snapshot_properties={RANGE: named}), added, removed)
        commit(self._place, table, change)

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


def _unwritable(table: Table, mode: str) -> str:
    """The reason why pyiceberg does not write a table in this mode, or "" if it does."""
    version = table.metadata.format_version
    if version > _FORMAT:
        return (
            f"has version {version} of Iceberg's format, and pyiceberg writes none above "
            f"{_FORMAT}: name another table"
        )
    # SAFETY(late-by-a-rollback) §10: the sequence numbers of version 2 keep a commit out that is
    # late by a rollback to the snapshot before it
    if version < _FORMAT:
        return (
            f"has version {version} of Iceberg's format, in which a late commit of a range could "
            f"come after a rollback: set its property format-version={_FORMAT}"
        )
    snapshot = table.current_snapshot()
    summary = snapshot.summary if snapshot is not None else None
    deletes = summary.additional_properties.get("total-equality-deletes") if summary else None
    if mode == MERGE and deletes not in (None, "0"):
        return (
            f"has {deletes} deletes by equality, which pyiceberg does not read, so no row can be "
            "replaced: rewrite its data files without them"
        )
    return ""


def _stage(update: UpdateSnapshot, added: Sequence[DataFile], removed: Sequence[DataFile]) -> None:
    """Make one snapshot of files."""
    producer = update.overwrite() if removed else update.merge_append()
    for file in added:
        producer.append_data_file(file)
    for file in removed:
        producer.delete_data_file(file)
    producer.commit()


def _staged(change: Transaction) -> Snapshot:
    """The snapshot that was staged."""
    from pyiceberg.table.update import AddSnapshotUpdate

    (snapshot,) = (x.snapshot for x in change._updates if isinstance(x, AddSnapshotUpdate))
    return snapshot


def check_beside(table: Table, url: str, keeps: str, owner: str, table_id: str) -> None:
    """Check that a table beside a table belongs to it.

    Args:
        table: the table beside it.
        url: its URL.
        keeps: what it keeps, for people.
        owner: the property that names the id of its table.
        table_id: that id.

    Raises:
        PlanError: it does not.
    """
    way_out = "drop that table if it is left from an earlier one"
    check_owner(table.properties.get(owner), table_id, url, keeps, way_out)
