"""A log on a local disk: the driver's disk, for every task."""

from __future__ import annotations

import fcntl
import os
import pickle
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.sql.types import LongType, StructField, StructType

from sparkwal import events
from sparkwal.errors import OptionError
from sparkwal.protocol.clock import Clock
from sparkwal.spark.datasource import WeaselWalDataSource
from sparkwal.spark.delta_files import table_lock
from sparkwal.spark.sink import BatchWriter

# The planner knows from Spark which runs have ended.
pytestmark = pytest.mark.usefixtures("spark")

SCHEMA = StructType([StructField("id", LongType())])


def planned(path: str, **options: str) -> bytes:
    """The writer as Spark sends it to the tasks, its plan made on this machine."""
    source = WeaselWalDataSource({"path": path, "txnAppId": "a", "txnVersion": "1", **options})
    return pickle.dumps(source.writer(SCHEMA, False))


def run_task(writer: BatchWriter) -> None:
    writer.write(iter([pa.record_batch({"id": [1, 2, 3]})]))


@pytest.fixture(autouse=True)
def context(monkeypatch: pytest.MonkeyPatch) -> None:
    # Its constructor differs between versions of Spark.
    task = object.__new__(TaskContext)
    task._partitionId = 0
    task._attemptNumber = 0
    task._taskAttemptId = 7
    task._localProperties = {}
    monkeypatch.setattr(TaskContext, "_taskContext", task)


@pytest.mark.parametrize("path", ["wal", "./wal", "file:wal"])
def test_a_relative_path_is_the_drivers_in_every_working_directory(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver, executor = tmp_path / "driver", tmp_path / "executor"
    driver.mkdir()
    executor.mkdir()
    monkeypatch.chdir(driver)
    sent = planned(path, inlineThreshold="0")
    monkeypatch.chdir(executor)
    run_task(pickle.loads(sent))
    assert len(list((driver / "wal" / "batches").iterdir())) == 2
    assert list(executor.iterdir()) == []


def test_a_task_that_does_not_see_the_drivers_disk_is_refused_and_writes_nothing(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "wal"
    sent = planned(str(folder), inlineThreshold="0")
    # Another machine has another disk, without the driver's files.
    folder.rename(tmp_path / "the driver's")
    with pytest.raises(OptionError, match=r"all of them see: use s3://"):
        run_task(pickle.loads(sent))
    assert not folder.exists()


def test_rows_that_travel_through_the_driver_need_no_disk_of_the_task(tmp_path: Path) -> None:
    folder = tmp_path / "wal"
    sent = planned(str(folder))
    folder.rename(tmp_path / "the driver's")
    run_task(pickle.loads(sent))
    assert not folder.exists()


def test_a_wait_for_a_table_names_the_holder_each_minute(tmp_path: Path) -> None:
    other = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(other, fcntl.LOCK_EX)

    class Quick(Clock):
        ms = 0

        def boot_ms(self) -> int:
            return self.ms

        def sleep(self, seconds: float) -> None:
            self.ms += int(seconds * 1000)
            if self.ms > 150_000:
                fcntl.flock(other, fcntl.LOCK_UN)

    seen: list[events.CompactionWaits] = []

    def see(event: events.Event) -> None:
        if isinstance(event, events.CompactionWaits):
            seen.append(event)

    forget = events.subscribe(see)
    try:
        with table_lock(f"file:{tmp_path}", Quick()):
            pass
    finally:
        forget()
        os.close(other)
    assert [round(each.seconds) for each in seen] == [0, 60, 120]
    for each in seen:
        assert each.table == f"file:{tmp_path}" and "end it" in each.advice
        assert each.holder in (f"process {os.getpid()}", "another process")
    if Path("/proc/locks").exists():
        assert seen[0].holder == f"process {os.getpid()}"
