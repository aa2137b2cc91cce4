"""Runs the tests of tables, which need a Spark that knows Delta Lake, in another process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.spark
@pytest.mark.capability("DELTA")
@pytest.mark.xdist_group("tables")
@pytest.mark.timeout(2400)
@pytest.mark.parametrize("chosen", ["not slow", pytest.param("slow", marks=pytest.mark.slow)])
def test_tables_take_ranges_of_a_log(chosen: str, pytestconfig: pytest.Config) -> None:
    """SPARKWAL_TABLES=1 pytest tests/spark/tables runs some of them."""
    # -P as this one was started: they test what it tests.
    python = [sys.executable, *(["-P"] if sys.flags.safe_path else [])]
    command = [*python, "-m", "pytest", "--tb=short", "--durations=5", "-m", chosen]
    # A time limit of one test must not be that of what Ivy downloads for all.
    command += ["-o", "timeout_func_only=true", "tests/spark/tables"]
    if report := pytestconfig.getoption("xmlpath"):
        command += [f"--junitxml={Path(report).with_suffix('')}-tables.xml"]
    ran = subprocess.run(
        command,
        cwd=ROOT,
        env=dict(os.environ, SPARKWAL_TABLES="1"),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    # All of it: a seed is printed early.
    print(ran.stdout if ran.returncode else ran.stdout[-20_000:])
    assert ran.returncode == 0, ran.stderr[-2000:]
