"""One process of a history: appends, reads or moves the log's floor until its stdin ends.

    python -m histories.worker ROLE NAME NOTES PATH ENDPOINT SEED [OPTION=VALUE…]

SIGUSR1 sets its wall clock forward or back.
"""

from __future__ import annotations

import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pyarrow as pa

import sparkwal
from sparkwal.appender.batches import Ticket
from sparkwal.errors import (
    BackPressureError,
    FencedError,
    OptionError,
    SparkWalError,
    StoreUnavailableError,
)
from sparkwal.protocol.clock import Clock

from .place import options_of
from .recording import Recorder

SCHEMA = pa.schema([("v", pa.int64())])
# The values of one producer begin at a multiple of this, and count its appends.
PRODUCER = 1_000_000
# Appends on the way at once.
_MOST = 20
# An append that ends with one of these is not in the log and never will be.
_NEVER = (FencedError, StoreUnavailableError, OptionError, BackPressureError)
_DAY_MS = 86_400_000


class JumpingClock(Clock):
    """A wall clock that a signal sets forward or back."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._ahead_ms = 0

    def now_ms(self) -> int:
        return super().now_ms() + self._ahead_ms

    def jump(self, *_: object) -> None:
        self._ahead_ms = self._rng.randint(-_DAY_MS, _DAY_MS)


class Worker:
    """The shared part of all roles."""

    def __init__(self, name: str, notes: Path, path: str, endpoint: str, seed: str) -> None:
        self.name = name
        self.path = path
        self.rng = random.Random(f"{seed} {name}")
        self.options = options_of(path, endpoint, hedge=self.rng.random() < 0.5)
        self.clock = JumpingClock(self.rng)
        self.ended = threading.Event()
        signal.signal(signal.SIGUSR1, self.clock.jump)
        # The file shows that the process takes signals.
        self.notes = Recorder(notes, name)
        threading.Thread(target=self._wait, daemon=True).start()

    def _wait(self) -> None:
        sys.stdin.read()
        self.ended.set()

    def pause(self, most: float) -> None:
        self.ended.wait(self.rng.random() * most)


# Appending.


def append(worker: Worker, options: dict[str, str]) -> None:
    """Append this producer's values in order. After an error, open another appender."""
    while not worker.ended.is_set():
        try:
            _append_until_error(worker, options)
        except SparkWalError:
            worker.pause(0.6)


def _append_until_error(worker: Worker, options: dict[str, str]) -> None:
    first = int(options["producer"]) * PRODUCER
    journal = {key: value for key, value in options.items() if key != "producer"}
    number = worker.notes.begin("open", producer=first)
    try:
        wal = sparkwal.Appender(
            worker.path,
            SCHEMA,
            producer_id=f"producer-{options['producer']}",
            clock=worker.clock,
            maxRetryAttempts=4,
            retryBaseDelayMs=5,
            **worker.options,
            **journal,
        )
    except SparkWalError as error:
        worker.notes.end(number, "failed", error=type(error).__name__)
        raise
    # With a journal this counts what is on the disk, and not what the log has.
    durable = None if wal.has_journal else wal.last_sequence
    worker.notes.end(number, "ok", last_sequence=durable)
    free = threading.Semaphore(_MOST)
    value = first + wal.last_sequence
    try:
        while not worker.ended.is_set():
            if not free.acquire(timeout=0.2):
                if wal.error is not None:
                    raise wal.error
                continue
            value += 1
            noted = worker.notes.begin("append", values=[value])
            try:
                ticket = wal.append([{"v": value}])
            except _NEVER as error:
                # With a journal a stopped appender accepts nothing.
                worker.notes.end(noted, "failed", error=type(error).__name__)
                raise
            if wal.has_journal:
                worker.notes.note(noted, accepted=time.monotonic_ns())
            assert first + ticket.sequence == value, f"{value} has sequence {ticket.sequence}"
            ticket.when_done(partial(_decided, worker, wal.has_journal, noted, ticket, free))
            worker.pause(0.03)
    finally:
        wal.close(20)


