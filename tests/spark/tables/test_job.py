"""The compaction as a job, on the Spark of these tests."""

from __future__ import annotations

from pathlib import Path

import pytest
from jobs.lives import chain, collect, run_here, write
from pyspark.sql import SparkSession

import sparkwal


def test_a_log_goes_to_a_table_and_what_its_first_run_fixed_stays(
    delta: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wal, lake = tmp_path / "wal", tmp_path / "lake"
    write(wal, range(4))
    write(wal, range(2, 7))  # two of them a second time
    done = run_here(delta, monkeypatch, "compact", wal, lake, "--key", "id", "--now")
    assert done.exit_code == 0, done.output
    rows = delta.read.format("delta").load(str(lake)).orderBy("id").collect()
    assert [tuple(row) for row in rows] == [(n, f"v{n}") for n in range(7)]
    head, state = sparkwal.Log(str(wal)).head(), chain(wal)
    assert head is not None and state is not None and state.cut == head.position + 1
    reported = collect(tmp_path, wal)
    assert reported.returncode == 0 and "the grace" in reported.stdout, reported.stderr
    other = run_here(delta, monkeypatch, "compact", wal, lake, "--now")
    assert other.exit_code == 2 and "fixed its target" in other.output
    bare = run_here(delta, monkeypatch, "compact", wal, "--retain", "7d")
    assert bare.exit_code == 2 and "is compacted into" in bare.output
