"""Appends sequence i as the value i, one record each, and reports durable sequences."""

import sys
import time
from typing import Any

import pyarrow as pa

import sparkwal

path = sys.argv[1]
options: Any = dict(word.split("=", 1) for word in sys.argv[2:])


def reported(event: sparkwal.events.Event) -> None:
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
