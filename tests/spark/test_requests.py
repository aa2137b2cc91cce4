"""The request budget, counted by a proxy in front of an S3 server."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery, StreamingQueryListener
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
)

from sparkwal.testing.proxy import S3Proxy
from tests.spark.queries import append, follow, numbers, values, wait_for

PARTITIONS = 3


@pytest.fixture
def log(s3_path: tuple[str, dict[str, str]], s3_proxy: S3Proxy) -> tuple[str, dict[str, str]]:
    path, options = s3_path
    return path, {**options, "endpoint": s3_proxy.url}


def counted(proxy: S3Proxy) -> Counter[str]:
    """Requests since the last look, without those of the one proof for each process."""
    counts = Counter(r.kind for r in proxy.requests if "/proof/" not in r.key)
    proxy.reset()
    return counts


@pytest.fixture
def feed(spark: SparkSession, tmp_path: Path) -> Iterator[Callable[..., StreamingQuery]]:
    """Starts a query over a folder of text files; `add` makes one microbatch of it."""
    queries: list[StreamingQuery] = []

    def begin(log: tuple[str, dict[str, str]], **more: str) -> StreamingQuery:
        path, options = log
        (tmp_path / "in").mkdir(exist_ok=True)
        lines = spark.readStream.text(str(tmp_path / "in"))
        rows = lines.selectExpr("cast(value as bigint) as value").where("value >= 0")
        query = (
            rows.repartition(PARTITIONS)
            .writeStream.format("weaselwal")
            .options(**options, **more)
            .option("checkpointLocation", str(tmp_path / "cp"))
            .start(path)
        )
        queries.append(query)
        return query

    yield begin
    for query in queries:
        query.stop()


def add(query: StreamingQuery, folder: Path, rows: range) -> None:
    """One microbatch of `rows`, committed when this returns."""
    lines = "".join(f"{value}\n" for value in rows)
    name = f"{len(list((folder / 'in').iterdir())):05d}.txt"
    temporary = folder / name
    temporary.write_text(lines)
    temporary.rename(folder / "in" / name)
    query.processAllAvailable()


def test_cold_warm_and_empty_microbatches_make_the_documented_requests(
    log: tuple[str, dict[str, str]],
    s3_proxy: S3Proxy,
    tmp_path: Path,
    feed: Callable[..., StreamingQuery],
) -> None:
    query = feed(log, inlineThreshold="0")
    add(query, tmp_path, range(0, 30))
    # A log that begins: a look whether the path is somebody else's, and two GETs that prove that
    # there is no log yet.
    assert counted(s3_proxy) == {"LIST": 2, "GET": 2, "PUT": 1 + PARTITIONS + 1}
    for first in (30, 60, 90):
        add(query, tmp_path, range(first, first + 30))
        assert counted(s3_proxy) == {"PUT": PARTITIONS + 1}
    add(query, tmp_path, range(-5, 0))
    assert counted(s3_proxy) == {}
    add(query, tmp_path, range(120, 121))
    assert counted(s3_proxy) == {"PUT": 1 + 1}
    query.stop()


def test_a_restarted_application_starts_cold_with_one_list_one_get_one_put(
    spark: SparkSession,
    log: tuple[str, dict[str, str]],
    s3_proxy: S3Proxy,
    tmp_path: Path,
) -> None:
    path, options = log
    options["inlineThreshold"] = "0"
    for _ in range(3):
        append(numbers(spark, 30, PARTITIONS), path, tmp_path / "cp", **options)
    counted(s3_proxy)
    # Another leader, as of a new application.
    append(numbers(spark, 30, PARTITIONS), path, tmp_path / "other", **options)
    assert counted(s3_proxy) == {"LIST": 1, "GET": 1, "PUT": 1 + PARTITIONS + 1}


def test_small_microbatches_are_one_put(
    log: tuple[str, dict[str, str]],
    s3_proxy: S3Proxy,
    tmp_path: Path,
    feed: Callable[..., StreamingQuery],
) -> None:
    query = feed(log)
    add(query, tmp_path, range(0, 30))
    counted(s3_proxy)
    for first in (30, 60):
        add(query, tmp_path, range(first, first + 30))
        assert counted(s3_proxy) == {"PUT": 1}


class Idle(StreamingQueryListener):
    """Counts the triggers that found nothing."""

    triggers = 0
    has_ended = False

    def onQueryStarted(self, event: QueryStartedEvent) -> None: ...

    def onQueryProgress(self, event: QueryProgressEvent) -> None: ...

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        self.triggers += 1

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        self.has_ended = True


@pytest.mark.parametrize(
    "more",
    [
        pytest.param({}, marks=pytest.mark.slow),
        {"consumer": "daily", "cursorInterval": "1ms"},
    ],
)
def test_an_idle_trigger_of_a_reader_costs_at_most_one_get(
    spark: SparkSession,
    log: tuple[str, dict[str, str]],
    s3_proxy: S3Proxy,
    tmp_path: Path,
    more: dict[str, str],
) -> None:
    path, options = log
    append(numbers(spark, 30, PARTITIONS), path, tmp_path / "cp", **options)
    interval, idle = "spark.sql.streaming.noDataProgressEventInterval", Idle()
    spark.conf.set(interval, "0")
    spark.streams.addListener(idle)
    batches, query = follow(spark, path, tmp_path / "cp-r", available_now=False, **options, **more)
    try:
        query.processAllAvailable()
        assert values(batches[0]) == list(range(30))
        wait_for(lambda: idle.triggers > 0)
        idle.triggers = 0
        counted(s3_proxy)
        # Spark reports a trigger some time after it.
        wait_for(lambda: idle.triggers >= 10 and s3_proxy.counts()["GET"] > 0)
        query.stop()
        wait_for(lambda: idle.has_ended)
        requests = counted(s3_proxy)
        assert requests.keys() == {"GET"}
        # One of them may belong to a trigger that did not end.
        assert requests["GET"] <= idle.triggers + 1
    finally:
        query.stop()
        spark.streams.removeListener(idle)
        spark.conf.unset(interval)
