"""A fork whose driver is killed writes exactly the source after its place."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from signal import SIGKILL

import pytest
from pyspark.sql import SparkSession

import sparkwal
from tests.spark.queries import append
from tests.spark.test_checkpoints import add, read_files, stored

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(1500)]

DRIVER = Path(__file__).with_name("forked_query.py")
FILES, AT = 40, 20


def test_a_fork_under_three_kills(spark: SparkSession, tmp_path: Path) -> None:
    log, new, source = (tmp_path / name for name in ("log", "new", "in"))
    add(source, range(FILES))
    place = sparkwal.checkpoint(str(log), "orders", folder=tmp_path / "checkpoint")
    append(read_files(spark, source), log, Path(place))
    arguments = [sys.executable, str(DRIVER), str(new), str(log), str(AT), str(source)]
    for more in (0, 2, 5, None):
        driver = subprocess.Popen(arguments, start_new_session=True)
        if more is not None:
            begin = _records(new)
            while driver.poll() is None and _records(new) <= begin + more:
                time.sleep(0.02)
            os.killpg(driver.pid, SIGKILL)
        driver.wait()
    assert driver.returncode == 0
    # Files of the same time have any order.
    assert stored(new) == stored(log, startingPosition=AT + 1)
    assert len(stored(new)) == 10 * (FILES - AT)
    assert stored(log) == [*range(10 * FILES)]
    assert sparkwal.verify(str(new)).ok
    leaders = [record.kind for record in sparkwal.Log(str(new)).records()].count("leader")
    assert leaders >= 2


def _records(log: Path) -> int:
    """The objects of the log so far."""
    folder = log / "batches"
    return len([*folder.iterdir()]) if folder.is_dir() else 0
