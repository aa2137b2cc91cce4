"""Opens a journal, and prints its resident and its allocated memory in bytes."""

import re
import sys
import tracemalloc
from dataclasses import replace
from pathlib import Path

from sparkwal.journal.disk import DiskFolder
from tests.journal.stand import SMALL, open_journal

size, length, count, complete = map(int, sys.argv[2:6])
settings = replace(SMALL, segment_bytes=size, max_bytes=2**40)


def peak_kb() -> int:
    """The peak memory of this program. `ru_maxrss` would begin with its parent's."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1])


tracemalloc.start()
before = peak_kb()
run = open_journal(DiskFolder(sys.argv[1]), settings=settings)
after = peak_kb()
stopped = [event for event in run.reported if event.name == "replay_stopped"]
if complete < 0:
    assert run.journal.last == count - 1 and not stopped
else:
    assert stopped[0].complete == complete, stopped
run.journal.close()
print((after - before) * 1024, tracemalloc.get_traced_memory()[1])
