"""Runs an appender with a journal in a fork for each run, so that a run begins in milliseconds.

Each line on stdin begins a run: path, endpoint or "-", journal, pause in seconds, count, and
options as name=value. The next line waits for its end. Each report is a line on stdout.
"""

import os
import sys
import tempfile
import time

import pyarrow as pa

import sparkwal
from sparkwal.errors import SparkWalError
from sparkwal.testing.servers import log_options

SCHEMA = pa.schema([("v", pa.int64())])


def report(*words: object) -> None:
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


def run(path: str, endpoint: str, journal: str, pause: str, count: str, *settings: str) -> None:
    """Append increasing numbers, and report each accepted one."""
    options: dict[str, object] = dict(setting.split("=") for setting in settings)
    if endpoint != "-":
        options |= dict(retryBaseDelayMs=1, maxRetryAttempts=2, **log_options(endpoint))
    try:
        wal = sparkwal.Appender(path, SCHEMA, producer_id="p", journal=journal, **options)
    except SparkWalError as error:
        report("refused", type(error).__name__, error)
        return
    first = wal.last_sequence + 1
    report("opened", first - 1, len(wal.lost))
    for value in range(first, first + int(count)):
        try:
            sequence = wal.append([{"v": value}]).sequence
        except SparkWalError as error:
            report("stopped", type(error).__name__, error)
            break
        report("accepted", sequence)
        assert sequence == value
        time.sleep(float(pause))
    try:
        wal.close(20)
        report("closed", wal.unacknowledged)
    except (SparkWalError, TimeoutError) as error:
        report("failed", type(error).__name__, error)


def main() -> None:
    # The first append imports further modules, pandas too: a fork need not import them again.
    with (
        tempfile.TemporaryDirectory() as folder,
        sparkwal.Appender(folder + "/log", SCHEMA, producer_id="p", journal=folder + "/j") as wal,
    ):
        wal.append([{"v": 0}]).result()
    while line := sys.stdin.readline():
        child = os.fork()
        if child == 0:
            report("pid", os.getpid())
            try:
                run(*line.split())
            except BaseException as error:
                report("broken", type(error).__name__, error)
            os._exit(0)
        # Reap it only on request: until then no other process gets its number.
        sys.stdin.readline()
        _, status = os.waitpid(child, 0)
        report("dead", status)


if __name__ == "__main__":
    main()
