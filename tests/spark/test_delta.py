"""Runs the tests of tables, which need a Spark that knows Delta Lake, in two other processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TABLES = ROOT / "tests/spark/tables"
# A process for each half: one alone would take longer than all other tests of a run together.
HALVES = ("test_[a-f]*.py", "test_[g-z]*.py")


@pytest.mark.spark
@pytest.mark.capability("DELTA")
@pytest.mark.timeout(2400)
@pytest.mark.parametrize("chosen", ["not slow", pytest.param("slow", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "half", [pytest.param(half, marks=pytest.mark.xdist_group(half)) for half in HALVES]
)
def test_tables_take_ranges_of_a_log(half: str, chosen: str, pytestconfig: pytest.Config) -> None:
    """SPARKWAL_TABLES=1 pytest tests/spark/tables runs some of them."""
    # -P as this one was started: they test what it tests.
    python = [sys.executable, *(["-P"] if sys.flags.safe_path else [])]
    command = [*python, "-m", "pytest", "--tb=short", "--durations=5", "-m", chosen]
    # A time limit of one test must not be that of what Ivy downloads for all.
    command += ["-o", "timeout_func_only=true", *map(str, sorted(TABLES.glob(half)))]
    if report := pytestconfig.getoption("xmlpath"):
        name = f"{Path(report).with_suffix('')}-tables-{HALVES.index(half)}.xml"
        command += [f"--junitxml={name}"]
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


# A worker that runs the second half needs a test to come after it, and this takes no time. After
# the first half come those of test_interfaces.py.
@pytest.mark.xdist_group(HALVES[1])
def test_each_file_of_tables_is_in_one_half() -> None:
    halves = [path for half in HALVES for path in TABLES.glob(half)]
    assert sorted(halves) == sorted(TABLES.glob("test_*.py"))
