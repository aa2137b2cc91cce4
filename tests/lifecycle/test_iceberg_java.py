"""What Iceberg's own library does beside compaction: picks, manifests, deletion vectors."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway

import sparkwal
from sparkwal.errors import ConfirmError, PlanError
from tests.jars import JAVA, JVM, SPARK_JARS
from tests.lifecycle.iceberg_rest import jars
from tests.lifecycle.iceberg_table import NAME, IcebergLake, compact, configure, ids
from tests.lifecycle.lakes import value

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def java(catalog_url: str) -> Iterator[Any]:
    """The classes of Iceberg's library, in a JVM without Spark."""
    (py4j,) = SPARK_JARS.glob("py4j-*.jar")
    port, token = launch_gateway(
        jarpath=str(py4j),
        classpath=os.pathsep.join(jars()),
        javaopts=JVM,
        java_path=JAVA,
        die_on_exit=True,
        enable_auth=True,
    )
    gateway = JavaGateway(
        gateway_parameters=GatewayParameters(port=port, auth_token=token, auto_convert=True)
    )
    yield gateway.jvm
    gateway.shutdown()


@pytest.fixture
def lake(
    catalog_url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[IcebergLake]:
    """A log with 3 rows in its table."""
    url = configure(monkeypatch, tmp_path, type="rest", uri=catalog_url)
    found = IcebergLake(tmp_path, table=url)
    found.append([value(1), value(2)], [value(3)])
    compact(found)
    yield found
    found.catalog.drop_table(NAME)


@pytest.fixture
def table(java: Any, lake: IcebergLake, catalog_url: str) -> Any:
    """The table, as Iceberg's library opens it."""
    catalog = java.org.apache.iceberg.rest.RESTCatalog()
    catalog.initialize("lake", {"uri": catalog_url})
    return catalog.loadTable(java.org.apache.iceberg.catalog.TableIdentifier.parse(NAME))


def current(lake: IcebergLake) -> list[int]:
    rows: list[int] = lake.reader().current().to_arrow()["id"].to_pylist()
    return sorted(rows)


@pytest.mark.proves("picked-has-range")
def test_a_range_that_was_picked_after_a_rollback_is_there_once(
    lake: IcebergLake, table: Any
) -> None:
    before = lake.iceberg().history()[-1].snapshot_id
    lake.iceberg().append(pa.Table.from_pylist([value(9)], lake.schema))
    lake.append([value(4)])
    lake.intent()
    lake.write()
    written = lake.iceberg().history()[-1].snapshot_id
    table.refresh()
    table.manageSnapshots().rollbackTo(before).commit()
    table.manageSnapshots().cherrypick(written).commit()
    newest = lake.iceberg().current_snapshot()
    assert newest is not None and newest.summary is not None
    assert newest.summary.additional_properties["source-snapshot-id"] == str(written)
    with pytest.raises(ConfirmError):
        compact(lake)
    sparkwal.Lifecycle(lake.path, table=lake.target.table).accept_table()
    lake.append([value(5)])
    compact(lake)
    assert ids(lake) == current(lake) == [1, 2, 3, 4, 5]


def test_rows_that_wait_for_an_audit_are_picked(lake: IcebergLake, table: Any) -> None:
    snapshot = lake.iceberg().current_snapshot()
    assert snapshot is not None
    lake.iceberg().manage_snapshots().create_branch(snapshot.snapshot_id, "audit").commit()
    lake.iceberg().append(pa.Table.from_pylist([value(9)], lake.schema), branch="audit")
    lake.append([value(4)])
    compact(lake)
    table.refresh()
    table.manageSnapshots().cherrypick(table.refs()["audit"].snapshotId()).commit()
    lake.append([value(5)])
    compact(lake)
    assert ids(lake) == current(lake) == [1, 2, 3, 4, 5, 9]


@pytest.mark.parametrize("keys", [[], ["id"]], ids=["append", "keys"])
def test_rewritten_manifests_stop_nothing(
    lake: IcebergLake, table: Any, java: Any, keys: list[str]
) -> None:
    path = Path(lake.path).parent / "other"
    other = IcebergLake(path, *keys, table=lake.target.table)
    for number in (4, 5):
        other.append([value(number)])
        compact(other, keys=keys)
    table.refresh()
    # A manifest for each file.
    table.rewriteManifests().clusterBy(java.java.util.function.Function.identity()).commit()
    newest = lake.iceberg().current_snapshot()
    assert newest is not None and newest.summary is not None
    assert newest.summary.operation.value == "replace"
    other.append([value(5), value(6)])
    compact(other, keys=keys)
    assert ids(lake) == current(other) == ([1, 2, 3, 4, 5, 6] if keys else [1, 2, 3, 4, 5, 5, 6])


def test_deletion_vectors_are_read_and_the_table_takes_no_range(
    lake: IcebergLake, table: Any, java: Any
) -> None:
    """A vector is replaced by a larger one, in a table of version 3."""
    iceberg = java.org.apache.iceberg
    table.updateProperties().set("format-version", "3").commit()
    (task,) = lake.iceberg().scan().plan_files()
    guava = java.org.apache.hadoop.thirdparty.com.google.common
    nothing = guava.base.Functions.constant(None)
    factory = (
        iceberg.io.OutputFileFactory.builderFor(table, 1, 1)
        .format(iceberg.FileFormat.PUFFIN)
        .build()
    )
    former: Any = None
    for places in ((0,), (0, 2)):
        writer = iceberg.deletes.BaseDVFileWriter(factory, nothing)
        for place in places:
            writer.delete(task.file.file_path, place, table.spec(), None)
        writer.close()
        table.refresh()
        change = table.newRowDelta().validateFromSnapshot(table.currentSnapshot().snapshotId())
        (vector,) = writer.result().deleteFiles()
        change.addDeletes(vector)
        if former is not None:
            change.removeDeletes(former)
        change.commit()
        former = vector
    assert current(lake) == ids(lake) == [2]
    replay = lake.reader().replay(start="table")
    rows = [row["id"] for each in replay for batch in each.rows for row in batch.to_pylist()]
    assert rows == [2]
    lake.append([value(4)])
    with pytest.raises(PlanError, match="version 3"):
        compact(lake)
    assert lake.head().k == 1 and current(lake) == [2, 4]
