"""Runs the tests of tables, which need a Spark that knows Delta Lake, in another process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.spark
@pytest.mark.timeout(900)
def test_tables_take_ranges_of_a_log() -> None:
    """SPARKWAL_TABLES=1 pytest tests/tables runs some of them."""
    command = [sys.executable, "-m", "pytest", "--tb=short", "tests/tables"]
    ran = subprocess.run(
        command, cwd=ROOT, env=dict(os.environ, SPARKWAL_TABLES="1"), stdin=subprocess.DEVNULL,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout[-20_000:]
