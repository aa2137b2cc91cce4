"""An outage of the store: rows are accepted all the while, and nothing is lost when it is back."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from array import array
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa

import sparkwal
from benchmarks.journal_replay import forget_peak, resident_mb
from benchmarks.measuring import BUCKET, latency
from sparkwal import Appender, Log
from sparkwal.events import Event
from sparkwal.testing.servers import log_options, make_bucket, start_ministack

SCHEMA = pa.schema([("thread", pa.int32()), ("number", pa.int64()), ("payload", pa.string())])
_PAYLOAD = 188
_LOOK_SECONDS = 0.1


def measure(
    folder: Path, outage_seconds: float, rate: float, threads: int, before_seconds: float = 10
) -> dict[str, Any]:
    """Stop a store while another process appends one row of 200 bytes `rate` times a second.

    Reports the appender's work, and whether each row is in the log once and in order.

    The store is a server that is stopped, not ended: requests hang, and those that it had begun
    are carried out afterwards.
    """
    with start_ministack() as server:
        make_bucket(server.url, BUCKET)
        path = f"s3://{BUCKET}/{uuid.uuid4().hex}"
        worker = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "benchmarks.outage",
                path,
                server.url,
                str(folder / "journal"),
                str(rate),
                str(threads),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[1],
        )
        assert worker.stdin is not None and worker.stdout is not None
        try:
            seen = _watch(worker.stdout, server.process.pid, outage_seconds, before_seconds, rate)
            worker.stdin.write("end\n")
            worker.stdin.flush()
            rest = [json.loads(line) for line in worker.stdout]
            if worker.wait():
                raise RuntimeError("the appending process failed")
        finally:
            os.kill(server.process.pid, signal.SIGCONT)
            if worker.poll() is None:
                worker.kill()
            worker.wait()
        ended = rest[-1]
        problems = _check(path, server.url, ended["numbers"])
    return {
        "outage_seconds": outage_seconds,
        "rate": rate,
        "threads": threads,
        "appends": sum(ended["numbers"]),
        **seen,
        "append_ms": ended["append_ms"],
        "events": ended["events"],
        "problems": problems,
    }


def _watch(
    lines: Any, server: int, outage_seconds: float, before_seconds: float, rate: float
) -> dict[str, Any]:
    """Watch from the first append until the backlog is empty."""
    samples = (json.loads(line) for line in lines)
    first = next(samples)
    start = next(x for x in samples if x["at"] >= first["at"] + before_seconds)
    os.kill(server, signal.SIGSTOP)
    away = next(x for x in samples if x["at"] >= start["at"] + outage_seconds)
    os.kill(server, signal.SIGCONT)
    began = back = drained = away
    for sample in samples:
        drained = sample
        if back is away and sample["decided"] > away["decided"]:
            back = sample
        if sample["accepted"] - sample["decided"] <= rate / 2:
            break
    sent = drained["decided"] - began["decided"]
    seconds = drained["at"] - back["at"]
    return {
        "accepted_per_s": round((away["accepted"] - start["accepted"]) / outage_seconds, 1),
        "backlog": away["accepted"] - away["decided"],
        "journal_mb": away["journal_mb"],
        "until_first_s": round(back["at"] - began["at"], 2),
        "drained_s": round(seconds, 2),
        "drained_per_s": round(sent / seconds) if seconds else None,
        "drained_per_s_with_wait": round(sent / (drained["at"] - began["at"])),
        "accepted_per_s_meanwhile": round(
            (drained["accepted"] - began["accepted"]) / (drained["at"] - began["at"]), 1
        ),
        "before_mb": start["peak_mb"],
        "outage_mb": away["peak_mb"],
        "peak_mb": drained["peak_mb"],
    }


def _check(path: str, url: str, numbers: list[int]) -> list[str]:
    """The faults of a log that must hold `count` rows of each thread, once and in order."""
    given = log_options(url, hedge=True)
    problems = list(sparkwal.verify(path, **given).problems)
    next_of: Counter[int] = Counter()
    for batch in Log(path, **given).scan():
        for thread, number in zip(
            batch.column("thread").to_pylist(), batch.column("number").to_pylist(), strict=True
        ):
            if number != next_of[thread]:
                problems.append(f"thread {thread}: row {number} instead of {next_of[thread]}")
            next_of[thread] = number + 1
    for thread, count in enumerate(numbers):
        if next_of[thread] != count:
            problems.append(f"thread {thread}: {next_of[thread]} rows of {count}")
    return problems[:20]


# The process that appends.


def _append(path: str, url: str, journal: str, rate: float, threads: int) -> None:
    events: Counter[str] = Counter()

    def count(event: Event) -> None:
        events[event.name] += 1

    numbers, taken = [0] * threads, [array("d") for _ in range(threads)]
    ending, ended = threading.Event(), threading.Event()
    forget_peak()
    given: dict[str, Any] = {**log_options(url, hedge=True), "maxInFlightRequests": 10}
    with Appender(
        path, SCHEMA, producer_id="benchmark", journal=journal, on_event=count, **given
    ) as wal:

        def work(thread: int) -> None:
            due = time.monotonic()
            while not ending.is_set():
                due += threads / rate
                time.sleep(max(0.0, due - time.monotonic()))
                row = pa.record_batch(
                    [
                        pa.array([thread], pa.int32()),
                        pa.array([numbers[thread]], pa.int64()),
                        pa.array([uuid.uuid4().hex.ljust(_PAYLOAD, ".")]),
                    ],
                    schema=SCHEMA,
                )
                began = time.perf_counter()
                wal.append(row)
                taken[thread].append(time.perf_counter() - began)
                numbers[thread] += 1

        def report() -> None:
            while not ended.wait(_LOOK_SECONDS):
                accepted, waiting = wal.last_sequence + 1, wal.unacknowledged
                size = _size(Path(journal))
                print(
                    json.dumps(
                        {
                            "at": time.monotonic(),
                            "accepted": accepted,
                            "decided": accepted - waiting,
                            "peak_mb": round(resident_mb("VmHWM"), 1),
                            "journal_mb": round(size / 1e6, 1),
                        }
                    ),
                    flush=True,
                )

        workers = [threading.Thread(target=work, args=[number]) for number in range(threads)]
        reporter = threading.Thread(target=report)
        for each in (*workers, reporter):
            each.start()
        sys.stdin.readline()
        ending.set()
        for each in workers:
            each.join()
        ended.set()
        reporter.join()
    found = vars(latency([seconds for each in taken for seconds in each]))
    longest = round(max(map(max, taken)) * 1000, 1)
    last = {"numbers": numbers, "append_ms": {**found, "most": longest}, "events": dict(events)}
    print(json.dumps(last), flush=True)


def _size(journal: Path) -> int:
    total = 0
    for each in journal.glob("*.wal"):
        with suppress(FileNotFoundError):  # it was let go meanwhile
            total += each.stat().st_size
    return total


if __name__ == "__main__":
    _append(sys.argv[1], sys.argv[2], sys.argv[3], float(sys.argv[4]), int(sys.argv[5]))
