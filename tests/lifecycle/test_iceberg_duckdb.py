"""DuckDB reads the Iceberg tables that compaction writes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.lifecycle.iceberg_table import IcebergLake, compact, configure
from tests.lifecycle.lakes import value

pytestmark = [pytest.mark.process, pytest.mark.slow]
# Newer versions of DuckDB have no extension on PyPI.
VERSION = "1.5.5"
EXTENSIONS = ["avro", "iceberg"]
NAMES = ["duckdb", *(f"duckdb-extension-{name}" for name in EXTENSIONS)]
READ = """
import json, sys
import duckdb
metadata, *extensions = sys.argv[1:]
db = duckdb.connect()
for file in extensions:
    db.load_extension(file)
print(json.dumps(db.execute("SELECT id, v FROM iceberg_scan(?)", [metadata]).fetchall()))
"""


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """DuckDB of its own version, with its extensions, apart from the environment's."""
    folder = tmp_path_factory.mktemp("duckdb")
    names = [f"{name}=={VERSION}" for name in NAMES]
    pip = [sys.executable, "-m", "pip", "install", "-q", "--target", str(folder), *names]
    done = subprocess.run(pip, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"DuckDB {VERSION} cannot be installed: {done.stderr[-200:]}")
    return folder


@pytest.fixture
def lake(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> IcebergLake:
    return IcebergLake(tmp_path, table=configure(monkeypatch, tmp_path))


@pytest.mark.parametrize(
    ("target", "ids"),
    [
        ({}, [1, 2, 2, 3]),
        ({"partition_by": ["v"]}, [1, 2, 2, 3]),
        ({"keys": ["id"]}, [1, 2, 3]),
        ({"keys": ["id"], "delete_when": "v = 'x'"}, [1, 3]),
    ],
    ids=["append", "partitions", "keys", "deletes"],
)
def test_duckdb_reads_the_rows_of_a_table(
    packages: Path, lake: IcebergLake, target: dict[str, Any], ids: list[int]
) -> None:
    for rows in ([value(1), value(2)], [value(3)], [{"id": 2, "v": "x"}]):
        lake.append(rows)
        compact(lake, **target)
    metadata = lake.iceberg().metadata_location.removeprefix("file://")
    files = [
        str(file) for name in EXTENSIONS for file in packages.rglob(f"{name}.duckdb_extension")
    ]
    done = subprocess.run(
        [sys.executable, "-P", "-c", READ, metadata, *files],
        env={**os.environ, "PYTHONPATH": str(packages)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    found = sorted(map(tuple, json.loads(done.stdout)))
    assert found == sorted((row["id"], row["v"]) for row in lake.found())
    assert [row[0] for row in found] == ids
