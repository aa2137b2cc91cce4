"""Compactors as processes, killed and put to sleep where it matters most."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import sparkwal
from faults.processes import Application
from sparkwal.spark.delta_files import delta_log, spark_path
from tests.lifecycle.lakes import SCHEMA, value
from tests.spark.tables.gate import Gate
from tests.spark.tables.session import s3a

pytestmark = pytest.mark.slow
Start = Callable[..., Application]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start compactors of the log at tmp_path / "log"; each ends with the test."""
    started: list[Application] = []
    script = Path(__file__).with_name("compactor.py")

    def run(
        table: str, place: str, how: dict[str, str] | None = None, **settings: str
    ) -> Application:
        arguments = [str(tmp_path / "log"), table, str(tmp_path / "gate"), place]
        arguments += [json.dumps(settings), json.dumps(how or {})]
        command = [sys.executable, str(script), *arguments]
        started.append(Application("compactor", tmp_path, command, tmp_path / "tmp"))
        return started[-1]

    yield run
    for each in started:
        each.end()


class Log:
    """A log, and its lifecycle in this process."""

    def __init__(self, spark: SparkSession, folder: Path, table: str, **how: str) -> None:
        self.spark = spark
        self.path = str(folder / "log")
        self.table = table
        self.life = sparkwal.Lifecycle(
            self.path, spark=spark, table=table, keys=["id"], lateArriveWindowSeconds=0, **how
        )
        self.values: dict[int, str] = {}

    def append(self, *ids: int) -> None:
        for number in ids:
            text = f"{number} of {len(self.values)}"
            self.put(number, text)
            self.values[number] = text

    def put(self, number: int, text: str) -> None:
        with sparkwal.Appender(self.path, SCHEMA, producer_id="p") as wal:
            wal.append([{**value(number), "v": text}]).result()

    def check(self, ranges: int) -> None:
        """The table is a model's, and each range one version of it."""
        path = spark_path(self.table)
        found = self.spark.read.format("delta").load(path).collect()
        assert sorted(found) == sorted(self.values.items())
        head = sparkwal.Log(self.path).head()
        assert head is not None
        log = delta_log(self.spark, self.table)
        assert log.update()
        table = log.snapshot(head.log_id, 0)
        assert table is not None
        assert [each.k for each in table.changes if each.k] == [*range(1, ranges + 1)]
        state = self.life.recover()
        assert (state.found, state.cut) == ("at rest", head.position + 1)


@pytest.mark.parametrize("place", ["in_the_write", "before_done"])
def test_the_next_compactor_finishes_the_range_of_a_killed_one(
    delta: SparkSession, tmp_path: Path, start: Start, place: str
) -> None:
    log = Log(delta, tmp_path, str(tmp_path / "table"))
    log.append(1, 2)
    killed = start(log.table, place)
    killed.wait_for(Gate(tmp_path / "gate").reached, place)
    killed.kill()
    log.append(2, 3)
    found = log.life.recover()
    assert found.found == "an open range"
    assert found.finished is not None and found.finished.k == 1
    log.life.run_once()
    log.check(ranges=2)


def test_a_deleted_key_stays_deleted_if_a_compactor_is_killed_between_its_two_writes(
    delta: SparkSession, tmp_path: Path, start: Start
) -> None:
    how = {"sequence_by": "v", "delete_when": "v LIKE '%gone'"}
    log = Log(delta, tmp_path, str(tmp_path / "table"), **how)
    log.put(1, "1")
    log.append(2)
    log.life.run_once()
    log.put(1, "8 gone")
    killed = start(log.table, "between_the_writes", how)
    killed.wait_for(Gate(tmp_path / "gate").reached, "between the writes")
    killed.kill()
    log.put(1, "5")
    assert log.life.recover().found == "an open range"
    log.life.run_once()
    log.check(ranges=3)


def test_a_compactor_that_slept_in_its_write_is_too_late(
    delta: SparkSession, tmp_path: Path, start: Start, bucket: str, ministack_url: str
) -> None:
    """On S3: on a local disk a lock keeps other compactors of this library out."""
    log = Log(delta, tmp_path, f"s3a://{bucket}/table")
    log.append(1, 2)
    settings = {f"spark.hadoop.{name}": each for name, each in s3a(ministack_url).items()}
    sleeper = start(log.table, "in_the_write", **settings)
    gate = Gate(tmp_path / "gate")
    sleeper.wait_for(gate.reached, "in the write")
    sleeper.signal(signal.SIGSTOP)
    for ids in ((), (2, 3)):
        log.append(*ids)
        log.life.run_once()
    log.check(ranges=2)
    gate.open()
    sleeper.signal(signal.SIGCONT)
    sleeper.wait_line("ran")
    assert "retried" in sleeper.lines()
    log.check(ranges=2)
