"""How much memory reading a journal takes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.process

MEBI = 2**20
MAKE = Path(__file__).with_name("write_large.py")
READ = Path(__file__).with_name("measure_opening.py")


def run(program: Path, path: Path, *numbers: int) -> str:
    root = str(Path(__file__).parents[2])
    done = subprocess.run(
        [sys.executable, "-P", str(program), str(path), *map(str, numbers)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([*sys.path, root])},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def measured(path: Path, *numbers: int) -> tuple[int, int]:
    resident, traced = map(int, run(READ, path, *numbers).split())
    print(f"{numbers}: resident {resident:,}, allocated {traced:,} bytes more at most")
    return resident, traced


def test_a_large_journal_is_read_with_the_memory_of_a_block(tmp_path: Path) -> None:
    size = 32 * MEBI
    length = MEBI
    count = 300
    run(MAKE, tmp_path, size, length, count)
    resident, traced = measured(tmp_path, size, length, count, -1)
    assert traced < 24 * MEBI
    assert resident < 64 * MEBI
    # Damage near the beginning: all of it is looked through, and the intact part copied.
    name = min(tmp_path.glob("*.wal"))
    with name.open("r+b") as file:
        file.seek(20 * MEBI)
        file.write(b"damage")
    damaged = 19  # the entries before it take less than one more entry
    resident, traced = measured(tmp_path, size, length, count, count - damaged - 1)
    assert traced < 24 * MEBI
    assert resident < 64 * MEBI


def test_a_journal_of_many_small_entries_is_read_with_the_memory_of_a_block(
    tmp_path: Path,
) -> None:
    size = 8 * MEBI
    length = 256
    count = 100_000
    run(MAKE, tmp_path, size, length, count)
    with min(tmp_path.glob("*.wal")).open("r+b") as file:
        file.seek(300)
        file.write(b"damage")
    resident, traced = measured(tmp_path, size, length, count, count - 1)
    assert traced < 24 * MEBI
    # This includes the offsets of the entries, 24 bytes each.
    assert resident < 64 * MEBI
