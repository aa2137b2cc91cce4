"""The ranges of a log are read from a table's history; some tables are refused."""

from __future__ import annotations

import os
import shutil
import threading
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from sparkwal import events
from sparkwal.errors import CompactionError, ConfirmError, PlanError
from sparkwal.format.lifecycle_record import DONE, INTENT, MERGE, Target
from sparkwal.lifecycle.table import TableConflict, check_history
from sparkwal.spark.delta import SparkDeltaTable
from sparkwal.spark.delta_files import delta_log, spark_path, table_lock
from sparkwal.spark.delta_writing import delta_tables
from sparkwal.store.base import LogStore
from sparkwal.testing.memory import MemoryStore
from tests.lifecycle.lakes import Lake, as_set

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.string())])
ONE = [{"id": 1, "v": "x"}]
TWO = [{"id": 2, "v": "y"}]

UNDOING = {
    "truncate": "TRUNCATE TABLE {t}",
    "restore": "RESTORE TABLE {t} TO VERSION AS OF 0",
    "overwrite": "INSERT OVERWRITE {t} VALUES (9, 'z')",
    "replace": "",
}
HARMLESS = (
    "OPTIMIZE {t}",
    "VACUUM {t}",
    "DELETE FROM {t} WHERE id = 7",
    "UPDATE {t} SET v = 'w' WHERE id = 7",
    "ALTER TABLE {t} ADD COLUMNS (more INT)",
    "ALTER TABLE {t} SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')",
    "INSERT INTO {t} (id, v) VALUES (8, 'user')",
)


