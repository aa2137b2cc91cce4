"""Iceberg tables in a catalog in a file, and what others do to them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.io.pyarrow import _dataframe_to_data_files
from pyiceberg.manifest import ManifestEntryStatus
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import NestedField
from pyiceberg.utils.config import Config

import sparkwal
from sparkwal.lifecycle.cycle import Run
from sparkwal.lifecycle.iceberg.history import History
from sparkwal.lifecycle.iceberg.table import IcebergTable
from tests.lifecycle.lakes import Lake, value

NAME = "db.orders"


def configure(
    monkeypatch: pytest.MonkeyPatch, folder: Path, name: str = "lake", **settings: str
) -> str:
    """Configure a catalog by the environment, as users do, and name a table in it.

    Args:
        folder: that of a catalog in a file and of its warehouse.
        settings: more of pyiceberg's settings, or others.
    """
    chosen = {
        "type": "sql",
        "uri": f"sqlite:///{folder}/catalog.db",
        "warehouse": f"file://{folder}/warehouse",
        **settings,
    }
    for key, text in chosen.items():
        monkeypatch.setenv(f"PYICEBERG_CATALOG__{name.upper()}__{key.upper()}", text)
    # pyiceberg reads the environment when it is imported.
    monkeypatch.setattr("pyiceberg.catalog._ENV_CONFIG", Config())
    return f"iceberg://{name}/{NAME}"


def insert_overwrite(table: Table, rows: pa.Table) -> None:
    """Replace all files in one snapshot, as Spark's INSERT OVERWRITE does.

    pyiceberg's own `overwrite` makes one that deletes and one that appends.
    """
    with table.transaction() as change, change.update_snapshot().overwrite() as update:
        for task in table.scan().plan_files():
            update.delete_data_file(task.file)
        for file in _dataframe_to_data_files(table.metadata, rows, table.io):
            update.append_data_file(file)


def cherry_pick(table: Table, snapshot_id: int) -> None:
    """Add the files of a snapshot to main in a new one, as Spark's cherrypick_snapshot does."""
    snapshot = table.snapshot_by_id(snapshot_id)
    assert snapshot is not None
    added = [
        entry.data_file
        for manifest in snapshot.manifests(table.io)
        for entry in manifest.fetch_manifest_entry(table.io)
        if entry.status is ManifestEntryStatus.ADDED and entry.snapshot_id == snapshot_id
    ]
    named = {"source-snapshot-id": str(snapshot_id)}
    with table.transaction() as change, change.update_snapshot(named).fast_append() as update:
        for file in added:
            update.append_data_file(file)


class IcebergLake(Lake):
    """A log with an Iceberg table."""

    def _table(self, spark: Any) -> Any:
        return IcebergTable(self.target, self.log)

    @property
    def catalog(self) -> Catalog:
        """Another process's catalog."""
        return load_catalog(self.target.table.split("/")[2])

    def iceberg(self) -> Table:
        """The table, as pyiceberg opens it."""
        return self.catalog.load_table(NAME)

    def found(self) -> list[dict[str, Any]]:
        """The rows of the newest snapshot, by pyiceberg's own scan."""
        rows: list[dict[str, Any]] = self.iceberg().scan().to_arrow().to_pylist()
        return rows

    def kept(self) -> Table:
        """The table with the tombstones, as pyiceberg opens it."""
        return self.catalog.load_table(f"{NAME}_tombstones")

    def restore_tombstones(self) -> None:
        table = self.kept()
        table.manage_snapshots().set_current_snapshot(table.history()[0].snapshot_id).commit()

    def lose_tombstones(self) -> None:
        self.catalog.drop_table(f"{NAME}_tombstones")


def compact(lake: IcebergLake, **target: Any) -> Run:
    return sparkwal.Lifecycle(lake.path, table=lake.target.table, **target).run_once(whole=True)


def ids(lake: IcebergLake) -> list[int]:
    """The ids in the table."""
    return sorted(row["id"] for row in lake.found())


def survives_each_fault(
    lake: IcebergLake, fails_at: Callable[[int], tuple[bool, object]], least: int, **target: Any
) -> None:
    """Check that each row is in the table once after a run that failed at its nth request.

    Args:
        lake: a log with the rows 1, 2 and 3.
        fails_at: makes a run whose nth request fails; whether one did, and the requests.
        least: more requests than these fail.
        target: as for `compact`.
    """
    expected = [1, 2, 3]
    for nth in range(40):
        has_failed, requests = fails_at(nth)
        compact(lake, **target)
        assert ids(lake) == expected, f"after request {nth}: {requests}"
        if not has_failed:
            break
        number = len(expected) + 1
        lake.append([value(number)])
        expected.append(number)
    assert nth > least
    assert lake.ranges() == [*range(1, len(lake.ranges()) + 1)]


