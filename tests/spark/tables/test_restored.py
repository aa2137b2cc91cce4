"""A restored table with an unconfirmed range, and a log restored to an older state."""

from __future__ import annotations

import os
import shutil
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import sparkwal
from sparkwal.errors import ConfirmError, PlanError, ReadError
from sparkwal.format.lifecycle_record import APPEND
from tests.lifecycle.lakes import Lake, value


def lifecycle(lake: Lake) -> sparkwal.Lifecycle:
    return sparkwal.Lifecycle(
        lake.path,
        spark=lake.spark,
        table=lake.target.table,
        keys=list(lake.target.keys),
        lateArriveWindowSeconds=0,
    )


def restore(lake: Lake, to: str) -> None:
    lake.spark.sql(f"RESTORE delta.`{lake.target.table}` TO {to}").collect()


def check(lake: Lake, *ids: int) -> None:
    """The table, and table and log as one, hold these rows, each once."""
    expected = Counter((each, f"v{each}") for each in ids)
    table = lake.spark.read.format("delta").load(lake.target.table)
    current = sparkwal.Log(lake.path).current().to_arrow().to_pylist()
    assert Counter(map(tuple, table.collect())) == expected
    assert Counter(tuple(row.values()) for row in current) == expected
    assert Counter(map(tuple, lake.current().collect())) == expected


# test_a_lifecycle_continues_after_a_restore_that_a_user_accepted always runs, also on this table.
@pytest.mark.slow
@pytest.mark.proves("lost-range-new-k")
@pytest.mark.parametrize("keys", [(), ("id",)])
def test_an_open_range_that_a_restore_took_away_is_written_again(
    delta: SparkSession, tmp_path: Path, keys: tuple[str, ...]
) -> None:
    lake = Lake(tmp_path, *keys, spark=delta)
    lake.append([value(1)])
    lake.compact()
    lake.append([value(2)])
    lake.compact("written")
    before = lake.head()
    restore(lake, "VERSION AS OF 1")
    with pytest.raises(ConfirmError, match="Restore it to version 1"):
        lifecycle(lake).run_once()
    lifecycle(lake).accept_table()
    assert lake.head().k == 3
    # The first compactor wakes up, before and after the range is written again.
    lake.table.write(before.promise)
    lifecycle(lake).run_once()
    check(lake, 1, 2)
    with pytest.raises(ReadError, match="below the log's floor"):
        lake.table.write(before.promise)
    lake.append([value(3)])
    lifecycle(lake).run_once()
    check(lake, 1, 2, 3)


@pytest.mark.slow
def test_a_restore_by_its_time_is_refused_and_one_that_keeps_the_open_range_is_not(
    delta: SparkSession, tmp_path: Path
) -> None:
    lake = Lake(tmp_path, spark=delta)
    lake.append([value(1)])
    lake.compact()
    lake.append([value(2)])
    lake.compact("written")
    lake.spark.sql(f"INSERT INTO delta.`{lake.target.table}` VALUES (9, 'v9')").collect()
    log = Path(lake.target.table, "_delta_log")
    newest = int((log / f"{2:020d}.json").stat().st_mtime)
    os.utime(log / f"{0:020d}.json", (newest - 20, newest - 20))
    os.utime(log / f"{1:020d}.json", (newest - 9, newest - 9))
    os.utime(log / f"{2:020d}.json", (newest - 2, newest - 2))
    now = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(newest - 2))
    zone = delta.conf.get("spark.sql.session.timeZone")
    delta.conf.set("spark.sql.session.timeZone", "UTC")
    try:
        restore(lake, f"TIMESTAMP AS OF '{now}'")
    finally:
        delta.conf.set("spark.sql.session.timeZone", zone)
    with pytest.raises(PlanError, match="version 4 is a RESTORE that names no version"):
        lifecycle(lake).accept_table()
    restore(lake, "VERSION AS OF 2")
    assert lifecycle(lake).accept_table().kind == "done"
    check(lake, 1, 2)


@pytest.mark.slow
def test_a_log_restored_with_its_lifecycle_continues_with_the_restored_table(
    delta: SparkSession, tmp_path: Path
) -> None:
    lake = Lake(tmp_path, spark=delta)
    assert lake.target.mode == APPEND
    lake.append([value(1)])
    lake.compact()
    lake.append([value(2)])
    shutil.copytree(lake.path, tmp_path / "copy")
    for number in (3, 4):
        lake.append([value(number)])
        lifecycle(lake).run_once()
    shutil.rmtree(lake.path)
    shutil.copytree(tmp_path / "copy", lake.path)
    lake.append([value(5)])
    reported: Any = "Restore it to version 1"
    with pytest.raises(ConfirmError, match=reported):
        lifecycle(lake).run_once()
    with pytest.raises(PlanError, match=reported):
        lifecycle(lake).accept_table()
    restore(lake, "VERSION AS OF 1")
    lifecycle(lake).accept_table()
    assert Counter(map(tuple, lake.current().collect())) == Counter(
        (each, f"v{each}") for each in (1, 2, 5)
    )
    lifecycle(lake).run_once()
    check(lake, 1, 2, 5)
    lake.append([value(6)])
    lifecycle(lake).run_once()
    check(lake, 1, 2, 5, 6)
