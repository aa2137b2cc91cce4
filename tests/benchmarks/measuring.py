"""Shared parts of the benchmarks: options that are lists, a store, a delay, bare PUTs, appends."""

from __future__ import annotations

import itertools
import multiprocessing
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import click
import pyarrow as pa

import sparkwal
from sparkwal import Appender
from sparkwal.sql.past import price
from sparkwal.testing.servers import log_options, make_bucket, s3_client, start_ministack

BUCKET = "benchmark"
SCHEMA = pa.schema([("id", pa.int64()), ("payload", pa.string())])


def numbers(context: click.Context, parameter: click.Parameter, value: str) -> list[int]:
    """The callback of an option such as 0,20,100."""
    try:
        return [int(part) for part in value.split(",")]
    except ValueError:
        raise click.BadParameter(f"{value!r} is no list of numbers such as 0,20,100") from None


@contextmanager
def delayed(upstream: str, latency_ms: float, *flags: str) -> Iterator[str]:
    """The URL of a proxy with `flags`, in a separate process, that delays every request."""
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "sparkwal.testing.proxy",
            "--upstream",
            upstream,
            "--latency-ms",
            str(latency_ms),
            *flags,
        ],
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert process.stderr is not None
        yield process.stderr.readline().strip()
    finally:
        process.terminate()
        process.wait()


@contextmanager
def spawned(target: Callable[..., None], *given: object) -> Iterator[Any]:
    """The first message of `target(*given, pipe)`, from a process that ends with this block."""
    ours, theirs = multiprocessing.Pipe()
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=target, args=(*given, theirs))
    process.start()
    theirs.close()
    try:
        yield ours.recv()
    finally:
        ours.close()
        process.terminate()
        process.join()


@contextmanager
def store() -> Iterator[str]:
    """The URL of a store in memory with the bucket, in a separate process."""
    with start_ministack() as server:
        make_bucket(server.url, BUCKET)
        yield server.url


def rows_of(size: int) -> pa.RecordBatch:
    """About `size` bytes that do not compress to nothing."""
    texts = [uuid.uuid4().hex + uuid.uuid4().hex for _ in range(max(1, size // 76))]
    return pa.record_batch([pa.array(range(len(texts)), pa.int64()), texts], schema=SCHEMA)


def open_appender(url: str, in_flight: int, **options: Any) -> Appender:
    """An appender to a new log."""
    given = {**log_options(url, hedge=True), "maxInFlightRequests": in_flight, **options}
    return Appender(f"s3://{BUCKET}/{uuid.uuid4().hex}", SCHEMA, producer_id="benchmark", **given)


class Bare:
    """Conditional PUTs of the same bytes to new keys, by the plain client."""

    def __init__(self, url: str, in_flight: int, body: bytes) -> None:
        self._client = s3_client(url, max_pool_connections=2 * in_flight)
        self._body = body
        self._prefix = uuid.uuid4().hex
        self._numbers = itertools.count()

    def put(self) -> None:
        key = f"{self._prefix}/{next(self._numbers):020d}"
        self._client.put_object(Bucket=BUCKET, Key=key, Body=self._body, IfNoneMatch="*")


def record_bytes(url: str, rows: pa.RecordBatch) -> bytes:
    """One record's object as the appender stores it; the bare PUTs send the same bytes."""
    path = uuid.uuid4().hex
    options: dict[str, Any] = dict(log_options(url, hedge=True))
    with Appender(
        f"s3://{BUCKET}/{path}", SCHEMA, producer_id="benchmark", maxInFlightRequests=1, **options
    ) as wal:
        wal.append(rows).result()
    record = list(sparkwal.Log(f"s3://{BUCKET}/{path}", **options).records())[-1]
    key = f"{path}/batches/{record.number:020d}"
    body: bytes = s3_client(url).get_object(Bucket=BUCKET, Key=key)["Body"].read()
    return body


@dataclass(frozen=True)
class Latency:
    """Milliseconds over all samples."""

    p50: float
    p99: float
    p999: float
    samples: int


def latency(seconds: Sequence[float]) -> Latency:
    ordered = sorted(seconds)
    p50, p99, p999 = (
        round(ordered[min(len(ordered) - 1, int(len(ordered) * share))] * 1000, 3)
        for share in (0.5, 0.99, 0.999)
    )
    return Latency(p50, p99, p999, len(ordered))


def paced(count: int, rate: float, act: Callable[[], None]) -> None:
    """Call `act` `count` times, `rate` a second; late calls are not made up for."""
    due = time.perf_counter()
    for _ in range(count):
        wait = due - time.perf_counter()
        if wait > 0:
            time.sleep(wait)
        else:
            due = time.perf_counter()
        act()
        due += 1 / rate


def appended(wal: Appender, rows: pa.RecordBatch, count: int, rate: float) -> list[float]:
    """Seconds from `append` until its acknowledgement, for each append."""
    taken: list[float] = []

    def append() -> None:
        began = time.perf_counter()
        wal.append(rows).when_done(lambda: taken.append(time.perf_counter() - began))

    paced(count, rate, append)
    wal.flush()
    return taken


def put(bare: Bare, pool: ThreadPoolExecutor, count: int, rate: float) -> list[float]:
    """Seconds of each PUT at the same rate, in order, waiting for a thread included."""

    def one(began: float) -> float:
        bare.put()
        return time.perf_counter() - began

    futures: list[Any] = []
    paced(count, rate, lambda: futures.append(pool.submit(one, time.perf_counter())))
    return [future.result() for future in futures]


def in_order(seconds: Sequence[float], rate: float) -> list[float]:
    """Seconds until each of these requests and all before it are done."""
    ended = itertools.accumulate((n / rate + each for n, each in enumerate(seconds)), max)
    return [each - n / rate for n, each in enumerate(ended)]


def put_all(bare: Bare, threads: int, count: int) -> float:
    """Seconds for `count` PUTs by so many threads, each as fast as it can."""
    numbers = itertools.count()

    def work() -> None:
        while next(numbers) < count:
            bare.put()

    workers = [threading.Thread(target=work) for _ in range(threads)]
    began = time.perf_counter()
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return time.perf_counter() - began


def append_all(wal: Appender, rows: pa.RecordBatch, count: int) -> float:
    """Seconds for `count` records at full speed."""
    began = time.perf_counter()
    for _ in range(count):
        wal.append(rows)
    wal.flush()
    return time.perf_counter() - began


# The kinds that the testing proxy counts, as S3 charges for them; a COPY is one of PUT.
_CHARGED = {
    "PUT": "put",
    "CREATE_MULTIPART": "put",
    "UPLOAD_PART": "put",
    "COMPLETE_MULTIPART": "put",
    "LIST": "list",
    "GET": "get",
    "HEAD": "get",
    "OTHER": "get",
    "DELETE": "delete",
    "ABORT_MULTIPART": "delete",
}


def dollars(requests: Mapping[str, float]) -> float:
    """The default price of these requests, by the testing proxy's kinds."""
    return sum(price({_CHARGED[kind]: number}) for kind, number in requests.items())
