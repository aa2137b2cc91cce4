"""Writes a journal: its folder, then segment bytes, entry bytes and entries."""

import sys
from dataclasses import replace

from sparkwal.journal.disk import DiskFolder
from tests.journal.stand import SMALL, open_journal

size, length, count = map(int, sys.argv[2:5])
settings = replace(SMALL, segment_bytes=size, max_bytes=2**40, slots=2**21, sync="none")
run = open_journal(DiskFolder(sys.argv[1]), settings=settings)
body = bytes(range(256)) * (length // 256)
for _ in range(count):
    run.journal.write(body)
run.journal.close()
