"""Appends sequence i as the value i, and reports durable sequences on stdout."""

import signal
import sys

import pyarrow as pa

import sparkwal
from sparkwal.testing.servers import log_options

path, endpoint, count, hold = sys.argv[1:5]
total = int(count)
options = dict(
    maxInFlightRequests=8,
    batchSizeThreshold=100,
    retryBaseDelayMs=5,
    maxRetryAttempts=8,
    **log_options(endpoint),
)
schema = pa.schema([("v", pa.int64())])
with sparkwal.Appender(path, schema, producer_id="child", **options) as wal:

    def reported(event):
        if isinstance(event, sparkwal.events.Durable):
            print(event.batch_id, flush=True)

    wal.subscribe(reported)
    for value in range(wal.last_sequence + 1, total):
        assert wal.append([{"v": value}]).sequence == value
    if hold == "hold":
        signal.pause()
