"""Iceberg tables in a catalog in a file, and what others do to them."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.io.pyarrow import _dataframe_to_data_files
from pyiceberg.table import Table
from pyiceberg.utils.config import Config

from sparkwal.lifecycle.iceberg.history import History
from sparkwal.lifecycle.iceberg.table import IcebergTable
from tests.lifecycle.lakes import Lake

NAME = "db.orders"


def configure(monkeypatch: pytest.MonkeyPatch, folder: Path, name: str = "lake") -> str:
    """Configure a catalog by the environment, as users do, and name a table in it."""
    settings = {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db"}
    settings["warehouse"] = f"file://{folder}/warehouse"
    for key, value in settings.items():
        monkeypatch.setenv(f"PYICEBERG_CATALOG__{name.upper()}__{key.upper()}", value)
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
