"""Appends −1, −2, −3, … in rounds of eight, and reports the last durable sequence."""

import sys

import pyarrow as pa

import sparkwal

path, options = sys.argv[1], dict(word.split("=", 1) for word in sys.argv[2:])
schema = pa.schema([("timestamp", pa.timestamp("us", tz="UTC")), ("value", pa.int64())])
options |= dict(maxInFlightRequests=8, batchSizeThreshold=1)
with sparkwal.Appender(path, schema, producer_id="beside", **options) as wal:
    last = -1 - wal.last_sequence
    while True:
        for value in range(last - 1, last - 9, -1):
            ticket = wal.append([{"timestamp": None, "value": value}])
        last -= 8
        ticket.result()
        print(ticket.sequence, flush=True)
