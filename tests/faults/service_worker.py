"""Appends sequence i as the value i, one record each, and reports durable sequences."""

import sys
import time

import pyarrow as pa

import sparkwal

path, options = sys.argv[1], dict(word.split("=", 1) for word in sys.argv[2:])


def reported(event):
    if isinstance(event, sparkwal.events.Durable):
        print(event.batch_id, flush=True)


schema = pa.schema([("value", pa.int64())])
with sparkwal.Appender(path, schema, producer_id="service", on_event=reported, **options) as wal:
    sequence = wal.last_sequence + 1
    while True:
        ticket = wal.append([{"value": sequence}])
        assert ticket.sequence == sequence
        sequence += 1
        time.sleep(0.03)
