"""A fleet of processes on one path: appenders, one for each log, and compactions into one table.

    python -m lifecycle.fleet WORK ENDPOINT SEED SECONDS

It kills them with SIGKILL at random and starts them again. All are forks of this process, which
imports the library once, so fifty of them need little memory. Each appender notes its
acknowledged values in its own file.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
from delta_rs_table import DeltaRsTable

import sparkwal
from sparkwal.appender import sender
from sparkwal.errors import SparkWalError
from sparkwal.format.lifecycle_record import Target
from sparkwal.lifecycle.coordinator import Coordinator
from sparkwal.lifecycle.policy import Policy
from sparkwal.options.open import open_log
from sparkwal.options.parsing import from_keywords
from sparkwal.options.reading import SourceOptions
from sparkwal.testing.servers import log_options

SCHEMA = pa.schema([("v", pa.int64())])
BUCKET = "fleet"
PATH = f"s3://{BUCKET}/wal"
APPENDERS = 50
COMPACTIONS = 2
# The values of one life of one appender.
LIFE = 1_000_000
LIVES = 1_000
# Longer than the processes of a busy machine wait for a core.
GRACE_MS = 30_000
# An appender waits up to so many seconds between two appends.
_PAUSE = 1.0


def coordinator(table: str, options: dict[str, Any]) -> Coordinator:
    """The lifecycle of all logs under the path."""
    log = open_log(from_keywords(SourceOptions, PATH, options))
    return Coordinator(
        log,
        Policy(late_window_seconds=0),
        table=DeltaRsTable(Target(table), PATH, options),
        gc_grace_ms=GRACE_MS,
    )


class Ended:
    """Whether SIGTERM asked this process to end."""

    def __init__(self) -> None:
        self.is_set = False
        signal.signal(signal.SIGTERM, self._end)

    def _end(self, *_: object) -> None:
        self.is_set = True


def write_values(work: Path, options: dict[str, Any], number: int, life: int) -> None:
    """Append one value after another, and note each that was acknowledged."""
    ended = Ended()
    rng = random.Random(f"{number} {life}")
    first = (number * LIVES + life) * LIFE
    name = f"w{number}"
    if number or life:
        # Fifty processes would spend most of a minute on the proof of the same store.
        sender.prove_put_if_absent = lambda *_: None
    notes = os.open(work / f"acknowledged-{number}", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    with sparkwal.Appender(
        PATH, SCHEMA, producer_id=name, sequencer=name, maxInFlightRequests=4, **options
    ) as wal:
        for value in range(first, first + LIFE):
            if ended.is_set:
                return
            wal.append(pa.record_batch([[value]], schema=SCHEMA)).result()
            os.write(notes, b"%d\n" % value)
            time.sleep(rng.random() * _PAUSE)


def compact(work: Path, options: dict[str, Any], number: int, life: int) -> None:
    """Compact and collect all logs again and again."""
    ended = Ended()
    rng = random.Random(f"compaction {number} {life}")
    life_of_logs = coordinator(str(work / "table"), options)
    while not ended.is_set:
        try:
            life_of_logs.run_all(whole=rng.random() < 0.5)
        except SparkWalError as error:
            # The other compaction was faster, or the machine was busy.
            print(f"compaction {number}: {error}", flush=True)
        time.sleep(rng.random() * 3)


class Fleet:
    """The processes by their names."""

    def __init__(self, work: Path, options: dict[str, Any], rng: random.Random) -> None:
        self._work = work
        self._options = options
        self._rng = rng
        self._pids: dict[str, int] = {}
        self.counted: Counter[str] = Counter()
        self.failures: list[str] = []

    def start(self, name: str, work: Callable[[Path, dict[str, Any], int, int], None]) -> None:
        """Start a process, or start it again under a new life."""
        role, _, number = name.partition("-")
        life = self.counted[name]
        self.counted[name] += 1
        self.counted[role] += 1
        pid = os.fork()
        if pid:
            self._pids[name] = pid
            return
        try:
            work(self._work, self._options, int(number), life)
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(1)

    def tend(self) -> None:
        """Start the processes that have ended, and note those that failed."""
        for name, pid in [*self._pids.items()]:
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                self._note(name, status)
                self.start(name, role_of(name))

    def kill(self) -> None:
        """Kill one process."""
        name = self._rng.choice([*self._pids])
        os.kill(self._pids[name], signal.SIGKILL)
        self.counted["kills"] += 1

    def end(self) -> None:
        """Ask all to end, and wait for them."""
        for pid in self._pids.values():
            os.kill(pid, signal.SIGTERM)
        for name, pid in self._pids.items():
            self._note(name, os.waitpid(pid, 0)[1])

    def _note(self, name: str, status: int) -> None:
        code = os.waitstatus_to_exitcode(status)
        if code not in (0, -signal.SIGKILL, -signal.SIGTERM):
            self.failures.append(f"{name} ended with {code}")


def role_of(name: str) -> Callable[[Path, dict[str, Any], int, int], None]:
    return write_values if name.startswith("appender") else compact


def main(work: Path, endpoint: str, seed: int, seconds: float) -> None:
    rng = random.Random(seed)
    # It imports and makes a client, which all forks then have.
    sparkwal.list_sequencers(PATH, **log_options(endpoint))
    fleet = Fleet(work, {**log_options(endpoint, hedge=True)}, rng)
    names = [f"appender-{number}" for number in range(APPENDERS)]
    names += [f"compaction-{number}" for number in range(COMPACTIONS)]
    try:
        for name in names:
            fleet.start(name, role_of(name))
            time.sleep(0.2)
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            time.sleep(rng.uniform(0.5, 2))
            fleet.kill()
            fleet.tend()
    finally:
        fleet.end()
    print(json.dumps({**fleet.counted, "failures": fleet.failures}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), float(sys.argv[4]))
