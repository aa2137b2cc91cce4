"""Other programs open the objects of a log, as the documentation claims."""

from __future__ import annotations

from pathlib import Path

import duckdb
import polars
import pyarrow as pa
import pytest
from pyarrow import ipc

from sparkwal import Appender, Log, verify
from sparkwal.store.local import LocalStore
from tests.protocol.query import Query, hints_in

SCHEMA = pa.schema([("id", pa.int64()), ("body", pa.string())])
ROWS = [{"id": n, "body": f"row {n}"} for n in range(3)]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A log of three commits, one row in each."""
    with Appender(str(tmp_path), SCHEMA, producer_id="p") as wal:
        for row in ROWS:
            wal.append([row]).result()
    return tmp_path


def commits(log: Path) -> list[Path]:
    """The commit records in the log's order; the leader record comes before them."""
    return sorted((log / "batches").iterdir(), reverse=True)[1:]


def test_pyarrow_and_polars_open_an_object(log: Path) -> None:
    for file, row in zip(commits(log), ROWS, strict=True):
        assert ipc.open_file(file).read_all().to_pylist() == [row]
        assert polars.read_ipc(file).to_dicts() == [row]
        assert polars.scan_ipc(file).collect().to_dicts() == [row]


def test_duckdb_needs_a_pyarrow_reader(log: Path) -> None:
    with pytest.raises(duckdb.Error):
        duckdb.sql(f"SELECT * FROM '{commits(log)[0]}'")
    rows = duckdb.from_arrow(Log(str(log)).scan())
    assert rows.aggregate("count(*), max(id)").fetchall() == [(3, 2)]


def test_a_folder_of_objects_holds_rows_that_the_log_leaves_out(tmp_path: Path) -> None:
    query = Query(LocalStore(tmp_path), hints_in(tmp_path), prefix="")
    query.task(query.plan(), 0, 0, 1, 2)
    # The driver died before its commit; the restarted query writes the rows again.
    query.restarted().microbatch(0, (1, 2))
    assert Log(str(tmp_path)).to_pandas()["v"].tolist() == [1, 2]
    opened = polars.scan_ipc(tmp_path / "batches" / "*").collect()
    assert sorted(opened["v"]) == [1, 1, 2, 2]
    assert len(verify(str(tmp_path)).orphans) == 1
