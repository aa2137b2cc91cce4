"""Small microbatches: requests of each, and how long the sink takes for one."""

from __future__ import annotations

import json
import shutil
import statistics
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from types import MappingProxyType
from typing import TYPE_CHECKING, Any
from urllib.request import Request, urlopen

from benchmarks.measuring import Bare, dollars, latency
from benchmarks.peers import PEERS, Place

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.listener import StreamingQueryProgress

ROWS = 1000
PARTITIONS = 2
# One data object of such a microbatch.
PUT_BYTES = 8192


@dataclass(frozen=True)
class Length:
    """How long one query is measured.

    Attributes:
        warm: microbatches that do not count: they open connections and load classes.
        measured: how many count, at most.
        seconds: after so many no more are waited for, once `least` were measured.
    """

    warm: int = 5
    measured: int = 40
    least: int = 8
    seconds: float = 15.0


@dataclass(frozen=True)
class Run:
    """One query: Spark's durations of each microbatch, in milliseconds by their names, and all
    requests that belong to them."""

    durations: list[Mapping[str, int]]
    requests: Counter[str]

    def ms(self, name: str) -> list[float]:
        return [float(each.get(name, 0)) for each in self.durations]

    @property
    def add_batch_ms(self) -> list[float]:
        return self.ms("addBatch")

    @property
    def trigger_ms(self) -> list[float]:
        return self.ms("triggerExecution")


def reset(proxy: str) -> None:
    """Forget what the proxy at this URL has counted."""
    urlopen(Request(f"{proxy}/__reset", b"")).close()


def seen(proxy: str) -> list[dict[str, Any]]:
    """The requests that the proxy at this URL saw."""
    with urlopen(f"{proxy}/__requests") as answer:
        found: list[dict[str, Any]] = json.load(answer)
    return found


def run_query(
    spark: SparkSession,
    name: str,
    place: Place,
    length: Length,
    *,
    checkpoint: str | None = None,
    conf: Mapping[str, str] = MappingProxyType({}),
    change: Callable[[DataFrame], DataFrame] | None = None,
) -> Run:
    """Run one peer's query, whose time is only the sink's.

    Args:
        checkpoint: its folder or URL; a new folder on this machine if None, and on S3 where the
            peer needs S3A.
        conf: settings of Spark, beside the peer's own.
        change: makes of the rows those that are written.
    """
    folder = tempfile.mkdtemp(prefix="sparkwal-benchmark-")
    rows = (
        spark.readStream.format("rate-micro-batch")
        .options(rowsPerBatch=ROWS, numPartitions=PARTITIONS)
        .load()
    )
    reset(place.endpoint)
    peer = PEERS[name]
    place = peer.at(place)
    if checkpoint is None:
        checkpoint = f"{place.s3a}-checkpoint" if peer.jvm else folder
    writer = peer.write((change(rows) if change else rows).writeStream, place)
    # A query keeps the settings that it began with.
    conf = {**peer.conf, **conf}
    for key, value in conf.items():
        spark.conf.set(key, value)
    query = writer.option("checkpointLocation", checkpoint).start()
    for key in conf:
        spark.conf.unset(key)
    begun = time.monotonic()
    try:
        while True:
            # Seldom, and at the last progress alone: each look costs the machine something.
            time.sleep(0.25)
            failed = query.exception()
            if failed is not None:
                raise failed
            last = query.lastProgress
            # The last shows only when the one before it ended.
            measured = last.batchId - length.warm if last is not None else 0
            late = time.monotonic() - begun > length.seconds
            if measured >= length.measured or (late and measured >= length.least):
                break
        done = [p for p in query.recentProgress if p.numInputRows]
        measured = min(len(done) - length.warm - 1, length.measured)
    finally:
        query.stop()
        shutil.rmtree(folder, ignore_errors=True)
    counted = done[length.warm : length.warm + measured]
    begin, end = started(counted[0]), started(done[length.warm + measured])
    requests = Counter(r["kind"] for r in seen(place.endpoint) if begin <= r["started"] < end)
    return Run([p.durationMs for p in counted], requests)


def started(progress: StreamingQueryProgress) -> float:
    """When the microbatch began, in seconds since 1970."""
    return datetime.fromisoformat(progress.timestamp).timestamp()


def warm_up(spark: SparkSession, names: Sequence[str], place: Callable[[], Place]) -> None:
    """Each peer once: the first query of a JVM shows how it loads its classes."""
    for name in names:
        run_query(spark, name, place(), Length(warm=0, measured=5, least=1, seconds=10))


def measure(
    spark: SparkSession,
    names: Sequence[str],
    place: Callable[[], Place],
    latency_ms: int,
    repeats: int,
    length: Length,
    report: Callable[[str], None],
) -> dict[str, Any]:
    """All peers in turns with one added latency, and the store's own conditional PUT.

    Args:
        place: makes a new one with a proxy of that latency before it.
    """
    runs: dict[str, list[Run]] = defaultdict(list)
    puts: list[float] = []
    bare = Bare(place().endpoint, 1, b"x" * PUT_BYTES)
    bare.put()
    for turn in range(repeats):
        for name in names:
            run = run_query(spark, name, place(), length)
            runs[name].append(run)
            report(
                f"+{latency_ms} ms, {turn + 1}/{repeats}, {PEERS[name].title}: "
                f"{statistics.median(run.add_batch_ms):.0f} ms, "
                f"{sum(run.requests.values()) / len(run.add_batch_ms):.1f} requests"
            )
            puts += seldom_puts(bare, 20)
    return {
        "latency_ms": latency_ms,
        "put_ms": vars(latency(puts)),
        "peers": {name: _summary(found) for name, found in runs.items()},
    }


def seldom_puts(bare: Bare, count: int) -> list[float]:
    """Seconds of each of `count` PUTs with pauses like those between microbatches.

    A store answers sooner shortly after another request.
    """
    taken = []
    for _ in range(count):
        time.sleep(0.1)
        begin = time.perf_counter()
        bare.put()
        taken.append(time.perf_counter() - begin)
    return taken


def requests_of(runs: Sequence[Run]) -> dict[str, Any]:
    """The requests of one microbatch, and their price."""
    batches = sum(len(run.add_batch_ms) for run in runs)
    requests: Counter[str] = sum((run.requests for run in runs), Counter())
    each: Mapping[str, float] = {k: round(v / batches, 3) for k, v in sorted(requests.items())}
    return {
        "microbatches": batches,
        "requests": each,
        "requests_per_microbatch": round(sum(requests.values()) / batches, 2),
        "dollars_per_million": round(dollars(each) * 1e6, 2),
    }


def _summary(runs: Sequence[Run]) -> dict[str, Any]:
    everything = latency([ms / 1000 for run in runs for ms in run.add_batch_ms])
    medians = [statistics.median(run.add_batch_ms) for run in runs]
    return {
        # The median of the runs' medians; p99 is over all microbatches.
        "add_batch_p50_ms": round(statistics.median(medians), 1),
        "add_batch_p99_ms": everything.p99,
        "medians_ms": medians,
        **requests_of(runs),
    }
