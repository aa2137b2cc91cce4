"""The cost of opening a journal again: the time to read it, and the memory."""

from __future__ import annotations

import json
import os
import re
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from appender.inside import end_sender

from benchmarks.journal_disk import MIB, open_journal, opened
from benchmarks.measuring import SCHEMA, rows_of
from sparkwal import Appender
from sparkwal.journal.disk import DiskFolder
from sparkwal.journal.journal import DEFAULT_SLOTS, NONE, Settings
from sparkwal.journal.scanning import scan_folder

_READ = 4 * MIB


def fill(folder: Path, size: int, megabytes: int) -> int:
    """A journal of so many bytes in entries of `size`; how many entries."""
    content = os.urandom(size)
    entries = megabytes * 10**6 // size
    journal = open_journal(folder, sync=NONE, slots=max(entries, DEFAULT_SLOTS))
    for _ in range(entries):
        journal.write(content)
    journal.close()
    return entries


def measure_replay(folder: Path, size: int, megabytes: int, rounds: int) -> dict[str, Any]:
    """`scan_folder`, and a plain read of the same files, in turns: from the page cache, and from
    the disk. The CPU's time shows what another load of the machine did not slow down."""
    entries = fill(folder, size, megabytes)
    paths = sorted(folder.glob("*.wal"))
    total = sum(path.stat().st_size for path in paths)
    found: dict[str, Any] = {"entry_bytes": size, "entries": entries, "bytes": total}
    for state in ("cached", "cold"):
        scans: list[float] = []
        reads: list[float] = []
        cpu: list[float] = []
        for turn in range(1 + rounds):
            for act, taken in ((_scan, scans), (_read, reads)):
                if state == "cold":
                    _forget(paths)
                began, busy = time.perf_counter(), time.process_time()
                act(folder)
                seconds, busy = time.perf_counter() - began, time.process_time() - busy
                if turn:  # after the first one the kernel has settled what was just written
                    taken.append(seconds)
                    if act is _scan:
                        cpu.append(busy)
        scan, read, busy = (statistics.median(each) for each in (scans, reads, cpu))
        found[state] = {
            "scan_mb_per_s": round(total / scan / 1e6),
            "read_mb_per_s": round(total / read / 1e6),
            "ratio": round(read / scan, 3),
            "us_per_entry": round(scan / entries * 1e6, 2),
            "cpu_mb_per_s": round(total / busy / 1e6),
        }
    return found


def _scan(folder: Path) -> None:
    disk = DiskFolder(folder)
    contents = scan_folder(disk, Settings())
    disk.close()
    assert contents.damage is None


def _read(folder: Path) -> None:
    for path in sorted(folder.glob("*.wal")):
        with path.open("rb", buffering=0) as file:
            while file.read(_READ):
                pass


def _forget(paths: list[Path]) -> None:
    """Have nothing of these files in the page cache."""
    for path in paths:
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


# Memory: each in a separate process.


def measure_memory(folder: Path, size: int, megabytes: int) -> dict[str, Any]:
    """How much the peak of a process grows that opens a journal, and one that sends it too."""
    found: dict[str, Any] = {"entry_bytes": size, "megabytes": megabytes}
    found |= {"open_mb": _in_process("open", folder, size, megabytes)}
    return found | {"send_mb": _in_process("send", folder, size, megabytes)}


def _in_process(what: str, folder: Path, size: int, megabytes: int) -> float:
    journal = folder / f"{what}-{megabytes}"
    if what == "open":
        fill(journal, size, megabytes)
    else:
        _step("accept", journal, size, megabytes)
    grown: float = json.loads(_step(what, journal))["grown_mb"]
    return grown


def _step(*words: object) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.journal_replay", *map(str, words)],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[1],
    )
    return done.stdout


def _accept(journal: Path, size: int, megabytes: int) -> None:
    """Die with rows in a journal whose log, on the disk too, has none of them."""
    rows = rows_of(size - 200)
    wal = _appender(journal)
    end_sender(wal)
    for _ in range(megabytes * 10**6 // rows.serialize().size):
        wal.append(rows)
    os._exit(0)


def _appender(journal: Path) -> Appender:
    return Appender(
        str(journal.with_suffix(".log")),
        SCHEMA,
        producer_id="benchmark",
        journal=str(journal),
        journalSync="none",
        journalMaxBytes=2**40,
        journalSlots=2**21,
    )


def resident_mb(which: str) -> float:
    """VmRSS or VmHWM of this process."""
    found = re.search(rf"{which}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) / 1024


def forget_peak() -> None:
    """`resident_mb("VmHWM")` measures from now on."""
    Path("/proc/self/clear_refs").write_text("5")


def _recover(what: str, journal: Path) -> None:
    if what == "send":
        _appender(journal).close()
        return
    disk = DiskFolder(journal)
    settings = Settings(max_bytes=2**40)
    contents = scan_folder(disk, settings)
    opened(disk, contents, settings).close()


if __name__ == "__main__":
    if sys.argv[1] == "accept":
        _accept(Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
    forget_peak()
    before = resident_mb("VmRSS")
    _recover(sys.argv[1], Path(sys.argv[2]))
    print(json.dumps({"grown_mb": round(resident_mb("VmHWM") - before, 1)}))
