"""Much data at once: throughput of writing and of reading, memory of the Python worker."""

from __future__ import annotations

import functools
import os
import shutil
import statistics
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.microbatch import reset, seen
from benchmarks.peers import PEERS, Place
from faults.processes import Process, processes, python_workers
from sparkwal.testing.servers import s3_client

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROW_BYTES = 106  # bytes of a row of `rows_of` in Arrow


def rows_of(spark: SparkSession, count: int, partitions: int) -> DataFrame:
    """Rows as events have them: numbers, a time, a text of which half repeats."""
    from pyspark.sql import functions as F

    return spark.range(0, count, 1, partitions).select(
        "id",
        (F.col("id") * 1.25).alias("v"),
        (F.col("id") % 1000).cast("int").alias("k"),
        F.timestamp_micros(F.lit(1_700_000_000_000_000) + F.col("id") * 1000).alias("t"),
        F.concat(
            F.lit("user-"),
            F.hash("id").cast("string"),
            F.lit("-some text that is the same in all rows-"),
            F.xxhash64("id").cast("string"),
        ).alias("s"),
    )


@contextmanager
def local_source(spark: SparkSession, count: int) -> Iterator[str]:
    """A folder on local disk with the rows as Parquet."""
    folder = tempfile.mkdtemp(prefix="sparkwal-benchmark-")
    try:
        rows_of(spark, count, 2).write.parquet(f"{folder}/rows")
        yield f"{folder}/rows"
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def write(spark: SparkSession, name: str, source: str, place: Place) -> float:
    """All rows of `source` as one microbatch; the seconds of its addBatch."""
    checkpoint = tempfile.mkdtemp(prefix="sparkwal-benchmark-")
    rows = spark.readStream.schema(spark.read.parquet(source).schema).parquet(source)
    try:
        query = (
            PEERS[name]
            .write(rows.writeStream, place)
            .option("checkpointLocation", checkpoint)
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        done = [p for p in query.recentProgress if p.numInputRows]
    finally:
        shutil.rmtree(checkpoint, ignore_errors=True)
    if len(done) != 1:
        raise RuntimeError(f"{name}: {len(done)} microbatches instead of one")
    return float(done[0].durationMs["addBatch"]) / 1000


def read(load: Callable[[], DataFrame]) -> float:
    """All rows into Spark's own no-op sink; seconds, finding the schema included."""
    begin = time.perf_counter()
    load().write.format("noop").mode("overwrite").save()
    return time.perf_counter() - begin


def stored(place: Place) -> int:
    """Bytes of all objects there."""
    return sum(size for _, size in _objects(place))


def remove(place: Place) -> None:
    """Delete everything there: the server keeps it in memory."""
    client = s3_client(place.endpoint)
    for key, _ in _objects(place):
        client.delete_object(Bucket=place.bucket, Key=key)


def _objects(place: Place) -> list[tuple[str, int]]:
    pages = s3_client(place.endpoint).get_paginator("list_objects_v2")
    found = pages.paginate(Bucket=place.bucket, Prefix=f"{place.key}/")
    return [(x["Key"], x["Size"]) for page in found for x in page.get("Contents", [])]


def measure_write(
    spark: SparkSession,
    names: Sequence[str],
    new_place: Callable[[], Place],
    source: str,
    repeats: int,
    report: Callable[[str], None],
) -> dict[str, Any]:
    """All peers in turns."""
    sizes: dict[str, int] = {}

    def run(name: str) -> float:
        place = PEERS[name].at(new_place())
        seconds = write(spark, name, source, place)
        sizes[name] = stored(place)
        remove(place)
        return seconds

    runs = {name: functools.partial(run, name) for name in names}
    taken = _in_turns("bulk write", runs, repeats, report)
    return {name: _summary(x) | {"stored_bytes": sizes[name]} for name, x in taken.items()}


def measure_read(
    spark: SparkSession,
    names: Sequence[str],
    new_place: Callable[[], Place],
    source: str,
    repeats: int,
    report: Callable[[str], None],
) -> dict[str, Any]:
    """Each peer reads its own rows, in turns, beside a source with nothing to do."""
    places: list[Place] = []
    runs: dict[str, Callable[[], float]] = {}
    rows = spark.read.parquet(source)
    for name in names:
        reader = PEERS[name].read
        if name == "noop":
            idle = spark.read.format("python-noop").schema(rows.schema).option("rows", rows.count())
            runs[name] = functools.partial(read, idle.load)
        elif reader is not None:
            places.append(place := PEERS[name].at(new_place()))
            write(spark, name, source, place)
            runs[name] = functools.partial(read, functools.partial(reader, spark, place))
    taken = _in_turns("bulk read", runs, repeats, report)
    for place in places:
        remove(place)
    return {name: _summary(x) for name, x in taken.items()}


def _in_turns(
    what: str,
    runs: Mapping[str, Callable[[], float]],
    repeats: int,
    report: Callable[[str], None],
) -> dict[str, list[float]]:
    """Seconds of each run; the first turn warms up and does not count."""
    taken: dict[str, list[float]] = defaultdict(list)
    for turn in range(repeats + 1):
        for name, run in runs.items():
            seconds = run()
            report(f"{what}, {turn}/{repeats}, {PEERS[name].title}: {seconds:.2f} s")
            if turn:
                taken[name].append(seconds)
    return taken


def _summary(seconds: Sequence[float]) -> dict[str, Any]:
    return {
        "seconds": round(statistics.median(seconds), 3),
        "runs": [round(x, 3) for x in seconds],
    }


def measure_memory(
    spark: SparkSession, place: Place, slow: Place | None, size: int
) -> dict[str, Any]:
    """`size` bytes of Arrow through one partition: peak resident memory of Python's workers over
    that of one that wrote a few rows into the no-op sink, and whether parts are uploaded while
    the next is encoded.

    To be called before anything else made workers grow.

    Args:
        slow: through a proxy that adds latency; the same rows again, counted part by part.
    """
    rows_of(spark, 1000, 1).write.format("python-noop").mode("append").save()
    idle = max(_peak_rss(pid) for pid in _workers())
    rows = rows_of(spark, size // ROW_BYTES, 1)
    highest: dict[str, int] = {}
    stop = threading.Event()

    def watch() -> None:
        while not stop.wait(0.05):
            for pid in _workers():
                highest["peak"] = max(highest.get("peak", 0), _peak_rss(pid))

    def write_to(place: Place) -> tuple[float, int]:
        begin = time.perf_counter()
        rows.write.format("weaselwal").mode("append").options(**place.options).save(place.s3)
        seconds = time.perf_counter() - begin
        bytes_stored = stored(place)
        remove(place)
        return seconds, bytes_stored

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        write_to(place)
        seconds, bytes_stored = write_to(place)
        uploads: dict[str, Any] = {}
        if slow is not None:
            reset(slow.endpoint)
            slowly, _ = write_to(slow)
            parts = [x["seconds"] for x in seen(slow.endpoint) if x["kind"] == "UPLOAD_PART"]
            uploads = {
                "parts": len(parts),
                "parts_seconds": round(sum(parts), 2),
                "slow_seconds": round(slowly, 2),
            }
    finally:
        stop.set()
        watcher.join()
    return {
        "arrow_bytes": size // ROW_BYTES * ROW_BYTES,
        "stored_bytes": bytes_stored,
        "idle_rss_mb": round(idle / 1e6, 1),
        "peak_rss_mb": round(highest["peak"] / 1e6, 1),
        "above_idle_mb": round((highest["peak"] - idle) / 1e6, 1),
        "seconds": round(seconds, 2),
        **uploads,
    }


def _workers() -> list[int]:
    """Python's workers of this process."""
    return python_workers(family())


def family() -> list[Process]:
    """This process and those that it started."""
    found = {p.pid: p for p in processes()}
    ours = {os.getpid()}
    while more := {p.pid for p in found.values() if p.parent in ours} - ours:
        ours |= more
    return [found[pid] for pid in ours]


def _peak_rss(pid: int) -> int:
    """The peak memory of a process in bytes; 0 after its end."""
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return 0
