"""Forks of real queries: they write exactly the source after the place of the fork."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import sparkwal
from sparkwal.checkpoints.audit import audit_log
from sparkwal.checkpoints.diff import side_of, stretches
from sparkwal.store.base import LogStore
from sparkwal.store.local import LocalStore
from tests.spark.queries import append
from tests.spark.test_checkpoints import add, read_files, stored


def opened(path: Path) -> LogStore:
    return LogStore(LocalStore(str(path)), "")


def forked(new: Path, log: Path, at: int, name: str = "orders") -> Path:
    fork = sparkwal.Fork(str(log), "orders", at=at)
    return Path(sparkwal.checkpoint(str(new), name, folder=f"{new}-checkpoint", fork=fork))


def checkpoint(path: Path) -> Path:
    return Path(sparkwal.checkpoint(str(path), "orders", folder=f"{path}-checkpoint"))


def test_a_fork_reads_the_files_after_its_position_and_readers_switch(
    spark: SparkSession, tmp_path: Path
) -> None:
    log, new = tmp_path / "log", tmp_path / "new"
    # Spark encodes these characters in its lists of files.
    source = tmp_path / "in 2026 ü+50%"
    add(source, range(14))
    append(read_files(spark, source), log, checkpoint(log))
    # Files of the same time have any order.
    append(read_files(spark, source, 3), new, forked(new, log, 6))
    assert stored(new) == stored(log, startingPosition=7) and len(stored(new)) == 80
    before_fork = stored(log, endingPosition=6)
    add(source, range(14, 17))
    append(read_files(spark, source), log, checkpoint(log))
    append(read_files(spark, source, 3), new, forked(new, log, 6))
    assert stored(log) == [*range(170)] == sorted(before_fork + stored(new))
    for path in (log, new):
        (audit,) = audit_log(opened(path), "default")
        assert audit.breaks == []
    found = [*stretches(side_of(opened(log), None), side_of(opened(new), None))]
    assert len(found) >= 2 and all(each.same for each in found)
    for each in found:
        before = stored(log, endingPosition=each.ending_position)
        end = sparkwal.Log(str(new)).head()
        assert end is not None
        if each.starting_position <= end.position:
            after = stored(new, startingPosition=each.starting_position)
            assert sorted(before + after) == [*range(170)]
    # A file that the fork would read again is gone.
    last = max(stored(log, startingPosition=10, endingPosition=10)) // 10
    (source / f"{last:05d}.txt").unlink()
    with pytest.raises(sparkwal.OptionError, match=rf"{last:05d}.txt after position 4 "):
        forked(tmp_path / "late", log, 4)
    forked(tmp_path / "late", log, 12)


def test_a_fork_of_a_query_over_a_log_and_files(spark: SparkSession, tmp_path: Path) -> None:
    first, log, new, source = (tmp_path / name for name in ("first", "log", "new", "in"))
    add(source, range(100, 106))
    other = tmp_path / "other"
    add(other, range(4))
    append(read_files(spark, other), first, checkpoint(first))

    def both(rows: int) -> Any:
        reader = spark.readStream.format("weaselwal").option("maxCommitsPerTrigger", rows)
        return reader.load(str(first)).unionByName(read_files(spark, source, rows))

    append(both(1), log, checkpoint(log))
    head = sparkwal.Log(str(log)).head()
    assert head is not None and stored(log) == [*range(40), *range(1000, 1060)]
    for at in (2, 4, head.position):
        place = tmp_path / f"new-{at}"
        before = stored(log, endingPosition=at)
        append(both(3), place, forked(place, log, at))
        if at < head.position:
            assert sorted(before + stored(place)) == stored(log)
        (audit,) = audit_log(opened(log), "default")
        assert audit.breaks == []
    assert new.exists() is False