class Died(BaseException):
    """The process was killed."""


def survives_each_call(
    lake: IcebergLake, error: Callable[[], BaseException], *, after: bool, **target: Any
) -> None:
    """As `survives_each_fault`: the nth call of the catalog fails.

    Args:
        error: makes the error of the call.
        after: it comes after the call.
    """

    def fails_at(nth: int) -> tuple[bool, object]:
        kind = type(lake.catalog)
        with (
            failing(nth, error, after=after, kind=kind) as calls,
            suppress(Died, sparkwal.SparkWalError),
        ):
            compact(lake, **target)
        return len(calls) > nth, calls

    survives_each_fault(lake, fails_at, 4, **target)


@contextmanager
def failing(
    nth: int,
    error: Callable[[], BaseException],
    *,
    after: bool,
    only: str = "",
    kind: type[Catalog] = SqlCatalog,
) -> Iterator[list[str]]:
    """The nth call of a catalog of a kind fails, before or after it takes effect.

    Yields:
        The names of the calls.
    """
    calls: list[str] = []
    names = ("load_table", "commit_table", "create_namespace")
    real = {name: getattr(kind, name) for name in names}

    def failing_call(name: str) -> Callable[..., Any]:
        def call(catalog: Any, *args: Any, **kwargs: Any) -> Any:
            if only not in ("", name):
                return real[name](catalog, *args, **kwargs)
            calls.append(name)
            fails = len(calls) == nth + 1
            if fails and not after:
                raise error()
            result = real[name](catalog, *args, **kwargs)
            if fails:
                raise error()
            return result

        return call

    with pytest.MonkeyPatch.context() as patch:
        for name in names:
            patch.setattr(kind, name, failing_call(name))
        yield calls


@contextmanager
def meanwhile(work: Callable[[], object], kind: type[Catalog] = SqlCatalog) -> Iterator[None]:
    """Another process works just before the first commit of this one to a catalog of a kind."""
    real, left = kind.commit_table, [work]

    def commit_table(catalog: Any, *args: Any, **kwargs: Any) -> Any:
        if left:
            left.pop()()
        return real(catalog, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kind, "commit_table", commit_table)
        yield


def expire(lake: IcebergLake) -> None:
    lake.iceberg().maintenance.expire_snapshots().older_than(datetime.now(UTC)).commit()


def made_before(lake: IcebergLake, *fields: NestedField, spec: PartitionSpec | None = None) -> None:
    """The table of a user."""
    lake.catalog.create_namespace_if_not_exists("db")
    lake.catalog.create_table(NAME, Schema(*fields), partition_spec=spec or PartitionSpec())


def lake_of(
    table_format: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Lake]:
    """What makes a log with a table of a format in a folder, by the other arguments of a `Lake`."""
    if table_format == "delta-rs":
        return partial(Lake, folder)
    return partial(IcebergLake, folder, table=configure(monkeypatch, folder))


class Iceberg:
    """An Iceberg table. pyiceberg does what others do to it."""

    def __init__(self, lake: IcebergLake) -> None:
        self.lake: Any = lake

    def ids(self) -> list[int]:
        return sorted(row["id"] for row in self.lake.found())

    def touch(self) -> None:
        table = self.lake.iceberg()
        table.append(table.schema().as_arrow().empty_table())

    def restore(self, version: int) -> None:
        table = self.lake.iceberg()
        snapshot = History(table.metadata).snapshot_at(version)
        assert snapshot is not None
        table.manage_snapshots().set_current_snapshot(snapshot.snapshot_id).commit()

    def overwrite(self, *ids: int) -> None:
        rows = [{"id": number, "n": 0, "gone": False} for number in ids]
        insert_overwrite(self.lake.iceberg(), pa.Table.from_pylist(rows, self.lake.schema))

    def make_again(self) -> None:
        self.lake.catalog.drop_table(NAME)
        self.lake.prepare()

    def forget_history(self) -> None:
        self.touch()
        self.lake.iceberg().maintenance.expire_snapshots().older_than(datetime.now(UTC)).commit()
