"""Rows that an Iceberg table refuses step aside, each into one of the two tables, with crashes."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.exceptions import CommitStateUnknownException
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import BooleanType, LongType, NestedField, StringType

import sparkwal
from sparkwal.errors import PlanError, WriteError
from sparkwal.format.lifecycle_record import NO_TABLE_VERSION, Promise
from sparkwal.lifecycle.cycle import Run
from sparkwal.lifecycle.iceberg.table import IcebergTable
from tests.lifecycle.iceberg_table import (
    NAME,
    Died,
    IcebergLake,
    configure,
    failing,
    ids,
    made_before,
)

COLUMNS = pa.schema([("id", pa.int64()), ("v", pa.string()), ("gone", pa.bool_())])
REFUSED = f"{NAME}_refused"
# A partition of this value has a folder whose name is too long for a disk.
LONG = "x" * 300


@pytest.fixture
def url(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    return configure(monkeypatch, tmp_path)


@pytest.fixture
def lake(url: str, tmp_path: Path) -> IcebergLake:
    """A log, and a table that requires `id` and is partitioned by `v`."""
    found = IcebergLake(tmp_path, table=url, schema=COLUMNS)
    text, gone = NestedField(2, "v", StringType()), NestedField(3, "gone", BooleanType())
    made_before(
        found,
        NestedField(1, "id", LongType(), required=True),
        *(field.model_copy(update={"required": False}) for field in (text, gone)),
        spec=PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "v")),
    )
    return found


def row(id_: int | None, v: str | None = "a", *, gone: bool = False) -> dict[str, Any]:
    return {"id": id_, "v": v, "gone": gone}


def compact(lake: IcebergLake, **target: Any) -> Run:
    life = sparkwal.Lifecycle(lake.path, table=lake.target.table, refusedRows="aside", **target)
    return life.run_once(whole=True)


def aside(lake: IcebergLake) -> list[dict[str, Any]]:
    if not lake.catalog.table_exists(REFUSED):
        return []
    rows: list[dict[str, Any]] = lake.catalog.load_table(REFUSED).scan().to_arrow().to_pylist()
    return sorted(rows, key=lambda each: (each["position"], each["row"]))


def test_a_row_that_the_table_refuses_steps_aside(lake: IcebergLake) -> None:
    lake.append([row(1), row(None, "b")], [row(2), row(3, LONG), row(4, "c")])
    run = compact(lake)
    assert run.compacted is not None and run.compacted.k == 2
    assert ids(lake) == [1, 2, 4]
    found = aside(lake)
    assert [(each["position"], each["row"], each["range"]) for each in found] == [
        (1, 1, 2),
        (2, 1, 2),
    ]
    assert json.loads(found[0]["values"]) == row(None, "b")
    assert json.loads(found[1]["values"]) == row(3, LONG)
    assert found[0]["reason"] == "id is null, and required" and "too long" in found[1]["reason"]
    data = [*Path(lake.path).parent.rglob("*.parquet")]
    scans = [lake.iceberg().scan(), lake.catalog.load_table(REFUSED).scan()]
    used = {task.file.file_path.rpartition("/")[2] for x in scans for task in x.plan_files()}
    assert {file.name for file in data} == used, "no file of a try is left"
    assert sorted(lake.reader().current().to_arrow()["id"].to_pylist()) == [1, 2, 4]


def test_the_other_rows_of_a_refused_rows_key_are_merged_without_it(lake: IcebergLake) -> None:
    lake.append([row(1, "a"), row(2, "a"), row(None, LONG, gone=True)])
    lake.append([row(1, LONG), row(3, LONG), row(2, LONG, gone=True)])
    compact(lake, keys=["id"], delete_when="gone")
    assert [(each["id"], each["v"]) for each in lake.found()] == [(1, "a")]
    assert [json.loads(each["values"])["id"] for each in aside(lake)] == [1, 3]


def test_rows_step_aside_from_a_range_that_deletes_keys(lake: IcebergLake) -> None:
    target: dict[str, Any] = {"keys": ["id"], "sequence_by": "v", "delete_when": "gone"}
    lake.append([row(1, "a"), row(2, "a")])
    compact(lake, **target)
    lake.append([row(1, "c", gone=True), row(None, "d"), row(2, LONG, gone=True)])
    compact(lake, **target)
    assert ids(lake) == [] and [each["sequence"] for each in aside(lake)] == ["d"]
    lake.append([row(1, "b"), row(2, "y")])
    compact(lake, **target)
    assert ids(lake) == [2]


def test_nothing_steps_aside_while_the_store_refuses_all(
    lake: IcebergLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    def new_output(files: Any, location: str) -> Any:
        raise PermissionError("access denied")

    lake.append([row(1), row(None)])
    with monkeypatch.context() as patch:
        patch.setattr(PyArrowFileIO, "new_output", new_output)
        with pytest.raises((WriteError, PlanError), match="access denied"):
            compact(lake)
    lake.append([row(2)])
    compact(lake)
    assert ids(lake) == [1, 2] and len(aside(lake)) == 1


def test_a_range_of_refused_rows_alone_waits_if_no_rule_names_them(lake: IcebergLake) -> None:
    lake.append([row(1, LONG)])
    with pytest.raises(WriteError, match="refuses each row of the range"):
        compact(lake)
    assert aside(lake) == []
    lake.append([row(2)])
    compact(lake)
    assert ids(lake) == [2] and len(aside(lake)) == 1


@pytest.mark.long
@pytest.mark.parametrize(
    ("error", "after"),
    [(Died, False), (Died, True), (lambda: CommitStateUnknownException("no answer"), True)],
)
def test_each_row_is_in_one_of_the_two_whichever_call_of_the_catalog_fails(
    lake: IcebergLake, error: Callable[[], BaseException], after: bool
) -> None:
    for nth in range(60):
        lake.append([row(2 * nth), row(None, str(nth)), row(2 * nth + 1)])
        with failing(nth, error, after=after) as calls, suppress(Died, sparkwal.SparkWalError):
            compact(lake)
        compact(lake)
        assert ids(lake) == [*range(2 * nth + 2)], f"after call {nth}: {calls}"
        texts = [json.loads(each["values"])["v"] for each in aside(lake)]
        assert texts == [*map(str, range(nth + 1))], f"after call {nth}: {calls}"
        if len(calls) <= nth:
            break
    assert nth > 12
    log = lake.head().promise.logs["default"]
    assert log.rows_aside == nth + 1


def test_what_stepped_aside_from_a_range_that_was_given_up_is_removed(lake: IcebergLake) -> None:
    lake.append([row(1), row(None)])
    compact(lake)
    lake.append([row(2), row(None)])
    real = IcebergTable.write

    def write(table: IcebergTable, promise: Promise, version: int) -> None:
        if promise.is_aside:
            raise Died
        real(table, promise, version)

    with pytest.MonkeyPatch.context() as patch:
        # The rows are aside, and the process dies before the table has the others.
        patch.setattr(IcebergTable, "write", lambda x, p, v=NO_TABLE_VERSION: write(x, p, v))
        with pytest.raises(Died):
            compact(lake)
    assert [each["range"] for each in aside(lake)] == [2, 4]
    sparkwal.Lifecycle(lake.path, table=lake.target.table).give_up_range()
    with lake.iceberg().update_schema() as change:
        change.make_column_optional("id")
    compact(lake)
    assert [each["range"] for each in aside(lake)] == [2]
    assert sorted(map(repr, (each["id"] for each in lake.found()))) == ["1", "2", "None"]
