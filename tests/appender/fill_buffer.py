"""Appends until the buffer is full, and prints the memory used for each byte of it."""

import os
import sys
from pathlib import Path

import pyarrow as pa

from sparkwal.errors import BackPressureError
from tests.appender.faulty_store import FaultyStore


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


room = 32 * 2**20
faulty = FaultyStore()
wal = faulty.appender(maxInFlightRequests=1, maxBufferedBytes=room, batchSizeThreshold="16mb")
small = {
    "arrow": lambda: pa.record_batch([pa.array([1])], names=["v"]),
    "dict": lambda: [{"v": 1}],
}[sys.argv[1]]
faulty.hold(faulty.gap())
first = wal.append(small())
while not faulty.arrived or faulty.gap() not in faulty.arrived:
    pass
before = resident()
try:
    while True:
        wal.append(small(), block=False)
except BackPressureError:
    print((resident() - before) / room, flush=True)
os._exit(0)