def _decided(
    worker: Worker, has_journal: bool, noted: int, ticket: Ticket, free: threading.Semaphore
) -> None:
    free.release()
    try:
        worker.notes.end(noted, "ok", position=ticket.result())
    except _NEVER as error:
        # A journal keeps the rows for the next appender.
        outcome = "unknown" if has_journal else "failed"
        worker.notes.end(noted, outcome, error=type(error).__name__)
    except SparkWalError as error:
        worker.notes.end(noted, "unknown", error=type(error).__name__)


# Reading.


def read(worker: Worker, options: dict[str, str]) -> None:
    """Scan the log from its beginning or from a position, and replay it from a cursor.

    If the log has a table, also read both as one.
    """
    replayed: tuple[str | None, int | None] = None, None
    following = 0
    kinds = ["scan", "follow", "replay", *(["total"] * ("table" in options))]
    while not worker.ended.is_set():
        worker.pause(float(options.get("pause", "0.4")))
        kind = worker.rng.choice(kinds)
        try:
            table = {"tableLocation": options["table"]} if "table" in options else {}
            log = sparkwal.Log(worker.path, **worker.options, **table)
            if kind == "scan":
                scan(worker, log, None)
            elif kind == "follow":
                following = scan(worker, log, following)
            elif kind == "total":
                with_table("total", worker, log)
            else:
                replayed = replay(worker, log, *replayed)
        except SparkWalError:
            # The floor may have passed them.
            replayed, following = (None, None), 0


def scan(worker: Worker, log: sparkwal.Log, start: int | None) -> int:
    """Read from a position, or from the floor; returns the position after the last row."""
    number = worker.notes.begin("read", kind="scan", start=start)
    try:
        table = log.scan(start, columns=["_wal_position", "v"]).read_all()
    except SparkWalError as error:
        worker.notes.end(number, "failed", error=type(error).__name__)
        raise
    rows = [list(row.values()) for row in table.to_pylist()]
    worker.notes.end(number, "ok", rows=rows)
    return int(rows[-1][0]) + 1 if rows else start or 0


def replay(
    worker: Worker, log: sparkwal.Log, cursor: str | None, start: int | None
) -> tuple[str | None, int | None]:
    """Replay from a cursor, or from the floor; returns the next cursor and its position."""
    number = worker.notes.begin("read", kind="replay", start=start)
    try:
        replayed = log.replay(cursor)
        rows = [
            [entry.header.position, value]
            for entry in replayed
            for batch in entry.rows
            for value in batch.column("v").to_pylist()
        ]
    except SparkWalError as error:
        worker.notes.end(number, "failed", error=type(error).__name__)
        raise
    if replayed.stopped is not None:
        worker.notes.end(number, "failed", error=replayed.stopped.reason)
        return cursor, start
    worker.notes.end(number, "ok", rows=rows)
    return replayed.cursor, int(rows[-1][0]) + 1 if rows else start


def with_spark(role: str, worker: Worker, options: dict[str, str]) -> None:
    """A role of `spark_worker`: only its process imports Spark."""
    from . import spark_worker

    getattr(spark_worker, role)(worker, options)


def with_table(name: str, worker: Worker, *arguments: object) -> None:
    """A function of `lake_worker`: only these processes import delta-rs."""
    from . import lake_worker

    getattr(lake_worker, name)(worker, *arguments)


# The floor.


def keep(worker: Worker, options: dict[str, str]) -> None:
    """Move the floor after rows that are older than the retention."""
    while not worker.ended.is_set():
        worker.pause(4.0)
        number = worker.notes.begin("floor")
        try:
            sparkwal.Lifecycle(
                worker.path,
                retainSeconds=options.get("retain", "3"),
                retainBytes=1,
                lateArriveWindowSeconds=0,
                gcGrace="1h",
                **worker.options,
            ).run_once()
        except SparkWalError as error:
            worker.notes.end(number, "failed", error=type(error).__name__)
        else:
            worker.notes.end(number, "ok")


ROLES: dict[str, Callable[[Worker, dict[str, str]], None]] = {
    "append": append,
    "read": read,
    "keep": keep,
    "stream": partial(with_spark, "stream"),
    "compact": partial(with_table, "compact"),
    "compact-by-spark": partial(with_spark, "compact"),
}


def main() -> None:
    role, name, notes, path, endpoint, seed, *given = sys.argv[1:]
    options = dict(option.split("=", 1) for option in given)
    ROLES[role](Worker(name, Path(notes), path, endpoint, seed), options)


if __name__ == "__main__":
    main()
