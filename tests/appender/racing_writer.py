"""Appends 0, 1, 2, … under one name until stdin ends, and reports each event on stdout."""

import random
import sys
import threading

import pyarrow as pa

import sparkwal
from sparkwal.errors import FencedError, SparkWalError
from sparkwal.testing.servers import log_options

path, endpoint, name, again, seed = sys.argv[1:]
rng = random.Random(seed)
schema = pa.schema([("producer", pa.string()), ("v", pa.int64())])
options = dict(
    maxInFlightRequests=4,
    batchSizeThreshold=100,
    retryBaseDelayMs=5,
    maxRetryAttempts=8,
    **log_options(endpoint),
)
ended, durable = threading.Event(), -1
threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()


def report(*words):
    sys.stdout.write(" ".join(map(str, words)) + chr(10))
    sys.stdout.flush()


def reported(ticket):
    global durable
    try:
        position = ticket.result()
    except SparkWalError:
        return
    durable = ticket.sequence
    report("durable", ticket.sequence, position)


while not ended.is_set():
    try:
        with sparkwal.Appender(path, schema, producer_id=name, **options) as wal:
            assert wal.last_sequence >= durable, "an acknowledged append is forgotten"
            report("opened")
            value = wal.last_sequence
            while not ended.wait(rng.random() * 0.05):
                value += 1
                ticket = wal.append([{"producer": name, "v": value}])
                assert ticket.sequence == value
                ticket.when_done(lambda ticket=ticket: reported(ticket))
    except FencedError:
        report("fenced")
        if again == "once":
            break
        ended.wait(rng.random() * 0.2)
