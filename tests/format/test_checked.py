"""Threads that read the first objects of a process at once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.process

RACED = Path(__file__).with_name("racing_readers.py")


def test_the_first_headers_are_read_by_threads_at_once() -> None:
    assert subprocess.run([sys.executable, "-P", str(RACED)], timeout=120).returncode == 0