@pytest.fixture(scope="module")
def begun(delta: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Lake:
    """A log whose first range is in the table."""
    found = Lake(tmp_path_factory.mktemp("begun"), spark=delta)
    found.append(ONE)
    found.carry()
    found.append(TWO)
    return found


@pytest.fixture
def log(begun: Lake, tmp_path: Path) -> Lake:
    """A copy of it. The records of its chain name the table at the new place."""
    shutil.copytree(Path(begun.path).parent, tmp_path, dirs_exist_ok=True)
    found = Lake(tmp_path, spark=begun.spark)
    shutil.rmtree(Path(found.path, "lifecycle"))
    before = begun.head()
    table = {"target": found.target, "table_id": before.table_id, "table_version": 0}
    found.put(INTENT, k=1, to=before.cut, **table)
    found.put(DONE, cut=before.cut, table_version=1)
    # A cycle looks at the table before it writes.
    found.table.snapshot(before.log_id, None)
    return found


# tests/lifecycle/test_delta_log.py has all of them, as Delta names them.
@pytest.mark.proves("history-undoes-nothing")
@pytest.mark.parametrize(
    "operations",
    [["restore", "overwrite"], pytest.param([*UNDOING], marks=pytest.mark.slow)],
    ids=["some", "all"],
)
def test_operations_that_remove_rows_of_others_are_detected(
    log: Lake, operations: list[str]
) -> None:
    state = log.intent()
    for what in operations:
        statement = UNDOING[what]
        if what == "replace":
            # By its path SQL does not find a table to replace.
            again = delta_tables(log.spark).replace(log.spark._jsparkSession)
            again = again.location(log.target.table)
            again.addColumn("id", "BIGINT").addColumn("v", "STRING").execute()
        else:
            log.sql(statement)
        found = log.table.snapshot(state.table.app_id, state.table.table_version)
        assert found is not None and found.version > state.table.table_version
        with pytest.raises(ConfirmError):
            check_history(state, found)
        # Somebody accepts it, and does the next.
        state = replace(
            state,
            table=replace(state.table, table_id=found.table_id, table_version=found.version),
        )
        check_history(state, log.table.snapshot(state.table.app_id, state.table.table_version))


def test_operations_that_keep_all_rows_are_accepted(log: Lake) -> None:
    state = log.intent()
    for statement in HARMLESS:
        log.sql(statement)
    log.table.write(state)
    log.sql("OPTIMIZE {t}")
    found = log.table.snapshot(state.table.app_id, state.table.table_version)
    check_history(state, found)
    assert found is not None and found.k == 2
    assert {row["id"] for row in log.rows()} == {1, 2, 8}


@pytest.mark.slow
def test_a_recreated_table_is_another_table(log: Lake) -> None:
    state = log.intent()
    shutil.rmtree(log.target.table)
    assert log.table.snapshot(state.table.app_id, state.table.table_version) is None
    Path(log.target.table).mkdir()
    assert log.table.snapshot(state.table.app_id, state.table.table_version) is None
    log.prepare()
    found = log.table.snapshot(state.table.app_id, -1)
    assert found is not None and (found.version, found.k) == (0, 0)
    with pytest.raises(ConfirmError, match="recreated"):
        check_history(state, found)


@pytest.mark.slow
def test_a_history_that_was_cleaned_proves_no_range(log: Lake) -> None:
    log.sql("ALTER TABLE {t} SET TBLPROPERTIES ('delta.checkpointInterval' = '1')")
    log.sql("DELETE FROM {t} WHERE id = 7")
    log.sql("INSERT INTO {t} VALUES (8, 'user')")
    (Path(log.target.table) / "_delta_log" / f"{1:020d}.json").unlink()
    found = log.table.snapshot(log.head().log_id, 0)
    assert found is not None and found.k == 1 and not found.complete
    assert [each.version for each in found.changes] == [*range(2, found.version + 1)]
    found = log.table.snapshot(log.head().log_id, 1)
    assert found is not None and found.complete


@pytest.mark.slow
def test_another_writer_leaves_the_checksum_of_the_note_before(log: Lake) -> None:
    # Spark notes its checkpoint with a checksum beside; delta-rs rewrites the note alone.
    log.sql("ALTER TABLE {t} SET TBLPROPERTIES ('delta.checkpointInterval' = '1')")
    log.sql("INSERT INTO {t} (id, v) VALUES (8, 'user')")
    note = Path(log.target.table) / "_delta_log" / "_last_checkpoint"
    assert (note.parent / "._last_checkpoint.crc").exists()
    note.write_text(note.read_text().replace("}", ',"size":1}', 1))
    assert delta_log(log.spark, log.target.table).update()


@pytest.mark.slow
def test_a_recreated_table_with_equal_versions_and_times_is_another_table(
    log: Lake, tmp_path: Path
) -> None:
    state = log.intent()
    place, other = Path(log.target.table), tmp_path / "other"
    for value in range(2):
        log.spark.range(value, value + 1).write.format("delta").mode("append").save(str(other))
    for version in range(2):
        name = Path("_delta_log", f"{version:020d}.json")
        moment = (place / name).stat().st_mtime_ns
        os.utime(other / name, ns=(moment, moment))
    shutil.rmtree(place)
    other.rename(place)
    found = log.table.snapshot(state.table.app_id, state.table.table_version)
    assert found is not None and found.table_id != state.table.table_id
    assert (found.version, found.k) == (1, 0)


@pytest.mark.proves("range-is-fixed", "table-knows-k")
def test_two_writers_of_one_range_write_it_once(log: Lake) -> None:
    state = log.intent()
    reported: list[BaseException] = []

    def write() -> None:
        try:
            log.table.write(state)
        except CompactionError as error:
            reported.append(error)
        except TableConflict:
            pass

    threads = [threading.Thread(target=write) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert reported == []
    assert log.ranges() == [1, 2]
    assert as_set(log.rows()) == as_set(ONE + TWO)


def test_a_wait_for_the_table_emits_an_event(log: Lake) -> None:
    """On a local disk one writes at a time."""
    path = spark_path(log.target.table)
    waits, done = threading.Event(), threading.Event()
    seen: list[events.Event] = []

    def see(event: events.Event) -> None:
        if isinstance(event, events.CompactionWaits):
            seen.append(event)
            waits.set()

    def write() -> None:
        with table_lock(path):
            done.set()

    stop = events.subscribe(see)
    try:
        with table_lock(path):
            second = threading.Thread(target=write)
            second.start()
            assert waits.wait(60) and not done.is_set()
        second.join()
    finally:
        stop()
    assert done.is_set()
    [said] = seen
    assert isinstance(said, events.CompactionWaits) and (said.table, said.seconds) == (path, 0)


def prepare(delta: SparkSession, target: Target) -> None:
    spark_schema = (
        '{"type":"struct","fields":['
        '{"name":"id","type":"long","nullable":false,"metadata":{}},'
        '{"name":"day","type":"date","nullable":true,"metadata":{}}]}'
    )
    table = SparkDeltaTable(delta, target, {"path": "unused"})
    table.prepare(LogStore(MemoryStore(), "unused"), spark_schema)


def test_a_table_that_forgets_transactions_is_refused(delta: SparkSession, tmp_path: Path) -> None:
    forgets = "delta.setTransactionRetentionDuration"
    place = str(tmp_path / "table")
    with pytest.raises(PlanError, match=forgets):
        prepare(delta, Target(place, properties=((forgets, "interval 1 day"),)))
    prepare(delta, Target(place))
    delta.sql(f"ALTER TABLE delta.`{place}` SET TBLPROPERTIES ('{forgets}' = 'interval 1 day')")
    with pytest.raises(PlanError, match=f"{forgets}.*UNSET"):
        prepare(delta, Target(place))


@pytest.mark.slow
def test_a_table_that_is_laid_out_otherwise_is_refused(delta: SparkSession, tmp_path: Path) -> None:
    place = str(tmp_path / "table")
    prepare(delta, Target(place, partition_by=("day",)))
    prepare(delta, Target(place, partition_by=("day",)))
    with pytest.raises(PlanError, match="partitioned by day, and not by id"):
        prepare(delta, Target(place, partition_by=("id",)))
    with pytest.raises(PlanError, match="clustered by nothing"):
        prepare(delta, Target(place, cluster_by=("id",)))
    clustered = str(tmp_path / "clustered")
    prepare(delta, Target(clustered, cluster_by=("day", "id")))
    prepare(delta, Target(clustered, cluster_by=("day", "id")))
    with pytest.raises(PlanError, match="clustered by day, id, and not by id"):
        prepare(delta, Target(clustered, cluster_by=("id",)))
    with pytest.raises(PlanError, match="partitioned by nothing"):
        prepare(delta, Target(clustered, partition_by=("day",)))
    plain = tmp_path / "plain"
    delta.range(1).write.parquet(str(plain))
    with pytest.raises(PlanError, match="is unusable") as caught:
        prepare(delta, Target(str(plain)))
    assert "\n" not in str(caught.value)


def test_a_target_that_makes_no_sense_is_refused(delta: SparkSession, tmp_path: Path) -> None:
    place = str(tmp_path / "table")
    for target, words in (
        (Target(place, mode=MERGE, keys=("nothing",)), "no column 'nothing'"),
        (Target(place, mode=MERGE, keys=("id",), delete_when="op = 'd'"), "delete_when"),
    ):
        with pytest.raises(PlanError, match=words):
            prepare(delta, target)
    assert not (tmp_path / "table").exists()
